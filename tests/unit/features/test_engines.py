"""Every engine gives the bytes of one process, whatever the partitions."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from shortlist.contracts import Files
from shortlist.features.engines.registry import FEATURE_ENGINES
from shortlist.features.fits.fit import fit
from shortlist.features.rows import table as table_module
from shortlist.features.rows.table import build_table
from shortlist.features.stored_views import lookup
from shortlist.spec.data import Data
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import FeatureEngine, Runtime
from shortlist.storage.artefacts import file_digests
from shortlist.storage.tables import DayTable
from shortlist.system.partitions import InProcess, PartitionEngine

COLUMNS = [
    {"kind": "numeric", "each": "price", "log": True, "standardise": True},
    {"kind": "vocabulary", "each": ["page", "words", "maker"], "min_rows": 2, "max_size": 4},
    {"kind": "cross", "columns": ["page", "user_id"], "name": "pair", "buckets": 1000},
    {"kind": "count", "key": ["user_id", "topics"], "of": "watched", "name": "watched_topic"},
    {"kind": "count", "key": ["user_id"], "window_days": 2, "name": "n"},
    {"kind": "target", "key": ["words", "user_id"], "prior_key": "user_id", "name": "rate", "prior": 3.0},
    {"kind": "target", "key": ["maker"], "of": "seconds", "window_days": 2, "name": "dwell"},
    {"kind": "time_since", "key": ["topics"], "name": "age"},
    {"kind": "lag", "key": ["user_id"], "column": "seconds", "name": "last"},
    {"kind": "vector", "each": ["vector", "query"]},
    {"kind": "similarity", "list": "watched", "vector": "vector", "name": "close"},
]
IMPRESSION = st.fixed_dictionaries(
    {
        "hour": st.integers(0, 23),
        "user_id": st.sampled_from([1, 2, 3, None]),
        "item_id": st.sampled_from([10, 20, 30, 99]),
        "page": st.sampled_from(["x", "y", None]),
        "price": st.sampled_from([0.0, 1.0, 1e9, 0.1, None]),
        "words": st.one_of(st.none(), st.lists(st.sampled_from(["a", "b", "c"]), max_size=3)),
        "query": st.just([1.0, 2.0]),
        "seconds": st.sampled_from([None, 0.1, 0.3, 12.7]),
        "label": st.integers(0, 1),
    }
)
FIVE_DAYS = st.lists(st.lists(IMPRESSION, min_size=1, max_size=9), min_size=5, max_size=5)
several = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


class SlicedEngine(FeatureEngine):
    """An engine that is no part of the product: partitions, one after the other."""

    engine: Literal["sliced"]
    """No other process."""
    partitions: int = 3
    """Number of partitions."""

    @contextmanager
    def open(self) -> Iterator[PartitionEngine]:
        yield InProcess(self.partitions)


@pytest.fixture
def sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FEATURE_ENGINES, "sliced", SlicedEngine)


@pytest.fixture
def fresh(world: Any) -> Any:
    """Worlds of their own, because a property tries many logs."""

    def make() -> Any:
        return type(world)(Path(tempfile.mkdtemp(dir=world.folder)), world.clock, world.split)

    return make


def rows_of(world: Any, days: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    every = [world.row(day, **impression) for day, impressions in enumerate(days) for impression in impressions]
    return [{**row, "impression_id": number} for number, row in enumerate(every)]


class Maker:
    """Makes features of a log with some engine."""

    def __init__(
        self, world: Any, columns: Sequence[dict[str, Any]], data: dict[str, Any] | None = None, **features: Any
    ) -> None:
        self.declared = DeclaredSections(
            Data.model_validate({**world.data.model_dump(), **(data or {})}),
            Features.model_validate({"columns": list(columns), **features}),
            Gates(slices=("page",)),
        )
        self.folder = world.folder

    def fit(self, log: Path, name: str, runtime: Runtime, previous: Path | None = None) -> Path:
        fit(*self.declared, runtime, log, self.folder / name, previous)
        return self.folder / name

    def table(self, log: Path, fitted: Path, name: str, runtime: Runtime) -> Path:
        return build_table(*self.declared, runtime, log, fitted, self.folder / name).folder


LOCAL = Runtime(engine="cpu", chunk_rows=1_000)


def in_slices(partitions: int) -> Runtime:
    return Runtime(engine="cpu", chunk_rows=1_000, features={"engine": "sliced", "partitions": partitions})


@several
@given(days=FIVE_DAYS, partitions=st.integers(2, 5), timed=st.booleans(), most_held_keys=st.sampled_from([0, 2, 99]))
def test_partitions_give_the_bytes_of_one_process(
    fresh: Any, sliced: None, days: Sequence[Any], partitions: int, timed: bool, most_held_keys: int
) -> None:
    world = fresh()
    log = world.log(rows_of(world, days), chunk_rows=2)
    maker = Maker(world, COLUMNS, **({"tile": "6h"} if timed else {}))
    whole = maker.fit(log, "whole", LOCAL)
    parts = maker.fit(log, "parts", in_slices(partitions))
    assert file_digests(parts) == file_digests(whole)
    with pytest.MonkeyPatch.context() as patch:
        table = maker.table(log, whole, "table", LOCAL)
        patch.setattr(lookup, "_MAX_HELD_KEYS", most_held_keys)
        assert file_digests(maker.table(log, parts, "sliced", in_slices(partitions))) == file_digests(table)


def many_rows(world: Any, rows: int, days: int = 4) -> list[dict[str, Any]]:
    """Rows of so many users that their statistics and views are cut into ranges."""
    chance = random.Random(7)
    made = [
        world.row(
            number * days // rows, chance.uniform(0, 24), user_id=chance.randrange(rows // 3), item_id=10,
            page=chance.choice("xyz"), label=chance.randrange(2), seconds=chance.random(),
        )
        for number in range(rows)
    ]  # fmt: skip
    return [{**row, "impression_id": number} for number, row in enumerate(made)]


RATE = {"kind": "target", "key": "user_id", "name": "rate"}
USER_COLUMNS = [
    {"kind": "vocabulary", "each": ["user_id"], "min_rows": 2},
    {"kind": "target", "key": ["user_id"], "name": "rate", "prior": 3.0},
    {"kind": "count", "key": ["user_id", "page"], "name": "pages"},
    {"kind": "lag", "key": ["user_id"], "column": "seconds", "name": "last"},
    {"kind": "numeric", "each": "price", "standardise": True},
]


@pytest.mark.parametrize("tile", ["1d", "6h"])
def test_views_of_many_keys_are_shuffled_by_key_and_by_moment(
    world: Any, sliced: None, tile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.log(many_rows(world, 9_000), chunk_rows=1_000)
    maker = Maker(world, USER_COLUMNS, tile=tile)
    whole = maker.fit(log, "whole", LOCAL)
    assert pl.scan_parquet(whole / "views/by_user_id.parquet").select(pl.len()).collect().item() > 3 * 2_000
    assert file_digests(maker.fit(log, "parts", in_slices(5))) == file_digests(whole)
    table = maker.table(log, whole, "table", LOCAL)
    monkeypatch.setattr(lookup, "_MAX_HELD_KEYS", 1_000)
    assert file_digests(maker.table(log, whole, "sliced", in_slices(5))) == file_digests(table)


@pytest.mark.parametrize("tile", ["1d", "6h"])
def test_a_view_that_is_too_large_for_memory_is_searched_once_for_some_files(
    world: Any, tile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that change within a day, and keys in side tables, are searched for each file."""
    makers = {"kind": "target", "key": ["maker"], "name": "maker_rate"}
    log = world.log([{**row, "item_id": 10} for row in many_rows(world, 2_400)], chunk_rows=100)  # six files a day
    maker = Maker(world, [*USER_COLUMNS, makers], tile=tile)
    fitted = maker.fit(log, "fitted", LOCAL)
    held = maker.table(log, fitted, "held", LOCAL)
    searched_views: list[str] = []
    search = lookup.ViewFile._search

    def count_search(file: lookup.ViewFile, keys: pl.DataFrame, rows: int) -> pl.DataFrame:
        searched_views.append(file.view.name)
        return search(file, keys, rows)

    monkeypatch.setattr(lookup, "_MAX_HELD_KEYS", -1)
    monkeypatch.setattr(lookup.ViewFile, "_search", count_search)
    monkeypatch.setattr(table_module, "_SEARCHED_ROWS", 300)
    assert file_digests(maker.table(log, fitted, "searched", LOCAL)) == file_digests(held)
    searches = {name: searched_views.count(name) for name in set(searched_views)}
    in_groups = 4 * 2 if tile == "1d" else 4 * 6
    assert (searches["by_user_id"], searches["by_user_id__page"], searches["by_maker"]) == (in_groups, in_groups, 24)


