"""The kind `sequence`: the last items of a key, in order, as of the time of each row."""

import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shortlist.contracts import DataError
from shortlist.features.declared.plan import plan
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import folder_digest

HISTORY = {"kind": "sequence", "of": "item_id", "key": "user_id", "last": 3, "name": "history"}
IDS = {"kind": "vocabulary", "each": "item_id"}


def test_a_row_sees_the_last_items_of_its_user_newest_first(world: Any) -> None:
    rows = [
        world.row(0, 9, item_id=10),
        world.row(0, 10, item_id=20),
        world.row(0, 11, item_id=30, user_id=2),
        world.row(1, 9, item_id=30),  # sees the two of yesterday
        world.row(2, 9, item_id=10),  # sees three
        world.row(3, 9, item_id=10),  # of four, the last three
        world.row(3, 9, item_id=10, user_id=None),
        world.row(3, 9, item_id=10, user_id=7),
    ]
    table = world.features(rows, HISTORY, IDS)
    ids = {10: table["item_id_id"][0], 20: table["item_id_id"][1], 30: table["item_id_id"][2]}
    assert 0 not in ids.values()
    assert table["history"].to_list() == [
        [], [], [], [ids[20], ids[10]], [ids[30], ids[20], ids[10]], [ids[10], ids[30], ids[20]], [], [],
    ]  # fmt: skip


def test_numbers_have_the_position_of_their_items(world: Any) -> None:
    rows = [
        world.row(0, 9, item_id=10, seconds=4.0),
        world.row(0, 12, item_id=20, seconds=math.inf),
        world.row(1, 12, item_id=10),
        world.row(2, 12, item_id=10),
    ]
    table = world.features(rows, {**HISTORY, "with": ["seconds_ago", "seconds"]})
    assert table["history_seconds"].to_list()[2] == [0.0, 4.0, 0.0]
    ago = [math.log(1 + 24 * 3600), math.log(1 + 27 * 3600), 0.0]
    assert table["history_seconds_ago"].to_list()[2] == pytest.approx(ago, rel=1e-6)
    assert table["history_seconds_ago"].to_list()[0] == [0.0, 0.0, 0.0]


def test_only_positives_are_listed_where_declared(world: Any) -> None:
    rows = [
        world.row(0, 9, item_id=10, label=1),
        world.row(0, 10, item_id=20),
        world.row(1, 9, item_id=30),
        world.row(2, 9, item_id=10),
    ]
    table = world.features(rows, {**HISTORY, "counts": "positives"}, IDS)
    first = table["item_id_id"][0]
    assert table["history"].to_list() == [[], [], [first], [first]]


def test_an_item_without_an_id_keeps_its_position(world: Any) -> None:
    rows = [
        *(world.row(0, 9 + place, item_id=item) for place, item in enumerate((10, 99, 10))),
        *(world.row(day) for day in (1, 2)),
    ]
    table = world.features(rows, {**HISTORY, "min_rows": 2})
    assert table["history"].to_list()[3] == [1, 0, 1]


def test_a_session_of_10_000_items_keeps_its_newest_items(world: Any) -> None:
    items = [place % 3 * 10 + 10 for place in range(10_000)]
    rows = [world.row(0, 1 + place / 1_000, item_id=item) for place, item in enumerate(items)]
    table = world.features([*rows, world.row(1), world.row(2)], {**HISTORY, "last": 50}, IDS)
    assert table["history"].list.len().to_list()[-2:] == [50, 50]
    assert table["history"].to_list()[-2] == table["item_id_id"].to_list()[9_999:9_949:-1]


def test_lists_hold_the_events_of_known_tiles(world: Any) -> None:
    rows = [
        world.row(0, 9.5, item_id=10),
        world.row(0, 10.5, item_id=20),  # the hour from nine is known
        world.row(0, 10.9, item_id=30),
        world.row(0, 11.1, item_id=10),
        world.row(1, 9),
        world.row(2, 9),
    ]
    features = Features.model_validate({"columns": [HISTORY, IDS], "tile": "1h"})
    data = Data.model_validate(world.data.model_dump(mode="json") | {"outcome_delay": "0s"})
    log = world.log(rows)
    fit(data, features, None, Runtime(engine="cpu"), log, world.folder / "fitted")
    built = build_table(data, features, None, Runtime(engine="cpu"), log, world.folder / "fitted", world.folder / "t")
    table = built.scan().sort("impression_id").collect()
    id_1, id_2, id_3, *_ = table["item_id_id"].to_list()
    assert table["history"].to_list() == [
        [], [id_1], [id_1], [id_3, id_2, id_1], [id_1, id_3, id_2], [id_1, id_1, id_3],
    ]  # fmt: skip


