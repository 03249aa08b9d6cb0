"""The one place that chooses who executes a Polars query: the CPU engine or cuDF on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Literal

import polars as pl

from shortlist.contracts import ShortlistError

Engine = Literal["auto", "cpu", "gpu"]


class EngineError(ShortlistError):
    """The declared engine is not there."""


@cache
def resolve(engine: Engine) -> Literal["cpu", "gpu"]:
    """Return the engine that queries will run on.

    Raises:
        EngineError: `gpu` is declared and cudf-polars or a device is missing; Shortlist never falls back in silence.
    """
    if engine == "cpu":
        return "cpu"
    reason = _why_no_gpu()
    if reason is None:
        return "gpu"
    if engine == "gpu":
        raise EngineError(
            f"runtime.engine is gpu, but {reason}. Install requirements/gpu.txt on a machine with an NVIDIA GPU,"
            " or declare engine: cpu."
        )
    return "cpu"


def collect(query: pl.LazyFrame, engine: Engine = "auto") -> pl.DataFrame:
    """Run a query on the declared engine and return its rows."""
    if resolve(engine) == "gpu":
        return query.collect(engine=pl.GPUEngine(raise_on_fail=True))
    return query.collect()


def collect_all(queries: Sequence[pl.LazyFrame], engine: Engine = "auto") -> list[pl.DataFrame]:
    """Run several queries at once, each on a core of its own, on the declared engine; return their rows in order."""
    if resolve(engine) == "gpu":
        return [collect(query, engine) for query in queries]
    return pl.collect_all(queries)


def _why_no_gpu() -> str | None:
    if find_spec("cudf_polars") is None:
        return "the package cudf-polars is not installed"
    import torch

    return None if torch.cuda.is_available() else "no CUDA device is visible"
