"""The `monitoring` and `schedule` sections: how live traffic is watched, and what starts a new training."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, HttpUrl, model_validator

from shortlist.spec.base import Names, Section
from shortlist.spec.durations import Duration

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Window(Section):
    """How live traffic is cut into windows."""

    hours: Literal[1, 2, 3, 4, 6, 8, 12, 24] = 24
    """Length; windows follow the moments that requests are about, from midnight in the clock's timezone."""
    max_age_hours: float | None = Field(default=24.0, gt=0, le=8_760)
    """How long before its answer the moment that a request names (`event_time`) may lie; an older one counts at the
    time of its answer, so that clients cannot open windows in the past. null: any time. A generated log, whose days are
    all in the past, is replayed as if null were declared."""
    maturity_hours: float = Field(default=1.0, ge=0)
    """Outcomes are taken to be complete so long after a window's end; it is not evaluated before."""
    min_rows: int = Field(default=1_000, ge=100)
    """Rows with an outcome that a window needs to be judged."""
    max_rows: int = Field(default=100_000, ge=1_000)
    """Rows of a window that are compared; of more, a sample of whole requests."""
    min_coverage: Share = 0.5
    """Share of the answered requests that need an outcome; with less the outcomes are taken to be broken."""


class Checks(Section):
    """What must hold of live data; a breach pages a person, and no model is trained on such data."""

    max_null_increase: Share = 0.1
    """Most by which the share of nulls of a column may pass the reference's."""
    min_volume_ratio: Share = 0.5
    """Fewest requests, as a share of the median of the windows before."""
    max_volume_ratio: float = Field(default=3.0, ge=1.0)
    """Most requests, as a multiple of that median."""
    volume_windows: int = Field(default=3, ge=1)
    """Windows needed before volume is judged; the newest 14 make the median."""
    max_clock_skew_minutes: float = Field(default=5.0, ge=0)
    """How far in the future a row may lie."""


class DriftLimits(Section):
    """From where on a column has drifted: the effect must be large, and no matter of chance."""

    alpha: float = Field(default=0.001, gt=0, lt=0.5)
    """False discovery rate over all columns of a window (Benjamini and Hochberg, 1995)."""
    max_index: float = Field(default=0.2, gt=0)
    """Population stability index from which on a shift counts ..."""
    natural: float = Field(default=2.0, ge=0)
    """... and this multiple of the largest one between a day of the reference and its other days."""
    bins: int = Field(default=20, ge=2, le=1_000)
    """Equal-count bins of a numeric column."""
    top_values: int = Field(default=64, ge=1, le=10_000)
    """Values of a categorical or multi-valued column that are told apart; the rest is one."""
    max_unknown_increase: Share = 0.05
    """Most by which the share of values without an id of their own may pass the reference's."""
    max_domain_auc: float = Field(default=0.75, gt=0.5, le=1.0)
    """Most by which a classifier may tell live rows from the reference's."""
    ignore: Names = ()
    """Columns that are not compared."""


class QualityLimits(Section):
    """How much worse than on its own test days a model may be; a limit counts when the interval is past it."""

    confidence: float = Field(default=0.99, gt=0.5, lt=1)
    """Of the intervals; users are resampled."""
    max_auc_drop: float = Field(default=0.03, gt=0, lt=0.5)
    """Absolute."""
    max_gauc_drop: float | None = Field(default=None, gt=0, lt=0.5)
    """Absolute, of the AUC within each user; null: it is only shown."""
    max_log_loss_increase: float = Field(default=0.1, gt=0)
    """Absolute."""
    max_rate_error: float = Field(default=0.25, gt=0)
    """Largest difference between the mean score and the label rate, as a share of the label rate."""
    max_kpi_drop: float = Field(default=0.2, gt=0, lt=1)
    """Of the hit rate, as a share of the one on the test days."""
    hit_rate_at: int = Field(default=1, ge=1)
    """Items of an answer that count for the hit rate, the best-scored ones."""
    max_expected_shift: float = Field(default=0.25, gt=0)
    """Early warning, no labels needed: shift of the mean score against the test days', as a share of theirs."""


