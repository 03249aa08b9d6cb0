"""Statistics by tiles of time: what a row sees of its own day, in the table and in Feast."""

import math
import tempfile
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from shortlist.contracts import Columns, DataError, Files
from shortlist.data.reading.clock import row_times
from shortlist.features.counts.tiles import Tiles, start_of
from shortlist.features.declared.plan import plan
from shortlist.features.feast.store import connect
from shortlist.features.fits.fit import fit
from shortlist.features.fits.publish import publish
from shortlist.features.rows.table import build_table
from shortlist.features.rows.transform import Transformer
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.features.values.columns import PlanError
from shortlist.spec.data import Data, RowClock
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.spec.text.durations import parse_duration
from shortlist.storage.artefacts import folder_digest, read_json
from shortlist.storage.tables import DayTable

RUNTIME = Runtime(engine="cpu")
COLUMNS = [
    {"kind": "count", "key": ["user_id"], "name": "n"},
    {"kind": "target", "key": ["user_id"], "window_days": 1, "name": "rate"},
    {"kind": "time_since", "key": ["user_id"], "name": "since"},
    {"kind": "lag", "key": ["user_id"], "column": "seconds", "name": "last"},
    {"kind": "target", "key": ["words"], "name": "word_rate"},
    {"kind": "vocabulary", "each": ["user_id", "page"], "min_rows": 2},
]
WINDOW = timedelta(hours=12)
WINDOWED = {"kind": "target", "key": ["user_id"], "window": "12h", "name": "rate_12h"}
ZONE = "America/New_York"
"""Its clocks go forward on 8 March 2026, day 6 of the world."""


def declared(world: Any, tile: str, delay: str = "0s", zone: str = "UTC") -> tuple[Data, Features]:
    data = world.data.model_dump(mode="json") | {"outcome_delay": delay}
    data["clock"]["timezone"] = zone
    columns = [*COLUMNS, *([WINDOWED] if tile != "1d" else [])]
    return Data.model_validate(data), Features.model_validate({"columns": columns, "tile": tile})


def fitted_by(sections: tuple[Data, Features], log: Path, out: Path, previous: Path | None = None) -> Path:
    data, features = sections
    fit(data, features, None, RUNTIME, log, out, previous)
    return out


def looked_up(log: Path, fitted: Path) -> list[dict[str, Any]]:
    """Return every row with the values of its views."""
    transformer = Transformer.load(fitted, "cpu")
    frames = [transformer.look_up(rows, day) for day, rows in DayTable.open(log, Files.LOG).frames()]
    return pl.concat(frames).sort("impression_id").to_dicts()


