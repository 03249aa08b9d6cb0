from datetime import date
from typing import Any

import polars as pl
import pytest

from shortlist.contracts import DataError
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates
from shortlist.spec.log_shape import FurtherLabel, Positive
from shortlist.spec.runtime import Runtime

NUMBER = {"kind": "numeric", "each": "price"}


def test_a_table_says_which_features_look_up_earlier_days(world: Any) -> None:
    columns = [
        {"kind": "vocabulary", "each": "page"},
        {"kind": "cyclic", "period": "day", "name": "hour"},
        {"kind": "target", "key": "page", "name": "page_rate"},
        {"kind": "count", "key": "page", "name": "page_seen"},
        {"kind": "time_since", "key": "page", "name": "page_away"},
    ]
    table = world.table(world.log([world.row(day, page="x") for day in range(4)]), columns)
    looked_up = {column["name"] for column in table.notes["columns"] if column["history"]}
    assert looked_up == {"page_rate", "page_seen", "page_away"}


def test_table_matches_its_contract(world: Any) -> None:
    columns = [
        NUMBER,
        {"kind": "vocabulary", "each": ["page", "words"]},
        {"kind": "hash", "each": "page", "buckets": 7, "admit_after": 2},
        {"kind": "vector", "each": "vector"},
    ]
    learnt = {"hashed": True, "admit_after": 2, "evict_after_days": None}
    rows = [world.row(day, page="x", words=["a", "b"], price=1.5) for day in range(4)]
    table = world.table(world.log(rows), columns)
    assert table.notes == {
        "columns": [
            {"name": "price_number", "kind": "dense", "size": None, "width": None, "history": False},
            {"name": "page_id", "kind": "id", "size": 2, "width": None, "history": False},
            {"name": "words_id", "kind": "ids", "size": 3, "width": None, "history": False},
            {"name": "page_hash", "kind": "id", "size": 7, "width": None, "history": False, **learnt},
            {"name": "vector_vector", "kind": "vector", "size": None, "width": 2, "history": False},
        ],
        "split": {
            "warmup": [],
            "train": ["2026-03-02", "2026-03-03"],
            "validation": ["2026-03-04"],
            "test": ["2026-03-05"],
        },
    }
    assert dict(table.scan().collect_schema()) == {
        "label": pl.Int8,
        "event_time": pl.Datetime("us", "UTC"),
        "day": pl.Date,
        "impression_id": pl.Int64,
        "user": pl.Int64,
        "cold_user": pl.Boolean,
        "item": pl.Int64,
        "cold_item": pl.Boolean,
        "price_number": pl.Float32,
        "page_id": pl.UInt32,
        "words_id": pl.List(pl.UInt32),
        "page_hash": pl.UInt32,
        "vector_vector": pl.Array(pl.Float32, 2),
    }


def test_cold_means_no_impression_on_an_earlier_day(world: Any) -> None:
    pairs = [(0, 1, 10), (1, 1, 20), (1, 1, 20), (2, 2, 20), (2, None, 30)]
    rows = [world.row(day, user_id=user, item_id=item) for day, user, item in pairs]
    history = {
        "kind": "count",
        "key": ["user_id"],
        "of": "watched",
        "name": "n",
    }  # known from before is not seen before
    table = world.features(rows, history)
    assert table["cold_user"].to_list() == [True, False, False, True, True]
    assert table["cold_item"].to_list() == [True, True, True, False, True]


def test_slices_keep_the_type_of_their_column_and_tags_are_one_text(world: Any) -> None:
    rows = [world.row(0, item_id=10, price=1.5, made=date(2026, 3, 1)), world.row(1, item_id=99), world.row(2)]
    slices = ["maker", "topics", "released", "price", "made", "city"]
    table = world.table(world.log(rows), [NUMBER], slices).scan().sort("impression_id").collect()
    assert table.select(r"^slice_.*$").rows() == [
        (7, "a,b", date(2026, 3, 1), 1.5, date(2026, 3, 1), "Oslo"),
        (None, None, None, None, None, "Oslo"),
        (7, "a,b", date(2026, 3, 1), None, None, "Oslo"),
    ]


def test_the_planted_probability_is_copied_into_the_table(world: Any) -> None:
    log = world.log([world.row(day) for day in range(3)])
    for file in log.glob("day=*/*.parquet"):
        pl.read_parquet(file, hive_partitioning=False).with_columns(true_probability=0.25).write_parquet(file)
    assert world.table(log, [NUMBER]).scan().collect()["true_probability"].to_list() == [0.25] * 3


