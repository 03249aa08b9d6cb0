import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shortlist.features.counts.keyed import KeyedView, Total
from shortlist.features.counts.statistics import KeyCount, count, countable
from shortlist.features.counts.tiles import start_of
from shortlist.features.stored_views import lookup
from shortlist.features.stored_views.lookup import ViewFile
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.features.stored_views.views import ViewWriter, day_file
from shortlist.features.values.columns import DeclaredColumns

COUNT = {"kind": "count", "key": ["user_id"], "window_days": 2, "name": "n"}
TARGET = {"kind": "target", "key": ["user_id"], "of": "seconds", "name": "rate"}


def at(day: int) -> datetime:
    return datetime(2026, 3, day, tzinfo=UTC)


def test_view_has_a_row_only_where_its_key_changes(world: Any) -> None:
    rows = [world.row(day, user_id=user) for day, user in ((0, 1), (0, 2), (1, 1), (2, 4), (4, 3))]
    fitted = world.fit(world.log(rows), [COUNT])
    view = pl.read_parquet(fitted / "views" / "by_user_id.parquet")
    assert view.select("user_id", "event_timestamp", "rows", "rows_2d").rows() == [
        (1, at(3), 1, 1),
        (2, at(3), 1, 1),
        (1, at(4), 2, 2),
        (1, at(5), 2, 1),  # day 0 left the window of days 1 and 2
        (2, at(5), 1, 0),
        (4, at(5), 1, 1),
        (1, at(6), 2, 0),
        (3, at(7), 1, 1),  # holds from the day after the log's last
        (4, at(7), 1, 0),
    ]


def test_view_has_no_row_when_no_count_leaves_a_window(world: Any) -> None:
    rows = [world.row(0, seconds=None), world.row(0, user_id=2, seconds=0.0), world.row(1, user_id=3), world.row(4)]
    fitted = world.fit(world.log(rows), [{**TARGET, "window_days": 1}])
    view = pl.read_parquet(fitted / "views" / "by_user_id.parquet").sort("user_id", "event_timestamp")
    assert view.select("user_id", "event_timestamp", "rows", "rows_seconds_1d").rows() == [
        (1, at(3), 1, 0),  # its one impression had no seconds, so on day 2 nothing changes
        (1, at(7), 2, 0),
        (2, at(3), 1, 1),
        (2, at(4), 1, 0),
        (3, at(4), 1, 0),
    ]


def test_sums_are_fixed_point_integers(world: Any) -> None:
    rows = [world.row(day, seconds=0.5) for day in (0, 0, 1, 2)]
    fitted = world.fit(world.log(rows), [TARGET])
    view = pl.read_parquet(fitted / "views" / "by_user_id.parquet")
    assert view["sum_seconds"].to_list() == [2**16, 3 * 2**15, 4 * 2**15]


def test_days_begin_in_the_timezone_of_the_clock(world_in: Callable[[str], Any]) -> None:
    world = world_in("America/New_York")
    fitted = world.fit(world.log([world.row(day) for day in (5, 6, 7)]), [COUNT])  # clocks go forward on day 6
    moments = pl.read_parquet(fitted / "views" / "by_user_id.parquet")["event_timestamp"].to_list()
    assert moments == [datetime(2026, 3, 8, 5, tzinfo=UTC), *(datetime(2026, 3, day, 4, tzinfo=UTC) for day in (9, 10))]


def test_a_day_without_midnight_begins_at_its_first_hour() -> None:
    # in Havana clocks went from 0:00 to 1:00 on 2026-03-08
    assert start_of(date(2026, 3, 8), "America/Havana") == datetime(2026, 3, 8, 5, tzinfo=UTC)


def test_index_describes_every_view(world: Any) -> None:
    columns = [COUNT, TARGET, {"kind": "vocabulary", "each": ["topics", "page"]}]
    columns.append({"kind": "similarity", "list": "watched", "vector": "vector", "name": "close"})
    columns.append({"kind": "lag", "key": ["topics"], "column": "likes", "name": "last"})
    fitted = world.fit(world.log([world.row(day) for day in range(3)]), columns)
    index = ViewIndex.read(fitted / "views")
    assert {view.name: (view.static, view.newest_keys) for view in index.views} == {
        "items": (True, 3),
        "mean_vector_of_watched": (True, 3),
        "by_user_id": (False, 1),
        "by_item_id": (False, 1),
        "all_rows": (False, 1),
        "by_topics": (False, 2),
    }
    for view in index.views:
        frame = pl.read_parquet(index.path(view))
        assert frame.height == view.rows
        assert frame["event_timestamp"].is_sorted()
        assert {key.name: key.polars for key in (*view.keys, *view.features)} == {
            name: dtype for name, dtype in frame.schema.items() if name != "event_timestamp"
        }
    assert json.loads((fitted / "views" / "views.json").read_text())["timezone"] == "UTC"


