"""Hash tables of integers do as a dictionary does, and as sorting and pandas did."""

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
from shortlist.features.columns import DeclaredColumns
from shortlist.features.fit import fit
from shortlist.features.integer_count import IntegerCount, is_large
from shortlist.features.integers import COMPILED_MIN_ROWS, COMPILED_MIN_VALUES, IdTable, ValueCounts
from shortlist.features.keyed import KeyedView, Total
from shortlist.features.lookup_table import LookupTable
from shortlist.features.plan import plan
from shortlist.features.ranges import key_ranges, read_range, write_frames
from shortlist.features.statistics import KeyCount, count, countable
from shortlist.features.vocabulary import VALUE, ValueIds, VocabularyLimits, build_vocabulary
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates
from shortlist.spec.load import load_spec
from shortlist.spec.runtime import Runtime

EDGES = [-(2**63), -(2**63) + 1, -(2**32), -1, 0, 1, 2**32 - 1, 2**32, 2**63 - 1]
integers = st.one_of(st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3))
columns = st.lists(st.one_of(st.none(), integers), max_size=60)


def column(values: list[int | None], cut: int = 0) -> pl.Series:
    """Values in two chunks, the second of which begins in the middle of a byte of validity."""
    whole = pl.Series("x", [None, 5, None, *values], dtype=pl.Int64)[3:]
    return whole[:cut].append(whole[cut:]) if cut else whole


@settings(deadline=None)
@given(parts=st.lists(columns, max_size=4), cut=st.integers(0, 20))
def test_rows_are_counted_as_by_a_dictionary_and_come_in_order(parts: list[list[int | None]], cut: int) -> None:
    tally = ValueCounts()
    for _ in range(2):  # a cleared table begins anew
        tally.clear()
        for values in parts:
            tally.add(column(values, cut))
        expected = Counter(value for values in parts for value in values if value is not None)
        found, rows = tally.in_order()
        assert list(zip(found.tolist(), rows.tolist(), strict=True)) == sorted(expected.items())
        assert len(tally) == len(expected)


@pytest.mark.parametrize("step", [1, 2**20, 2**40, 2**50, 11_400_714_819_323_198_485])
def test_a_table_grows_with_its_values(step: int) -> None:
    numbers = np.array([number * step % 2**63 for number in range(5_000)], dtype=np.int64)
    tally = ValueCounts()
    for _ in range(2):
        tally.add(pl.Series(np.concatenate([numbers, numbers[::-1]])))
    found, rows = tally.in_order()
    assert found.tolist() == sorted(set(numbers.tolist()))
    assert rows.sum() == 20_000
    assert tally.nbytes <= 16 * 4 * len(tally)  # at least a quarter of the slots are taken


@settings(deadline=None)
@given(days=st.lists(st.dictionaries(integers, st.integers(1, 9), max_size=40), max_size=5), least=st.integers(1, 20))
def test_values_are_told_once_on_the_day_that_brings_them_to_the_least_rows(
    days: list[dict[int, int]], least: int
) -> None:
    tally, sums = ValueCounts(), Counter[int]()
    for day in days:
        values, rows = (pl.Series(each, dtype=pl.Int64) for each in (list(day), list(day.values())))
        found, reached = tally.add_counts(values, rows, least)
        before = dict(sums)
        sums.update(day)
        expected = [(value, sums[value]) for value in day if before.get(value, 0) < least <= sums[value]]
        assert list(zip(found.tolist(), reached.tolist(), strict=True)) == expected


@settings(deadline=None)
@given(known=st.lists(integers, unique=True, max_size=50), asked=columns, cut=st.integers(0, 20))
def test_ids_are_the_places_of_values(known: list[int], asked: list[int | None], cut: int) -> None:
    table = IdTable(pl.Series(known, dtype=pl.Int64))
    asked = [*asked, *known]
    expected = [0 if value is None or value not in known else known.index(value) + 1 for value in asked]
    found = table.ids(column(asked, cut))
    assert found.name == "x"
    assert found.dtype == pl.UInt32
    assert found.to_list() == expected


def test_many_values_get_the_ids_that_few_get(tmp_path: Path) -> None:
    known = np.random.default_rng(1).permutation(np.arange(-2_000, 2_000)) * 7_919
    path = tmp_path / "x.parquet"
    pl.DataFrame({VALUE: known[:3_000]}).write_parquet(path)
    asked = pl.Series("x", np.resize(known, COMPILED_MIN_ROWS + 5)).set(
        pl.Series(np.arange(COMPILED_MIN_ROWS + 5) % 11 == 0), None
    )
    vocabulary = ValueIds(path)
    few = pl.concat(vocabulary.ids(asked[at : at + 1_000]) for at in range(0, len(asked), 1_000))
    assert vocabulary.ids(asked).equals(few)
    assert (few == 0).sum() > len(asked) // 4  # there are strangers and nulls among them


def test_threads_may_ask_a_vocabulary_at_once(tmp_path: Path) -> None:
    path, values = tmp_path / "x.parquet", np.random.default_rng(3).permutation(300_000)
    pl.DataFrame({VALUE: values}).write_parquet(path)
    asked = [pl.Series("x", values[first::1_000]) for first in range(8)]
    for _ in range(5):  # each has to build its hash table when it is first asked
        vocabulary, ready = ValueIds(path), Barrier(len(asked))

        def ids(part: pl.Series, vocabulary: ValueIds = vocabulary, ready: Barrier = ready) -> pl.Series:
            ready.wait()
            return vocabulary.ids(part)

        with ThreadPoolExecutor(len(asked)) as pool:
            found = list(pool.map(ids, asked))
        for one, part in zip(found, asked, strict=True):
            assert (values[one.to_numpy() - 1] == part.to_numpy()).all()


