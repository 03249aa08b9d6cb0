"""The parts of a reference: distributions of columns, and quality of models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from monitoring.reference.distributions import Bins


class _ReferencePart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ColumnReference(_ReferencePart):
    """Distribution of a column's values, per day."""

    bins: Bins
    counts: tuple[tuple[int, ...], ...]
    """Values per day and bin, shape (days, bins)."""
    nulls: float
    """Share of the rows without a value; an empty list and a number that is not finite count as missing."""
    rows: int
    """Rows of all days, including those without a value."""


class ModelReference(_ReferencePart):
    """Quality of a model on its test days."""

    model: str
    """Name of the model, as declared."""
    scores: ColumnReference
    """Distribution of the scores on the validation and test days."""
    mean_score: float
    label_rate: float
    auc: float
    log_loss: float
    gauc: float | None = None
    """GAUC; None where the log names no users."""
    ndcg_at_10: float | None = None
    """nDCG@10 over the lists that a replay would ask for; None where the log names no users."""
    hit_rate: float
    """Hit rate at `quality.hit_rate_at`, over the lists that a replay would ask for."""
    rows: int
    """Rows of the test days, on which the measures above are computed."""
