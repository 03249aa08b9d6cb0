"""The device that XGBoost trains on, by the declared engine."""

from __future__ import annotations

from shortlist.ranking.devices import choose_device
from shortlist.system.execution import EXECUTION
from shortlist.system.query_engine import Engine


def xgboost_device(engine: Engine) -> str:
    """Return "cuda" or "cpu" for XGBoost.

    Raises:
        EngineError: `gpu` is declared, and XGBoost is built without CUDA or there is no device.
    """
    if engine == "cpu":
        EXECUTION.set_engine("cpu")
        return "cpu"
    import xgboost

    if not xgboost.build_info()["USE_CUDA"]:
        return choose_device(engine, lambda: False, "this XGBoost is built without CUDA")
    import torch

    return choose_device(engine, torch.cuda.is_available, "no CUDA device is visible")