def live_table(world: Any, rows: list[dict[str, Any]], live: dict[str, Any], outcome_delay: str) -> pl.DataFrame:
    features = Features.model_validate(
        {"columns": [{**HISTORY, "live": True, **live}, IDS], "tile": "1h", "streaming": {"delay": "30s"}}
    )
    data = Data.model_validate(world.data.model_dump(mode="json") | {"outcome_delay": outcome_delay})
    sections = data, features, None, Runtime(engine="cpu"), world.log(rows), world.folder / "fitted"
    fit(*sections)
    return build_table(*sections, world.folder / "table").scan().sort("impression_id").collect()


def test_a_live_list_includes_the_events_of_the_open_tiles(world: Any) -> None:
    rows = [
        world.row(0, 9.0, item_id=10),
        world.row(0, 9.005, item_id=20),  # 18 s later: less than the delay
        world.row(0, 9.5, item_id=30),
        world.row(0, 9.6, item_id=10, user_id=2),
        world.row(0, 10.1, item_id=20),  # three of the tile that is complete
        world.row(0, 10.2, item_id=10),  # one of the open tile and two of the other
        world.row(1, 9, item_id=None),
        world.row(2, 9),
    ]
    table = live_table(world, rows, {"with": ["seconds_ago"]}, "0s")
    id_1, id_2, id_3, *_ = table["item_id_id"].to_list()
    assert table["history"].to_list()[:7] == [
        [], [], [id_2, id_1], [], [id_3, id_2, id_1], [id_2, id_3, id_2], [id_1, id_2, id_3],
    ]  # fmt: skip
    ago = [math.log(1 + 360), math.log(1 + 0.7 * 3_600), math.log(1 + 1.195 * 3_600)]
    assert table["history_seconds_ago"].to_list()[5] == pytest.approx(ago, rel=1e-6)


def test_columns_of_the_side_table_have_the_position_of_their_items(world: Any) -> None:
    rows = [
        world.row(0, 9, item_id=10),  # maker 7, topics a and b
        world.row(0, 10, item_id=30),  # maker 8, no topics
        world.row(0, 11, item_id=99),  # in no table
        world.row(1, 9, item_id=20),  # maker 7, topic b
        world.row(2, 9, item_id=20),
    ]
    beside = {**HISTORY, "with": ["maker", "topics"]}
    table = world.features(rows, beside, {"kind": "vocabulary", "each": "topics", "max_values": 1})
    a, b = table["topics_id"][0][0], table["topics_id"][3][0]
    assert table["history_maker"].to_list()[3:] == [[0.0, 8.0, 7.0], [7.0, 0.0, 8.0]]
    assert table["history_topics"].to_list()[3:] == [[0, 0, a], [b, 0, 0]]


def test_a_live_list_has_columns_of_requests_and_of_the_side_table(world: Any) -> None:
    rows = [
        world.row(0, 9.0, item_id=10, price=1.5, seconds=8.0),
        world.row(0, 10.1, item_id=30, price=math.inf, seconds=4.0),
        world.row(0, 10.2, item_id=20, price=2.5, seconds=3.0),
        world.row(0, 10.3, item_id=20),  # two of the open tile, one of the other
        world.row(1, 9, item_id=None),
        world.row(2, 9),
    ]
    table = live_table(world, rows, {"with": ["price", "seconds", "maker", "topics"]}, "0s")
    assert table["history_price"].to_list()[3] == [2.5, 0.0, 1.5]
    assert table["history_seconds"].to_list()[3] == [0.0, 0.0, 8.0]  # what is known afterwards comes with the tile
    assert table["history_seconds"].to_list()[4] == [0.0, 3.0, 4.0]  # the newest has none: null
    assert table["history_maker"].to_list()[3] == [7.0, 8.0, 7.0]
    b, none, a = table["history_topics"].to_list()[3]
    assert none == 0 and len({a, b, 0}) == 3