def test_the_planted_probability_of_a_further_label_gets_the_name_of_the_label(world: Any) -> None:
    log = world.log([world.row(day, likes=day % 2) for day in range(3)])
    for file in log.glob("day=*/*.parquet"):
        pl.read_parquet(file, hive_partitioning=False).with_columns(true_probability_likes=0.1).write_parquet(file)
    own_label, derived = FurtherLabel(column="likes"), FurtherLabel(column="likes", positive=Positive(any_of=(0,)))
    data = world.data.model_copy(update={"labels": {"like": own_label, "other": derived}})
    features = Features.model_validate({"columns": [NUMBER]})
    fit(world.data, features, None, Runtime(engine="cpu"), log, world.folder / "fitted")
    built = build_table(data, features, None, Runtime(engine="cpu"), log, world.folder / "fitted", world.folder / "out")
    rows = built.scan().collect()
    assert rows["true_probability_like"].to_list() == [0.1] * 3
    assert "true_probability_other" not in rows.columns  # of a 1 in the column, which `positive` turns into another


def test_the_table_has_propensity_and_position_and_no_model_reads_these_columns(world: Any) -> None:
    log = world.log([world.row(day, likes=day + 1, seconds=0.5) for day in range(3)])
    placement = {"position": "likes", "propensity": "seconds"}
    data = type(world.data).model_validate(world.data.model_dump(mode="json") | placement)
    features = Features.model_validate({"columns": [NUMBER]})
    fit(data, features, None, Runtime(engine="cpu"), log, world.folder / "fitted")
    built = build_table(data, features, None, Runtime(engine="cpu"), log, world.folder / "fitted", world.folder / "out")
    rows = built.scan().collect()
    assert (rows["shown_position"].to_list(), rows["shown_propensity"].to_list()) == ([1, 2, 3], [0.5] * 3)
    assert [column["name"] for column in built.notes["columns"]] == ["price_number"]


def test_a_log_without_user_and_item_has_no_cold_columns(world: Any) -> None:
    declared = world.data.model_dump(mode="json") | {"user": None, "item": None}
    bare = type(world.data).model_validate(declared)
    features = Features.model_validate({"columns": [NUMBER]})
    log = world.log([world.row(day) for day in range(3)])
    from shortlist.features.fits.fit import fit

    fit(bare, features, None, Runtime(engine="cpu"), log, world.folder / "fitted")
    table = build_table(
        bare, features, None, Runtime(engine="cpu"), log, world.folder / "fitted", world.folder / "table"
    )
    assert table.scan().collect_schema().names() == ["label", "event_time", "day", "impression_id", "price_number"]


def build(world: Any, log: Any, fitted: Any, *columns: dict[str, Any]) -> None:
    features = Features.model_validate({"columns": list(columns)})
    build_table(world.data, features, Gates(), Runtime(engine="cpu"), log, fitted, world.folder / "table")


def test_a_fit_of_other_features_is_refused(world: Any) -> None:
    log = world.log([world.row(day) for day in range(3)])
    with pytest.raises(DataError, match="fitted for other features or slices than the declared ones; fit again"):
        build(world, log, world.fit(log, [NUMBER]), {**NUMBER, "fill": 0.0})
    assert not (world.folder / "table").exists()


def test_days_that_were_not_counted_are_refused(world: Any) -> None:
    count = {"kind": "count", "key": ["user_id"], "name": "n"}
    fitted = world.fit(world.log([world.row(day) for day in range(3)]), [count])
    one_more = world.log([world.row(day) for day in range(4)], "one-more")
    build(world, one_more, fitted, count)  # the newest day needs only the days before it
    two_more = world.log([world.row(day) for day in range(5)], "two-more")
    with pytest.raises(DataError, match="2026-03-05 of the log was not counted, so later rows would see too little"):
        build(world, two_more, fitted, count)


def test_further_labels_are_the_declared_columns_of_0_and_1(world: Any) -> None:
    declared = {
        "long": FurtherLabel(column="seconds", positive=Positive(at_least=30)),
        "liked": FurtherLabel(column="likes", positive=Positive(any_of=(1, 2))),
    }
    outcomes = [(30.0, 0), (29.5, 2), (None, 1), (31.0, 3)]
    log = world.log([world.row(day, seconds=seconds, likes=likes) for day, (seconds, likes) in enumerate(outcomes)])
    features = Features.model_validate({"columns": [NUMBER]})
    fit(world.data, features, None, Runtime(engine="cpu"), log, world.folder / "fitted")  # as an earlier spec did
    data = world.data.model_copy(update={"labels": declared})
    built = build_table(data, features, None, Runtime(engine="cpu"), log, world.folder / "fitted", world.folder / "out")
    rows = built.scan().sort("impression_id").collect()
    assert rows["label_long"].to_list() == [1, 0, 0, 1]  # no value is no such outcome
    assert rows["label_liked"].to_list() == [0, 1, 1, 0]
    assert rows.schema["label_long"] == pl.Int8
