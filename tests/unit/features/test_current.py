"""The kind `current` in the feature table: events of a key in the open tiles."""

import math
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from shortlist.contracts import Columns, DataError
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime

COLUMNS = [
    {"kind": "current", "key": ["user_id"], "name": "shown"},
    {"kind": "current", "key": ["page"], "name": "page_shown"},
    {"kind": "current", "key": ["user_id"], "counts": "positives", "name": "clicked"},
]
RUNTIME = Runtime(engine="cpu")


def sections(world: Any, tile: str = "1h", delay: str = "10m", streaming: Any = None) -> tuple[Data, Features]:
    data = Data.model_validate(world.data.model_dump(mode="json") | {"outcome_delay": delay})
    streaming = {"delay": "1m"} if streaming is None else streaming
    return data, Features.model_validate({"columns": COLUMNS, "tile": tile, "streaming": streaming})


def numbers(world: Any, rows: list[dict[str, Any]], declared: tuple[Data, Features], **log: Any) -> dict[str, list]:
    """Return the features as counts, in the order of the rows."""
    path = world.log(rows, **log)
    fit(*declared, None, RUNTIME, path, world.folder / "fitted")
    table = build_table(*declared, None, RUNTIME, path, world.folder / "fitted", world.folder / "table")
    rows_of_table = table.scan().sort("impression_id").collect()
    return {
        name: [round(math.expm1(logarithm)) for logarithm in rows_of_table[name]]
        for name in ("shown", "page_shown", "clicked")
    }


def test_a_row_counts_events_of_its_key_since_the_newest_tile(world: Any) -> None:
    rows = [
        world.row(hour=9.0, label=1, page="home"),
        world.row(hour=9.1, label=1, user_id=2, page="home"),
        world.row(hour=9.2, page="home"),  # 12 and 6 minutes later: the first label is known, the second is not
        world.row(hour=9.21, page=None),  # the one before was less than a minute ago
        world.row(hour=10.1, page="home"),  # the hour from nine is known at 10:10 only
        world.row(hour=10.2, page="home"),
        world.row(day=1, hour=0.05),
        world.row(day=1, hour=0.1),
        world.row(day=2),
    ]
    assert numbers(world, rows, sections(world)) == {
        "shown": [0, 0, 1, 1, 3, 1, 0, 1, 0],
        "page_shown": [0, 1, 2, 0, 3, 1, 0, 0, 0],
        "clicked": [0, 0, 1, 1, 1, 0, 0, 0, 0],
    }


def test_a_day_begins_with_unknown_events_from_before_midnight(world: Any) -> None:
    rows = [
        world.row(hour=23.5, label=1),
        world.row(day=1, hour=0.1),  # six minutes after midnight, when labels of 23:55 are known
        world.row(day=1, hour=0.2),
        world.row(day=2),
    ]
    counts = numbers(world, rows, sections(world))
    assert (counts["shown"], counts["clicked"]) == ([0, 1, 1, 0], [0, 1, 0, 0])


def test_a_collected_row_counts_only_events_that_its_delayed_server_had_counted(world: Any) -> None:
    behind = {Columns.COUNTS_DELAY: 60_000 * 7.0}  # milliseconds
    rows = [
        world.row(hour=9.0, label=1, **{Columns.COUNTS_DELAY: None}),
        world.row(hour=9.1),  # six minutes later
        world.row(hour=9.1, **behind),
        world.row(hour=9.25),  # the label of 9:00 is known from 9:10 on
        world.row(hour=9.25, **behind),  # and to a server that is seven minutes behind from 9:17 on
        *(world.row(day=day) for day in (1, 2)),
    ]
    counts = numbers(world, rows, sections(world))
    assert counts["shown"][:5] == [0, 1, 0, 3, 3]
    assert counts["clicked"][:5] == [0, 0, 0, 1, 0]


def test_with_whole_days_the_open_tile_is_today(world: Any) -> None:
    rows = [world.row(hour=1), world.row(hour=22), world.row(day=1, hour=2), world.row(day=1, hour=3), world.row(day=2)]
    assert numbers(world, rows, sections(world, "1d", "0s", True))["shown"] == [0, 1, 0, 1, 0]


def test_the_table_does_not_depend_on_how_its_rows_are_read(world: Any) -> None:
    rows = [world.row(day, hour / 7, user_id=hour % 3) for day in range(3) for hour in range(1, 40)]
    whole = numbers(world, rows, sections(world))
    for part in ("fitted", "table"):
        (world.folder / part).rename(world.folder / f"whole-{part}")
    assert numbers(world, rows, sections(world), name="small", chunk_rows=5) == whole
    assert max(whole["shown"]) > 1


