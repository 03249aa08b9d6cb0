"""The lists that a model learns the order of: slates where they are declared, else a user's rows in a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from models.inputs import FeatureColumn, LearningTable, Part
from models.objective_section import ObjectiveSection
from models.process_group import current
from shortlist.contracts import Columns, DataError
from shortlist.storage.tables import DayTable

_LIST_COLUMNS: Final = {Columns.SLATE: "slate", Columns.USER: "user"}
"""Columns of a feature table whose equal values are a list, the first one present counts; and what they name."""


def learning_lists(
    table: DayTable, features: tuple[FeatureColumn, ...], section: ObjectiveSection, also: tuple[str, ...] = ()
) -> LearningTable:
    """Return the columns and days to learn from, with the column that names lists where order is learnt.

    Args:
        table: The feature table.
        features: What the model reads.
        section: With the objective.
        also: Further columns to read.
    """
    learning = LearningTable(table, features, also)
    if not section.learns_order:
        return learning
    column = list_column(pl.read_parquet_schema(learning.paths("train")[0]))
    assert column is not None, "the spec was checked to name users or slates"
    return LearningTable(table, features, (column, *also))


def list_column(columns: Iterable[str]) -> str | None:
    """Return the column whose equal values are a list; None where none is."""
    there = frozenset(columns)
    return next((name for name in _LIST_COLUMNS if name in there), None)


def list_owner(learning: LearningTable) -> str:
    """Return what a list belongs to, for messages: `slate` or `user`."""
    return _LIST_COLUMNS[_column(learning.columns)]


def sorted_by_list(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a file, a list's one after another."""
    return frame.sort(_column(frame.columns), maintain_order=True)


def list_lengths(frame: pl.DataFrame) -> np.ndarray:
    """Return how many rows each list has, in the order of `sorted_by_list`; int64."""
    numbers = frame[_column(frame.columns)]
    return numbers.rle().struct.field("len").cast(pl.Int64).to_numpy()


def _column(columns: Iterable[str]) -> str:
    column = list_column(columns)
    assert column is not None, "no order is learnt from this table"
    return column


def check_lists(learning: LearningTable, section: ObjectiveSection, name: str) -> None:
    """Check that there is an order to learn and to validate.

    Raises:
        DataError: No list has a positive and a negative row in the training, or in the validation days.
    """
    parts: tuple[Part, ...] = ("train", "validation")
    for part in parts:
        if not _anywhere(any(_tells_order(learning.read(path)) for path in learning.paths(part))):
            raise DataError(
                f"models.{name}.objective: {section.objective}: no {list_owner(learning)} has both a positive and a"
                f" negative row in one file of the {part} days ({_longest(learning, part)}); there is no order to"
                " learn. Declare objective: pointwise"
            )


def _anywhere(here: bool) -> bool:
    """Return whether something holds in one of the processes that train together; all must ask."""
    group = current()
    return here if group is None else any(bool(there[0]) for there in group.gathered(np.array([here])))


def _tells_order(frame: pl.DataFrame) -> bool:
    label = pl.col(Columns.LABEL)
    varies = frame.group_by(_column(frame.columns)).agg((label.min() != label.max()).alias("varies"))["varies"]
    return bool(varies.any())


def _longest(learning: LearningTable, part: Part) -> str:
    frames = map(sorted_by_list, learning.frames(part))
    longest = max((int(list_lengths(frame).max(initial=0)) for frame in frames), default=0)
    return "every list has one row" if longest == 1 else f"the longest list has {longest} rows"


def file_lists(learning: LearningTable, path: Path) -> pl.DataFrame:
    """Return the rows of a file in the order of its lists, where order is learnt; else as they lie."""
    frame = learning.read(path)
    return sorted_by_list(frame) if list_column(learning.columns) else frame


class ListNumbers:
    """Numbers the lists of files, one file after another, as XGBoost wants them: rising.

    Attributes:
        wanted: Whether order is learnt.
    """

    def __init__(self, learning: LearningTable) -> None:
        self.wanted = list_column(learning.columns) is not None
        self._next = 0

    def of(self, frame: pl.DataFrame) -> np.ndarray | None:
        """Return the number of every row's list, int64; None where no order is learnt.

        Args:
            frame: The next file, in the order of its lists.
        """
        if not self.wanted:
            return None
        lengths = list_lengths(frame)
        first, self._next = self._next, self._next + len(lengths)
        return np.repeat(np.arange(first, self._next), lengths)
