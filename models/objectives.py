"""The lists whose order a model learns: slates where they are declared, else a user's rows in a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from models.objective_section import ObjectiveSection
from shortlist.contracts import Columns, DataError
from shortlist.ranking.inputs import LearningTable, Part, TableFeature
from shortlist.ranking.process_group import current_group
from shortlist.storage.tables import DayTable

_LIST_COLUMNS: Final = {Columns.SLATE: "slate", Columns.USER: "user"}
"""Columns of a feature table that identify lists -> word for messages; the first column present is used."""


def learning_lists(
    table: DayTable, features: tuple[TableFeature, ...], section: ObjectiveSection, extra_columns: tuple[str, ...] = ()
) -> LearningTable:
    """Return the columns and days to learn from, with the column of lists where order is learnt.

    Args:
        table: The feature table.
        features: The features that the model reads.
        section: The model's section, with the objective.
        extra_columns: Further columns to read.
    """
    learning = LearningTable(table, features, extra_columns)
    if not section.learns_order:
        return learning
    column = list_column(pl.read_parquet_schema(learning.paths("train")[0]))
    assert column is not None, "the spec was checked to name users or slates"
    return LearningTable(table, features, (column, *extra_columns))


def list_column(columns: Iterable[str]) -> str | None:
    """Return the column that identifies lists; None where there is none."""
    present_columns = frozenset(columns)
    return next((name for name in _LIST_COLUMNS if name in present_columns), None)


def list_owner(learning: LearningTable) -> str:
    """Return `slate` or `user`, for messages."""
    return _LIST_COLUMNS[_required_list_column(learning.columns)]


def sorted_by_list(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a file sorted by list, so that rows of a list are neighbours."""
    return frame.sort(_required_list_column(frame.columns), maintain_order=True)


def list_lengths(frame: pl.DataFrame) -> np.ndarray:
    """Return the number of rows of each list, in the order of `sorted_by_list`; int64."""
    numbers = frame[_required_list_column(frame.columns)]
    return numbers.rle().struct.field("len").cast(pl.Int64).to_numpy()


def _required_list_column(columns: Iterable[str]) -> str:
    column = list_column(columns)
    assert column is not None, "no order is learnt from this table"
    return column


def check_lists(learning: LearningTable, section: ObjectiveSection, name: str) -> None:
    """Check that training and validation days have lists with both labels.

    Raises:
        DataError: No list has a positive and a negative row in the training, or in the validation days.
    """
    parts: tuple[Part, ...] = ("train", "validation")
    for part in parts:
        if not _any_worker(any(_has_order(learning.read(path)) for path in learning.paths(part))):
            raise DataError(
                f"models.{name}.objective: {section.objective}: no {list_owner(learning)} has both a positive and a"
                f" negative row in one file of the {part} days ({_describe_longest(learning, part)}); there is no order"
                " to learn. Declare objective: pointwise"
            )


def _any_worker(holds: bool) -> bool:
    """Return whether a condition holds in any process of the group; all processes must call it."""
    group = current_group()
    return holds if group is None else any(bool(holds_there[0]) for holds_there in group.gather(np.array([holds])))


def _has_order(frame: pl.DataFrame) -> bool:
    label = pl.col(Columns.LABEL)
    varies = frame.group_by(_required_list_column(frame.columns)).agg((label.min() != label.max()).alias("varies"))[
        "varies"
    ]
    return bool(varies.any())


def _describe_longest(learning: LearningTable, part: Part) -> str:
    frames = map(sorted_by_list, learning.frames(part))
    longest = max((int(list_lengths(frame).max(initial=0)) for frame in frames), default=0)
    return "every list has one row" if longest == 1 else f"the longest list has {longest} rows"


def read_sorted_by_list(learning: LearningTable, path: Path) -> pl.DataFrame:
    """Return the rows of a file, sorted by list where order is learnt."""
    frame = learning.read(path)
    return sorted_by_list(frame) if list_column(learning.columns) else frame


class ListNumbers:
    """Numbers the lists of files, one file after another, in ascending order as XGBoost requires.

    Attributes:
        learns_order: Whether the model learns an order.
    """

    def __init__(self, learning: LearningTable) -> None:
        self.learns_order = list_column(learning.columns) is not None
        self._next = 0

    def number_rows(self, frame: pl.DataFrame) -> np.ndarray | None:
        """Return the number of every row's list, int64; None where no order is learnt.

        Args:
            frame: The next file, in the order of its lists.
        """
        if not self.learns_order:
            return None
        lengths = list_lengths(frame)
        first, self._next = self._next, self._next + len(lengths)
        return np.repeat(np.arange(first, self._next), lengths)