@pytest.mark.parametrize(
    ("columns", "data", "features"),
    [
        (
            [RATE, {"kind": "slate", "feature": "rate", "gives": ["rank"]}],
            {"slate": {"column": "page"}}, {},
        ),
        (
            [{"kind": "current", "key": ["user_id"], "name": "shown"}, {**RATE, "key": "page"}],
            {"outcome_delay": "10m"}, {"tile": "1h", "streaming": {"delay": "1m"}},
        ),
        ([{"kind": "sequence", "of": "item_id", "key": "user_id", "last": 3, "name": "history"}], {}, {}),
    ],
    ids=["slates", "open tiles", "sequences"],
)  # fmt: skip
def test_whole_days_and_lists_are_partitioned(
    world: Any, sliced: None, monkeypatch: pytest.MonkeyPatch, columns: Any, data: Any, features: Any
) -> None:
    rows = [
        {**row, "page": f"request {number // 4}", "user_id": row["user_id"] % 40, "item_id": 10 * (1 + number % 3)}
        for number, row in enumerate(many_rows(world, 2_400))
    ]
    log = world.log(rows, chunk_rows=500)
    maker = Maker(world, columns, data, **features)
    table = maker.table(log, maker.fit(log, "whole", LOCAL), "table", LOCAL)
    monkeypatch.setattr(lookup, "_MAX_HELD_KEYS", 10)
    sliced_table = maker.table(log, maker.fit(log, "parts", in_slices(3)), "sliced", in_slices(3))
    assert file_digests(sliced_table) == file_digests(table)