def test_a_table_with_another_delay_than_the_fit_is_refused(world: Any) -> None:
    log = world.log([world.row(day) for day in range(3)])
    fit(*sections(world), None, RUNTIME, log, world.folder / "fitted")
    other_sections = sections(world, streaming={"delay": "2m"})
    with pytest.raises(DataError, match=r"fitted with another features\.streaming than declared; fit again"):
        build_table(*other_sections, None, RUNTIME, log, world.folder / "fitted", world.folder / "table")


def test_no_row_counts_itself_or_rows_of_the_same_moment(world: Any) -> None:
    rows = [world.row(hour=9, user_id=1) for _ in range(5)] + [world.row(day=day) for day in (1, 2)]
    assert numbers(world, rows, sections(world, streaming={"delay": "0s"}))["shown"][:5] == [0] * 5


def test_rows_of_a_slate_count_what_was_known_at_its_first_row(world: Any) -> None:
    data, features = sections(world)
    data = Data.model_validate(data.model_dump(mode="json") | {"slate": {"gap_seconds": 600}})
    slate = {"kind": "slate", "feature": "page_shown", "gives": ["rank"]}
    features = Features.model_validate(features.model_dump(mode="json") | {"columns": [*COLUMNS, slate]})
    rows = [
        world.row(hour=9.0, page="home"),
        world.row(hour=9.2, page="home"),
        world.row(hour=9.25, page="news"),  # of the request at 9.2, as is the next row
        world.row(hour=9.3, page="home"),
        *(world.row(day=day) for day in (1, 2)),
    ]
    counts = numbers(world, rows, (data, features))
    assert counts["shown"][:4] == [0, 1, 1, 1]
    assert counts["page_shown"][:4] == [0, 1, 0, 1]


def test_a_changed_log_changes_no_earlier_row(world: Any) -> None:
    """No row sees later events: counts of a log and of its beginning agree."""
    make: Callable[[int], list[dict[str, Any]]] = lambda days: [  # noqa: E731
        world.row(day, hour / 4, user_id=hour % 2, label=hour % 3 % 2) for day in range(days) for hour in range(96)
    ]
    shorter_counts = numbers(world, make(4), sections(world))
    for part in ("fitted", "table"):
        (world.folder / part).rename(world.folder / f"whole-{part}")
    beginning = numbers(world, make(3), sections(world), name="beginning")
    assert {name: values[: 3 * 96] for name, values in shorter_counts.items()} == beginning
    assert pl.Series(shorter_counts["shown"]).sum() > 0


def test_a_pair_of_columns_is_a_key_and_a_rate_is_of_known_outcomes(world: Any) -> None:
    data, features = sections(world)
    pair = {"kind": "current", "key": ["user_id", "page"], "name": "pair_shown"}
    rate = {"kind": "current", "key": ["page", "user_id"], "counts": "rate", "prior": 2, "name": "pair_rate"}
    features = Features.model_validate(features.model_dump(mode="json") | {"columns": [*COLUMNS, pair, rate]})
    rows = [
        world.row(hour=9.0, label=1, page="home"),
        world.row(hour=9.1, label=0, page="home"),
        world.row(hour=9.15, label=1, page="news"),
        world.row(hour=9.2, label=1, user_id=2, page="home"),
        world.row(hour=9.3, page="home"),  # the outcomes of 9:00 and 9:06 are known
        world.row(hour=9.3, page=None),
        world.row(day=1, hour=9.0, page="home"),  # nothing in the open tile: the mean of the statistics
        world.row(day=2),
    ]
    path = world.log(rows)
    fit(data, features, None, RUNTIME, path, world.folder / "fitted")
    table = build_table(data, features, None, RUNTIME, path, world.folder / "fitted", world.folder / "table")
    rows_of_table = table.scan().sort("impression_id").collect()
    counts = [round(math.expm1(logarithm)) for logarithm in rows_of_table["pair_shown"]]
    assert counts[:6] == [0, 1, 0, 0, 2, 0]
    unknown_mean = 0.5  # no complete tile yet
    assert rows_of_table["pair_rate"].to_list()[4:7] == pytest.approx(
        [(1 + 2 * unknown_mean) / (2 + 2), unknown_mean, 3 / 6], rel=1e-6
    )


def test_a_prior_without_a_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="prior: is of counts: rate, and counts is rows"):
        Features.model_validate({"columns": [{**COLUMNS[0], "prior": 3}], "streaming": True})
