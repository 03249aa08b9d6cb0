"""Records of the comparison of served feature values with the feature table's."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

Cause = Literal["stale snapshot", "time zone", "default", "missing", "other values", "inputs", "model"]
"""Cause of most unequal values of a column; `inputs` and `model` are causes of unequal scores only."""


class _ServedFeaturesRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ServedColumn(_ServedFeaturesRecord):
    """The comparison of one column of the model's inputs, or of `score`."""

    compared: int
    """Compared rows."""
    equal: int
    """Rows in which the server used the value that the feature table has."""
    largest_difference: float | None
    """Largest difference between two numbers; 0 where all are equal, None where unequal values have no distance."""
    stale: int = 0
    """Unequal rows with the value that the table had when the server's snapshot was counted."""
    counted: int = 0
    """Unequal rows that count for the limit: not those of a snapshot within `served_features.max_age`."""
    cause: Cause | None = None
    """Cause of most unequal values; None where all rows are equal."""
    reason: str = ""
    """One sentence with the numbers, the likely cause and the next step; empty where all rows are equal."""

    @property
    def unequal_share(self) -> float:
        """Share of the compared rows that count for the limit."""
        return self.counted / self.compared if self.compared else 0.0


class ServedFeaturesReport(_ServedFeaturesRecord):
    """The comparison of a spec's served feature values with the feature table's."""

    spec: str
    made: datetime
    first: datetime | None
    """Earliest time of the compared rows; None without any."""
    last: datetime | None
    """Latest time of the compared rows; None without any."""
    requests: int = 0
    """Compared requests, from the sample that the prediction log keeps with their feature values."""
    rows: int = 0
    """Compared rows."""
    versions: dict[int, int] = {}
    """Compared rows by version."""
    waiting: int = 0
    """Rows that are not compared yet, because their statistics are not all counted."""
    ahead: int = 0
    """Rows that are not compared, because their time is before the server's newest tile: replayed or late requests."""
    degraded: int = 0
    """Rows that are not compared, because features could not be read when they were scored."""
    max_unequal: float | None = None
    """The declared limit of `unequal_share`; None: there is none."""
    min_rows: int = 1
    """Fewest rows to which the limit applies."""
    columns: dict[str, ServedColumn] = {}
    """Comparisons by the column's name in looked-up rows, as in the model's signature."""
    problems: tuple[str, ...] = ()
    """Reasons why some rows could not be compared."""

    @property
    def breaches(self) -> tuple[tuple[str, ServedColumn], ...]:
        """The columns above the limit, the worst first."""
        if self.max_unequal is None or self.rows < self.min_rows:
            return ()
        breaches = ((name, column) for name, column in self.columns.items() if column.unequal_share > self.max_unequal)
        return tuple(sorted(breaches, key=lambda breach: -breach[1].unequal_share))

    @property
    def lines(self) -> tuple[str, ...]:
        """Sentences for the console; empty where there was nothing to compare."""
        unequal_columns = [column for column in self.columns.values() if column.equal < column.compared]
        if not self.rows:
            return self.problems
        if not unequal_columns:
            return (f"Served features: all {len(self.columns)} columns equal in {self.rows:,} rows.", *self.problems)
        worst = max(unequal_columns, key=lambda column: column.compared - column.equal)
        summary = (
            f"Served features: {len(unequal_columns)} of {len(self.columns)} columns differ in {self.rows:,} rows."
        )
        return (f"{summary} {worst.reason}.", *self.problems)

    @property
    def blocker(self) -> str:
        """Reason why no retraining may start; empty when one may."""
        if not self.breaches:
            return ""
        reason_by_cause: dict[Cause | None, str] = {}  # one column for each cause
        for _, column in self.breaches:
            reason_by_cause.setdefault(column.cause, column.reason)
        reasons, further_count = "; ".join(reason_by_cause.values()), len(self.breaches) - len(reason_by_cause)
        further = f"; and {further_count} more" if further_count else ""
        return (
            f"{len(self.breaches)} column(s) were served with other values than the feature table has, in more than"
            f" {self.max_unequal:.1%} of {self.rows:,} rows (served_features.max_unequal): {reasons}{further}. A model"
            " trained on the table would not meet these values; training is held"
        )
