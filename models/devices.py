"""Where a model is trained: the declared engine, turned into a device of each library."""

from __future__ import annotations

from shortlist.frames import Engine, EngineError


def torch_device(engine: Engine) -> str:
    """Return "cuda" or "cpu" for torch.

    Raises:
        EngineError: `gpu` is declared and torch sees none.
    """
    import torch

    return _choose(engine, torch.cuda.is_available(), "torch sees no CUDA device")


def xgboost_device(engine: Engine) -> str:
    """Return "cuda" or "cpu" for XGBoost.

    Raises:
        EngineError: `gpu` is declared, and XGBoost is built without CUDA or there is no device.
    """
    if engine == "cpu":
        return "cpu"
    import torch
    import xgboost

    if not xgboost.build_info()["USE_CUDA"]:
        return _choose(engine, False, "this XGBoost is built without CUDA")
    return _choose(engine, torch.cuda.is_available(), "no CUDA device is visible")


def _choose(engine: Engine, there_is_one: bool, reason: str) -> str:
    if engine == "gpu" and not there_is_one:
        raise EngineError(
            f"runtime.engine is gpu, but {reason}. Install requirements/gpu.txt on a machine with an NVIDIA GPU,"
            " or declare engine: auto or cpu."
        )
    return "cuda" if there_is_one and engine != "cpu" else "cpu"
