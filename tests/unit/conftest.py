"""Fake NVML of a machine with GPUs, for machines without any."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

MIB = 2**20
ERRORS = (
    "NotSupported", "NotFound", "LibraryNotFound", "DriverNotLoaded", "LibRmVersionMismatch", "NoPermission",
    "GpuIsLost", "Unknown",
)  # fmt: skip


@dataclass
class Gpu:
    """A GPU, or one of its MIG instances."""

    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)
    total_mib: int = 143_771
    free_mib: int = 143_000
    uuid: str = "GPU-0"
    mig: bool | None = None
    """Whether MIG is enabled; None: not supported."""
    parts: list[Gpu] = field(default_factory=list)


def nvml_of(gpus: list[Gpu], driver: str, fails: str) -> ModuleType:
    """Return a fake of the module `pynvml` on a machine with these GPUs."""
    base = type("NVMLError", (Exception,), {})
    errors = {f"NVMLError_{name}": type(f"NVMLError_{name}", (base,), {}) for name in ERRORS}
    parts = [part for gpu in gpus for part in gpu.parts]

    def refuse(name: str) -> Any:
        raise errors[f"NVMLError_{name}"]("says NVML")

    def by_uuid(uuid: str) -> Gpu:
        return next((gpu for gpu in [*gpus, *parts] if gpu.uuid == uuid), None) or refuse("NotFound")

    def part(gpu: Gpu, number: int) -> Gpu:
        return gpu.parts[number] if number < len(gpu.parts) else refuse("NotFound")

    nvml = ModuleType("pynvml")
    nvml.__spec__ = ModuleSpec("pynvml", None)
    vars(nvml).update(
        NVMLError=base, **errors, NVML_DEVICE_MIG_ENABLE=1,
        nvmlInit=lambda: refuse(fails) if fails else None, nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: driver, nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=gpus.__getitem__, nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetName=lambda gpu: gpu.name, nvmlDeviceGetCudaComputeCapability=lambda gpu: gpu.capability,
        nvmlDeviceGetMemoryInfo=lambda gpu: SimpleNamespace(free=gpu.free_mib * MIB, total=gpu.total_mib * MIB),
        nvmlDeviceIsMigDeviceHandle=lambda gpu: gpu in parts,
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda mig: next(gpu for gpu in gpus if mig in gpu.parts),
        nvmlDeviceGetMigMode=lambda gpu: refuse("NotSupported") if gpu.mig is None else (int(gpu.mig), int(gpu.mig)),
        nvmlDeviceGetMaxMigDeviceCount=lambda gpu: 7, nvmlDeviceGetMigDeviceHandleByIndex=part,
    )  # fmt: skip
    return nvml


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return machine(*gpus, driver=, fails=, visible=), which sets the process's GPUs (each the keywords of `Gpu`)."""

    def set_gpus(
        *gpus: dict[str, Any], driver: str = "580.65.06", fails: str = "", visible: str | None = None
    ) -> None:  # fmt: skip
        machine_gpus = [Gpu(**{**gpu, "parts": [Gpu(**part) for part in gpu.get("parts", ())]}) for gpu in gpus]
        monkeypatch.setitem(sys.modules, "pynvml", nvml_of(machine_gpus, driver, fails))
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return set_gpus
