"""Run Polars queries on the declared engine: the CPU, or cuDF on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Final, Literal, NoReturn, Protocol

import polars as pl

from shortlist.system.accelerator import EngineError, NoDeviceError, find_device, no_gpu_reason
from shortlist.system.execution import EXECUTION, unsupported_operations

__all__ = ["Engine", "EngineError", "GpuOptions", "collect", "collect_all", "prepare_engine", "resolve_engine"]

Engine = Literal["auto", "cpu", "gpu"]
_CONVERSION_FAILURE: Final = "'cuda' conversion failed"
"""Text in Polars' error when cudf-polars refused the plan."""


class GpuOptions(Protocol):
    """Options of queries on a GPU, implemented by `shortlist.spec.runtime.Gpu`."""

    @property
    def memory_mib(self) -> int | None:
        """Device memory that queries may use; None: cudf-polars' default."""

    @property
    def fallback(self) -> Literal["report", "refuse"]:
        """What happens with a query that cuDF cannot run."""


@dataclass(frozen=True)
class _Options:
    memory_mib: int | None = None
    fallback: Literal["report", "refuse"] = "report"


_options: GpuOptions = _Options()


def prepare_engine(engine: Engine, options: GpuOptions) -> str:
    """Check the declared engine and set it for this process's queries; return a description of it.

    Raises:
        EngineError: `gpu` is declared, and something that it needs is missing, too old or too small.
    """
    global _options  # noqa: PLW0603 - a step is a process, and its runtime section is one
    if resolve_engine(engine) == "cpu":
        missing = _no_gpu_reason() if engine == "auto" else None
        EXECUTION.set_engine("cpu", **({"reason": missing.reason} if missing else {}))
        return f"Engine: cpu ({missing.reason})" if missing else "Engine: cpu"
    gpu = find_device()
    if (memory_mib := options.memory_mib) is not None and memory_mib << 20 > gpu.free_bytes:
        raise EngineError(
            f"runtime.gpu.memory_mib: wanted {memory_mib:,} MiB, but {gpu.free_bytes >> 20:,} of"
            f" {gpu.total_bytes >> 20:,} MiB of {gpu.name} are free. Stop what else runs on it, or declare less."
        )
    _options = options
    EXECUTION.set_engine("gpu", **gpu.facts)
    return f"Engine: gpu ({gpu.name}, {gpu.total_bytes >> 20:,} MiB, driver {gpu.driver})"


@cache
def resolve_engine(engine: Engine) -> Literal["cpu", "gpu"]:
    """Return the engine that queries will run on.

    Raises:
        EngineError: `gpu` is declared and cudf-polars or a device is missing; there is no silent fallback.
    """
    if engine == "cpu":
        return "cpu"
    missing = _no_gpu_reason()
    if missing is None:
        return "gpu"
    if engine == "gpu":
        raise EngineError(f"runtime.engine is gpu, but {missing}")
    return "cpu"


def collect(query: pl.LazyFrame, engine: Engine = "auto") -> pl.DataFrame:
    """Run a query on the declared engine and return its rows.

    A query that cuDF cannot run is counted by operation and run on the CPU, or refused (`runtime.gpu.fallback`).

    Raises:
        EngineError: cuDF refuses the query and fallbacks are refused, or the GPU failed or ran out of memory.
    """
    if resolve_engine(engine) == "cpu":
        return query.collect()
    try:
        rows = query.collect(engine=_gpu_engine(_options.memory_mib))
    except pl.exceptions.ComputeError as error:
        if _CONVERSION_FAILURE not in str(error):
            raise
        operations = unsupported_operations(str(error))
        return _raise_gpu_failure(error) if operations is None else _collect_on_cpu(query, operations)
    except NotImplementedError as error:  # found out while it ran
        return _collect_on_cpu(query, [str(error)])
    except (MemoryError, RuntimeError) as error:
        _raise_gpu_failure(error)
    EXECUTION.count_gpu_query()
    return rows


def collect_all(queries: Sequence[pl.LazyFrame], engine: Engine = "auto") -> list[pl.DataFrame]:
    """Run several queries on the declared engine, on the CPU in parallel; return their rows in order."""
    if resolve_engine(engine) == "gpu":
        return [collect(query, engine) for query in queries]
    return pl.collect_all(queries)


def _collect_on_cpu(query: pl.LazyFrame, operations: Sequence[str]) -> pl.DataFrame:
    if _options.fallback == "refuse":
        raise EngineError(
            f"runtime.gpu.fallback is refuse, and cuDF cannot run: {'; '.join(operations)}. Declare fallback: report"
            " to have such queries counted and run on the CPU, or leave out the feature that needs it."
        )
    for operation in operations:
        EXECUTION.on_cpu(operation)
    return query.collect()


def _raise_gpu_failure(error: Exception) -> NoReturn:
    """Raise an EngineError with the next step; errors that are not of the device are raised unchanged."""
    if isinstance(error, MemoryError):
        raise EngineError(
            f"the GPU ran out of memory ({error}). Lower runtime.chunk_rows, raise runtime.gpu.memory_mib, or stop what"
            " else runs on it; finished steps are kept."
        ) from None
    if "cuda" not in f"{type(error).__name__} {error}".lower():
        raise error
    raise EngineError(
        f"the GPU failed: {error}. nvidia-smi says whether it is still there. Run again when it is: finished steps are"
        " kept."
    ) from None


@cache
def _gpu_engine(memory_mib: int | None) -> pl.GPUEngine:
    """Return the engine of this process."""
    memory = {} if memory_mib is None else {"memory_resource_config": _memory_resource_config(memory_mib)}
    # In memory, because our queries read one part of a table at a time: nothing needs streaming.
    return pl.GPUEngine(executor="in-memory", raise_on_fail=True, **memory)


def _memory_resource_config(memory_mib: int) -> Any:
    from cudf_polars.utils.config import MemoryResourceConfig

    pool = {"qualname": "rmm.mr.CudaAsyncMemoryResource"}
    options = {"upstream_mr": pool, "allocation_limit": memory_mib << 20}
    return MemoryResourceConfig("rmm.mr.LimitingResourceAdaptor", options)


def _no_gpu_reason() -> NoDeviceError | None:
    if find_spec("cudf_polars") is None:
        return NoDeviceError(
            "the package cudf-polars is not installed",
            "Install requirements/gpu.txt on a machine with an NVIDIA GPU",
        )
    return no_gpu_reason()
