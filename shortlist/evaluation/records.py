"""What an evaluation found out, as plain frozen records that become JSON."""

from __future__ import annotations

from typing import Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["candidate", "baseline", "champion"]
Metric = Literal["auc", "log_loss", "gauc", "ndcg_at_10"]
"""`gauc`: AUC within each user, weighted by the user's rows. `ndcg_at_10`: mean nDCG of the first ten of each list."""
METRICS: Final[tuple[Metric, ...]] = get_args(Metric)
TITLES: Final[dict[Metric, str]] = {"auc": "AUC", "log_loss": "log loss", "gauc": "GAUC", "ndcg_at_10": "nDCG@10"}
"""How reports call them."""
LOW_IS_GOOD: Final = frozenset({"log_loss"})
"""Metrics of which less is better; of the others more is."""


class Record(BaseModel):
    """A frozen record without unknown keys; NaN and infinity are refused, so a missing number is always None."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )


class Scores(Record):
    """AUC and log loss."""

    auc: float
    log_loss: float


class Interval(Record):
    """A value and its confidence bounds."""

    low: float
    value: float
    high: float


class Bin(Record):
    """Rows with similar scores, and how many of them were positive."""

    rows: int
    mean_score: float
    label_rate: float
    low: float
    """Wilson bound of the label rate."""
    high: float
    """Wilson bound of the label rate."""


class Curves(Record):
    """What the plots of one model need."""

    roc: tuple[tuple[float, float], ...]
    """(false positive rate, true positive rate)."""
    calibration: tuple[Bin, ...]
    histogram_edges: tuple[float, ...]
    histogram_shares: tuple[float, ...]


class TrainingOnlyEffect(Record):
    """What a feature that serving fixes does to the scores of a model, on test rows."""

    feature: str
    served: float
    """The value in serving."""
    rows: int
    mean_scores: tuple[tuple[float, float], ...]
    """(value, mean score of the rows had all of them this value)."""
    auc_as_served: float | None
    """With the value of serving, as all other numbers of the model."""
    auc_as_shown: float | None
    """With the rows' own values of all such features: how much better they explain the outcomes than serving can."""


class Measures(Record):
    """The numbers of one model on the test rows; a number is None when it could not be measured."""

    model: str
    role: Role
    rows: int = 0
    positives: int = 0
    auc: Interval | None = None
    log_loss: Interval | None = None
    gauc: Interval | None = None
    """AUC within each user, weighted by the user's rows; None where the log names no users, or too few have both
    classes."""
    ndcg_at_10: Interval | None = None
    """Mean over lists (a user's rows of a day, or a request's) whose rows are of both classes; likewise."""
    ranked_users: int | None = None
    """Users with rows of both classes: those that GAUC counts."""
    one_class_users: int | None = None
    """Users left out of it, because all their labels are equal."""
    calibration_error: float | None = None
    """Expected calibration error, 20 equal-count bins."""
    calibration_noise: float | None = None
    """The calibration error that chance alone gives a perfect model on as many rows."""
    mean_score: float | None = None
    label_rate: float | None = None
    validation_log_loss: float | None = None
    """Of the kept epoch, as training recorded it."""
    validation_gauc: float | None = None
    """On validation rows that the scoring model had not learnt; None where there are none, or no users."""
    curves: Curves | None = None
    labels: dict[str, Measures] = Field(default_factory=dict)
    """The same of its further labels, by name, without curves."""
    training_only: tuple[TrainingOnlyEffect, ...] = ()
    """Of features of kind `training_only`."""
    best_possible: Scores | None = None
    """Of a further label of a generated log: what the planted probabilities reach on the test rows."""
    problem: str = ""
    """Why the test numbers are missing; empty when they are not."""


class Difference(Record):
    """A metric of a candidate minus that of a reference, on the same rows and the same resampled users."""

    metric: Metric = "auc"
    candidate: float
    reference: float
    value: float
    low: float
    """One-sided lower confidence bound."""
    interval: tuple[float, float] | None = None
    """Two-sided bounds of the same level."""
    error: float = Field(ge=0)
    """Standard error (of the bootstrap)."""
    rows: int


class Comparison(Record):
    """The candidate against one other model; `differences` is empty when there is a reason why not."""

    reference: str
    """What it is compared with, as reports call it."""
    differences: dict[Metric, Difference] = Field(default_factory=dict)
    problem: str = ""


class Champion(Record):
    """The serving model on this run's rows."""

    model_config = ConfigDict(extra="ignore")  # its writer may say more than the gate reads

    version: str
    """Registered version; empty when there is no champion yet."""
    kind: str = ""
    """Kind of model; likewise."""
    problem: str = ""
    """Why it could not be scored."""
    best: str = ""
    """Registered version of the best champion so far; empty when that is the champion."""
    best_problem: str = ""
    """Why that one could not be scored."""


class SkewReport(Record):
    """Rows of the feature table against Feast's own answers for the same keys and moments."""

    model_config = ConfigDict(extra="ignore")  # its writer may say more than the gate reads

    rows_checked: int
    keys_checked: int | None = None
    """Answers compared: a row asks every view once per key."""
    historical_mismatches: int
    """Answers that differ from the historical ones."""
    online_mismatches: int
    """Answers that differ from what serving reads."""
    columns: dict[str, int] = {}
    """Differing values per column of a view."""
    row_count_ok: bool
    """Whether Feast gave back as many rows as it was asked for."""


class SliceComparison(Record):
    """The candidate against a reference on the rows where a column has one value."""

    column: str
    value: str
    rows: int
    positives: int
    difference: Difference | None = None
    """Of the AUC, by which a slice is judged; None when it is not."""
    gauc: Difference | None = None
    """Of the GAUC, for information; None when it cannot be measured."""
    ndcg_at_10: Difference | None = None
    """Likewise of the nDCG@10."""
    p_value: float | None = None
    """Chance of a gap this bad if the true gap were just the margin; Holm-corrected over all judged slices."""
    note: str = ""
    """Why it is not judged."""

    @property
    def name(self) -> str:
        """How reports call the slice.

        >>> SliceComparison(column="tab", value="2", rows=10, positives=1).name
        'tab = 2'
        """
        return f"{self.column} = {self.value}"