def counted(
    row: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    sections: tuple[Data, Features],
    window: timedelta = timedelta(days=1_000),
) -> list[Any]:
    """Return the rows of the same user that a row may see, in order of time, by a scan of all rows."""
    data, features = sections
    tile, delay, zone = parse_duration(features.tile), parse_duration(data.outcome_delay or "0s"), data.clock.timezone

    def known_moment_of(other_row: dict[str, Any]) -> datetime:
        start, next_midnight = (start_of(other_row["day"] + timedelta(days=days), zone) for days in (0, 1))
        return min(start + ((other_row["event_time"] - start) // tile + 1) * tile, next_midnight) + delay

    of_user = [other_row for other_row in rows if row["user_id"] is not None and other_row["user_id"] == row["user_id"]]
    visible_rows = [
        other_row
        for other_row in of_user
        if known_moment_of(other_row) <= row["event_time"] < known_moment_of(other_row) + window
    ]
    return sorted(visible_rows, key=lambda other_row: (other_row["event_time"], other_row["impression_id"]))


IMPRESSION = st.fixed_dictionaries(
    {
        # The clock skips the hour from two to three on one of the days.
        "hour": st.one_of(st.floats(0, 1.9), st.floats(3, 22.9)),
        "user_id": st.sampled_from([1, 2, None]),
        "page": st.sampled_from(["x", "y", None]),
        "words": st.one_of(st.none(), st.lists(st.sampled_from(["a", "b"]), max_size=2)),
        "seconds": st.sampled_from([None, 0.5, 12.75]),
        "label": st.integers(0, 1),
    }
)
DAYS = st.lists(st.lists(IMPRESSION, min_size=2, max_size=8), min_size=4, max_size=4)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(days=DAYS, tile=st.sampled_from(["10m", "1h", "12h", "1d"]), delay=st.sampled_from(["0s", "45m", "1d"]))
def test_a_row_sees_complete_tiles_with_known_outcomes(world: Any, days: Sequence[Any], tile: str, delay: str) -> None:
    folder = Path(tempfile.mkdtemp(dir=world.folder))
    local = type(world)(folder, {"timezone": ZONE}, world.split)
    sections = declared(local, tile, delay, ZONE)
    rows = [
        {**local.row(5 + day, **impression), "impression_id": number}
        for number, (day, impression) in enumerate(
            (day, impression_row) for day, rows in enumerate(days) for impression_row in rows
        )
    ]
    log = local.log(rows)
    rows = [{**row, "event_time": row["event_time"].astimezone(UTC)} for row in rows]
    for row in rows:
        row["day"] = row["event_time"].astimezone(local.row()["event_time"].tzinfo).date()
    for row, view_values in zip(rows, looked_up(log, fitted_by(sections, log, folder / "fitted")), strict=True):
        visible_rows = counted(row, rows, sections)
        as_of = (row["event_time"] - parse_duration(delay)).astimezone(local.row()["event_time"].tzinfo).date()
        recent = [other_row for other_row in visible_rows if other_row["day"] >= as_of - timedelta(days=1)]
        assert (view_values["by_user_id:rows"] or 0) == len(visible_rows)
        assert (view_values["by_user_id:rows_1d"] or 0) == len(recent)
        assert (view_values["by_user_id:sum_label_1d"] or 0) == sum(other_row["label"] for other_row in recent)
        if tile != "1d":
            in_window = counted(row, rows, sections, WINDOW)
            assert (view_values["by_user_id:rows_12h"] or 0) == len(in_window)
            assert (view_values["by_user_id:sum_label_12h"] or 0) == sum(other_row["label"] for other_row in in_window)
        assert view_values["by_user_id:last_seconds"] == (visible_rows[-1]["seconds"] if visible_rows else None)
        last = view_values["by_user_id:last_time"]
        assert (last and datetime.fromtimestamp(last / 1e6, UTC)) == (
            visible_rows[-1]["event_time"] if visible_rows else None
        )


def world_rows(world: Any, days: int = 4) -> list[dict[str, Any]]:
    """Return impressions of two users at 9:10 and 10:40 of every day; those of the first hour are clicked."""
    return [
        world.row(day, hour, user_id=user, page="x", words=["a"], seconds=hour, label=int(hour < 10))
        for day in range(days)
        for hour in (9 + 1 / 6, 10 + 2 / 3)
        for user in (1, 2)
    ]


def test_an_hour_is_seen_from_the_next_hour_on(world: Any) -> None:
    log = world.log(world_rows(world))
    hourly = looked_up(log, fitted_by(declared(world, "1h"), log, world.folder / "hourly"))
    daily = looked_up(log, fitted_by(declared(world, "1d"), log, world.folder / "daily"))
    row_numbers = [number for number, row in enumerate(hourly) if row["user_id"] == 1]
    assert [hourly[number]["by_user_id:rows"] for number in row_numbers] == [None, 1, 2, 3, 4, 5, 6, 7]
    assert [daily[number]["by_user_id:rows"] for number in row_numbers] == [None, None, 2, 2, 4, 4, 6, 6]
    # at 10:40, one hour with 45 minutes of delay: what happened until 9:55 at most, that is nothing of the day
    late = looked_up(log, fitted_by(declared(world, "1h", "45m"), log, world.folder / "late"))
    assert [late[number]["by_user_id:rows"] for number in row_numbers] == [None, None, 2, 2, 4, 4, 6, 6]


def test_ids_and_files_of_day_statistics_do_not_depend_on_tiles(world: Any) -> None:
    log = world.log(world_rows(world))
    hourly = fitted_by(declared(world, "1h"), log, world.folder / "hourly")
    daily = fitted_by(declared(world, "1d"), log, world.folder / "daily")
    plain = world.fit(log, COLUMNS, "plain")
    for name in ("statistics", "views"):
        assert folder_digest(plain / name) == folder_digest(daily / name)  # 1d is what is not said
    for file in (daily / "vocabularies").iterdir():
        assert pl.read_parquet(hourly / "vocabularies" / file.name).equals(pl.read_parquet(file))


def test_a_day_with_new_rows_is_recounted_and_equals_a_full_count(world: Any) -> None:
    rows, sections = world_rows(world), declared(world, "1h", "30m")
    short = world.log(rows[:-2], "short")  # the last day lacks its second hour
    whole = world.log(rows, "whole")
    old_fit = fitted_by(sections, short, world.folder / "before")
    new_fit = fitted_by(sections, whole, world.folder / "again", old_fit)
    assert folder_digest(new_fit) == folder_digest(fitted_by(sections, whole, world.folder / "once"))
    with pytest.raises(DataError, match=r"'by_user_id' was counted otherwise"):
        fitted_by(declared(world, "6h", "30m"), whole, world.folder / "other", old_fit)


def test_a_table_of_other_tiles_than_the_fit_is_refused(world: Any) -> None:
    log = world.log(world_rows(world))
    fitted = fitted_by(declared(world, "1h"), log, world.folder / "hourly")
    for other_sections in (declared(world, "1h", "30m"), declared(world, "10m")):
        with pytest.raises(
            DataError, match="fitted with other tiles or another outcome_delay than declared; fit again"
        ):
            build_table(*other_sections, None, RUNTIME, log, fitted, world.folder / "table")


def test_feasts_historical_and_online_answers_equal_the_hourly_table(world: Any) -> None:
    log, sections = world.log(world_rows(world)), declared(world, "1h", "30m")
    fitted, table, store = (world.folder / name for name in ("fitted", "table", "store"))
    fitted_by(sections, log, fitted)
    build_table(*sections, None, RUNTIME, log, fitted, table)
    assert publish("hourly", store, RUNTIME, 20, log, fitted, table, world.folder / "skew") == 16 + 4
    report = read_json(world.folder / "skew" / Files.SKEW)
    assert (report["historical_mismatches"], report["online_mismatches"], report["row_count_ok"]) == (0, 0, True)
    assert report["keys_checked"] > 20
    online = connect(fitted / "views", store, "hourly", RUNTIME.online_store)
    assert online.valid_until("by_user_id") == datetime(2026, 3, 6, 0, 30, tzinfo=UTC)
    assert online.online(pl.DataFrame({"user_id": [1]}), ["by_user_id"])["by_user_id:rows"].to_list() == [8]


def test_a_table_that_sees_an_hour_too_early_differs_from_feast(world: Any) -> None:
    log, sections = world.log(world_rows(world)), declared(world, "1h")
    fitted, table = world.folder / "fitted", world.folder / "table"
    fitted_by(sections, log, fitted)
    build_table(*sections, None, RUNTIME, log, fitted, table)
    (part,) = table.glob("day=2026-03-04/*.parquet")
    leaking = pl.read_parquet(part, hive_partitioning=False).with_columns(pl.lit(math.log(9), pl.Float32).alias("n"))
    leaking.write_parquet(part)
    publish("leaky", world.folder / "store", RUNTIME, 20, log, fitted, table, world.folder / "skew")
    report = read_json(world.folder / "skew" / Files.SKEW)
    assert (report["historical_mismatches"], report["columns"]["n"]) == (4, 4)


@pytest.mark.parametrize(
    ("tile", "windowed", "message"),
    [
        ("1h", {"window": "90m"}, r"window 90m is no multiple of features\.tile \(60m\)"),
        ("1d", {"window": "12h"}, r"or that is not below 1d"),
        ("1h", {"window": "3h", "window_days": 1}, "window is in place of window_days"),
        ("1h", {"window": "3h", "skip_days": 1}, "window is in place of window_days and of skip_days"),
    ],
)
def test_a_window_of_tiles_that_cannot_be_counted_is_refused(
    world: Any, tile: str, windowed: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValidationError, PlanError), match=message):
        columns = [{**COLUMNS[0], **windowed}]
        plan(world.data, Features.model_validate({"columns": columns, "tile": tile}))


@pytest.mark.parametrize("tile", ["7h", "5m", "2d", "0s"])
def test_a_tile_that_does_not_divide_a_day_is_refused(tile: str) -> None:
    with pytest.raises(ValidationError, match=f"tile: {tile} is no part of a day; wanted a length from 10m to 1d"):
        Features.model_validate({"columns": COLUMNS, "tile": tile})


@pytest.mark.parametrize("delay", ["1 h", "-1h", "60", "1w"])
def test_an_invalid_delay_is_refused(world: Any, delay: str) -> None:
    with pytest.raises(ValidationError, match="outcome_delay"):
        declared(world, "1h", delay)


def test_a_clock_change_ends_the_last_tile_at_midnight() -> None:
    tiles = Tiles(timedelta(hours=12), timedelta(), ZONE)
    spring, autumn = date(2026, 3, 8), date(2026, 11, 1)  # days of 23 and 25 hours

    def ends(day: date, *hours: int) -> list[int]:
        start = start_of(day, ZONE)
        times = pl.DataFrame({"event_time": [start + timedelta(hours=hour) for hour in hours]})
        return [(end - start) // timedelta(hours=1) for end in times.select(tiles.ends(day)).to_series().cast(
            pl.Datetime("us", "UTC"))]  # fmt: skip

    assert ends(spring, 0, 11, 12, 22) == [12, 12, 23, 23]
    assert ends(autumn, 0, 12, 23, 24) == [12, 24, 24, 25]
    assert tiles.known_at(start_of(autumn, ZONE) + timedelta(hours=24.5)) == start_of(autumn, ZONE) + timedelta(
        hours=24
    )


