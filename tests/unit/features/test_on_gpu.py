"""With a GPU engine the table is the same, and operations that run on the CPU are counted by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import polars as pl
import pytest

from shortlist.features.declared.feature_kind import limit_by_clip, limit_by_comparison
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Gpu, Runtime
from shortlist.system import query_engine as frames
from shortlist.system.execution import EXECUTION

COLUMNS = [
    {"kind": "numeric", "each": "price", "fill": 1.0, "clip": (-1, 9), "log": True, "standardise": True},
    {"kind": "vocabulary", "each": "item_id", "min_rows": 1},
    {"kind": "hash", "each": "page", "buckets": 50},
    {"kind": "target", "key": ["words"], "name": "word_rate"},
    {"kind": "time_since", "key": ["user_id"], "name": "since"},
    {"kind": "cyclic", "period": "day", "name": "clock"},
    {"kind": "vector", "each": "query", "normalise": True},
]


@pytest.fixture
def refusing(machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU whose cudf-polars refuses every query, so that the CPU runs them all."""

    def refuse(*_: Any, config: pl.GPUEngine) -> None:
        message = "Query execution with GPU not possible: unsupported operations.\nThe errors were:\n"
        raise NotImplementedError(message + "- NotImplementedError: everything", [NotImplementedError("everything")])

    machine({"name": "NVIDIA H200"})
    module = ModuleType("cudf_polars")
    module.__spec__ = ModuleSpec("cudf_polars", None)
    vars(module)["execute_with_cudf"] = refuse
    monkeypatch.setitem(sys.modules, "cudf_polars", module)
    for cached_function in (frames.resolve_engine, frames._gpu_engine):
        cached_function.cache_clear()
    EXECUTION.clear()
    yield
    for cached_function in (frames.resolve_engine, frames._gpu_engine):
        cached_function.cache_clear()
    EXECUTION.clear()


def test_operations_on_the_cpu_are_counted_and_change_no_value(world: Any, refusing: None) -> None:
    log = world.log([
        world.row(day, hour, page=page, price=price, words=tags, query=[3.0, 4.0], item_id=10 * (1 + day % 2))
        for day, hour, page, price, tags in (
            (0, 1.0, "a", 2.0, ["x", "y"]), (0, 9.0, "b", -7.0, ["y"]), (1, 3.0, "a", None, []),
            (1, 4.0, None, 50.0, ["x"]), (2, 2.0, "c", 0.0, ["x", "x"]), (2, 23.0, "b", 8.5, ["z"]),
        )
    ])  # fmt: skip
    features, tables = Features.model_validate({"columns": COLUMNS}), {}
    for engine in ("cpu", "gpu"):
        runtime = Runtime(engine=engine)
        EXECUTION.clear()
        frames.prepare_engine(runtime.engine, Gpu())
        fit(world.data, features, Gates(), runtime, log, world.folder / engine)
        table = build_table(
            world.data, features, Gates(), runtime, log, world.folder / engine, world.folder / f"{engine}-table"
        )
        tables[engine] = table.scan().sort("impression_id").collect()
    assert tables["gpu"].equals(tables["cpu"])
    record = EXECUTION.record()
    assert record is not None
    assert set(record["on_cpu"]) == {
        "everything", "ids of a vocabulary (pandas)", "fingerprints of texts (numpy)", "one row per tag",
        "vectors (numpy)", "keys and measures of rows", "values of several tags together", "wall clock in a timezone",
        "rows of a view read", "moments of numbers",
    }  # fmt: skip
    assert all(times > 0 for times in record["on_cpu"].values())


@pytest.mark.parametrize("bounds", [(0.0, None), (-1.5, 2.0), (0.0, 0.0)])
def test_bounds_by_comparison_give_the_same_bits(bounds: tuple[float, float | None]) -> None:
    values = pl.DataFrame({"x": [None, -3.0, -1.5, -0.0, 0.0, 1e-300, 2.0, 2.0000001, 1e300]})
    clipped, compared = (
        values.select(limit(pl.col("x"), *bounds).alias("x")) for limit in (limit_by_clip, limit_by_comparison)
    )
    assert compared.equals(clipped)
    assert compared.to_series().null_count() == 1
