"""The section of a spec that declares trees grown by LightGBM."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from models.objective_section import ObjectiveSection
from shortlist.spec.base import Names
from shortlist.spec.models import Continuation, check_continued


class LightGBMModel(ObjectiveSection):
    """Gradient-boosted trees, grown leaf by leaf; on the CPU, by one process."""

    kind: Literal["lightgbm"] = "lightgbm"
    """Gradient-boosted trees (Ke et al., 2017)."""
    features: Names = Field(min_length=1)
    """Features it reads; `*` and `?` match several."""
    rounds: int = Field(default=400, ge=1)
    """Most trees."""
    early_stopping_rounds: int = Field(default=30, ge=1)
    """Stop when the validation days have not improved for this many trees: their log loss, or nDCG@10 where order is
    learnt."""
    refit: bool = True
    """After early stopping, train once more on training and validation days with the rounds found."""
    learning_rate: float = Field(default=0.08, gt=0, le=1)
    """Shrinkage of each tree."""
    num_leaves: int = Field(default=63, ge=2, le=4096)
    """Most leaves of each tree."""
    max_depth: int | None = Field(default=None, ge=1, le=64)
    """Depth of each tree; null: any."""
    min_data_in_leaf: int = Field(default=50, ge=0)
    """Fewest rows in a leaf."""
    min_sum_hessian_in_leaf: float = Field(default=1.0, ge=0)
    """Smallest sum of Hessians in a leaf."""
    bagging_fraction: float = Field(default=1.0, gt=0, le=1)
    """Share of rows per tree."""
    feature_fraction: float = Field(default=1.0, gt=0, le=1)
    """Share of features per tree."""
    lambda_l2: float = Field(default=1.0, ge=0)
    """L2 penalty on leaf weights."""
    max_bin: int = Field(default=255, ge=2, le=4096)
    """Histogram bins per feature; their edges are quantiles of 200 000 rows drawn at random."""
    retrain: Literal["scratch", "continue"] = "scratch"
    """What a training makes of an earlier model. `scratch`: nothing. `continue`: it keeps the trees and adds some
    learnt from the newest days: a fraction of the time, for logs too long to learn from daily; what old trees believe
    stays, so once `rounds` is reached, training starts from scratch."""
    retrain_rounds: int | None = Field(default=None, ge=1)
    """With `retrain: continue`, most new trees each time."""
    retrain_days: int | None = Field(default=None, ge=0)
    """With `retrain: continue`, days learnt again beside those that are new since the earlier model."""

    @model_validator(mode="after")
    def _retraining_is_consistent(self) -> Self:
        rounds = ("retrain_rounds", self.retrain_rounds)
        check_continued(self.retrain == "continue", "continue", rounds, self.retrain_days)
        return self

    @property
    def continuation(self) -> Continuation | None:
        """How an earlier model is continued, by `retrain`; None: it is not."""
        return None if self.retrain == "scratch" else Continuation(self.retrain, overlap_days=self.retrain_days or 0)
