"""The driver's answers become a device, or an error with the reason and the next step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from shortlist.system.accelerator import EngineError, NoDeviceError, find_device, no_gpu_reason

Machine = Callable[..., None]
H200 = {"name": "NVIDIA H200"}
MIB = 2**20


def test_a_gpu_is_found_with_its_driver_and_memory(machine: Machine) -> None:
    machine({**H200, "total_mib": 143_771, "free_mib": 100_000})
    gpu = find_device()
    assert (gpu.name, gpu.driver, gpu.capability) == ("NVIDIA H200", "580.65.06", (9, 0))
    assert (gpu.free_bytes, gpu.total_bytes) == (100_000 * MIB, 143_771 * MIB)
    assert gpu.facts == {"device": "NVIDIA H200", "driver": "580.65.06", "device_mib": 143_771}
    assert no_gpu_reason() is None


@pytest.mark.parametrize(
    ("gpus", "machine_options", "message"),
    [
        ([], {}, "there is no NVIDIA GPU in this machine"),
        ([H200], {"driver": "550.54.14"}, r"the NVIDIA driver is 550\.54\.14, and CUDA 13 wants 580 or later\. Update"),
        ([{"name": "V100", "capability": (7, 0)}], {}, r"V100 has compute capability 7\.0, .* 7\.5 \(Turing\)"),
        ([H200], {"visible": ""}, "CUDA_VISIBLE_DEVICES='' hides every GPU. Unset it"),
        ([H200], {"visible": "-1"}, "CUDA_VISIBLE_DEVICES='-1' hides every GPU"),
        ([H200], {"visible": "1"}, "CUDA_VISIBLE_DEVICES=1 names GPU 1, and there are 1, from 0 on"),
        ([H200], {"visible": "GPU-9"}, "the NVIDIA driver refuses: says NVML"),
        ([{**H200, "mig": True}], {}, "MIG is on and the GPU holds no instance. Make one .nvidia-smi mig"),
        ([H200], {"fails": "LibraryNotFound"}, "no NVIDIA driver is installed. Install one .*--gpus all"),
        ([H200], {"fails": "DriverNotLoaded"}, "installed and not loaded. See what nvidia-smi says"),
        ([H200], {"fails": "LibRmVersionMismatch"}, "was updated while the old one is loaded. Reboot"),
        ([H200], {"fails": "NoPermission"}, "this user may not use the GPU"),
        ([H200], {"fails": "GpuIsLost"}, "has fallen off the bus"),
        ([H200], {"fails": "Unknown"}, "the NVIDIA driver refuses: says NVML. See what nvidia-smi says"),
    ],
)  # fmt: skip
def test_a_missing_or_old_gpu_is_refused_with_the_reason(
    gpus: list[dict[str, Any]], machine_options: dict[str, str], message: str, machine: Machine
) -> None:
    machine(*gpus, **machine_options)
    with pytest.raises(EngineError, match=rf"{message}.*or declare runtime\.engine: cpu"):
        find_device()
    assert no_gpu_reason() is not None


def test_the_oldest_supported_gpu_is_accepted(machine: Machine) -> None:
    machine({"name": "Tesla T4", "capability": (7, 5)}, driver="580.0")
    assert find_device().name == "Tesla T4"


def test_the_first_visible_gpu_is_the_device(machine: Machine) -> None:
    machine({"name": "first"}, {"name": "second", "uuid": "GPU-1"}, visible="1,0")
    assert find_device().name == "second"
    machine({"name": "first"}, {"name": "second", "uuid": "GPU-1"}, visible="GPU-1")
    assert find_device().name == "second"


@pytest.mark.parametrize("visible", [None, "MIG-1"])
def test_a_mig_instance_has_its_own_memory_and_the_name_of_its_gpu(machine: Machine, visible: str | None) -> None:
    machine(
        {**H200, "mig": True, "parts": [{"uuid": "MIG-1", "total_mib": 16_384, "free_mib": 16_000}]}, visible=visible
    )
    part = find_device()
    assert (part.name, part.free_bytes, part.total_bytes) == ("NVIDIA H200", 16_000 * MIB, 16_384 * MIB)


def test_a_missing_nvml_package_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NoDeviceError, match=r"nvidia-ml-py is not installed\. Install requirements/gpu\.txt, or"):
        find_device()