def test_an_index_without_tiles_has_whole_days(world: Any) -> None:
    log = world.log(world_rows(world))
    fitted = fitted_by(declared(world, "10m", "1h"), log, world.folder / "fitted")
    index = read_json(fitted / "views" / "views.json")
    assert ViewIndex.read(fitted / "views").tiles == Tiles(timedelta(minutes=10), timedelta(hours=1), "UTC")
    old_index = {name: value for name, value in index.items() if name not in ("tile_seconds", "delay_seconds")}
    assert not ViewIndex(folder=fitted, **old_index).tiles.within_days


@pytest.mark.parametrize(("tile", "rows"), [("1d", 720), ("1h", 30), ("10m", 5)])
def test_a_log_without_a_clock_gets_tiles_of_equal_row_counts(tile: str, rows: int) -> None:
    clock = RowClock(kind="row_order", days=2)
    log = row_times(pl.Series(Columns.ROWS, range(1_440), dtype=pl.Int64), 1_440, clock)
    tiles = Tiles(parse_duration(tile))
    for (day,), part in log.group_by(Columns.DAY, maintain_order=True):
        counts = part.group_by(tiles.ends(day)).len()["len"]
        assert counts.to_list() == [rows] * (720 // rows), day


def test_a_delay_is_kept_in_whole_seconds(world: Any) -> None:
    assert Tiles.from_declaration(*declared(world, "1d", "1200ms"), "UTC").delay == timedelta(seconds=2)
    assert Tiles.from_declaration(*declared(world, "1d", "0s"), "UTC") == Tiles()