def test_a_list_sent_with_a_request_replaces_the_stored_list(world: Any) -> None:
    at = int((world.row(1, 8)["event_time"]).timestamp() * 1e6)
    rows = [
        *(world.row(0, 9 + place, item_id=item, seconds=1.0) for place, item in enumerate((10, 20, 30))),
        world.row(1, 9, item_id=10, basket=[30, 10, 20, 30], basket_times=[at, at - 10**6, at, at]),
        world.row(1, 9, item_id=10, basket=[30, 99], basket_times=[at]),  # whose time is it?
        world.row(1, 9, item_id=10, basket=[], basket_times=[at]),
        world.row(1, 9, item_id=10, user_id=None, basket=[20], basket_times=[at]),
        world.row(2, 9, item_id=10),
    ]
    sent = {"sent": "basket", "sent_times": "basket_times", "with": ["seconds_ago", "seconds", "maker"]}
    table = world.features(rows, {**HISTORY, **sent}, IDS)
    id_1, id_2, id_3 = table["item_id_id"][:3]
    lists = [
        [id_3, id_1, id_2],
        [id_3, 0],
        [id_3, id_2, id_1],
        [id_2],
        [id_1, id_1, id_1],
    ]
    assert table["history"].to_list()[3:] == lists
    hour = math.log(1 + 3_600)
    ago = table["history_seconds_ago"].to_list()
    assert ago[3] == pytest.approx([hour, math.log(1 + 3_601), hour], rel=1e-6)
    assert (ago[4], ago[6]) == ([0.0] * 3, pytest.approx([hour, 0.0, 0.0], rel=1e-6))
    assert table["history_seconds"].to_list()[3:6] == [[0.0] * 3, [0.0] * 3, [1.0] * 3]
    assert table["history_maker"].to_list()[3:5] == [[8.0, 7.0, 7.0], [8.0, 0.0, 0.0]]


def test_a_live_list_has_positive_events_with_known_outcomes(world: Any) -> None:
    rows = [
        world.row(0, 9.0, item_id=10, label=1),
        world.row(0, 9.15, item_id=20),  # nine minutes later: the outcome takes ten
        world.row(0, 9.2, item_id=30),
        world.row(1, 9),
        world.row(2, 9),
    ]
    table = live_table(world, rows, {"counts": "positives"}, "10m")
    id_1 = table["item_id_id"][0]
    assert table["history"].to_list() == [[], [], [id_1], [id_1], [id_1]]


@pytest.mark.parametrize(
    ("changed", "delay", "message"),
    [
        ({"counts": "positives"}, None, r"nothing says when an outcome is known; declare data\.outcome_delay"),
        ({"of": "likes"}, "1m", r"requests do not send 'likes' \(known: after\), so that servers cannot list it"),
    ],
)
def test_a_live_list_that_servers_cannot_keep_is_refused(
    world: Any, changed: dict[str, Any], delay: str | None, message: str
) -> None:
    declared = {"columns": [{**HISTORY, "live": True, **changed}], "streaming": True}
    (feature,) = Features.model_validate(declared).columns
    data = Data.model_validate(world.data.model_dump(mode="json") | {"outcome_delay": delay})
    with pytest.raises(ValueError, match=rf"features: sequence 'history': {message}"):
        feature.check(data)


def test_a_live_list_needs_servers_that_keep_events() -> None:
    with pytest.raises(ValueError, match=r"sequence 'history': nothing counts events as they arrive; declare features"):
        Features.model_validate({"columns": [{**HISTORY, "live": True}]})