VIEW = KeyedView(
    ("user_id", "page"), (), (Total("rows"), Total("rows", 2), Total("sum_likes")), ("seconds",), timed=True
)


@pytest.fixture
def counted(world: Any, tmp_path: Path) -> Path:
    """Return statistics of five days of `VIEW`."""
    rows = []
    for number in range(300):
        seconds = None if number % 7 == 0 else number / 4
        values = {"user_id": number % 23, "page": "abc"[number % 3], "likes": number % 5, "seconds": seconds}
        rows.append(world.row(number % 5, number / 20, **values))
    declared = DeclaredColumns(world.data)
    frame = pl.read_parquet(list((world.log(rows)).glob("day=*/*.parquet")))
    for (day,), part in frame.group_by("day"):
        key_count = KeyCount(VIEW, tmp_path / "scratch", "cpu")
        key_count.add(*count(countable(part, [VIEW], declared), [VIEW], "cpu"))
        key_count.finish(day_file(tmp_path / "statistics", VIEW.name, day), 1_000)
    return tmp_path / "statistics"


def write_view(counted: Path, path: Path, rows: int) -> Path:
    days = sorted(date.fromisoformat(file.stem.removeprefix("day=")) for file in (counted / VIEW.name).iterdir())
    size = ViewWriter(counted, days, "UTC", rows, "cpu").write(VIEW, path)
    assert size.newest_keys == pl.read_parquet(path).select("user_id", "page").n_unique()
    assert size.rows == pl.read_parquet(path).height
    return path


def test_view_does_not_depend_on_the_number_of_pieces(counted: Path, tmp_path: Path) -> None:
    whole = pl.read_parquet(write_view(counted, tmp_path / "whole.parquet", 10**6))
    pieces = pl.read_parquet(write_view(counted, tmp_path / "pieces.parquet", 50))
    assert pieces["event_timestamp"].is_sorted()
    order = ["event_timestamp", "user_id", "page"]
    assert pieces.sort(order).equals(whole.sort(order))
    assert [path.name for path in tmp_path.glob("*.parquet*")] == ["whole.parquet", "pieces.parquet"] or len(
        list(tmp_path.glob("*.parquet*"))
    ) == 2


def test_answers_do_not_depend_on_how_the_view_is_read(
    counted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_view(counted, tmp_path / "view.parquet", 10**6)
    keys = pl.DataFrame({"user_id": [1, 5, 99, 5, None], "page": ["a", "b", "a", None, "c"]})
    days = [date(2026, 3, day) for day in range(2, 9)]

    def answers(days: list[date]) -> list[pl.DataFrame]:
        file = ViewFile(path, VIEW, 69, "UTC", "cpu")
        return [file.answer(keys, day) for day in days]

    at_once = [answers([day])[0] for day in days]
    # impressions 231, 162, 93, 24 are of (1, a), on days 1 to 4; 235, 166, 97, 28 of (5, b), on days 0 to 3
    batch_and_held_keys = [(None, None), (None, 1), (1, 2), (2, 3), (3, 4), (4, 4), (4, 4)]
    assert [frame["rows"].to_list() for frame in at_once] == [[a, b, None, None, None] for a, b in batch_and_held_keys]
    monkeypatch.setattr(lookup, "_BATCH_ROWS", 7)
    assert all(
        answers_of_way.equals(reference_answers)
        for answers_of_way, reference_answers in zip(answers(days), at_once, strict=True)
    )
    assert all(
        answers_of_way.equals(reference_answers)
        for answers_of_way, reference_answers in zip(answers(days[::-1]), at_once[::-1], strict=True)
    )
    monkeypatch.setattr(lookup, "_MAX_HELD_KEYS", 0)  # every key is searched for
    assert all(
        answers_of_way.equals(reference_answers)
        for answers_of_way, reference_answers in zip(answers(days), at_once, strict=True)
    )