class ServedFeaturesLimits(Section):
    """How far feature values that scored may differ from those of the feature table for the same impressions."""

    max_unequal: Share | None = None
    """Largest share of unequal values of a column; above it an alert fires and no retraining starts. Null: the
    comparison is only shown."""
    max_age: Duration | None = None
    """By how much a snapshot may be older than what the feature table sees, such as 2h; values that differ only
    because of that do not count for `max_unequal`. Null: any age."""
    min_rows: int = Field(default=1_000, ge=1)
    """Rows that are compared, from the newest windows whose statistics are counted; with fewer the limit does not
    apply."""


class RetrainPolicy(Section):
    """When windows that drifted or fell lead to a new training. All times are those of the windows."""

    bad_windows: int = Field(default=2, ge=1)
    """Bad windows ..."""
    of_windows: int = Field(default=3, ge=1)
    """... among so many newest judged ones that raise the alarm."""
    clear_windows: int = Field(default=2, ge=1)
    """Good windows in a row that end it."""
    cooldown_hours: float = Field(default=24.0, ge=0)
    """Time after a retraining in which no other one starts, neither by an alarm nor by the schedule."""
    max_per_week: int = Field(default=3, ge=1)
    """Retrainings within seven days, whoever started them; then alarms page a person, and the schedule holds."""
    max_failures: int = Field(default=2, ge=1)
    """Retrainings in a row that failed, or whose model was not promoted, after which a person is paged instead."""

    @model_validator(mode="after")
    def _windows_fit(self) -> Self:
        if self.bad_windows > self.of_windows:
            raise ValueError(f"bad_windows {self.bad_windows} cannot be reached among of_windows {self.of_windows}")
        return self


class Alerts(Section):
    """Receivers of alerts."""

    urls: tuple[HttpUrl, ...] = ()
    """Endpoints that take Alertmanager's webhook format."""
    token_env: str | None = Field(default=None, pattern=r"^[A-Z_][A-Z0-9_]*$")
    """Name of the environment variable that holds a bearer token for them; never the token itself."""
    timeout_seconds: float = Field(default=5.0, gt=0)
    """Longest wait for an endpoint."""
    keep_hours: float = Field(default=72.0, gt=0)
    """How long an alert that no endpoint takes is tried again."""


class Monitoring(Section):
    """Monitoring of live traffic."""

    window: Window = Window()
    """Which requests are evaluated together."""
    checks: Checks = Checks()
    """Are the data sound?"""
    drift: DriftLimits = DriftLimits()
    """Do they look like the training data?"""
    quality: QualityLimits = QualityLimits()
    """Is the model as good as it was?"""
    served_features: ServedFeaturesLimits = ServedFeaturesLimits()
    """Did models score what they would have been trained on? `serving.log.feature_sampling` is the share of the answers
    that is compared."""
    retrain: RetrainPolicy = RetrainPolicy()
    """When to train again."""
    alerts: Alerts = Alerts()
    """Receivers of alerts."""
    pages: Literal["all", "bad", "none"] = "all"
    """Windows of which Evidently draws pages, a few seconds and 10 MB each: every one, those that are not healthy, or
    none."""


def _cron(expression: str) -> str:
    from croniter import croniter

    if len(expression.split()) != 5 or not croniter.is_valid(expression):
        raise ValueError(f"'{expression}' is no cron expression of five fields (minute hour day month weekday)")
    return expression


Cron = Annotated[str, AfterValidator(_cron)]


class Schedule(Section):
    """What runs by the clock; times are UTC."""

    retrain: Cron | None = None
    """When a new training starts, whatever monitoring says; null for never."""
    watch: Cron | None = None
    """When live traffic is evaluated on a cluster; `make watch EVERY=15m` does it here."""
    refresh: Cron | None = None
    """When newer statistics are counted and served without a training; `make watch` does it here. Null for never."""
