"""Find the GPU of this process through the driver (NVML), or the reason why there is none."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shortlist.contracts import ShortlistError

if TYPE_CHECKING:
    from collections.abc import Iterator

_DRIVER: Final = 580
"""Oldest driver that runs CUDA 13, for which everything in requirements/gpu.txt is built (CUDA 13.0 release notes)."""
_CAPABILITY: Final = (7, 5)
"""Oldest architecture, Turing: CUDA 13 and RAPIDS for CUDA 13 leave Volta out (RAPIDS platform support, 26.06)."""
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class EngineError(ShortlistError):
    """The declared engine is not available, or failed."""


class NoDeviceError(EngineError):
    """There is no GPU that this process can use.

    Attributes:
        reason: Why, without the next step.
    """

    def __init__(self, reason: str, next_step: str) -> None:
        super().__init__(f"{reason}. {next_step}, or declare runtime.engine: cpu (docs/gpu.md).")
        self.reason = reason


@dataclass(frozen=True)
class Device:
    """A GPU, or a MIG instance of one.

    Attributes:
        name: Product name.
        driver: Version of the NVIDIA driver, e.g. `580.65.06`.
        capability: Compute capability, major and minor.
        free_bytes: Free device memory.
        total_bytes: Total device memory.
    """

    name: str
    driver: str
    capability: tuple[int, int]
    free_bytes: int
    total_bytes: int

    @property
    def facts(self) -> dict[str, Any]:
        """The device's entries in records and reports."""
        return {"device": self.name, "driver": self.driver, "device_mib": self.total_bytes >> 20}


def find_device() -> Device:
    """Return the first GPU that is visible to this process.

    Raises:
        NoDeviceError: There is none, or its driver or architecture is too old.
    """
    with _nvml() as nvml:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        if int(driver.partition(".")[0]) < _DRIVER:
            raise NoDeviceError(
                f"the NVIDIA driver is {driver}, and CUDA 13 wants {_DRIVER} or later", "Update the driver"
            )
        handle, gpu_handle = _visible_device_handles(nvml)
        name = _text(nvml.nvmlDeviceGetName(gpu_handle))
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(gpu_handle)
        if (major, minor) < _CAPABILITY:
            raise NoDeviceError(
                f"{name} has compute capability {major}.{minor}, and CUDA 13 wants"
                f" {_CAPABILITY[0]}.{_CAPABILITY[1]} (Turing) or later",
                "Choose a newer GPU",
            )
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return Device(name, driver, (major, minor), int(memory.free), int(memory.total))


def no_gpu_reason() -> NoDeviceError | None:
    """Return why there is no GPU to use; None when there is one."""
    try:
        find_device()
    except NoDeviceError as error:
        return error
    return None


@contextmanager
def _nvml() -> Iterator[Any]:
    """Yield the initialised NVML module; its errors are raised as NoDeviceError."""
    try:
        import pynvml
    except ImportError:
        raise NoDeviceError("the package nvidia-ml-py is not installed", "Install requirements/gpu.txt") from None
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise _no_device_error(pynvml, error) from None


def _no_device_error(nvml: Any, error: Exception) -> NoDeviceError:
    """Return an NVML error as a NoDeviceError with its next step."""
    match error:
        case nvml.NVMLError_LibraryNotFound():
            reason, next_step = "no NVIDIA driver is installed", "Install one (a container also needs --gpus all)"
        case nvml.NVMLError_DriverNotLoaded():
            reason, next_step = "the NVIDIA driver is installed and not loaded", "See what nvidia-smi says"
        case nvml.NVMLError_LibRmVersionMismatch():
            reason, next_step = "the NVIDIA driver was updated while the old one is loaded", "Reboot"
        case nvml.NVMLError_NoPermission():
            reason, next_step = "this user may not use the GPU", "Look who may use /dev/nvidia*"
        case nvml.NVMLError_GpuIsLost():
            reason, next_step = "the GPU has fallen off the bus", "Reset it or reboot"
        case _:
            reason, next_step = f"the NVIDIA driver refuses: {error}", "See what nvidia-smi says"
    return NoDeviceError(reason, next_step)


def _visible_device_handles(nvml: Any) -> tuple[Any, Any]:
    """Return the handles of the first visible device and of its GPU, which differ for a MIG instance."""
    count = nvml.nvmlDeviceGetCount()
    if count == 0:
        raise NoDeviceError("there is no NVIDIA GPU in this machine", "Use one that has")
    visible = os.environ.get(_VISIBLE)
    first_visible = "0" if visible is None else visible.split(",")[0].strip()
    if first_visible in ("", "-1", "NoDevFiles"):
        raise NoDeviceError(f"{_VISIBLE}={visible!r} hides every GPU", "Unset it")
    if not first_visible.isdigit():
        handle = nvml.nvmlDeviceGetHandleByUUID(first_visible)
        if nvml.nvmlDeviceIsMigDeviceHandle(handle):
            return handle, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    elif int(first_visible) < count:
        handle = nvml.nvmlDeviceGetHandleByIndex(int(first_visible))
    else:
        raise NoDeviceError(
            f"{_VISIBLE}={visible} names GPU {first_visible}, and there are {count}, from 0 on", "Name one of them"
        )
    return _instance(nvml, handle), handle


def _instance(nvml: Any, whole: Any) -> Any:
    """Return the GPU itself, or with MIG enabled its first instance, which is the one that CUDA uses."""
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(whole)
    except nvml.NVMLError_NotSupported:
        return whole
    if current != nvml.NVML_DEVICE_MIG_ENABLE:
        return whole
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(whole)):
        try:
            return nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, number)
        except nvml.NVMLError_NotFound:
            continue
    raise NoDeviceError("MIG is on and the GPU holds no instance", "Make one (nvidia-smi mig -cgi PROFILE -C)")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
