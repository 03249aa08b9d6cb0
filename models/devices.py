"""Where a model is trained: the declared engine, turned into a device of each library."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from shortlist.accelerator import EngineError, device
from shortlist.execution import EXECUTION
from shortlist.frames import Engine


def torch_device(engine: Engine) -> str:
    """Return "cuda" or "cpu" for torch.

    Raises:
        EngineError: `gpu` is declared and torch sees none; says what is missing or too old.
    """
    import torch

    return _choose(engine, torch.cuda.is_available, "torch sees no CUDA device")


def xgboost_device(engine: Engine) -> str:
    """Return "cuda" or "cpu" for XGBoost.

    Raises:
        EngineError: `gpu` is declared, and XGBoost is built without CUDA or there is no device.
    """
    if engine == "cpu":
        EXECUTION.runs_on("cpu")
        return "cpu"
    import xgboost

    if not xgboost.build_info()["USE_CUDA"]:
        return _choose(engine, lambda: False, "this XGBoost is built without CUDA")
    import torch

    return _choose(engine, torch.cuda.is_available, "no CUDA device is visible")


def _choose(engine: Engine, there_is_one: Callable[[], bool], reason: str) -> str:
    # NVML first: of an old driver torch only says that there is no device, and warns.
    known = find_spec("pynvml") is not None
    if engine == "gpu" and known:
        device()
    cuda = engine != "cpu" and there_is_one()
    if engine == "gpu" and not cuda:
        raise EngineError(
            f"runtime.engine is gpu, but {reason}. Install requirements/gpu.txt on a machine with an NVIDIA GPU,"
            " or declare engine: auto or cpu."
        )
    EXECUTION.runs_on("gpu" if cuda else "cpu", **(device().facts if cuda and known else {}))
    return "cuda" if cuda else "cpu"
