"""Hash tables of integers return what a dictionary, sorting or pandas returns."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shortlist.contracts import Columns
from shortlist.features.counts.integer_count import IntegerCount, is_large
from shortlist.features.counts.keyed import KeyedView, Total
from shortlist.features.counts.statistics import KeyCount, count, countable
from shortlist.features.counts.vocabulary import VALUE, ValueIds, VocabularyLimits, build_vocabulary
from shortlist.features.declared.plan import plan
from shortlist.features.fits.fit import fit
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.integers import COMPILED_MIN_ROWS, COMPILED_MIN_VALUES, IdTable, ValueCounts
from shortlist.features.values.lookup_table import LookupTable
from shortlist.features.values.ranges import key_ranges, read_range, write_frames
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates
from shortlist.spec.load import load_spec
from shortlist.spec.runtime import Runtime

EDGES = [-(2**63), -(2**63) + 1, -(2**32), -1, 0, 1, 2**32 - 1, 2**32, 2**63 - 1]
integers = st.one_of(st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3))
columns = st.lists(st.one_of(st.none(), integers), max_size=60)


def column(values: list[int | None], cut: int = 0) -> pl.Series:
    """Return values in two chunks; the second begins in the middle of a byte of validity."""
    whole = pl.Series("x", [None, 5, None, *values], dtype=pl.Int64)[3:]
    return whole[:cut].append(whole[cut:]) if cut else whole


@settings(deadline=None)
@given(parts=st.lists(columns, max_size=4), cut=st.integers(0, 20))
def test_rows_are_counted_as_by_a_dictionary_and_returned_in_order(parts: list[list[int | None]], cut: int) -> None:
    tally = ValueCounts()
    for _ in range(2):  # a cleared table begins anew
        tally.clear()
        for values in parts:
            tally.add(column(values, cut))
        expected = Counter(value for values in parts for value in values if value is not None)
        distinct_values, rows = tally.in_order()
        assert list(zip(distinct_values.tolist(), rows.tolist(), strict=True)) == sorted(expected.items())
        assert len(tally) == len(expected)


@pytest.mark.parametrize("step", [1, 2**20, 2**40, 2**50, 11_400_714_819_323_198_485])
def test_a_table_grows_with_its_values(step: int) -> None:
    numbers = np.array([number * step % 2**63 for number in range(5_000)], dtype=np.int64)
    tally = ValueCounts()
    for _ in range(2):
        tally.add(pl.Series(np.concatenate([numbers, numbers[::-1]])))
    distinct_values, rows = tally.in_order()
    assert distinct_values.tolist() == sorted(set(numbers.tolist()))
    assert rows.sum() == 20_000
    assert tally.nbytes <= 16 * 4 * len(tally)  # at least a quarter of the slots are taken


@settings(deadline=None)
@given(days=st.lists(st.dictionaries(integers, st.integers(1, 9), max_size=40), max_size=5), least=st.integers(1, 20))
def test_values_are_returned_once_on_the_day_they_reach_the_least_rows(days: list[dict[int, int]], least: int) -> None:
    tally, sums = ValueCounts(), Counter[int]()
    for day in days:
        values, rows = (pl.Series(numbers_of_day, dtype=pl.Int64) for numbers_of_day in (list(day), list(day.values())))
        reached_values, reached = tally.add_counts(values, rows, least)
        previous_sums = dict(sums)
        sums.update(day)
        expected = [(value, sums[value]) for value in day if previous_sums.get(value, 0) < least <= sums[value]]
        assert list(zip(reached_values.tolist(), reached.tolist(), strict=True)) == expected


@settings(deadline=None)
@given(known_values=st.lists(integers, unique=True, max_size=50), looked_up_values=columns, cut=st.integers(0, 20))
def test_ids_are_the_positions_of_values(known_values: list[int], looked_up_values: list[int | None], cut: int) -> None:
    table = IdTable(pl.Series(known_values, dtype=pl.Int64))
    looked_up_values = [*looked_up_values, *known_values]
    expected = [
        0 if value is None or value not in known_values else known_values.index(value) + 1 for value in looked_up_values
    ]
    ids = table.ids(column(looked_up_values, cut))
    assert ids.name == "x"
    assert ids.dtype == pl.UInt32
    assert ids.to_list() == expected


def test_ids_do_not_depend_on_the_number_of_values_looked_up(tmp_path: Path) -> None:
    known_values = np.random.default_rng(1).permutation(np.arange(-2_000, 2_000)) * 7_919
    path = tmp_path / "x.parquet"
    pl.DataFrame({VALUE: known_values[:3_000]}).write_parquet(path)
    looked_up_values = pl.Series("x", np.resize(known_values, COMPILED_MIN_ROWS + 5)).set(
        pl.Series(np.arange(COMPILED_MIN_ROWS + 5) % 11 == 0), None
    )
    vocabulary = ValueIds(path)
    ids_by_thousand = pl.concat(
        vocabulary.ids(looked_up_values[at : at + 1_000]) for at in range(0, len(looked_up_values), 1_000)
    )
    assert vocabulary.ids(looked_up_values).equals(ids_by_thousand)
    assert (ids_by_thousand == 0).sum() > len(looked_up_values) // 4  # there are strangers and nulls among them


def test_a_vocabulary_is_thread_safe(tmp_path: Path) -> None:
    path, values = tmp_path / "x.parquet", np.random.default_rng(3).permutation(300_000)
    pl.DataFrame({VALUE: values}).write_parquet(path)
    parts_to_look_up = [pl.Series("x", values[first::1_000]) for first in range(8)]
    for _ in range(5):  # each has to build its hash table when it is first asked
        vocabulary, ready = ValueIds(path), Barrier(len(parts_to_look_up))

        def ids(part: pl.Series, vocabulary: ValueIds = vocabulary, ready: Barrier = ready) -> pl.Series:
            ready.wait()
            return vocabulary.ids(part)

        with ThreadPoolExecutor(len(parts_to_look_up)) as pool:
            ids_of_parts = list(pool.map(ids, parts_to_look_up))
        for ids_of_part, part in zip(ids_of_parts, parts_to_look_up, strict=True):
            assert (values[ids_of_part.to_numpy() - 1] == part.to_numpy()).all()


def test_looking_up_few_values_loads_no_compiler(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pl.DataFrame({VALUE: [30, 10, 20]}).write_parquet(path)
    program = (
        "import sys; from pathlib import Path; import polars as pl;"
        "from shortlist.features.counts.vocabulary import ValueIds;"
        "import shortlist.features.rows.transform, shortlist.features.fits.fit;"
        f"print(ValueIds(Path({str(path)!r})).ids(pl.Series([20, None, 5])).to_list(), 'numba' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert process.strip() == "[3, 0, 0] False"


@pytest.mark.parametrize("spill_every", [0, 1, 2])
@pytest.mark.parametrize("key", ["item_id", "numbers"])
def test_integer_keys_are_counted_as_by_queries(world: Any, tmp_path: Path, key: str, spill_every: int) -> None:
    lists = [[3, 3, 1], [], None, [2**40, 1]]
    log = world.log([world.row(0, n / 4, item_id=n % 7 * 10, words=["a"]) for n in range(24)])
    rows = pl.read_parquet(list(log.glob("day=*/*.parquet")), hive_partitioning=False)
    rows = rows.with_columns(numbers=pl.Series([lists[n % 4] for n in range(24)], dtype=pl.List(pl.Int64)))
    view = KeyedView((key,), ("numbers",) if key == "numbers" else ())
    files_by_kind = {}
    for kind in (KeyCount, IntegerCount):
        counted = kind(view, tmp_path / "scratch", "cpu")
        for day in range(2):  # it is empty again for the second day
            for number, at in enumerate(range(0, 24, 5)):
                part = rows[at : at + 5].select(key)
                if isinstance(counted, IntegerCount):
                    counted.add_rows(part)
                else:
                    counted.add(*count(part, [view], "cpu"))
                if spill_every and number % spill_every == 0:
                    counted.spill()
                    assert counted.held_bytes == 0
            path = tmp_path / kind.__name__ / f"{day}.parquet"
            counted.finish(path, rows=4)
            files_by_kind[kind, day] = pl.read_parquet(path)
    first = files_by_kind[KeyCount, 0]
    assert first[Columns.ROWS].sum() == (24 if key == "item_id" else 24 // 4 * 4)
    assert all(file_content.equals(first) for file_content in files_by_kind.values())


def test_views_with_more_than_row_counts_of_one_integer_are_counted_by_queries(world: Any) -> None:
    declared = DeclaredColumns(world.data)
    assert IntegerCount.suits(KeyedView(("item_id",)), declared, "cpu")
    for other_view in (
        KeyedView(("item_id", "user_id")),
        KeyedView(("item_id",), totals=(Total("rows"), Total("sum_label"))),
        KeyedView(("item_id",), timed=True),
        KeyedView(("page",)),  # a text
    ):
        assert not IntegerCount.suits(other_view, declared, "cpu")


def test_a_gpu_counts_by_queries(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortlist.features.counts.integer_count.resolve_engine", lambda engine: engine)
    assert not IntegerCount.suits(KeyedView(("item_id",)), DeclaredColumns(world.data), "gpu")


def test_a_key_keeps_its_narrow_integer_type(tmp_path: Path) -> None:
    counted = IntegerCount(KeyedView((Columns.LABEL,)), tmp_path / "scratch", "cpu")
    counted.add_rows(pl.DataFrame({Columns.LABEL: pl.Series([1, 0, None, 1], dtype=pl.Int8)}))
    counted.finish(tmp_path / "x.parquet", rows=4)
    expected = {Columns.LABEL: pl.Series([0, 1], dtype=pl.Int8), Columns.ROWS: pl.Series([1, 2], dtype=pl.Int64)}
    assert pl.read_parquet(tmp_path / "x.parquet").equals(pl.DataFrame(expected))


@pytest.mark.parametrize("fill", [None, -3.5, 0.0])
@pytest.mark.parametrize("nulls", [True, False])
def test_a_number_by_table_has_the_same_bits(fill: float | None, nulls: bool) -> None:
    random = np.random.default_rng(1)
    values = pl.Series(
        "x", np.concatenate([np.arange(-100, 20_000), np.array(EDGES), random.integers(-(2**60), 2**60, 99)])
    )
    values = values.set(pl.Series(np.arange(len(values)) % 5 == 0), None) if nulls else values
    number = pl.col("x").cast(pl.Float64)
    number = number if fill is None else number.fill_null(fill)
    number = ((number.clip(0.0, None) + 1.0).log() / 3.0).cast(pl.Float32)
    for column_ in (values, values[3:], values[:11].append(values[11:])):
        expected = column_.to_frame().select(number).to_series()
        assert LookupTable("x", number).look_up(column_).equals(expected, null_equal=True, check_dtypes=True)


def test_a_table_is_for_many_integers_on_the_cpu() -> None:
    integers = pl.Series(np.zeros(COMPILED_MIN_ROWS, np.int64))
    assert LookupTable.suits(integers, "cpu")
    assert not LookupTable.suits(integers[1:], "cpu")
    assert not LookupTable.suits(integers.cast(pl.Float64), "cpu")


def test_a_range_that_is_the_whole_file_is_read_without_a_query(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    frame = pl.DataFrame({"key": range(1_000), "rows": [1] * 1_000, "other": ["a"] * 1_000})
    write_frames(path, [frame])
    (whole_range,) = key_ranges([path], "key", 1_000)
    ranges = key_ranges([path], "key", 300)
    assert len(ranges) > 2
    expected = frame.select("rows", "key")
    assert read_range(path, ["rows", "key"], whole_range).equals(expected)
    assert pl.concat(read_range(path, ["rows", "key"], inside) for inside in ranges).equals(expected)


def test_countable_keys_need_no_other_column(world: Any) -> None:
    log = world.log([world.row(0, 1.0, item_id=10)])
    rows = pl.read_parquet(list(log.glob("day=*/*.parquet")), columns=["item_id"], hive_partitioning=False)
    view = KeyedView(("item_id",))
    assert countable(rows, [view], DeclaredColumns(world.data)).to_dict(as_series=False) == {"item_id": [10]}


@pytest.mark.parametrize("rows", [1_000_000, 400])
def test_compiled_loops_build_the_same_vocabulary(tmp_path: Path, rows: int) -> None:
    random, days = np.random.default_rng(1), []
    for day in range(4):
        values, counts = np.unique(random.zipf(1.3, 3_000) % 2_000, return_counts=True)
        days.append(tmp_path / f"{day}.parquet")
        write_frames(days[-1], [pl.DataFrame({"x": values, Columns.ROWS: counts})])
    setting = VocabularyLimits("x", min_rows=5, max_size=100)
    large, small = (
        build_vocabulary(days, "x", setting, rows, "cpu", compiled=is_compiled) for is_compiled in (True, False)
    )
    assert large.equals(small)
    assert large.height > 50


def test_compiled_loops_write_the_same_fit(world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = world.log([world.row(n // 8, n % 8 + 0.5, item_id=n % 5 * 10, page="ab"[n % 2]) for n in range(40)])
    columns = [{"kind": "vocabulary", "each": ["item_id", "page"], "min_rows": 3}]
    features = Features.model_validate({"columns": columns})
    for name, large in (("small", COMPILED_MIN_VALUES), ("large", 0)):
        monkeypatch.setattr("shortlist.features.counts.integer_count.COMPILED_MIN_VALUES", large)
        fit(world.data, features, Gates(), Runtime(engine="cpu"), log, tmp_path / name)
    files = sorted(path.relative_to(tmp_path / "small") for path in (tmp_path / "small").rglob("*.parquet"))
    assert {path.parts[0] for path in files} >= {"statistics", "vocabularies"}
    for path in files:
        small, large_ = (pl.read_parquet(tmp_path / name / path) for name in ("small", "large"))
        assert large_.equals(small)


@pytest.mark.parametrize(
    ("kinds", "rows", "large"),
    [
        (("vocabulary",), 2_000_000, True),
        (("vocabulary",), 1_000_000, False),
        (("vocabulary", "target"), 2_000_000, False),  # whose sums no loop counts
    ],
)
def test_only_many_values_of_plain_keys_are_counted_by_compiled_loops(
    kinds: tuple[str, ...], rows: int, large: bool
) -> None:
    spec = load_spec(Path(__file__).parents[3] / "pipelines" / "specs" / "criteo.yaml")
    columns = tuple(feature for feature in spec.features.columns if feature.kind in kinds)
    assert {feature.kind for feature in columns} == {*kinds}
    planned = plan(spec.data, spec.features.model_copy(update={"columns": columns}), spec.gates)
    assert is_large(rows, planned.counted_views, planned.declared, "cpu") == large
