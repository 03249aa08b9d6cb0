import itertools
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shortlist.contracts import DataError
from shortlist.features.counts.keyed import KeyedView, Total
from shortlist.features.counts.statistics import KeyCount, check_sum_range, count, countable
from shortlist.features.values.columns import DeclaredColumns

VIEW = KeyedView(
    ("user_id", "words"),
    ("words",),
    (Total("rows"), Total("sum_seconds"), Total("rows_seconds")),
    ("seconds",),
    timed=True,
)


@pytest.fixture
def rows(world: Any) -> pl.DataFrame:
    """Return impressions, many at the same time, with sums that floats would round."""
    log = [
        world.row(
            0, number % 4, user_id=number % 3, words=[["a"], ["b", "a"], ["a", "a"], None][number % 4], seconds=seconds
        )
        for number, seconds in enumerate([0.1, 1e9, None, -1e9, 0.3, float("nan"), 1e-3, 7.7] * 3)
    ]
    return pl.read_parquet(list(world.log(log).glob("day=*/*.parquet")), hive_partitioning=False)


def statistics(frames: list[pl.DataFrame], world: Any, path: Path, spill_every: int = 0) -> pl.DataFrame:
    path.parent.mkdir(exist_ok=True)
    key_count = KeyCount(VIEW, path.parent / "scratch", "cpu")
    for number, frame in enumerate(frames):
        key_count.add(*count(countable(frame, [VIEW], DeclaredColumns(world.data)), [VIEW], "cpu"))
        if spill_every and number % spill_every == 0:
            key_count.spill()
    key_count.finish(path, rows=4)
    return pl.read_parquet(path)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(24)), cuts=st.lists(st.integers(1, 23), max_size=4), spill=st.integers(0, 2))
def test_merging_gives_the_same_bits_in_any_order(
    world: Any, rows: pl.DataFrame, tmp_path: Path, order: list[int], cuts: list[int], spill: int
) -> None:
    ends = sorted({0, *cuts, 24})
    shuffled = rows[order]
    parts = [shuffled[first:last] for first, last in itertools.pairwise(ends)]
    assert statistics(parts, world, tmp_path / "parts.parquet", spill).equals(
        statistics([rows], world, tmp_path / "one.parquet")
    )


def test_a_key_is_counted_once_per_row_and_value(world: Any, tmp_path: Path) -> None:
    log = [world.row(0, words=["a", "a", "b"], seconds=0.5), world.row(0, 13.0, words=["a"], seconds=None)]
    frame = pl.read_parquet(list(world.log(log).glob("day=*/*.parquet")), hive_partitioning=False)
    key_statistics = statistics([frame], world, tmp_path / "one.parquet").drop("last_time", "last_impression")
    assert key_statistics.rows(named=True) == [
        {"user_id": 1, "words": "a", "rows": 2, "sum_seconds": 2**15, "rows_seconds": 1, "last_seconds": None},
        {"user_id": 1, "words": "b", "rows": 1, "sum_seconds": 2**15, "rows_seconds": 1, "last_seconds": 0.5},
    ]


def test_spilled_files_are_deleted_at_the_end(world: Any, rows: pl.DataFrame, tmp_path: Path) -> None:
    statistics([rows[:9], rows[9:]], world, tmp_path / "parts.parquet", spill_every=1)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_sums_beyond_64_bits_are_refused(world: Any) -> None:
    declared = DeclaredColumns(world.data)
    check_sum_range({"sum_seconds": 2.0**56, "sum_likes": 2.0**56}, declared)
    with pytest.raises(
        DataError, match=r"'seconds' add up to 2.2e\+12, more than 2.2e\+12. Declare the column in a larger"
    ):
        check_sum_range({"sum_seconds": 2.0**57}, declared)


def test_fit_refuses_sums_beyond_64_bits(world: Any) -> None:
    log = world.log([world.row(day, seconds=1e12) for day in (0, 1, 2)])
    with pytest.raises(DataError, match=r"'seconds' add up to 3e\+12"):
        world.fit(log, [{"kind": "target", "key": ["page"], "of": "seconds", "name": "rate"}])
    assert not (world.folder / "fitted").exists()
