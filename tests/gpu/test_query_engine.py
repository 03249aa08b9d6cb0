"""cuDF runs every query of the demo's features, and its table is the CPU's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.spec.runtime import Gpu, Runtime
from shortlist.spec.spec import Spec
from shortlist.system import query_engine as frames
from shortlist.system.accelerator import find_device
from shortlist.system.execution import EXECUTION
from shortlist.system.query_engine import Engine, EngineError, collect, prepare_engine


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Every test declares its own engine."""
    EXECUTION.clear()
    yield
    frames._options = frames._Options()
    EXECUTION.clear()


def table_of(spec: Spec, log: Path, out: Path, engine: Engine) -> pl.DataFrame:
    runtime = Runtime(engine=engine)
    fit(spec.data, spec.features, spec.gates, runtime, log, out / "fitted")
    table = build_table(spec.data, spec.features, spec.gates, runtime, log, out / "fitted", out / "table")
    return pl.concat([rows for _, rows in table.frames()])


@pytest.mark.gpu
def test_the_demos_features_are_the_same_on_both_engines(demo: Spec, log: Path, tmp_path: Path) -> None:
    pytest.importorskip("cudf_polars", reason="requirements/gpu.txt is not installed")
    cpu_table = table_of(demo, log, tmp_path / "cpu", "cpu")
    prepare_engine("gpu", Gpu(fallback="refuse"))  # a query that cuDF cannot run would stop it
    gpu_table = table_of(demo, log, tmp_path / "gpu", "gpu")
    assert_frame_equal(gpu_table, cpu_table, rel_tol=1e-6, abs_tol=1e-6)
    record = EXECUTION.record()
    assert record is not None and record["queries"] > 100


@pytest.mark.gpu
def test_what_cudf_cannot_run_is_counted(log: Path) -> None:
    pytest.importorskip("cudf_polars", reason="requirements/gpu.txt is not installed")
    query = pl.LazyFrame({"a": [3, 1, 2]}).select(pl.col("a").hash(1, 2, 3, 4))
    prepare_engine("gpu", Gpu())
    assert collect(query, "gpu").equals(query.collect())
    record = EXECUTION.record()
    assert record is not None and record["on_cpu"] == {"Unary function name='hash'": 1}
    prepare_engine("gpu", Gpu(fallback="refuse"))
    with pytest.raises(EngineError, match="cuDF cannot run: Unary function name='hash'"):
        collect(query, "gpu")


@pytest.mark.gpu
def test_a_query_that_needs_more_memory_than_its_budget_says_so_itself() -> None:
    pytest.importorskip("cudf_polars", reason="requirements/gpu.txt is not installed")
    prepare_engine("gpu", Gpu(memory_mib=256))
    rows = pl.LazyFrame({"a": pl.Series(range(1_000), dtype=pl.Int64)})
    squared = rows.join(rows.rename({"a": "b"}), how="cross").join(rows.rename({"a": "c"}), how="cross")
    with pytest.raises(EngineError, match=r"the GPU ran out of memory"):
        collect(squared.select((pl.col("a") + pl.col("b") + pl.col("c")).sort().last()), "gpu")


@pytest.mark.gpu
def test_the_driver_tells_of_the_device_that_torch_uses() -> None:
    pytest.importorskip("pynvml", reason="requirements/gpu.txt is not installed")
    import torch

    properties = torch.cuda.get_device_properties(0)
    device = find_device()
    assert (device.name, device.capability) == (properties.name, (properties.major, properties.minor))
    free, total = device.free_bytes, device.total_bytes
    assert 0 < free <= total
    assert abs(total - properties.total_memory) < 0.1 * total
