"""What a reference says of a column, and of a model."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from monitoring.reference.distributions import Bins


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ColumnReference(_Record):
    """How the values of a column are distributed, day by day."""

    bins: Bins
    counts: tuple[tuple[int, ...], ...]
    """Values per day and bin, shape (days, bins)."""
    nulls: float
    """Share of the rows without a value; an empty list is none, nor is a number that is not finite."""
    rows: int
    """Rows of all days, those without a value too."""


class ModelReference(_Record):
    """What a model was on its test days."""

    model: str
    """Its name, as declared."""
    scores: ColumnReference
    """Of the validation and test days, and of no other day."""
    mean_score: float
    label_rate: float
    auc: float
    log_loss: float
    gauc: float | None = None
    """None where the log names no users."""
    ndcg_at_10: float | None = None
    """Over the lists that a replay would ask for; likewise."""
    hit_rate: float
    """At `quality.hit_rate_at`, over the lists that a replay would ask for."""
    rows: int
    """Rows of the test days; the numbers above are theirs."""
