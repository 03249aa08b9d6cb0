"""The one place that chooses who executes a Polars query: the CPU engine or cuDF on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Final, Literal, NoReturn, Protocol

import polars as pl

from shortlist.system.accelerator import EngineError, NoDeviceError, device, no_gpu_reason
from shortlist.system.execution import EXECUTION, unsupported_operations

__all__ = ["Engine", "EngineError", "GpuOptions", "collect", "collect_all", "prepare", "resolve"]

Engine = Literal["auto", "cpu", "gpu"]
Executor = Literal["single", "ray", "dask"]
_CLUSTERS: Final = {"ray": ("cudf_polars.engine.ray", "RayEngine"), "dask": ("cudf_polars.engine.dask", "DaskEngine")}
"""Module and class of cudf-polars' engines for many GPUs (cudf-polars 26.06)."""
_NEEDED: Final = {"ray": "ray", "dask": "distributed"}
_CONVERSION: Final = "'cuda' conversion failed"
"""With this, Polars passes on what cudf-polars raised when it was given the plan."""


class GpuOptions(Protocol):
    """What is declared of queries on a GPU; `shortlist.spec.runtime.Gpu` is one."""

    @property
    def executor(self) -> Executor:
        """One GPU, or many through Ray or Dask."""

    @property
    def memory_mib(self) -> int | None:
        """Device memory that queries may take; None: what cudf-polars takes by itself."""

    @property
    def fallback(self) -> Literal["report", "refuse"]:
        """What happens with a query that cuDF cannot run."""


@dataclass(frozen=True)
class _Options:
    executor: Executor = "single"
    memory_mib: int | None = None
    fallback: Literal["report", "refuse"] = "report"


_options: GpuOptions = _Options()


def prepare(engine: Engine, options: GpuOptions) -> str:
    """Check the engine before any work, and have this process's queries run as declared; return the engine in words.

    Raises:
        EngineError: `gpu` is declared, and something that it needs is missing, too old or too small.
    """
    global _options  # noqa: PLW0603 - a step is a process, and its runtime section is one
    if resolve(engine) == "cpu":
        missing = _no_gpu_reason() if engine == "auto" else None
        EXECUTION.runs_on("cpu", **({"reason": missing.reason} if missing else {}))
        return f"Engine: cpu ({missing.reason})" if missing else "Engine: cpu"
    found = device()
    if (wanted := options.memory_mib) is not None and wanted << 20 > found.free_bytes:
        raise EngineError(
            f"runtime.gpu.memory_mib: wanted {wanted:,} MiB, but {found.free_bytes >> 20:,} of"
            f" {found.total_bytes >> 20:,} MiB of {found.name} are free. Stop what else runs on it, or declare less."
        )
    if (package := _NEEDED.get(options.executor)) and find_spec(package) is None:
        raise EngineError(
            f"runtime.gpu.executor is {options.executor}, but the package {package} is not installed. Install"
            " requirements/gpu.txt, or declare executor: single."
        )
    _options = options
    EXECUTION.runs_on("gpu", executor=options.executor, **found.facts)
    return f"Engine: gpu ({found.name}, {found.total_bytes >> 20:,} MiB, driver {found.driver}, {options.executor})"


@cache
def resolve(engine: Engine) -> Literal["cpu", "gpu"]:
    """Return the engine that queries will run on.

    Raises:
        EngineError: `gpu` is declared and cudf-polars or a device is missing; Shortlist never falls back in silence.
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
    if resolve(engine) == "cpu":
        return query.collect()
    try:
        rows = query.collect(engine=_gpu_engine(_options.executor, _options.memory_mib))
    except pl.exceptions.ComputeError as error:
        if _CONVERSION not in str(error):
            raise
        operations = unsupported_operations(str(error))
        return _failed(error) if operations is None else _on_cpu(query, operations)
    except NotImplementedError as error:  # found out while it ran
        return _on_cpu(query, [str(error)])
    except (MemoryError, RuntimeError) as error:
        _failed(error)
    EXECUTION.queried()
    return rows


def collect_all(queries: Sequence[pl.LazyFrame], engine: Engine = "auto") -> list[pl.DataFrame]:
    """Run several queries at once, each on a core of its own, on the declared engine; return their rows in order."""
    if resolve(engine) == "gpu":
        return [collect(query, engine) for query in queries]
    return pl.collect_all(queries)


def _on_cpu(query: pl.LazyFrame, operations: Sequence[str]) -> pl.DataFrame:
    if _options.fallback == "refuse":
        raise EngineError(
            f"runtime.gpu.fallback is refuse, and cuDF cannot run: {'; '.join(operations)}. Declare fallback: report"
            " to have such queries counted and run on the CPU, or leave out the feature that needs it."
        )
    for operation in operations:
        EXECUTION.on_cpu(operation)
    return query.collect()


def _failed(error: Exception) -> NoReturn:
    """Raise what a user can act on; what is no failure of the device stays what it is."""
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
def _gpu_engine(executor: Executor, memory_mib: int | None) -> pl.GPUEngine:
    """Return the engine of this process; those for many GPUs start their workers here and stop with the process."""
    memory = {} if memory_mib is None else {"memory_resource_config": _limited(memory_mib)}
    if executor == "single":
        # In memory: our queries read one part of a table at a time, so there is nothing to stream.
        return pl.GPUEngine(executor="in-memory", raise_on_fail=True, **memory)
    import atexit
    from importlib import import_module

    module, name = _CLUSTERS[executor]
    engine: Any = getattr(import_module(module), name)(engine_options={"raise_on_fail": True, **memory})
    atexit.register(engine.shutdown)
    return engine  # type: ignore[no-any-return]


def _limited(memory_mib: int) -> Any:
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