def test_an_earlier_fit_is_extended_by_partitions(world: Any, sliced: None) -> None:
    rows = many_rows(world, 1_500, days=5)
    log, before = world.log(rows), world.log([row for row in rows if row["day"] < rows[-1]["day"]], "before")
    maker = Maker(world, USER_COLUMNS)
    previous = maker.fit(before, "previous", LOCAL)
    assert file_digests(maker.fit(log, "parts", in_slices(3), previous)) == file_digests(maker.fit(log, "whole", LOCAL))


def test_the_files_of_a_day_do_not_depend_on_earlier_days(world: Any) -> None:
    """A file holds 1 000 rows: 600 of one day and the first 700 of the next are too many to hold."""
    heights = [600, 900, 900, 900]
    log = world.log(
        rows_of(world, [[{"user_id": user} for user in range(height)] for height in heights]), chunk_rows=700
    )
    maker = Maker(world, [RATE])
    fitted = maker.fit(log, "fitted", LOCAL)
    whole = DayTable.open(maker.table(log, fitted, "whole", LOCAL), Files.TABLE)
    assert [len(part.files) for part in whole.days] == [1, 1, 1, 1]
    second = whole.days[1]
    days = frozenset([second.day])
    alone = build_table(*maker.declared, LOCAL, log, fitted, world.folder / "alone", only_days=days)
    assert alone.days == (second,)
    assert alone.paths()[0].read_bytes() == whole.paths({second.day})[0].read_bytes()


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"'spark' found using 'engine' does not match .* 'local', 'ray'"):
        Runtime.model_validate({"features": {"engine": "spark"}})
