"""The device that a model is trained on, chosen by the declared engine."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from shortlist.system.accelerator import EngineError, find_device
from shortlist.system.execution import EXECUTION
from shortlist.system.query_engine import Engine


def torch_device(engine: Engine) -> str:
    """Return "cuda" or "cpu" for torch.

    Raises:
        EngineError: `gpu` is declared and torch sees none; the message says what is missing or too old.
    """
    import torch

    return choose_device(engine, torch.cuda.is_available, "torch sees no CUDA device")


def choose_device(engine: Engine, is_available: Callable[[], bool], reason: str) -> str:
    """Return "cuda" or "cpu", and record it as the device of this step.

    Args:
        engine: The declared engine.
        is_available: Returns whether a library can use a GPU; called only where the engine allows one.
        reason: Why the library cannot, for the message.

    Raises:
        EngineError: `gpu` is declared and there is none.
    """
    # NVML first: with an old driver, torch only reports that there is no device, and warns.
    has_nvml = find_spec("pynvml") is not None
    if engine == "gpu" and has_nvml:
        find_device()
    cuda = engine != "cpu" and is_available()
    if engine == "gpu" and not cuda:
        raise EngineError(
            f"runtime.engine is gpu, but {reason}. Install requirements/gpu.txt on a machine with an NVIDIA GPU,"
            " or declare engine: auto or cpu."
        )
    EXECUTION.set_engine("gpu" if cuda else "cpu", **(find_device().facts if cuda and has_nvml else {}))
    return "cuda" if cuda else "cpu"
