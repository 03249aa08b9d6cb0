"""Records of an evaluation: frozen, and written as JSON."""

from __future__ import annotations

from typing import Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from shortlist.spec.gates import SliceLimits

Role = Literal["candidate", "baseline", "champion"]
Metric = Literal["auc", "log_loss", "gauc", "ndcg_at_10"]
"""`gauc`: AUC within each user, weighted by the user's rows. `ndcg_at_10`: mean nDCG of the first ten of each list."""
METRICS: Final[tuple[Metric, ...]] = get_args(Metric)
TITLES: Final[dict[Metric, str]] = {"auc": "AUC", "log_loss": "log loss", "gauc": "GAUC", "ndcg_at_10": "nDCG@10"}
"""Titles of the metrics in reports."""
LOWER_IS_BETTER: Final = frozenset({"log_loss"})
"""Metrics of which lower values are better; of the others higher values are."""


class Record(BaseModel):
    """A frozen record without unknown keys; NaN and infinity are refused, so a missing number is always None."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )


class Scores(Record):
    """AUC and log loss."""

    auc: float
    log_loss: float


class ConfidenceInterval(Record):
    """A value and its confidence bounds."""

    low: float
    value: float
    high: float


class Bin(Record):
    """A calibration bin: rows with similar scores, and their label rate."""

    rows: int
    mean_score: float
    label_rate: float
    low: float
    """Wilson bound of the label rate."""
    high: float
    """Wilson bound of the label rate."""


class Curves(Record):
    """Data of the plots of one model."""

    roc: tuple[tuple[float, float], ...]
    """Points (false positive rate, true positive rate) of the ROC curve."""
    calibration: tuple[Bin, ...]
    histogram_edges: tuple[float, ...]
    histogram_shares: tuple[float, ...]


class UserShare(Record):
    """A user with so many of the test rows that figures depend on this user."""

    user: str
    share: float
    """Share of the rows."""
    label_rate: float


class TrainingOnlyEffect(Record):
    """Effect of a feature with a fixed value in serving on a model's scores of the test rows."""

    feature: str
    served: float
    """The value in serving."""
    rows: int
    mean_scores: tuple[tuple[float, float], ...]
    """Pairs (value, mean score of the rows if all had this value)."""
    auc_as_served: float | None
    """AUC with the value of serving, as for all other numbers of the model."""
    auc_as_shown: float | None
    """AUC with the rows' own values of all such features, which explain the outcomes better than serving can."""


class Measures(Record):
    """Numbers of one model on the test rows; a number is None when it could not be measured."""

    model: str
    role: Role
    rows: int = 0
    positives: int = 0
    auc: ConfidenceInterval | None = None
    log_loss: ConfidenceInterval | None = None
    constant_rate_gap: ConfidenceInterval | None = None
    """Log loss minus that of the test rows' label rate as the score of every row, on the same resampled users."""
    gauc: ConfidenceInterval | None = None
    """AUC within each user, weighted by the user's rows; None where the log names no users, or too few have both
    classes."""
    ndcg_at_10: ConfidenceInterval | None = None
    """Mean nDCG@10 of lists (a user's rows of a day, or a request's) with rows of both classes; None as for `gauc`."""
    ranked_users: int | None = None
    """Number of users with rows of both classes: those that GAUC counts."""
    one_class_users: int | None = None
    """Number of users that GAUC leaves out, because all their labels are equal."""
    heavy_users: tuple[UserShare, ...] = ()
    """Users with more than 3 % of the rows, such as crawlers; they widen every interval."""
    calibration_error: float | None = None
    """Expected calibration error, 20 equal-count bins."""
    calibration_noise: float | None = None
    """The calibration error that chance alone gives a perfect model on as many rows."""
    mean_score: float | None = None
    label_rate: float | None = None
    validation_log_loss: float | None = None
    """Validation log loss of the kept epoch, as training recorded it."""
    validation_gauc: float | None = None
    """GAUC of validation rows that the scoring model has not learnt; None where there are none, or no users."""
    curves: Curves | None = None
    labels: dict[str, Measures] = Field(default_factory=dict)
    """Numbers of its further labels, by label, without curves."""
    training_only: tuple[TrainingOnlyEffect, ...] = ()
    """Effects of features of kind `training_only`."""
    best_possible: Scores | None = None
    """Numbers of the planted probabilities on the test rows, for a further label of a generated log."""
    problem: str = ""
    """Why the test numbers are missing; empty when they are not."""


