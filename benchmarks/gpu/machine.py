"""The GPU that figures come from, by name, driver and libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from benchmarks.bench import hardware
from shortlist.system.accelerator import EngineError, find_device

RESULTS: Final = Path(__file__).parents[1] / "results" / "gpu.json"
NO_GPU: Final = (
    "benchmarks.gpu: torch sees no CUDA device here, so nothing was measured. Run make bench NAME=gpu on a machine with"
    " an NVIDIA GPU and requirements/gpu.txt, or at toy size: python -m benchmarks.gpu --device cpu --small"
)


def gpu_hardware() -> str:
    """Return the GPU's name, driver, torch with its CUDA, and the host."""
    name = torch.cuda.get_device_name()
    return f"{name}, driver {_driver()}, torch {torch.__version__}, CUDA {torch.version.cuda}; {hardware()}"


def _driver() -> str:
    try:
        return find_device().driver
    except EngineError:  # torch works with older drivers, and without NVML
        return "unknown"
