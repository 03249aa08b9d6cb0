"""The declared engine runs the query, or the user is told why it cannot."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import polars as pl
import pytest

from shortlist.spec.engine import load_runtime
from shortlist.spec.runtime import Gpu, Runtime
from shortlist.system import query_engine as frames
from shortlist.system.execution import EXECUTION
from shortlist.system.query_engine import EngineError, collect, collect_all, prepare_engine, resolve_engine

Machine = Callable[..., None]
QUERY = pl.LazyFrame({"a": [1, 2]}).select(pl.col("a").sum())


@dataclass
class CudfPolars:
    """cudf-polars at its border: Polars hands it the optimised plan, and it takes the plan over or raises."""

    refuses: list[str] = field(default_factory=list)
    raises: Exception | None = None
    while_running: Exception | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)

    def execute_with_cudf(self, plan: Any, _: int | None, *, config: pl.GPUEngine) -> None:
        self.calls.append(dict(config.config))
        if self.raises:
            raise self.raises
        if self.refuses:
            errors = [NotImplementedError(reason) for reason in self.refuses]
            error_lines = "\n".join(f"- NotImplementedError: {error}" for error in errors)
            message = f"Query execution with GPU not possible: unsupported operations.\nThe errors were:\n{error_lines}"
            raise NotImplementedError(message, errors)

        def on_device(*_: Any) -> pl.DataFrame:
            if self.while_running:
                raise self.while_running
            return pl.DataFrame({"a": [-1]})  # what no CPU would answer

        plan.set_udf(on_device)


@pytest.fixture
def cudf_polars(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudfPolars]:
    """A machine with a GPU and cudf-polars."""
    machine({"name": "NVIDIA H200", "total_mib": 143_771, "free_mib": 100_000})
    fake_cudf = CudfPolars()
    names = ["cudf_polars", "cudf_polars.utils", "cudf_polars.utils.config"]
    modules = {name: ModuleType(name) for name in names}
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    vars(modules["cudf_polars"])["execute_with_cudf"] = fake_cudf.execute_with_cudf
    vars(modules["cudf_polars.utils.config"])["MemoryResourceConfig"] = lambda *arguments: arguments

    monkeypatch.setattr(frames, "_options", Gpu())
    caches = (resolve_engine, frames._gpu_engine)
    for cached_function in caches:
        cached_function.cache_clear()
    EXECUTION.clear()
    yield fake_cudf
    for cached_function in caches:
        cached_function.cache_clear()
    EXECUTION.clear()


def execution_record() -> dict[str, Any]:
    return EXECUTION.record() or {}


def test_a_query_runs_on_the_cpu() -> None:
    assert collect(QUERY, "cpu").item() == 3


def test_without_cudf_a_declared_gpu_is_refused_and_auto_reports_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "find_spec", lambda _: None)
    resolve_engine.cache_clear()
    with pytest.raises(EngineError, match=r"engine is gpu, but the package cudf-polars is not installed.*engine: cpu"):
        prepare_engine("gpu", Gpu())
    assert prepare_engine("auto", Gpu()) == "Engine: cpu (the package cudf-polars is not installed)"
    assert execution_record() == {"name": "cpu", "reason": "the package cudf-polars is not installed"}
    assert prepare_engine("cpu", Gpu()) == "Engine: cpu"
    resolve_engine.cache_clear()


def test_a_driver_that_is_too_old_stops_the_step_before_it_reads(cudf_polars: CudfPolars, machine: Machine) -> None:
    machine({"name": "NVIDIA H200"}, driver="550.54.14")
    with pytest.raises(EngineError, match=r"runtime\.engine is gpu, but the NVIDIA driver is 550\.54\.14"):
        load_runtime(Runtime(engine="gpu").model_dump_json())
    assert resolve_engine("auto") == "cpu"


@pytest.mark.parametrize("engine", ["auto", "gpu"])
def test_a_query_runs_on_the_gpu_and_is_counted(cudf_polars: CudfPolars, engine: frames.Engine) -> None:
    message = prepare_engine(engine, Gpu())
    assert message == "Engine: gpu (NVIDIA H200, 143,771 MiB, driver 580.65.06)"
    assert collect(QUERY, engine).item() == -1
    assert [rows.item() for rows in collect_all([QUERY, QUERY], engine)] == [-1, -1]
    assert cudf_polars.calls[0] == {"executor": "in-memory", "raise_on_fail": True}
    assert execution_record() == {
        "name": "gpu", "device": "NVIDIA H200", "driver": "580.65.06", "device_mib": 143_771,
        "queries": 3,
    }  # fmt: skip


def test_unsupported_queries_run_on_the_cpu_and_are_counted_by_operation(cudf_polars: CudfPolars) -> None:
    prepare_engine("gpu", Gpu())
    cudf_polars.refuses = ["Unary function name='clip'", "rolling_mean"]
    assert collect(QUERY, "gpu").item() == 3
    assert collect(QUERY, "gpu").item() == 3
    assert execution_record()["on_cpu"] == {"Unary function name='clip'": 2, "rolling_mean": 2}
    assert "queries" not in execution_record()


def test_an_operation_that_fails_while_running_is_counted(cudf_polars: CudfPolars) -> None:
    prepare_engine("gpu", Gpu())
    cudf_polars.while_running = NotImplementedError("sum of decimals")
    assert collect(QUERY, "gpu").item() == 3
    assert execution_record()["on_cpu"] == {"sum of decimals": 1}


def test_refused_fallbacks_stop_the_step_and_name_the_operation(cudf_polars: CudfPolars) -> None:
    prepare_engine("gpu", Gpu(fallback="refuse"))
    assert collect(QUERY, "gpu").item() == -1
    cudf_polars.refuses = ["Unary function name='clip'"]
    with pytest.raises(
        EngineError, match=r"fallback is refuse, and cuDF cannot run: Unary function name='clip'\. Declare"
    ):
        collect(QUERY, "gpu")


class CUDARuntimeError(RuntimeError):
    """As RMM names it."""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError("std::bad_alloc: out_of_memory"), r"the GPU ran out of memory .*Lower runtime\.chunk_rows"),
        (
            CUDARuntimeError("cudaErrorECCUncorrectable"),
            r"the GPU failed: cudaErrorECCUncorrectable.*finished steps are",
        ),
    ],
)
def test_a_failing_gpu_is_reported_without_fallback(cudf_polars: CudfPolars, error: Exception, message: str) -> None:
    prepare_engine("gpu", Gpu())
    cudf_polars.while_running = error
    with pytest.raises(EngineError, match=message):
        collect(QUERY, "gpu")
    assert "on_cpu" not in execution_record()


def test_a_driver_lost_during_planning_is_reported(cudf_polars: CudfPolars) -> None:
    cudf_polars.raises = CUDARuntimeError("cudaErrorInsufficientDriver")
    with pytest.raises(EngineError, match=r"the GPU failed: .*cudaErrorInsufficientDriver"):
        collect(QUERY, "gpu")


def test_other_errors_are_raised_unchanged(cudf_polars: CudfPolars) -> None:
    cudf_polars.while_running = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        collect(QUERY, "gpu")
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        collect(QUERY.select("no such column"), "gpu")


def test_insufficient_gpu_memory_is_refused_before_any_work(cudf_polars: CudfPolars) -> None:
    with pytest.raises(EngineError, match=r"memory_mib: wanted 120,000 MiB, but 100,000 of 143,771 MiB of NVIDIA H200"):
        prepare_engine("gpu", Gpu(memory_mib=120_000))
    prepare_engine("gpu", Gpu(memory_mib=90_000))
    collect(QUERY, "gpu")
    name, limit = cudf_polars.calls[0]["memory_resource_config"]
    assert (name, limit["allocation_limit"]) == ("rmm.mr.LimitingResourceAdaptor", 90_000 * 2**20)