def test_who_looks_few_values_up_loads_no_compiler(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pl.DataFrame({VALUE: [30, 10, 20]}).write_parquet(path)
    program = (
        "import sys; from pathlib import Path; import polars as pl; from shortlist.features.vocabulary import ValueIds;"
        "import shortlist.features.transform, shortlist.features.fit;"
        f"print(ValueIds(Path({str(path)!r})).ids(pl.Series([20, None, 5])).to_list(), 'numba' in sys.modules)"
    )
    got = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert got.strip() == "[3, 0, 0] False"


@pytest.mark.parametrize("spill_every", [0, 1, 2])
@pytest.mark.parametrize("key", ["item_id", "numbers"])
def test_integer_keys_are_counted_as_other_keys_are(world: Any, tmp_path: Path, key: str, spill_every: int) -> None:
    lists = [[3, 3, 1], [], None, [2**40, 1]]
    log = world.log([world.row(0, n / 4, item_id=n % 7 * 10, words=["a"]) for n in range(24)])
    rows = pl.read_parquet(list(log.glob("day=*/*.parquet")), hive_partitioning=False)
    rows = rows.with_columns(numbers=pl.Series([lists[n % 4] for n in range(24)], dtype=pl.List(pl.Int64)))
    view = KeyedView((key,), ("numbers",) if key == "numbers" else ())
    made = {}
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
            made[kind, day] = pl.read_parquet(path)
    first = made[KeyCount, 0]
    assert first[Columns.ROWS].sum() == (24 if key == "item_id" else 24 // 4 * 4)
    assert all(each.equals(first) for each in made.values())


def test_what_is_more_than_rows_of_an_integer_is_counted_by_queries(world: Any) -> None:
    declared = DeclaredColumns(world.data)
    assert IntegerCount.suits(KeyedView(("item_id",)), declared, "cpu")
    for other in (
        KeyedView(("item_id", "user_id")),
        KeyedView(("item_id",), totals=(Total("rows"), Total("sum_label"))),
        KeyedView(("item_id",), timed=True),
        KeyedView(("page",)),  # a text
    ):
        assert not IntegerCount.suits(other, declared, "cpu")


def test_a_gpu_counts_by_queries(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortlist.features.integer_count.resolve_engine", lambda engine: engine)
    assert not IntegerCount.suits(KeyedView(("item_id",)), DeclaredColumns(world.data), "gpu")


def test_the_key_of_a_narrow_type_keeps_it(tmp_path: Path) -> None:
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
    many = pl.Series(np.zeros(COMPILED_MIN_ROWS, np.int64))
    assert LookupTable.suits(many, "cpu")
    assert not LookupTable.suits(many[1:], "cpu")
    assert not LookupTable.suits(many.cast(pl.Float64), "cpu")


def test_a_range_of_a_file_is_read_as_the_whole_of_it(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    frame = pl.DataFrame({"key": range(1_000), "rows": [1] * 1_000, "other": ["a"] * 1_000})
    write_frames(path, [frame])
    (everything,) = key_ranges([path], "key", 1_000)
    ranges = key_ranges([path], "key", 300)
    assert len(ranges) > 2
    wanted = frame.select("rows", "key")
    assert read_range(path, ["rows", "key"], everything).equals(wanted)
    assert pl.concat(read_range(path, ["rows", "key"], inside) for inside in ranges).equals(wanted)


def test_countable_keys_need_no_other_column(world: Any) -> None:
    log = world.log([world.row(0, 1.0, item_id=10)])
    rows = pl.read_parquet(list(log.glob("day=*/*.parquet")), columns=["item_id"], hive_partitioning=False)
    view = KeyedView(("item_id",))
    assert countable(rows, [view], DeclaredColumns(world.data)).to_dict(as_series=False) == {"item_id": [10]}


@pytest.mark.parametrize("rows", [1_000_000, 400])
def test_a_large_log_has_the_vocabulary_that_a_small_one_has(tmp_path: Path, rows: int) -> None:
    random, days = np.random.default_rng(1), []
    for day in range(4):
        values, counts = np.unique(random.zipf(1.3, 3_000) % 2_000, return_counts=True)
        days.append(tmp_path / f"{day}.parquet")
        write_frames(days[-1], [pl.DataFrame({"x": values, Columns.ROWS: counts})])
    setting = VocabularyLimits("x", min_rows=5, max_size=100)
    large, small = (build_vocabulary(days, "x", setting, rows, "cpu", compiled=each) for each in (True, False))
    assert large.equals(small)
    assert large.height > 50


def test_a_large_log_is_fitted_as_a_small_one(world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = world.log([world.row(n // 8, n % 8 + 0.5, item_id=n % 5 * 10, page="ab"[n % 2]) for n in range(40)])
    columns = [{"kind": "vocabulary", "each": ["item_id", "page"], "min_rows": 3}]
    features = Features.model_validate({"columns": columns})
    for name, large in (("small", COMPILED_MIN_VALUES), ("large", 0)):
        monkeypatch.setattr("shortlist.features.integer_count.COMPILED_MIN_VALUES", large)
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
    columns = tuple(one for one in spec.features.columns if one.kind in kinds)
    assert {one.kind for one in columns} == {*kinds}
    planned = plan(spec.data, spec.features.model_copy(update={"columns": columns}), spec.gates)
    assert is_large(rows, planned.counted_views, planned.declared, "cpu") == large
