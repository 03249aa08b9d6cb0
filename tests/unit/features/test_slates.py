"""Slates: which rows are one request, and their statistics, equal in the table and in the server."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shortlist.contracts import Columns, DataError, Files
from shortlist.features.declared.plan import plan
from shortlist.features.declared.slates import SLATE, slate_statistics, whole_slates
from shortlist.features.fits.fit import fit
from shortlist.features.fits.publish import publish
from shortlist.features.rows.table import build_table
from shortlist.features.values.columns import PlanError
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.load import SpecError, parse_spec
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import read_json
from shortlist.storage.tables import DayTable, DayTableWriter

DEMO = Path(__file__).parents[3] / "pipelines/specs/demo.yaml"
DAY = date(2026, 3, 2)


def test_rank_share_and_difference_of_a_row() -> None:
    statistics = slate_statistics(np.array([2.0, np.nan, 6.0, 2.0, 5.0]), np.array([7, 7, 7, 7, 1]))
    assert statistics["rank"].tolist()[:1] + statistics["rank"].tolist()[2:] == [2, 1, 2, 1]
    assert statistics["size"].tolist() == [4, 4, 4, 4, 1]
    np.testing.assert_array_equal(statistics["share"], [0.2, np.nan, 0.6, 0.2, 1.0])
    np.testing.assert_allclose(statistics["difference"], [2 - 10 / 3, np.nan, 6 - 10 / 3, 2 - 10 / 3, 0.0])


def test_the_share_of_a_zero_sum_is_nan() -> None:
    statistics = slate_statistics(np.array([0.0, 0.0, np.nan]), np.array([0, 0, 1]))
    assert np.isnan(statistics["share"]).all()
    assert statistics["rank"].tolist()[:2] == [1, 1]
    assert np.isnan(statistics["rank"][2])
    assert slate_statistics(np.zeros(0), None)["rank"].shape == (0,)


values = st.one_of(st.floats(-1e6, 1e6, width=32), st.just(float("nan")), st.sampled_from([0.0, -0.0, 1.0]))


@settings(max_examples=40)
@given(st.lists(st.tuples(values, st.integers(0, 4)), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_statistics_do_not_depend_on_other_slates_or_on_the_order_of_rows(
    rows: list[tuple[float, int]], random: Any
) -> None:
    value, slate = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    whole = slate_statistics(value, slate)
    for number in set(slate.tolist()):
        rows_of_slate = np.flatnonzero(slate == number)
        shuffled = rows_of_slate.copy()
        random.shuffle(shuffled)
        alone = slate_statistics(value[shuffled], None)
        for statistic, column in whole.items():
            np.testing.assert_array_equal(column[shuffled], alone[statistic])
            known_values = value[rows_of_slate][~np.isnan(value[rows_of_slate])]
            if statistic == "rank":
                expected = [
                    np.nan if np.isnan(number) else 1 + (known_values > number).sum() for number in value[rows_of_slate]
                ]
                np.testing.assert_array_equal(column[rows_of_slate], expected)


# --- which rows are one slate ---------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> DayTable:
    """Return a log of five files of two rows with interleaved requests."""
    seconds = [0, 1, 2, 30, 31, 32, 33, 90, 91, 92]
    rows = pl.DataFrame(
        {
            "user_id": [1, 2, 1, 1, 2, None, 1, None, 2, 1],
            "request": ["a", "b", "a", "c", "b", None, "c", None, "d", "a"],
            "event_time": [datetime(2026, 3, 2, tzinfo=UTC) + timedelta(seconds=second) for second in seconds],
            "day": [DAY] * 10,
            "impression_id": range(10),
            "label": [0, 1] * 5,
        },
        schema_overrides={"label": pl.Int8, "event_time": pl.Datetime("us", "UTC")},
    )
    writer = DayTableWriter(tmp_path / "log", Files.LOG, chunk_rows=2)
    writer.append(rows)
    return writer.close({})


def data(**slate: Any) -> Data:
    names = {"user_id": "integer", "request": "string", "is_click": "integer"}
    columns = [{"name": name, "type": kind} for name, kind in names.items()]
    clock = {"kind": "column", "column": "time", "unit": "s"}
    return Data.model_validate(
        {"source": {"kind": "files"}, "columns": columns, "label": "is_click", "clock": clock, "user": "user_id",
         "slate": slate}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("slate", "expected"),
    [
        ({"column": "request"}, [{0, 2, 9}, {1, 4}, {3, 6}, {5}, {7}, {8}]),
        ({"gap_seconds": 28}, [{0, 2, 3, 6}, {1}, {4}, {5}, {7}, {8}, {9}]),
        ({"gap_seconds": 60}, [{0, 2, 3, 6, 9}, {1, 4, 8}, {5}, {7}]),
    ],
)
def test_no_slate_is_split_between_pieces(table: DayTable, slate: dict[str, Any], expected: list[set[int]]) -> None:
    pieces = list(whole_slates(table, table.days[0], data(**slate)))
    assert len(table.days[0].files) == 5
    slates = [
        set(rows["impression_id"].to_list())
        for piece in pieces for _, rows in piece.group_by(SLATE)
    ]  # fmt: skip
    assert sorted(slates, key=min) == expected


def test_a_slate_above_the_limit_is_refused(table: DayTable) -> None:
    with pytest.raises(DataError, match=r"1 of 6 slates have more than max_rows \(2\) rows, the largest 3"):
        list(whole_slates(table, table.days[0], data(column="request", max_rows=2)))


# --- what a spec may say --------------------------------------------------------------------------------------------


def spec(feature: dict[str, Any], slate: dict[str, Any] | None = None, **sections: Any) -> str:
    raw = yaml.safe_load(DEMO.read_text())
    for stage in ("retrieval", "filters", "ordering"):  # its clients bring their candidates
        del raw[stage]
    del raw["gates"]["custom"]
    raw["features"]["columns"].append({"kind": "slate", **feature})
    raw["data"] |= {} if slate is None else {"slate": slate}
    return yaml.safe_dump({**raw, **sections})


def test_a_spec_may_declare_slate_features() -> None:
    declared_settings = {"feature": "item_rate", "gives": ["rank", "size"]}
    parsed_spec = parse_spec(spec(declared_settings, {"gap_seconds": 1800}))
    assert parsed_spec.features.names[-2:] == ("item_rate_slate_rank", "item_rate_slate_size")
    assert parse_spec(parsed_spec.model_dump_json()) == parsed_spec


@pytest.mark.parametrize(
    ("feature", "slate", "message"),
    [
        ({"feature": "item_rate"}, None, r"'item_rate_slate_rank': nothing says which rows .* declare data\.slate"),
        ({"feature": "item_rat"}, {"gap_seconds": 9}, r"no feature is named 'item_rat'; did you mean 'item_rate'"),
        ({}, {"gap_seconds": 9}, "wanted either column or feature"),
        ({"column": "watch_seconds"}, {"gap_seconds": 9}, "known only after the impression"),
        ({"column": "surface"}, {"gap_seconds": 9}, "is of type string; wanted integer or number"),
        ({"column": "duration", "gives": ["rank", "rank"]}, {"gap_seconds": 9}, "rank, rank: each once"),
        ({"column": "duration"}, {}, "wanted either column or gap_seconds"),
        ({"column": "duration"}, {"column": "surfac"}, "is not a column of the log; did you mean 'surface'"),
        ({"column": "duration"}, {"column": "duration"}, "is of type number; wanted integer, hex or string"),
        ({"column": "duration"}, {"column": "impression_id"}, "each row would be a slate"),
        ({"column": "duration"}, {"gap_seconds": 9, "max_rows": 99}, r"10000 is above data\.slate\.max_rows 99:"),
    ],
)  # fmt: skip
def test_invalid_declarations_are_refused(feature: dict[str, Any], slate: dict[str, Any] | None, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_spec(spec(feature, slate))


def test_a_gap_needs_a_user() -> None:
    raw = yaml.safe_load(spec({"column": "duration"}, {"gap_seconds": 9}))
    del raw["data"]["user"]
    with pytest.raises(SpecError, match=r"slate\.gap_seconds: needs `user`"):
        parse_spec(yaml.safe_dump(raw))


@pytest.mark.parametrize(
    ("compared", "reason"),
    [
        ("hour_sin", "features of kind cyclic are no number"),
        ("surface_id", "features of kind vocabulary are no number"),
    ],
)
def test_features_that_a_server_cannot_compare_are_refused(compared: str, reason: str) -> None:
    parsed_spec = parse_spec(spec({"feature": compared}, {"gap_seconds": 9}))
    with pytest.raises(PlanError, match=f"cannot compare '{compared}': {reason}"):
        plan(parsed_spec.data, parsed_spec.features)


def test_a_slate_compares_no_feature_that_itself_follows_from_the_slate() -> None:
    raw = yaml.safe_load(spec({"feature": "item_rate"}, {"gap_seconds": 9}))
    own = {"kind": "expression", "name": "own", "value": "features.item_rate_slate_rank / 2"}
    raw["features"]["columns"] += [own, {"kind": "slate", "feature": "own"}]
    parsed_spec = parse_spec(yaml.safe_dump(raw))
    with pytest.raises(PlanError, match="cannot compare 'own': it is itself computed within a request"):
        plan(parsed_spec.data, parsed_spec.features)


def test_rows_of_a_slate_see_the_tiles_that_its_first_row_saw(world: Any) -> None:
    declared = Data.model_validate({**world.data.model_dump(), "slate": {"column": "page"}})
    features = Features.model_validate({
        "columns": [
            {"kind": "count", "key": "item_id", "name": "seen"},
            {"kind": "time_since", "key": "item_id", "name": "away", "cap_hours": 10},
            {"kind": "slate", "feature": "away", "gives": ["rank"]},
        ],
        "tile": "1h",
    })  # fmt: skip
    rows = [
        world.row(hour=8.0, item_id=20),
        world.row(hour=9.5, item_id=10),
        world.row(hour=9.9, page="late", item_id=10),  # the tile of 9.5 ends between the rows of this slate
        world.row(hour=10.1, page="late", item_id=10),
        world.row(hour=10.1, page="late", item_id=20),
        world.row(hour=10.1, item_id=10),
        *(world.row(day) for day in (1, 2)),
    ]
    log, fitted, table = world.log(rows), world.folder / "fitted", world.folder / "table"
    fit(declared, features, None, Runtime(engine="cpu"), log, fitted)
    built = build_table(declared, features, None, Runtime(engine="cpu"), log, fitted, table)
    rows_of_day = built.scan({rows[0]["day"]}).sort(Columns.IMPRESSION).collect()
    assert [round(math.expm1(seen)) for seen in rows_of_day["seen"]] == [0, 0, 0, 0, 1, 2]
    away = [round(math.expm1(hours), 3) for hours in rows_of_day["away"]]
    assert away == [10, 10, 10, 10, 1.9, 0.2]
    assert rows_of_day["away_slate_rank"].to_list()[2:5] == [1, 1, 3]


def test_a_feature_table_keeps_slates_whole_and_numbered(world: Any) -> None:
    declared = Data.model_validate({**world.data.model_dump(), "slate": {"column": "page"}})
    features = Features.model_validate({"columns": [{"kind": "numeric", "each": "price"}]})  # compares nothing itself
    rows = [world.row(day, page=f"request {at % 2}", price=float(at % 2)) for day in range(3) for at in range(6)]
    log, fitted, table = world.log(rows, chunk_rows=2), world.folder / "fitted", world.folder / "table"
    runtime = Runtime(engine="cpu", seed=1)
    fit(declared, features, None, runtime, log, fitted)
    built = build_table(declared, features, None, runtime, log, fitted, table)
    for _, frame in built.frames():
        by_slate = frame.group_by(Columns.SLATE).agg(pl.col("price_number").unique(), pl.len())
        assert sorted(by_slate.drop(Columns.SLATE).rows()) == [([0.0], 3), ([1.0], 3)]


@pytest.mark.parametrize("tile", ["1d", "1h"])
def test_the_skew_report_recomputes_sampled_features_from_whole_slates(world: Any, tile: str) -> None:
    declared = Data.model_validate({**world.data.model_dump(), "slate": {"column": "page"}})
    features = Features.model_validate({
        "columns": [
            {"kind": "target", "key": "user_id", "name": "rate"},
            {"kind": "slate", "feature": "rate", "gives": ["rank", "size"]},
            *([{"kind": "current", "key": "user_id", "name": "now"}, {"kind": "slate", "feature": "now"}]
              if tile != "1d" else []),
        ],
        "tile": tile, "streaming": tile != "1d",
    })  # fmt: skip
    rows = [
        world.row(day, hour=9.6 + at / 6, user_id=1 + at % 3, page=f"request {at % 2}", label=at % 2)
        for day in range(3)
        for at in range(6)
    ]
    log, fitted, table = world.log(rows, chunk_rows=2), world.folder / "fitted", world.folder / "table"
    runtime = Runtime(engine="cpu", seed=1)
    fit(declared, features, None, runtime, log, fitted)
    build_table(declared, features, None, runtime, log, fitted, table)
    publish("my-spec", world.folder / "store", runtime, 6, log, fitted, table, world.folder / "skew")
    report = read_json(world.folder / "skew" / Files.SKEW)
    assert (report["historical_mismatches"], report["columns"]["rate_slate_size"]) == (0, 0)
    for path in table.rglob("*.parquet"):  # as if slates had been cut in two
        pl.read_parquet(path, hive_partitioning=False).with_columns(pl.col("rate_slate_size") - 1).write_parquet(path)
    publish("my-spec", world.folder / "store", runtime, 6, log, fitted, table, world.folder / "skew")
    report = read_json(world.folder / "skew" / Files.SKEW)
    assert report["columns"]["rate_slate_size"] > 0
    assert report["columns"]["rate_slate_rank"] == 0
