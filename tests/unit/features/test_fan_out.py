"""Days counted and built in groups give the bytes that one machine gives."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shortlist.contracts import DataError, Files
from shortlist.features.fan_out import count_group, group_uncounted_days, merge_groups
from shortlist.features.fit import fit
from shortlist.features.table import build_table, join_tables
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import folder_digest
from shortlist.storage.groups import groups_of, read, written
from shortlist.storage.tables import DayPart, DayTable

pytestmark = pytest.mark.long

COLUMNS = [
    {"kind": "numeric", "each": "price", "log": True, "standardise": True},
    {"kind": "vocabulary", "each": ["page", "words", "maker"], "min_rows": 2, "max_size": 4},
    {"kind": "cross", "columns": ["page", "user_id"], "name": "pair", "buckets": 1000},
    {"kind": "count", "key": ["user_id", "topics"], "of": "watched", "name": "watched_topic"},
    {"kind": "count", "key": ["user_id"], "window_days": 2, "name": "n"},
    {"kind": "target", "key": ["words", "user_id"], "name": "rate", "prior": 3.0},
    {"kind": "target", "key": ["maker"], "of": "seconds", "window_days": 2, "name": "dwell"},
    {"kind": "time_since", "key": ["topics"], "name": "age"},
    {"kind": "lag", "key": ["user_id"], "column": "seconds", "name": "last"},
    {"kind": "vector", "each": ["vector", "query"]},
    {"kind": "similarity", "list": "watched", "vector": "vector", "name": "close"},
]
COUNT = {"kind": "count", "key": ["user_id", "page"], "name": "n"}
WORDS = {"kind": "vocabulary", "each": "words", "min_rows": 2}
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
FIVE_DAYS = st.lists(st.lists(IMPRESSION, min_size=1, max_size=5), min_size=5, max_size=5)
GROUPINGS = st.lists(st.integers(0, 4), min_size=5, max_size=5)
"""For each day the group that it is in."""
RUNTIME = Runtime(engine="cpu")
several = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def rows_of(world: Any, days: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    every = [world.row(day, **impression) for day, impressions in enumerate(days) for impression in impressions]
    return [{**row, "impression_id": number} for number, row in enumerate(every)]


def plain(world: Any, days: int, per_day: int = 2) -> list[dict[str, Any]]:
    same = {"page": "x", "words": ["a"], "query": [1.0, 0.0]}
    return rows_of(world, [[{"user_id": user, **same} for user in range(per_day)] for _ in range(days)])


class Wide:
    """A fit over groups of days."""

    def __init__(self, world: Any, columns: Sequence[dict[str, Any]], name: str) -> None:
        self.declared = DeclaredSections(world.data, Features.model_validate({"columns": list(columns)}), Gates())
        self.folder = world.folder / name

    def share(self, log: Path, partitions: int, previous: Path | None = None) -> tuple[list[str], str]:
        return group_uncounted_days(self.declared, RUNTIME, log, partitions, str(previous or ""))

    def count(self, log: Path, groups: Sequence[str]) -> list[Path]:
        folders = [self.folder / f"group-{number}" for number in range(len(groups))]
        for folder, days in zip(folders, groups, strict=True):
            count_group(self.declared, RUNTIME, log, read(days), folder)
        return folders

    def fit(self, log: Path, groups: Sequence[str], previous: str = "") -> Path:
        merge_groups(self.declared, RUNTIME, log, self.count(log, groups), previous, self.folder / "fitted")
        return self.folder / "fitted"

    def table(self, log: Path, groups: Sequence[str], fitted: Path) -> Path:
        parts = [self.folder / f"part-{number}" for number in range(len(groups))]
        for part, days in zip(parts, groups, strict=True):
            build_table(*self.declared, RUNTIME, log, fitted, part, only_days=read(days))
        join_tables(parts, log, self.folder / "table")
        return self.folder / "table"


def grouped(log: Path, grouping: Sequence[int]) -> list[str]:
    days = list(DayTable.open(log, Files.LOG).by_day)
    return [written(day for day, own in zip(days, grouping, strict=True) if own == group) for group in set(grouping)]


@pytest.fixture
def fresh(world: Any) -> Any:
    """Worlds of their own, because a property tries many logs."""

    def make() -> Any:
        return type(world)(Path(tempfile.mkdtemp(dir=world.folder)), world.clock, world.split)

    return make


@several
@given(days=FIVE_DAYS, counting=GROUPINGS, building=GROUPINGS)
def test_any_grouping_gives_the_bytes_of_one_machine(
    fresh: Any, days: Sequence[Any], counting: Sequence[int], building: Sequence[int]
) -> None:
    world = fresh()
    log = world.log(rows_of(world, days), chunk_rows=3)
    wide = Wide(world, COLUMNS, "wide")
    table = world.table(log, COLUMNS, name="one")
    fitted = wide.fit(log, grouped(log, counting))
    assert folder_digest(fitted) == folder_digest(world.folder / "one-fitted")
    assert folder_digest(wide.table(log, grouped(log, building), fitted)) == folder_digest(table.folder)


@several
@given(days=FIVE_DAYS, partitions=st.integers(1, 4), before=st.integers(3, 5), with_old_days=st.booleans())
def test_a_wide_fit_goes_on_from_an_earlier_one(
    fresh: Any, days: Sequence[Any], partitions: int, before: int, with_old_days: bool
) -> None:
    world = fresh()
    rows = rows_of(world, days)
    new = rows[0]["day"] + timedelta(days=before)
    previous = world.fit(world.log([row for row in rows if row["day"] < new], "log-before"), COLUMNS, "before")
    log = world.log([row for row in rows if with_old_days or row["day"] >= min(new, rows[-1]["day"])])
    wide = Wide(world, COLUMNS, "wide")
    groups, usable = wide.share(log, partitions, previous)
    counted = {day for group in groups for day in read(group)}
    assert usable == str(previous) and min(counted, default=new) >= new
    whole = world.fit(world.log(rows, "all"), COLUMNS, "whole")
    assert folder_digest(wide.fit(log, groups, usable)) == folder_digest(whole)


def test_an_earlier_fit_that_does_not_fit_is_told_and_done_without(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    events = world.folder / "events.jsonl"
    monkeypatch.setenv("SHORTLIST_PROGRESS", str(events))
    rows = plain(world, 5)
    relabelled = [{**row, "label": 1 - row["label"]} if place == 2 else row for place, row in enumerate(rows)]
    previous = world.fit(world.log(plain(world, 4), "first"), [COUNT, WORDS], "before")
    shutil.rmtree(shutil.copytree(previous, world.folder / "torn") / "statistics/by_words")
    log, later = world.log(rows), world.log(relabelled, "relabelled")
    wide = Wide(world, [COUNT, WORDS], "wide")
    for one, folder in ((later, previous), (log, world.folder / "torn"), (log, world.folder / "gone")):
        groups, usable = wide.share(one, 2, folder)
        assert (usable, {day for group in groups for day in read(group)}) == (
            "",
            set(DayTable.open(one, Files.LOG).by_day),
        )
    told = notes(events)
    assert [text.partition(": ")[0] for text in told] == [
        "Every day is counted again, for the earlier features do not fit"
    ] * 3
    for text, reason in zip(told, ("has other values now", "is missing", "missing"), strict=True):
        assert reason in text


def test_ids_that_would_change_are_given_anew(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    events = world.folder / "events.jsonl"
    monkeypatch.setenv("SHORTLIST_PROGRESS", str(events))
    rows = [*plain(world, 6), *(world.row(2, words=["b"]) for _ in range(3)), world.row(1, words=["c"])]
    rows = sorted(({**row, "impression_id": number} for number, row in enumerate(rows)), key=lambda row: row["day"])
    log = world.log([row for row in rows if row["day"] > rows[0]["day"]])  # the earlier fit knows a day more
    previous = world.fit(world.log(rows[:-2], "first"), [WORDS], "before")
    wide = Wide(world, [{**WORDS, "min_rows": 1}], "wide")
    groups, usable = wide.share(log, 2, previous)
    assert usable
    fitted = wide.fit(log, groups, usable)
    assert folder_digest(fitted) == folder_digest(world.fit(log, [{**WORDS, "min_rows": 1}], "whole"))
    (told,) = notes(events)
    assert told.startswith("Ids are given anew, for the earlier features do not fit: words: ids of an earlier fit")


def notes(events: Path) -> list[str]:
    lines = (json.loads(line) for line in events.read_text().splitlines())
    return [event["text"] for event in lines if event["event"] == "note"]


def test_when_every_day_was_counted_there_is_one_group_of_none(world: Any) -> None:
    log = world.log(plain(world, 5))
    previous = world.fit(log, [COUNT], "before")
    wide = Wide(world, [COUNT], "wide")
    assert wide.share(log, 3, previous) == ([""], str(previous))
    assert folder_digest(wide.fit(log, [""], str(previous))) == folder_digest(previous)


def test_a_group_holds_its_statistics_and_nothing_else(world: Any) -> None:
    log = world.log(plain(world, 5))
    (group,) = Wide(world, [COUNT], "wide").count(log, ["2026-03-03,2026-03-04"])
    files = sorted(path.relative_to(group).as_posix() for path in group.rglob("*") if path.is_file())
    by_day = [f"day=2026-03-0{day}.parquet" for day in (3, 4)]
    keys = ("by_item_id", "by_user_id", "by_user_id__page")
    assert files == ["counted.json", *(f"statistics/{key}/{name}" for key in keys for name in by_day)]


def test_days_that_are_left_out_or_doubled_are_refused(world: Any) -> None:
    log = world.log(plain(world, 4))
    wide = Wide(world, [COUNT], "wide")
    with pytest.raises(DataError, match=r"2026-03-05 is in no group of days; share the days out again"):
        wide.fit(log, ["2026-03-02,2026-03-03", "2026-03-04"])
    with pytest.raises(DataError, match=r"2026-03-03 is in two groups of days, .*group-0 and .*group-1; share"):
        wide.fit(log, ["2026-03-02,2026-03-03", "2026-03-03,2026-03-04,2026-03-05"])
    fitted = wide.fit(log, ["2026-03-02,2026-03-03", "2026-03-04,2026-03-05"])
    with pytest.raises(DataError, match=r"2026-03-05 is in no group of days"):
        wide.table(log, ["2026-03-02,2026-03-03", "2026-03-04"], fitted)
    assert not (wide.folder / "table").exists()


def test_groups_of_other_features_are_refused(world: Any) -> None:
    log = world.log(plain(world, 4))
    groups = Wide(world, [COUNT], "narrow").count(log, grouped(log, [0, 0, 1, 1]))
    wide = Wide(world, [COUNT, WORDS], "wide")
    with pytest.raises(DataError, match=r"group-0: counted for other features than the declared ones; count again"):
        merge_groups(wide.declared, RUNTIME, log, groups, "", wide.folder / "fitted")


def test_tables_of_different_fits_are_refused(world: Any) -> None:
    log = world.log([*plain(world, 4), world.row(0, words=["b"]), world.row(0, words=["b"])])
    parts = []
    for number, columns in enumerate(([WORDS], [{**WORDS, "max_size": 2}])):
        declared = DeclaredSections(world.data, Features.model_validate({"columns": columns}), Gates())
        fit(*declared, RUNTIME, log, world.folder / f"fitted-{number}")
        parts.append(world.folder / f"part-{number}")
        days = frozenset(date(2026, 3, 2 + 2 * number + more) for more in (0, 1))
        build_table(*declared, RUNTIME, log, world.folder / f"fitted-{number}", parts[-1], only_days=days)
    with pytest.raises(DataError, match=r"part-1 and .*part-0: built from different fits; build both again"):
        join_tables(parts, log, world.folder / "table")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"query": [1.0]}, "vector column 'query': vectors of 1 and of 2 numbers; wanted one length"),
        ({"query": None}, "vector column 'query' holds no vector at all"),
    ],
)
def test_vectors_of_groups_are_judged_together(world: Any, bad: dict[str, Any], message: str) -> None:
    rows = [row if bad["query"] and row["day"].day < 4 else {**row, **bad} for row in plain(world, 4)]
    log = world.log(rows)
    with pytest.raises(DataError, match=message):
        Wide(world, [{"kind": "vector", "each": "query"}], "wide").fit(log, grouped(log, [0, 0, 1, 1]))


def test_the_files_of_a_day_do_not_depend_on_the_days_before(world: Any) -> None:
    """A file holds 1 000 rows: 600 of one day and the first 700 of the next are too many to hold."""
    heights = [600, 900, 900, 900]
    log = world.log(
        rows_of(world, [[{"user_id": user} for user in range(height)] for height in heights]), chunk_rows=700
    )
    declared = DeclaredSections(world.data, Features.model_validate({"columns": [COUNT]}), Gates())
    fitted, small = world.fit(log, [COUNT]), Runtime(engine="cpu", chunk_rows=1_000)
    whole = build_table(*declared, small, log, fitted, world.folder / "whole")
    assert [len(part.files) for part in whole.days] == [1, 1, 1, 1]
    second = whole.days[1]
    alone = build_table(*declared, small, log, fitted, world.folder / "alone", only_days=frozenset([second.day]))
    assert alone.days == (second,)
    assert alone.paths()[0].read_bytes() == whole.paths({second.day})[0].read_bytes()


@pytest.mark.parametrize("most", [1, 2, 3, 7, 64])
def test_groups_are_neighbours_with_about_as_many_rows_each(most: int) -> None:
    heights = [5, 1, 1, 30, 2, 9, 9, 9, 1, 4]
    first = date(2026, 1, 1)
    days = [
        DayPart(day=first + timedelta(days=at), rows=rows, positives=0, files=()) for at, rows in enumerate(heights)
    ]
    groups = groups_of(days, most)
    assert [day for group in groups for day in group] == [part.day for part in days]
    assert len(groups) <= most and all(groups)
    rows = {part.day: part.rows for part in days}
    assert max(sum(rows[day] for day in group) for group in groups) <= sum(heights) / most + max(heights)


def test_days_without_rows_are_shared_out_too() -> None:
    days = [DayPart(day=date(2026, 1, day), rows=0, positives=0, files=()) for day in (1, 2)]
    assert groups_of(days, 2) == [[date(2026, 1, 1), date(2026, 1, 2)]]


def test_the_engine_reads_what_it_writes() -> None:
    days = [date(2026, 1, 31), date(2026, 2, 1)]
    assert written(days) == "2026-01-31,2026-02-01"
    assert read(written(days)) == set(days)
    assert read(written([])) == frozenset()


def test_columns_cover_lists_vectors_and_histories(world: Any) -> None:
    log = world.log(plain(world, 4))
    fitted = world.fit(log, COLUMNS)
    assert {"by_user_id", "by_topics", "mean_vector_of_watched", "items"} <= {
        path.stem for path in (fitted / "views").glob("*.parquet")
    }
    assert pl.read_parquet(fitted / "vocabularies/words.parquet").height == 1
