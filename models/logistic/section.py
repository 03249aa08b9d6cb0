"""The section of a spec that declares a logistic regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from shortlist.spec.base import Names
from shortlist.spec.models import ModelSection, labels_of_all

MAX_BINS: Final = 256


class LogisticModel(ModelSection):
    """Logistic regression on hashed one-hot ids, numbers and their bins."""

    compared_as_baseline: ClassVar[bool] = True

    kind: Literal["logistic"] = "logistic"
    """Logistic regression; where none is declared, one with all declared features is added."""
    role: Literal["candidate", "baseline"] = "baseline"
    """`baseline`: it is trained for comparison. `candidate`: it may be served, and be a member of a blend; then no
    baseline of this kind is added."""
    features: Names = Field(min_length=1)
    """Features it reads; `*` and `?` match several."""
    epochs: int = Field(default=10, ge=1)
    """Most passes over the training days; it stops after the first that does not improve the validation log loss."""
    bins: tuple[int, ...] = Field(default=(0, 24), min_length=1)
    """Equal-count bins of every number, each with a weight of its own beside the number's (0: none), to choose ..."""
    l2: tuple[float, ...] = Field(default=(1e-6, 1e-5, 1e-4), min_length=1)
    """... together with the L2 penalties, by the validation log loss after three passes over at most 400 000 rows."""
    refit: bool = True
    """After that, train once more on training and validation days with the bins, the penalty and the passes found."""

    @model_validator(mode="after")
    def _penalties_and_bins_are_valid(self) -> Self:
        if any(penalty <= 0 for penalty in self.l2):
            raise ValueError(f"l2: penalties must be above 0 (got {list(self.l2)})")
        if wrong := [bins for bins in self.bins if bins < 0 or bins == 1 or bins > MAX_BINS]:
            raise ValueError(f"bins: 0 (none) or 2 to {MAX_BINS} (got {wrong[0]})")
        return self

    @classmethod
    def added_to(cls, candidates: Sequence[ModelSection]) -> Self | None:
        """Return a model with all declared features, where some candidate reads features."""
        if not any(candidate.reads for candidate in candidates):
            return None
        return cls(features=("*",), labels=labels_of_all(candidates))
