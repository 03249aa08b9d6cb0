from __future__ import annotations

from typing import Any

import pytest

from models.inputs import LearningTable, chosen, features_of, split_of
from shortlist.contracts import DataError, ShortlistError
from shortlist.storage.tables import DayPart, DayTable


def changed(table: DayTable, **notes: Any) -> DayTable:
    return table.model_copy(update={"notes": {**table.notes, **notes}})


def test_features_come_in_table_order_whatever_the_patterns(table: DayTable) -> None:
    assert [one.name for one in chosen(table, ("text", "*_id"))] == ["user_id", "item_id", "tags_id", "text"]


def test_a_pattern_without_a_feature_names_the_likely_one(table: DayTable) -> None:
    with pytest.raises(ShortlistError, match=r"no feature matches 'agee'; did you mean 'age'\?; it has user_id"):
        chosen(table, ("agee",))


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
    learning = LearningTable(table, chosen(table, ("age",)))
    assert learning.rows("train", "validation") == 2 * 1_500 + 1_500
    for part in ("test", "warmup"):
        with pytest.raises(ShortlistError, match=f"it may not read '{part}'"):
            learning.paths(part)  # type: ignore[arg-type]


def test_frames_hold_the_label_and_the_chosen_features_only(table: DayTable) -> None:
    frames = list(LearningTable(table, chosen(table, ("age",))).frames("train"))
    assert {tuple(frame.columns) for frame in frames} == {("label", "age")}
    assert sum(frame.height for frame in frames) == 3_000


@pytest.mark.parametrize("part", ["train", "validation"])
def test_a_part_without_rows_is_refused(table: DayTable, part: str) -> None:
    split = {**table.notes["split"], part: []}
    with pytest.raises(DataError, match=rf"no rows on the {part} days \(none declared\)"):
        LearningTable(changed(table, split=split), ())


@pytest.mark.parametrize("label", [0, 1])
def test_a_label_that_never_varies_is_refused(table: DayTable, label: int) -> None:
    days = tuple(DayPart(day=one.day, rows=one.rows, positives=label * one.rows, files=one.files) for one in table.days)
    with pytest.raises(
        DataError, match=f"the label is {label} on all 3000 rows of the training days 2026-01-06, 2026-01-07"
    ):
        LearningTable(table.model_copy(update={"days": days}), ())
