"""Where a model is trained: the declared engine, turned into a device of each library."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from shortlist.system.accelerator import EngineError, device
from shortlist.system.execution import EXECUTION
from shortlist.system.query_engine import Engine


def torch_device(engine: Engine) -> str:
    """Return "cuda" or "cpu" for torch.

    Raises:
        EngineError: `gpu` is declared and torch sees none; says what is missing or too old.
    """
    import torch

    return choose(engine, torch.cuda.is_available, "torch sees no CUDA device")


def choose(engine: Engine, there_is_one: Callable[[], bool], reason: str) -> str:
    """Return "cuda" or "cpu", and note it as what this step runs on.

    Args:
        engine: As declared.
        there_is_one: Whether a library can use a GPU; asked only where it may.
        reason: What to say where it cannot.

    Raises:
        EngineError: `gpu` is declared and there is none.
    """
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
