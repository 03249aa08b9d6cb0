"""The `objective` key of models that can learn the order of a list's rows; imports little, as every spec reads it."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import model_validator

from shortlist.spec.data import Data
from shortlist.spec.models import ModelSection

Objective = Literal["pointwise", "pairwise", "listwise"]
ORDER_OBJECTIVES: Final[frozenset[str]] = frozenset({"pairwise", "listwise"})
"""Objectives that compare the rows of a list; with every other one, a row has a loss of its own."""


class ObjectiveSection(ModelSection):
    """The section of a kind that can be trained for the order of a list's rows."""

    objective: Objective = "pointwise"
    """What is learnt. `pointwise`: the log loss of every row. `pairwise` and `listwise`: the order of a list's rows,
    by pairs of a positive and a negative or by the list as a whole. A list is a slate where `data.slate` is declared,
    else a user's rows in a file of the feature table (a day, where it is small). Scores are then no probabilities, so
    declare calibration: platt or isotonic."""

    @model_validator(mode="after")
    def _order_is_calibrated(self) -> Self:
        if self.learns_order and self.calibration == "none":
            raise ValueError(
                f"objective: {self.objective} learns an order, and its scores are no probabilities; declare"
                " calibration: platt or isotonic too"
            )
        return self

    @property
    def learns_order(self) -> bool:
        """Whether rows are compared with others of their list."""
        return self.objective in ORDER_OBJECTIVES

    def check_data(self, name: str, data: Data) -> None:
        """Refuse to learn an order where nothing says which rows were ranked together."""
        super().check_data(name, data)
        if self.learns_order and self.weights is not None:
            raise ValueError(
                f"models.{name}.weights: {self.objective} compares the rows of a list, which were shown together; leave"
                " weights out, or declare objective: pointwise"
            )
        if self.learns_order and data.user is None and data.slate is None:
            raise ValueError(
                f"models.{name}.objective: {self.objective} compares the rows of a user or of a slate, and neither"
                " data.user nor data.slate is declared; declare one of them, or objective: pointwise"
            )
