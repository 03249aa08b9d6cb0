"""What an evaluation found out, as plain frozen records that become JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["candidate", "baseline", "champion"]


class Record(BaseModel):
    """A frozen record without unknown keys; NaN and infinity are refused, so a missing number is always None."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )


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


class Measures(Record):
    """The numbers of one model on the test rows; a number is None when it could not be measured."""

    model: str
    role: Role
    rows: int = 0
    positives: int = 0
    auc: Interval | None = None
    log_loss: Interval | None = None
    calibration_error: float | None = None
    """Expected calibration error, 20 equal-count bins."""
    calibration_noise: float | None = None
    """The calibration error that chance alone gives a perfect model on as many rows."""
    mean_score: float | None = None
    label_rate: float | None = None
    validation_log_loss: float | None = None
    """Of the kept epoch, as training recorded it; the blessed candidate is chosen by it, the test rows only judge."""
    curves: Curves | None = None
    problem: str = ""
    """Why the test numbers are missing; empty when they are not."""


class Difference(Record):
    """AUC of a candidate minus AUC of a reference on the same rows."""

    candidate_auc: float
    reference_auc: float
    value: float
    low: float
    """One-sided lower confidence bound."""
    error: float = Field(ge=0)
    """Standard error (of the bootstrap)."""
    rows: int


class Comparison(Record):
    """The candidate against one other model; `difference` is None when there is a reason why not."""

    reference: str
    """What it is compared with, as reports call it."""
    difference: Difference | None = None
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
    """None when the slice is not judged."""
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


class Scores(Record):
    """AUC and log loss."""

    auc: float
    log_loss: float
