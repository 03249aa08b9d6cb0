"""Properties that hold for any log."""

import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import folder_digest

COLUMNS = [
    {"kind": "numeric", "each": "price", "log": True, "standardise": True},
    {"kind": "vocabulary", "each": ["page", "words", "maker"], "min_rows": 2, "max_size": 4},
    {"kind": "hash", "each": ["page", "words"], "buckets": 50},
    {"kind": "cross", "columns": ["page", "user_id"], "name": "pair", "buckets": 1000},
    {"kind": "count", "key": ["user_id", "topics"], "of": "watched", "name": "watched_topic"},
    {"kind": "count", "key": ["user_id"], "window_days": 2, "name": "n"},
    {"kind": "target", "key": ["words", "user_id"], "name": "rate", "prior": 3.0},
    {"kind": "target", "key": ["maker"], "of": "seconds", "window_days": 2, "name": "dwell"},
    {"kind": "target", "key": ["maker"], "of": "seconds", "skip_days": 1, "name": "dwell_before"},
    {"kind": "time_since", "key": ["topics"], "name": "age"},
    {"kind": "lag", "key": ["user_id"], "column": "seconds", "name": "last"},
    {"kind": "cyclic", "period": "week", "name": "week"},
    {"kind": "vector", "each": "vector"},
    {"kind": "similarity", "list": "watched", "vector": "vector", "name": "close"},
]
IMPRESSION = st.fixed_dictionaries(
    {
        "hour": st.integers(0, 23),
        "user_id": st.sampled_from([1, 2, 3, 4, None]),
        "item_id": st.sampled_from([10, 20, 30, 99]),
        "page": st.sampled_from(["x", "y", "z", None]),
        "price": st.sampled_from([0.0, 1.0, 1e9, -1.0, 0.1, None]),
        "words": st.one_of(st.none(), st.lists(st.sampled_from(["a", "b", "c"]), max_size=3)),
        "seconds": st.sampled_from([None, 0.1, 0.3, 12.7]),
        "label": st.integers(0, 1),
    }
)
LOGS = st.lists(st.lists(IMPRESSION, min_size=1, max_size=6), min_size=4, max_size=5)
"""Days of impressions."""

several = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def rows_of(world: Any, days: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Impressions with their day and number."""
    return [world.row(day, **impression) for day, impressions in enumerate(days) for impression in impressions]


@pytest.fixture
def fresh(world: Any) -> Any:
    """Return a function that makes a new world, because a property tries many logs."""

    def make() -> Any:
        return type(world)(Path(tempfile.mkdtemp(dir=world.folder)), world.clock, world.split)

    return make


@pytest.mark.long
@several
@given(days=LOGS)
def test_fitting_day_by_day_equals_fitting_all_at_once(fresh: Any, days: Sequence[Any]) -> None:
    world = fresh()
    rows = rows_of(world, days)
    whole = world.fit(world.log(rows), COLUMNS)
    rows_of_files: dict[str, pl.DataFrame] = {}
    for count in range(3, len(days) + 1):  # fewer days cannot be split
        part = world.log([row for row in rows if row["day"] < rows[0]["day"] + timedelta(days=count)], f"log-{count}")
        fitted = world.fit(part, COLUMNS, f"fit-{count}", previous=f"fit-{count - 1}" if count > 3 else None)
        for file in (fitted / "vocabularies").iterdir():  # ids never move
            now = pl.read_parquet(file)
            previous_rows = rows_of_files.get(file.name, now.head(0))
            assert now.head(previous_rows.height).equals(previous_rows)
            rows_of_files[file.name] = now
    assert folder_digest(fitted) == folder_digest(whole)


@several
@given(days=LOGS, day=st.integers(1, 3))
def test_no_row_sees_the_labels_or_outcomes_of_its_own_or_later_days(fresh: Any, days: Sequence[Any], day: int) -> None:
    world = fresh()
    rows = rows_of(world, days)
    first = rows[0]["day"] + timedelta(days=day)
    changed = [row if row["day"] < first else {**row, "label": 1 - row["label"], "seconds": 99.0} for row in rows]
    first_table = world.features(rows, *COLUMNS, name="one")
    second_table = world.features(changed, *COLUMNS, name="other")
    past = pl.col("day") <= first
    assert first_table.filter(past).drop("label").equals(second_table.filter(past).drop("label"))


@several
@given(days=LOGS, day=st.integers(1, 3))
def test_a_row_does_not_see_other_rows_of_its_day(fresh: Any, days: Sequence[Any], day: int) -> None:
    world = fresh()
    # the vocabulary and the moments learn from whole training days, point in time is what the statistics are
    columns = [column for column in COLUMNS if column["kind"] not in ("vocabulary", "numeric")]
    rows = [{**row, "impression_id": number} for number, row in enumerate(rows_of(world, days))]
    today = [row for row in rows if row["day"] == rows[0]["day"] + timedelta(days=day)]
    alone = [row for row in rows if row not in today[1:]]
    first_table = world.features(rows, *columns, name="one").filter(impression_id=today[0]["impression_id"])
    second_table = world.features(alone, *columns, name="other").filter(impression_id=today[0]["impression_id"])
    assert first_table.equals(second_table)


@several
@given(days=LOGS)
def test_a_single_row_has_the_features_that_it_has_in_a_batch(fresh: Any, days: Sequence[Any]) -> None:
    world = fresh()
    log = world.log(rows_of(world, days))
    transformer = world.transformer(log, *COLUMNS)
    for file in sorted(log.glob("day=*/*.parquet")):
        batch = pl.read_parquet(file, hive_partitioning=False)
        day = batch["day"][0]
        together = transformer.compute(transformer.look_up(batch, day))
        for at in range(batch.height):
            assert transformer.compute(transformer.look_up(batch[at : at + 1], day)).equals(together[at : at + 1])


@pytest.mark.long
@several
@given(days=LOGS, random=st.randoms(use_true_random=False))
def test_statistics_do_not_depend_on_the_order_of_rows_or_on_the_size_of_parts(
    fresh: Any, days: Sequence[Any], random: Any
) -> None:
    world = fresh()
    rows = [{**row, "impression_id": number} for number, row in enumerate(rows_of(world, days))]
    shuffled = random.sample(rows, len(rows))
    first_fit = world.fit(world.log(rows), COLUMNS, "one")
    parts = world.log(shuffled, "shuffled", chunk_rows=2)
    second_fit = world.fit(parts, COLUMNS, "other", runtime=Runtime(engine="cpu", chunk_rows=1_000))
    assert len(list(parts.glob("day=*/*.parquet"))) >= len(days)
    for folder in ("statistics", "views", "vocabularies"):
        assert folder_digest(first_fit / folder) == folder_digest(second_fit / folder)


def test_two_runs_give_the_same_bytes(world: Any) -> None:
    rows = [
        world.row(day, hour, user_id=hour % 3, page="xyz"[hour % 3], price=hour / 7)
        for day in range(4)
        for hour in range(9)
    ]
    log = world.log(rows)
    digests = [folder_digest(world.table(log, COLUMNS, name=name).folder) for name in ("one", "two")]
    assert digests[0] == digests[1]
    assert folder_digest(world.folder / "one-fitted") == folder_digest(world.folder / "two-fitted")
