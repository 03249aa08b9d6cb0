"""The section of a spec that declares gradient-boosted trees."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from models.objective_section import ObjectiveSection
from shortlist.spec.base import Names
from shortlist.spec.features import Features
from shortlist.spec.models import Continuation, check_continued


class XGBoostModel(ObjectiveSection):
    """Gradient-boosted trees."""

    kind: Literal["xgboost"] = "xgboost"
    """Gradient-boosted trees (Chen and Guestrin, 2016)."""
    features: Names = Field(min_length=1)
    """Features it reads; `*` and `?` match several."""
    rounds: int = Field(default=400, ge=1)
    """Most trees."""
    early_stopping_rounds: int = Field(default=30, ge=1)
    """Stop when the validation days have not improved for this many trees: their log loss, or nDCG@10 where order is
    learnt."""
    refit: bool = True
    """After early stopping, train once more on training and validation days with the rounds found. Several workers do
    not, unless it is declared."""
    learning_rate: float = Field(default=0.08, gt=0, le=1)
    """Shrinkage of each tree."""
    max_depth: int = Field(default=6, ge=1, le=16)
    """Depth of each tree."""
    min_child_weight: float = Field(default=10.0, ge=0)
    """Smallest sum of Hessians in a leaf."""
    subsample: float = Field(default=1.0, gt=0, le=1)
    """Share of rows per tree."""
    colsample_bytree: float = Field(default=1.0, gt=0, le=1)
    """Share of features per tree."""
    reg_lambda: float = Field(default=1.0, ge=0)
    """L2 penalty on leaf weights."""
    max_bin: int = Field(default=256, ge=2, le=4096)
    """Histogram bins per feature."""
    bin_sample_rows: int | None = Field(default=200_000, ge=10_000)
    """Training rows drawn at random whose quantiles are the bins' edges, where there are more rows; drawn anew with
    another `runtime.seed`. null: all rows, by XGBoost's own sketch, which takes several times as long; several workers
    and a GPU always do that."""
    retrain: Literal["scratch", "refit", "continue"] = "scratch"
    """What a training makes of an earlier model. `scratch`: nothing. `refit`: it grows as many trees, anew, on all days
    with the validation days: no search for their number, half the time, as good as from scratch while the log keeps its
    nature; needs `refit: true`. `continue`: it keeps the trees and adds some learnt from the newest days: a fraction of
    the time, for logs too long to learn from daily; what old trees believe stays, so once `rounds` is reached, training
    starts from scratch."""
    retrain_rounds: int | None = Field(default=None, ge=1)
    """With `retrain: continue`, most new trees each time."""
    retrain_days: int | None = Field(default=None, ge=0)
    """With `retrain: continue`, days learnt again beside those that are new since the earlier model."""

    @model_validator(mode="after")
    def _retraining_is_consistent(self) -> Self:
        if self.retrain == "refit" and not self.refit:
            raise ValueError("retrain: refit grows trees on training and validation days; it needs refit: true")
        if self.retrain == "refit" and self.calibration != "none":
            raise ValueError(
                "retrain: refit learns the validation days at once, so none is left to fit calibration on; declare"
                " retrain: scratch, or calibration: none"
            )
        rounds = ("retrain_rounds", self.retrain_rounds)
        check_continued(self.retrain == "continue", "continue", rounds, self.retrain_days)
        return self

    distributed: ClassVar[bool] = True

    @property
    def by_workers(self) -> Self:
        """The section without a default refit: workers keep no scores from before it, which blends are fitted on."""
        return self if "refit" in self.model_fields_set else self.model_copy(update={"refit": False})

    def check_features(self, name: str, features: Features, *, distributed: bool) -> None:
        """Refuse refit with calibration for several workers, which calibrate last, on rows that a refit has learnt."""
        if distributed and self.refit and self.calibration != "none":
            raise ValueError(
                f"runtime.cluster.workers.{name}: models.{name} declares refit and calibration; several workers"
                " calibrate after the last tree, on validation days that refit has learnt. Declare one or the other"
            )

    @property
    def continuation(self) -> Continuation | None:
        """How an earlier model is continued, by `retrain`; None: it is not."""
        if self.retrain == "scratch":
            return None
        return Continuation(self.retrain, self.retrain == "refit", self.retrain_days or 0)
