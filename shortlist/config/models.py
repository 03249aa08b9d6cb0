"""The `models` section: which models are trained, on which features, how."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from shortlist.config.base import Names, Section


class XGBoostModel(Section):
    """Gradient-boosted trees."""

    features: Names = Field(min_length=1)
    """Features it reads; `*` and `?` match several."""
    rounds: int = Field(default=400, ge=1)
    """Most trees."""
    early_stopping_rounds: int = Field(default=30, ge=1)
    """Stop when the validation log loss has not improved for this many trees."""
    refit: bool = False
    """After early stopping, train once more on training and validation days with the rounds found."""
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
    def _retrains_somehow(self) -> Self:
        if self.retrain == "refit" and not self.refit:
            raise ValueError("retrain: refit grows trees on training and validation days; it needs refit: true")
        rounds = ("retrain_rounds", self.retrain_rounds)
        _check_continued(self.retrain == "continue", "continue", rounds, self.retrain_days)
        return self


class DLRMModel(Section):
    """Deep learning recommendation model (Naumov et al., 2019)."""

    features: Names = Field(min_length=1)
    """Features it reads; `*` and `?` match several."""
    embedding_dim: int = Field(default=16, ge=4, le=1024, multiple_of=4)
    """Width of an embedding row, in floats; a multiple of 4 keeps rows on 16-byte borders."""
    bottom_mlp: tuple[int, ...] = (64,)
    """Hidden widths of the dense features' network; the embedding width is appended."""
    top_mlp: tuple[int, ...] = (128, 64)
    """Hidden widths of the network above the interaction; one output is appended."""
    batch_size: int = Field(default=2048, ge=16)
    """Rows per step."""
    epochs: int = Field(default=3, ge=1)
    """Most passes over the training days."""
    patience: int = Field(default=1, ge=1)
    """Stop when the validation log loss has not improved for this many epochs; the best epoch is kept."""
    learning_rate: float = Field(default=0.001, gt=0)
    """Step of Adam on the networks."""
    embedding_learning_rate: float = Field(default=0.02, gt=0)
    """Step of row-wise Adagrad on the embedding rows."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled decay of the networks' weights."""
    embedding_decay: float = Field(default=0.0, ge=0)
    """L2 pull on the embedding rows that a batch touches."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of hidden units of the top network left out in training."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """What the products of a training step are computed in; scores are always float32. `auto` takes bf16 where the
    processor or GPU multiplies it natively, else fp32. `tf32` and `fp16` (with a scaled loss) are for GPUs alone."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether `torch.compile` makes machine code for the network. It needs a C++ compiler and some 20 s of processor
    time before the first step; `auto` spends them on the CPU where rows times epochs are 100 million or more, so
    that they come back. Several workers train without."""
    cuda_graphs: bool = True
    """On a GPU: record the whole training step once and replay it, which spares the launch of every kernel."""
    cached_rows: int | None = Field(default=None, ge=1)
    """Embedding rows kept on the device while training; the others wait in host memory, and results are the same bit by
    bit. At least as many as a batch looks up, distinct ones. null: all when there is room, else as many as there is. On
    the CPU the same is done as on a GPU, to no gain."""
    retrain: Literal["scratch", "warm"] = "scratch"
    """What a training makes of an earlier model. `scratch`: nothing; take it while training is quick, and whenever the
    features change. `warm`: it starts from the weights, with fresh rows for new ids, and learns the newest days: a
    fraction of the time, and rare ids keep what they learnt long ago."""
    retrain_epochs: int | None = Field(default=None, ge=1)
    """With `retrain: warm`, most passes over the days to learn."""
    retrain_days: int | None = Field(default=None, ge=0)
    """With `retrain: warm`, days learnt again beside those that are new since the earlier model; a few keep it from
    forgetting."""

    @model_validator(mode="after")
    def _widths_are_positive(self) -> Self:
        for name, widths in (("bottom_mlp", self.bottom_mlp), ("top_mlp", self.top_mlp)):
            if any(width < 1 for width in widths):
                raise ValueError(f"{name}: widths must be at least 1 (got {list(widths)})")
        return self

    @model_validator(mode="after")
    def _retrains_somehow(self) -> Self:
        _check_continued(self.retrain == "warm", "warm", ("retrain_epochs", self.retrain_epochs), self.retrain_days)
        return self


def _check_continued(continues: bool, how: str, amount: tuple[str, int | None], days: int | None) -> None:
    given = dict((amount, ("retrain_days", days)))
    missing = [key for key, value in given.items() if value is None]
    if continues and missing:
        raise ValueError(f"retrain: {how} also needs {' and '.join(missing)}")
    if not continues and len(missing) < len(given):
        only = ", ".join(key for key, value in given.items() if value is not None)
        raise ValueError(f"{only}: read with retrain: {how} alone; declare that, or leave it out")


class LogisticModel(Section):
    """Logistic-regression baseline on hashed one-hot ids and dense features."""

    features: Names = Field(min_length=1)
    """Features it reads; `*` and `?` match several."""


class Models(Section):
    """The models of a run; popularity and logistic regression are always added as baselines."""

    xgboost: XGBoostModel | None = None
    """Gradient-boosted trees."""
    dlrm: DLRMModel | None = None
    """Deep network with embeddings."""
    logistic: LogisticModel | None = None
    """Baseline; reads the DLRM's features (or XGBoost's) when left out."""

    @property
    def logistic_baseline(self) -> LogisticModel:
        """The logistic regression that is trained: the declared one, or one on the features of the first candidate."""
        candidate = self.dlrm or self.xgboost
        assert candidate is not None
        return self.logistic or LogisticModel(features=candidate.features)

    @model_validator(mode="after")
    def _at_least_one(self) -> Self:
        if self.xgboost is None and self.dlrm is None:
            raise ValueError("declare at least one of xgboost, dlrm")
        return self