def test_lists_do_not_depend_on_how_rows_are_read_and_days_counted(world: Any) -> None:
    rows = [
        world.row(day, hour / 7, user_id=hour % 3, item_id=(hour * 7 % 3 + 1) * 10, label=hour % 2, seconds=float(hour))
        for day in range(5)
        for hour in range(1, 40)
    ]
    columns = [{**HISTORY, "with": ["seconds_ago", "seconds"]}, {**HISTORY, "counts": "positives", "name": "taken"}]
    numbered = [{**row, "impression_id": number} for number, row in enumerate(rows)]
    whole = world.fit(world.log(numbered), columns, "whole")
    turned = world.fit(world.log(numbered[::-1], "turned", chunk_rows=7), columns, "small")
    assert folder_digest(turned / "views") == folder_digest(whole / "views")
    world.fit(world.log(numbered[: 4 * 39], "first"), columns, "before")
    later_fit = world.fit(world.log(numbered, "all"), columns, "later", previous="before")
    assert folder_digest(later_fit / "views") == folder_digest(whole / "views")


def test_a_list_of_another_length_is_recounted(world: Any) -> None:
    rows = [world.row(day) for day in range(4)]
    world.fit(world.log(rows), [HISTORY], "before")
    with pytest.raises(DataError, match="newest_4_item_id_by_user_id' was counted otherwise, or not at all"):
        world.fit(world.log(rows, "again"), [{**HISTORY, "last": 4}], "after", previous="before")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"of": "topics"}, r"'topics' is a column of a side table; events have columns of the log"),
        ({"with": ["city"]}, r"'city' is a column of a side table; events have .* side table whose key is 'item_id'"),
        ({"with": ["released"]}, r"'released' is of type date; wanted integer or number or hex or string or tags"),
        ({"sent": "words"}, r"'words' holds no list of integers; wanted type: tags, tag_type: integer"),
        ({"sent": "watched"}, r"'watched' is a column of a side table; requests send columns of the log"),
        ({"sent": "price"}, r"'price' holds no list of integers; wanted type: tags"),
        ({"sent_times": "basket"}, r"sent_times has times of no list; declare `sent`"),
        ({"sent": "basket", "with": ["seconds_ago"]}, r"nothing says when the events in 'basket' happened; declare"),
        ({"of": "price"}, r"'price' is of type number; wanted integer or hex or string"),
        ({"key": "words"}, r"'words' is of type tags; wanted integer or hex or string"),
        ({"with": ["page"]}, r"'page' is of type string; wanted integer or number"),
        ({"with": ["sconds_ago"]}, r"'sconds_ago' is not a declared column"),
    ],
)
def test_columns_that_cannot_be_listed_are_refused(world: Any, changed: dict[str, Any], message: str) -> None:
    (feature,) = Features.model_validate({"columns": [{**HISTORY, **changed}]}).columns
    with pytest.raises(ValueError, match=rf"features: sequence 'history': {message}"):
        feature.check(world.data)


def test_a_log_without_a_clock_is_refused(world: Any) -> None:
    (feature,) = Features.model_validate({"columns": [HISTORY]}).columns
    data = Data.model_validate({**world.data.model_dump(mode="json"), "clock": {"kind": "row_order", "days": 5}})
    with pytest.raises(ValueError, match=r"nothing says which events came before; declare data\.clock: \{kind: column"):
        feature.check(data)


def test_the_declaration_survives_serialisation(world: Any) -> None:
    declared = Features.model_validate({"columns": [{**HISTORY, "with": ["seconds_ago"]}]})
    reread = Features.model_validate(declared.model_dump(mode="json"))
    assert plan(world.data, reread) == plan(world.data, declared)
    assert reread.names == ("history", "history_seconds_ago")


def test_a_list_too_long_to_be_served_is_refused() -> None:
    with pytest.raises(ValueError, match="less than or equal to 1000"):
        Features.model_validate({"columns": [{**HISTORY, "last": 1_001}]})


def test_the_notes_of_a_table_hold_the_length_of_lists(world: Any, tmp_path: Path) -> None:
    rows = [world.row(day) for day in range(3)]
    table = world.table(world.log(rows), [{**HISTORY, "with": ["seconds_ago"]}])
    notes = {column["name"]: column for column in table.notes["columns"]}
    assert notes["history"]["kind"] == "ids" and notes["history"]["events"] == 3
    assert notes["history_seconds_ago"]["width"] == notes["history_seconds_ago"]["events"] == 3
    assert table.scan().collect_schema()["history_seconds_ago"] == pl.Array(pl.Float32, 3)
