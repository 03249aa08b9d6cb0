"""What a model is trained for: every label by itself, or the order of a user's rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
import polars as pl
from pydantic import model_validator

from models.inputs import LearningTable, Part
from shortlist.contracts import Columns, DataError
from shortlist.spec.data import Data
from shortlist.spec.models import ModelSection

Objective = Literal["pointwise", "pairwise", "listwise"]

LIST_COLUMNS: Final = (Columns.USER,)
"""What else of a table is read where order is learnt."""


class ObjectiveSection(ModelSection):
    """The section of a kind that can be trained for the order of a user's rows."""

    objective: Objective = "pointwise"
    """What is learnt. `pointwise`: the log loss of every row. `pairwise` and `listwise`: the order of a user's rows in
    a file of the feature table (a day, where it is small), by pairs of a positive and a negative or by the list as a
    whole; scores are then no probabilities, so declare calibration: platt or isotonic."""

    @model_validator(mode="after")
    def _order_is_calibrated(self) -> Self:
        if self.objective != "pointwise" and self.calibration == "none":
            raise ValueError(
                f"objective: {self.objective} learns an order, and its scores are no probabilities; declare"
                " calibration: platt or isotonic too"
            )
        return self

    @property
    def learns_order(self) -> bool:
        """Whether rows are compared with others of their user."""
        return self.objective != "pointwise"

    def check_data(self, name: str, data: Data) -> None:
        """Refuse to learn the order of a user's rows in a log without users."""
        if self.learns_order and data.user is None:
            raise ValueError(
                f"models.{name}.objective: {self.objective} compares the rows of a user, and data.user is not declared;"
                " declare it, or objective: pointwise"
            )


def learning_lists(table: Any, features: Any, section: ObjectiveSection) -> LearningTable:
    """Return the columns and days to learn from, with the users where order is learnt."""
    return LearningTable(table, features, LIST_COLUMNS if section.learns_order else ())


def sorted_by_list(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a file, a user's one after another."""
    return frame.sort(Columns.USER, maintain_order=True)


def list_lengths(frame: pl.DataFrame) -> np.ndarray:
    """Return how many rows each user has, in the order of `sorted_by_list`; int64."""
    users = frame[Columns.USER]
    return users.rle().struct.field("len").cast(pl.Int64).to_numpy()


def check_lists(learning: LearningTable, section: ObjectiveSection, name: str) -> None:
    """Check that there is an order to learn and to validate.

    Raises:
        DataError: No user has a positive and a negative row in one file of the training, or of the validation days.
    """
    parts: tuple[Part, ...] = ("train", "validation")
    for part in parts:
        if not any(_tells_order(learning.read(path)) for path in learning.paths(part)):
            raise DataError(
                f"models.{name}.objective: {section.objective}: no user has both a positive and a negative row in one"
                f" file of the {part} days ({_longest(learning, part)}); there is no order to learn. Declare objective:"
                " pointwise"
            )


def _tells_order(frame: pl.DataFrame) -> bool:
    label = pl.col(Columns.LABEL)
    varies = frame.group_by(Columns.USER).agg((label.min() != label.max()).alias("varies"))["varies"]
    return bool(varies.any())


def _longest(learning: LearningTable, part: Part) -> str:
    longest = max((int(list_lengths(sorted_by_list(frame)).max()) for frame in _frames(learning, part)), default=0)
    return "every list has one row" if longest == 1 else f"the longest list has {longest} rows"


def _frames(learning: LearningTable, part: Part) -> Iterator[pl.DataFrame]:
    yield from learning.frames(part)


def file_lists(learning: LearningTable, path: Path) -> pl.DataFrame:
    """Return the rows of a file in the order of its lists, where order is learnt; else as they lie."""
    frame = learning.read(path)
    return sorted_by_list(frame) if Columns.USER in learning.columns else frame


class ListNumbers:
    """Numbers the lists of files, one file after another, as XGBoost wants them: rising.

    Attributes:
        wanted: Whether order is learnt.
    """

    def __init__(self, learning: LearningTable) -> None:
        self.wanted = Columns.USER in learning.columns
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
