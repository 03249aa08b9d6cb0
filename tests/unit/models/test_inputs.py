from __future__ import annotations

from datetime import date
from typing import Any

import polars as pl
import pytest

from models.logistic.ranker import LogisticRanker
from models.logistic.section import LogisticModel
from shortlist.contracts import DataError, ShortlistError
from shortlist.ranking.inputs import LearningTable, features_matching, features_of, split_of
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayPart, DayTable
from shortlist.training.distributed.job import DistributedJob


def changed(table: DayTable, **notes: Any) -> DayTable:
    return table.model_copy(update={"notes": {**table.notes, **notes}})


def test_features_come_in_table_order_whatever_the_patterns(table: DayTable) -> None:
    assert [feature.name for feature in features_matching(table, ("text", "*_id"))] == [
        "user_id",
        "item_id",
        "tags_id",
        "text",
    ]


def test_a_pattern_without_a_feature_names_the_likely_feature(table: DayTable) -> None:
    with pytest.raises(ShortlistError, match=r"no feature matches 'agee'; did you mean 'age'\?; it has user_id"):
        features_matching(table, ("agee",))


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ({"name": "a", "kind": "id"}, "feature 'a' is of kind id and needs a size"),
        ({"name": "a", "kind": "vector"}, "feature 'a' is of kind vector and needs a width"),
        ({"name": "a", "kind": "picture"}, "Input should be 'dense', 'id', 'ids' or 'vector'"),
    ],
)
def test_a_feature_that_is_not_described_is_refused(table: DayTable, column: dict[str, Any], reason: str) -> None:
    with pytest.raises(ShortlistError, match=reason):
        features_of(changed(table, columns=[column]))


def test_a_table_without_a_split_is_refused(table: DayTable) -> None:
    notes = {"columns": table.notes["columns"]}
    with pytest.raises(
        ShortlistError, match=r"table.json: notes.split: no usable 'split'. Write the feature table again"
    ):
        split_of(table.model_copy(update={"notes": notes}))


def test_a_test_day_among_the_training_days_is_refused(table: DayTable) -> None:
    split = table.notes["split"]
    leaking = {**split, "train": [*split["train"], *split["test"]]}
    with pytest.raises(
        ShortlistError, match="2026-01-09 comes before and after 2026-01-08; wanted whole days in time order"
    ):
        split_of(changed(table, split=leaking))


def test_only_training_and_validation_days_can_be_reached(table: DayTable) -> None:
    learning = LearningTable(table, features_matching(table, ("age",)))
    assert learning.rows("train", "validation") == 2 * 1_500 + 1_500
    for part in ("test", "warmup"):
        with pytest.raises(ShortlistError, match=f"it may not read '{part}'"):
            learning.paths(part)  # type: ignore[arg-type]


def looking_back(table: DayTable, *names: str) -> DayTable:
    """Return the table with features that look up what earlier days left; the others do not."""
    columns = [{**column, "history": column["name"] in names} for column in table.notes["columns"]]
    return changed(table, columns=columns)


def test_warm_up_days_are_learnt_where_no_feature_looks_up_earlier_days(table: DayTable) -> None:
    day_table = looking_back(table, "age")
    ids, ids_and_age = (
        LearningTable(day_table, features_matching(day_table, patterns)) for patterns in (("*_id",), ("*_id", "age"))
    )
    warmup, *train = (date(2026, 1, day) for day in (5, 6, 7))
    assert (ids.split.warmup, ids.split.train) == ((), (warmup, *train))
    assert (ids_and_age.split.warmup, ids_and_age.split.train) == ((warmup,), tuple(train))
    assert (ids.rows("train"), ids_and_age.rows("train")) == (3 * 1_500, 2 * 1_500)
    assert sum(frame.height for frame in ids.frames("train")) == 3 * 1_500
    warm = pl.concat(frame for day, frame in table.frames() if day == warmup)
    first = pl.concat(ids.frames("train")).head(1_500)
    assert first["user_id"].equals(warm["user_id"])
    assert ids.base_rate != ids_and_age.base_rate


def test_a_model_of_ids_alone_has_learnt_the_warm_up_day(table: DayTable) -> None:
    day_table = looking_back(table, "age")
    runtime = Runtime(engine="cpu", seed=3)
    for patterns, days in ((("user_id",), 3), (("user_id", "age"), 2)):
        record = LogisticRanker(LogisticModel(features=patterns, epochs=1)).fit(day_table, runtime)
        assert (len(record.train_days), record.train_rows) == (days, days * 1_500)


def test_several_workers_share_out_the_warm_up_day(table: DayTable) -> None:
    day_table = looking_back(table, "age")
    for patterns, rows in ((("user_id",), 4 * 1_500), (("user_id", "age"), 3 * 1_500)):
        section = LogisticModel(features=patterns)
        job = DistributedJob.plan("logistic", section, day_table, Runtime(engine="cpu"), None, 2)
        read = pl.read_parquet([*job.files(0), *job.files(1)], hive_partitioning=False)
        assert read.height == rows
        learning = LearningTable(job.day_table, features_matching(job.day_table, patterns))
        assert set(learning.paths("train", "validation")) == job.files(0) | job.files(1)


def test_frames_hold_only_the_label_and_the_matching_features(table: DayTable) -> None:
    frames = list(LearningTable(table, features_matching(table, ("age",))).frames("train"))
    assert {tuple(frame.columns) for frame in frames} == {("label", "age")}
    assert sum(frame.height for frame in frames) == 3_000


@pytest.mark.parametrize("part", ["train", "validation"])
def test_a_part_without_rows_is_refused(table: DayTable, part: str) -> None:
    split = {**table.notes["split"], part: []}
    with pytest.raises(DataError, match=rf"no rows on the {part} days \(none declared\)"):
        LearningTable(changed(table, split=split), ())


@pytest.mark.parametrize("label", [0, 1])
def test_a_label_that_never_varies_is_refused(table: DayTable, label: int) -> None:
    days = tuple(
        DayPart(day=day_part.day, rows=day_part.rows, positives=label * day_part.rows, files=day_part.files)
        for day_part in table.days
    )
    with pytest.raises(
        DataError, match=f"the label is {label} on all 3000 rows of the training days 2026-01-06, 2026-01-07"
    ):
        LearningTable(table.model_copy(update={"days": days}), ())