class MetricDifference(Record):
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
    """Standard error from the bootstrap."""
    rows: int

    def describe(self) -> str:
        """Return the difference with the bound by which gates judge it.

        >>> MetricDifference(candidate=0.72, reference=0.7, value=0.02, low=0.011, error=0.004, rows=900).describe()
        '+0.0200, lower bound +0.0110'
        """
        return f"{self.value:+.4f}, lower bound {self.low:+.4f}"


class PairedComparison(Record):
    """Differences of a model and a reference on the same rows; empty with the reason in `problem`."""

    reference: str
    """Name of the reference in reports."""
    differences: dict[Metric, MetricDifference] = Field(default_factory=dict)
    problem: str = ""


class Champion(Record):
    """The model that serves now, scored on this run's rows."""

    model_config = ConfigDict(extra="ignore")  # its writer may say more than the gate reads

    version: str
    """Registered version; empty when there is no champion yet."""
    kind: str = ""
    """Kind of model; empty when there is no champion yet."""
    problem: str = ""
    """Why it could not be scored."""
    best: str = ""
    """Registered version of the best champion so far; empty when that is the champion."""
    best_problem: str = ""
    """Why the best champion so far could not be scored."""
    declared_then: bool = False
    """Whether it was scored on the log as it was declared when it was trained, because columns that it reads are
    declared in another way now; it is then compared on the rows that both declarations accept."""
    best_declared_then: bool = False
    """The same of the best champion so far."""
    retired: str = ""
    """Which champion was retired, and why; it is then no version to compare with."""
    withdrawn: tuple[str, ...] = ()
    """Columns that it reads and that the spec does not offer to models any more."""
    retire_command: str = ""
    """Command that retires it, without the reason."""

    @property
    def advice(self) -> str:
        """How a champion that holds its successors for reasons of its own is retired; empty where there is none."""
        if not self.retire_command or not (self.withdrawn or self.problem):
            return ""
        columns = ", ".join(self.withdrawn)
        reads = f"; version {self.version} reads {columns}, which the spec does not offer any more" if columns else ""
        reason = f"it reads {columns}" if columns else "it cannot be scored"
        return (
            f"{reads}. If it is no yardstick any more, `{self.retire_command} --reason '{reason}'` compares the next"
            " run with the baselines"
        )


class SkewMeasures(Record):
    """Comparison of rows of the feature table with Feast's answers for the same keys and moments."""

    model_config = ConfigDict(extra="ignore")  # its writer may say more than the gate reads

    rows_checked: int
    keys_checked: int | None = None
    """Number of compared answers: each row asks every view once per key."""
    historical_mismatches: int
    """Number of answers that differ from the historical store."""
    online_mismatches: int
    """Number of answers that differ from the online store."""
    columns: dict[str, int] = {}
    """Number of differing values by column of a view."""
    row_count_ok: bool
    """Whether Feast returned as many rows as it was asked for."""


class SliceComparison(Record):
    """Comparison of a candidate with a reference on the rows where a column has one value, or a condition is true."""

    column: str = ""
    value: str = ""
    condition: SliceLimits | None = None
    """The condition with its limits; None for a slice by a column's value."""
    auc: ConfidenceInterval | None = None
    """AUC of the candidate on the rows of a condition; None when it is not judged."""
    rows: int
    positives: int
    difference: MetricDifference | None = None
    """Difference of the AUC, by which a slice is judged; None when the slice is not judged."""
    gauc: MetricDifference | None = None
    """Difference of the GAUC, for information; None when it cannot be measured."""
    ndcg_at_10: MetricDifference | None = None
    """Difference of the nDCG@10, for information; None when it cannot be measured."""
    p_value: float | None = None
    """Probability of a gap this bad if the true gap were the margin; Holm-corrected over all judged slices."""
    note: str = ""
    """Why the slice is not judged."""

    @property
    def misses_min_auc(self) -> bool:
        """Whether the condition declares a minimum of the AUC that the lower bound does not reach."""
        floor = self.condition.min_auc if self.condition else None
        return floor is not None and self.auc is not None and self.auc.low < floor

    @property
    def misses_max_drop(self) -> bool:
        """Whether the condition declares a margin, and the candidate may be worse than the reference by more."""
        drop = self.condition.max_drop if self.condition else None
        return drop is not None and self.difference is not None and self.difference.low < -drop

    @property
    def name(self) -> str:
        """Name of the slice in reports.

        >>> SliceComparison(column="tab", value="2", rows=10, positives=1).name
        'tab = 2'
        """
        return self.condition.where if self.condition else f"{self.column} = {self.value}"
