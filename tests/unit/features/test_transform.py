from datetime import date
from typing import Any

import polars as pl
import pytest

from shortlist.contracts import ShortlistError
from shortlist.features.counts.keyed import KeyedView

TARGET = {"kind": "target", "key": ["topics"], "name": "rate"}
SINCE = {"kind": "time_since", "key": ["user_id", "maker"], "name": "age"}
AGE = {"kind": "age", "each": "released"}
THIRD = date(2026, 3, 4)


@pytest.fixture
def log(world: Any) -> Any:
    return world.log(
        [world.row(day, day, item_id=item, label=day % 2) for day in range(3) for item in (10, 20, 30, 99)]
    )


def test_answers_from_another_source_give_the_same_features(world: Any, log: Any) -> None:
    transformer = world.transformer(log, TARGET, SINCE, AGE)
    rows = pl.read_parquet(list(log.glob("day=2026-03-04/*.parquet")), hive_partitioning=False)
    looked_up = rows
    for view in transformer.plan.views:  # as a store would be asked: key by key
        keys = transformer.lookup_keys(view, looked_up)
        answers = [transformer.answer(view.name, keys[at : at + 1], THIRD) for at in range(keys.height)]
        looked_up = transformer.gather(view, looked_up, keys, pl.concat(answers))
    assert transformer.compute(looked_up).equals(transformer.compute(transformer.look_up(rows, THIRD)))


def test_integers_may_be_answered_as_floats(world: Any, log: Any) -> None:
    transformer = world.transformer(log, TARGET, SINCE, AGE)
    rows = pl.read_parquet(list(log.glob("day=2026-03-04/*.parquet")), hive_partitioning=False)
    looked_up = transformer.look_up(rows, THIRD)
    counts = [
        f"{view.name}:{name}"
        for view in transformer.plan.views
        if isinstance(view, KeyedView)
        for name in view.features
    ]
    floats = looked_up.with_columns(pl.col(counts).cast(pl.Float64))
    assert transformer.compute(floats).equals(transformer.compute(looked_up))


def test_answers_keep_the_order_of_keys_and_are_null_for_unknown_keys(world: Any, log: Any) -> None:
    keys = pl.DataFrame({"topics": ["b", "nowhere", "a", None, "b"]})
    features = world.transformer(log, TARGET).answer("by_topics", keys, THIRD)
    assert features.rows(named=True) == [
        {"rows": rows, "sum_label": clicks} for rows, clicks in [(4, 2), (None, None), (2, 1), (None, None), (4, 2)]
    ]


def test_an_unknown_view_is_named(world: Any, log: Any) -> None:
    with pytest.raises(ShortlistError, match="no view 'by_topic'; did you mean 'by_topics'"):
        world.transformer(log, TARGET).answer("by_topic", pl.DataFrame({"topics": ["a"]}), THIRD)


def test_keys_may_come_from_side_tables(world: Any, log: Any) -> None:
    rows = pl.read_parquet(list(log.glob("day=2026-03-04/*.parquet")), hive_partitioning=False)
    keys = world.transformer(log, TARGET, SINCE).keys_of(rows, THIRD).sort("item_id")
    assert keys.columns == ["event_time", "day", "item_id", "user_id", "topics", "maker"]
    assert keys.select("item_id", "topics", "maker").rows() == [
        (10, ["a", "b"], 7),
        (20, ["b", "b"], 7),
        (30, None, 8),
        (99, None, None),
    ]


def test_serving_needs_no_label_and_no_outcome(world: Any, log: Any) -> None:
    last = {"kind": "lag", "key": ["user_id"], "column": "likes", "name": "last"}
    transformer = world.transformer(log, TARGET, SINCE, AGE, last)
    rows = pl.read_parquet(list(log.glob("day=2026-03-04/*.parquet")), hive_partitioning=False)
    request = rows.drop("label", "likes", "seconds", "impression_id")
    assert transformer.compute(transformer.look_up(request, THIRD)).equals(
        transformer.compute(transformer.look_up(rows, THIRD))
    )


def test_a_vector_of_another_width_is_refused(world: Any) -> None:
    log = world.log([world.row(day, query=[1.0, 2.0]) for day in range(3)])
    transformer = world.transformer(log, {"kind": "vector", "each": "query"})
    rows = pl.read_parquet(list(log.glob("day=2026-03-04/*.parquet")), hive_partitioning=False)
    wrong = rows.with_columns(pl.Series("query", [[1.0]], dtype=pl.List(pl.Float32)))
    with pytest.raises(ShortlistError, match="vector column 'query': 1 numbers per row; the fitted features have 2"):
        transformer.compute(transformer.look_up(wrong, THIRD))
