"""What the comparison of served feature values with the feature table's found."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

Cause = Literal["stale snapshot", "time zone", "default", "missing", "other values", "inputs", "model"]
"""What most of the unequal values of a column have in common; `inputs` and `model` are said of the score alone."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ServedColumn(_Record):
    """One column of the model's inputs, or `score`."""

    compared: int
    """Rows."""
    equal: int
    """Rows in which the server used the value that the feature table has."""
    largest_difference: float | None
    """Between two numbers; 0 where all are equal, None where the unequal values have no distance."""
    stale: int = 0
    """Unequal rows whose value is the one that the table had when the snapshot of the server was counted."""
    counted: int = 0
    """Unequal rows that count for the limit: not those of a snapshot within `served_features.max_age`."""
    cause: Cause | None = None
    """None where all rows are equal."""
    reason: str = ""
    """One sentence with the numbers, the likely cause and the next step; empty where all rows are equal."""

    @property
    def unequal_share(self) -> float:
        """Share of the compared rows that count for the limit."""
        return self.counted / self.compared if self.compared else 0.0


class ServedFeatures(_Record):
    """The newest comparison of a spec."""

    spec: str
    made: datetime
    first: datetime | None
    """Earliest time of the compared rows; None without any."""
    last: datetime | None
    requests: int = 0
    """Compared requests: those of the sample that the prediction log keeps with their feature values."""
    rows: int = 0
    versions: dict[int, int] = {}
    """Compared rows by version."""
    waiting: int = 0
    """Rows whose statistics are not all counted yet."""
    ahead: int = 0
    """Rows about a time before the newest tile that the server knew: replayed or late requests; not compared."""
    degraded: int = 0
    """Rows that were scored while features could not be read; not compared, servers report them."""
    max_unequal: float | None = None
    """The declared limit."""
    min_rows: int = 1
    """Rows from which on the limit applies."""
    columns: dict[str, ServedColumn] = {}
    """By the column's place in looked-up rows, as in the model's signature."""
    problems: tuple[str, ...] = ()
    """Why some rows could not be compared."""

    @property
    def breaches(self) -> tuple[tuple[str, ServedColumn], ...]:
        """The columns past the limit, the worst first."""
        if self.max_unequal is None or self.rows < self.min_rows:
            return ()
        past = ((name, one) for name, one in self.columns.items() if one.unequal_share > self.max_unequal)
        return tuple(sorted(past, key=lambda found: -found[1].unequal_share))

    @property
    def lines(self) -> tuple[str, ...]:
        """Sentences for the console; empty where there was nothing to compare."""
        unequal = [one for one in self.columns.values() if one.equal < one.compared]
        if not self.rows:
            return self.problems
        if not unequal:
            return (f"Served features: all {len(self.columns)} columns equal in {self.rows:,} rows.", *self.problems)
        worst = max(unequal, key=lambda one: one.compared - one.equal)
        summary = f"Served features: {len(unequal)} of {len(self.columns)} columns differ in {self.rows:,} rows."
        return (f"{summary} {worst.reason}.", *self.problems)

    @property
    def blocker(self) -> str:
        """Why no retraining starts; empty when one may."""
        if not self.breaches:
            return ""
        worst: dict[Cause | None, str] = {}  # one column for each cause
        for _, column in self.breaches:
            worst.setdefault(column.cause, column.reason)
        named, others = "; ".join(worst.values()), len(self.breaches) - len(worst)
        more = f"; and {others} more" if others else ""
        return (
            f"{len(self.breaches)} column(s) were served with other values than the feature table has, in more than"
            f" {self.max_unequal:.1%} of {self.rows:,} rows (served_features.max_unequal): {named}{more}. A model"
            " trained on the table would not meet these values; training is held"
        )
