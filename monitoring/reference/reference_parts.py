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


class ShownReference(_ReferencePart):
    """What a model's release would show for requests of the log's newest days."""

    columns: dict[str, ColumnReference]
    """Distributions of the items' columns over shown rows."""
    unknown_shares: dict[str, float]
    """Share of shown values without an id of their own, by column."""
    scores: ColumnReference
    """Distribution of the scores of shown rows: the best of many, and so higher than those of the log's rows."""
    mean_score: float


class ModelReference(_ReferencePart):
    """Quality of a model on its test days."""

    model: str
    """Name of the model, as declared."""
    scores: ColumnReference
    """Distribution of the scores on the validation and test days."""
    mean_score: float
    label_rate: float | None
    auc: float | None
    """AUC, log loss, label rate and hit rate are None where live slates have no reference for them yet."""
    log_loss: float | None
    gauc: float | None = None
    """GAUC; None where the log names no users."""
    ndcg_at_10: float | None = None
    """nDCG@10 over the lists that a replay would ask for; None where the log names no users."""
    hit_rate: float | None
    """Hit rate at `quality.hit_rate_at`, over the lists that a replay would ask for."""
    rows: int
    """Rows of the test days, on which the measures above are computed."""
    of_slates: bool = False
    """Whether the measures are those of slates that the release showed, and not of the log's rows."""
