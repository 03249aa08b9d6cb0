"""Training runs on the declared device, or names the missing requirement; the record of the step names the device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from models.xgboost.device import xgboost_device
from shortlist.ranking.devices import torch_device
from shortlist.system.execution import EXECUTION
from shortlist.system.query_engine import EngineError

Machine = Callable[..., None]
H200 = {"name": "NVIDIA H200", "total_mib": 143_771}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    EXECUTION.clear()
    yield
    EXECUTION.clear()


def torch_sees(monkeypatch: pytest.MonkeyPatch, *, a_device: bool) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: a_device)
    monkeypatch.setattr("xgboost.build_info", lambda: {"USE_CUDA": a_device})


@pytest.mark.parametrize("engine", ["auto", "gpu"])
def test_a_gpu_that_is_there_is_taken_and_named(engine: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(H200)
    torch_sees(monkeypatch, a_device=True)
    assert torch_device(engine) == xgboost_device(engine) == "cuda"
    expected = {"name": "gpu", "device": "NVIDIA H200", "driver": "580.65.06", "device_mib": 143_771}
    assert EXECUTION.record() == expected


def test_a_gpu_is_left_alone_where_the_cpu_is_declared(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(H200)
    torch_sees(monkeypatch, a_device=True)
    assert torch_device("cpu") == xgboost_device("cpu") == "cpu"


def test_of_an_old_driver_the_driver_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(H200, driver="535.183.01")
    torch_sees(monkeypatch, a_device=False)  # the whole message of torch
    with pytest.raises(EngineError, match=r"the NVIDIA driver is 535\.183\.01, and CUDA 13 wants 580 or later"):
        torch_device("gpu")
    assert torch_device("auto") == "cpu"
    assert EXECUTION.record() == {"name": "cpu"}


def test_a_library_built_without_cuda_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(H200)
    torch_sees(monkeypatch, a_device=False)
    with pytest.raises(EngineError, match=r"runtime\.engine is gpu, but this XGBoost is built without CUDA\. Install"):
        xgboost_device("gpu")
    with pytest.raises(EngineError, match=r"runtime\.engine is gpu, but torch sees no CUDA device\. Install"):
        torch_device("gpu")


def test_a_gpu_is_taken_without_the_package_that_asks_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("shortlist.ranking.devices.find_spec", lambda _: None)
    torch_sees(monkeypatch, a_device=True)
    assert torch_device("gpu") == "cuda"
    assert EXECUTION.record() == {"name": "gpu"}
