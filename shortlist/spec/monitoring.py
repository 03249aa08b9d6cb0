"""The `monitoring` and `schedule` sections: checks of live traffic, and triggers of retraining."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from shortlist.spec.base import Names, Section
from shortlist.spec.text.durations import Duration

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Window(Section):
    """Time windows of live traffic."""

    hours: Literal[1, 2, 3, 4, 6, 8, 12, 24] = 24
    """Length; windows are cut by the requests' event times, from midnight in the clock's timezone."""
    max_age_hours: float | None = Field(default=24.0, gt=0, le=8_760)
    """How long before its answer a request's `event_time` may be; an older request counts at the time of its answer,
    so that clients cannot open windows in the past. null: any time. A generated log, whose days are all in the past, is
    replayed as if null were declared."""
    maturity_hours: float = Field(default=1.0, ge=0)
    """Time after a window's end until outcomes are considered complete; it is not evaluated before."""
    min_rows: int = Field(default=1_000, ge=100)
    """Fewest rows with an outcome of a window that is evaluated."""
    max_rows: int = Field(default=100_000, ge=1_000)
    """Most rows of a window that are compared; a larger window is sampled by whole requests."""
    min_coverage: Share = 0.5
    """Smallest share of the answered requests with an outcome; below it the outcomes are considered broken, if the
    window has `min_rows` answered rows."""


class Checks(Section):
    """Checks of live data; a failed check pages a person, and no model is trained on such data."""

    max_null_increase: Share = 0.1
    """Largest increase of a column's share of nulls over the reference."""
    min_volume_ratio: Share = 0.5
    """Fewest requests, as a share of the median of the windows before."""
    max_volume_ratio: float = Field(default=3.0, ge=1.0)
    """Most requests, as a multiple of that median."""
    volume_windows: int = Field(default=3, ge=1)
    """Earlier windows needed to check the volume; the median is of the newest 14."""
    max_clock_skew_minutes: float = Field(default=5.0, ge=0)
    """How far in the future a row may lie; rows further ahead are left out, counted and named in the report."""
    max_future_share: Share = 0.05
    """Largest share of such rows among all rows of a window; above it the clocks are considered wrong. No client has a
    larger share of a window than `data.live.max_share`."""


class DriftLimits(Section):
    """Limits above which a column has drifted: the shift must be large and statistically significant."""

    alpha: float = Field(default=0.001, gt=0, lt=0.5)
    """False discovery rate over all columns of a window (Benjamini and Hochberg, 1995)."""
    max_index: float = Field(default=0.2, gt=0)
    """Largest population stability index without drift ..."""
    natural: float = Field(default=2.0, ge=0)
    """... and this multiple of the largest index between a day of the reference and its other days."""
    bins: int = Field(default=20, ge=2, le=1_000)
    """Equal-count bins of a numeric column."""
    top_values: int = Field(default=64, ge=1, le=10_000)
    """Most frequent values of a categorical or multi-valued column that are compared; the others form one value."""
    max_unknown_increase: Share = 0.05
    """Largest increase of the share of values without an id of their own over the reference."""
    max_domain_auc: float = Field(default=0.75, gt=0.5, le=1.0)
    """Largest AUC of a classifier that separates live rows from those of the reference."""
    ignore: Names = ()
    """Columns that are not compared."""


class QualityLimits(Section):
    """How much worse than on its own test days a model may be; a limit is exceeded when the whole interval is."""

    confidence: float = Field(default=0.99, gt=0.5, lt=1)
    """Confidence level of the intervals; users are resampled."""
    max_auc_drop: float = Field(default=0.03, gt=0, lt=0.5)
    """Largest absolute drop of the AUC."""
    max_gauc_drop: float | None = Field(default=None, gt=0, lt=0.5)
    """Largest absolute drop of the AUC within each user; null: it is only reported."""
    max_log_loss_increase: float = Field(default=0.1, gt=0)
    """Largest absolute increase of the log loss."""
    max_rate_error: float = Field(default=0.25, gt=0)
    """Largest difference between the mean score and the label rate, as a share of the label rate."""
    max_kpi_drop: float = Field(default=0.2, gt=0, lt=1)
    """Largest drop of the hit rate, as a share of the one on the test days."""
    hit_rate_at: int = Field(default=1, ge=1)
    """Number of an answer's best-scored items that count for the hit rate."""
    max_expected_shift: float = Field(default=0.25, gt=0)
    """Early warning, no labels needed: shift of the mean score against the test days', as a share of theirs."""


class ServedFeaturesLimits(Section):
    """How far served feature values may differ from those of the feature table for the same impressions."""

    max_unequal: Share | None = None
    """Largest share of unequal values of a column; above it an alert is raised and no retraining starts. Null: the
    comparison is only reported."""
    max_age: Duration | None = None
    """How much older than the feature table's values a snapshot may be, such as 2h; values that differ only because of
    its age do not count for `max_unequal`. Null: any age."""
    min_rows: int = Field(default=1_000, ge=1)
    """Rows that are compared, from the newest windows whose statistics are counted; with fewer the limit does not
    apply."""


class RetrainPolicy(Section):
    """When windows with drift or lower quality start a retraining. All times are those of the windows."""

    bad_windows: int = Field(default=2, ge=1)
    """Bad windows ..."""
    of_windows: int = Field(default=3, ge=1)
    """... among this many newest evaluated windows that raise the alarm."""
    clear_windows: int = Field(default=2, ge=1)
    """Good windows in a row that end the alarm."""
    cooldown_hours: float = Field(default=24.0, ge=0)
    """Time after a retraining in which no other one starts, neither by an alarm nor by the schedule."""
    max_per_week: int = Field(default=3, ge=1)
    """Most retrainings within seven days, whatever started them; then alarms page a person, and scheduled ones wait."""
    max_failures: int = Field(default=2, ge=1)
    """Consecutive retrainings that failed, or whose model was not promoted, after which a person is paged instead."""

    @model_validator(mode="after")
    def _windows_fit(self) -> Self:
        if self.bad_windows > self.of_windows:
            raise ValueError(f"bad_windows {self.bad_windows} cannot be reached among of_windows {self.of_windows}")
        return self


def _check_address(address: str) -> str:
    scheme, mark, rest = address.partition("://")
    if not (mark and rest and re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme)):
        raise ValueError("wanted an address such as https://host/path or mailto://user@host")
    if scheme in {"http", "https"} and not rest.strip("/"):
        raise ValueError("wanted a host after http(s)://")
    return address


AlertAddress = Annotated[str, AfterValidator(_check_address)]


class Alerts(Section):
    """Destinations of alerts."""

    urls: tuple[AlertAddress, ...] = ()
    """Addresses: http(s):// for endpoints that accept Alertmanager's webhook format, and those of Apprise, such as
    mailtos://user:${SMTP_PASSWORD}@example.org?to=team@example.org or slack://${SLACK_TOKENS}/#alerts.
    ${NAME} stands for an environment variable: secrets are never written here."""
    token_env: str | None = Field(default=None, pattern=r"^[A-Z_][A-Z0-9_]*$")
    """Name of the environment variable that holds a bearer token for the webhooks; never the token itself."""
    timeout_seconds: float = Field(default=5.0, gt=0)
    """Timeout of a destination."""


class Monitoring(Section):
    """Monitoring of live traffic."""

    window: Window = Window()
    """Time windows in which requests are evaluated together."""
    checks: Checks = Checks()
    """Checks of the live data."""
    drift: DriftLimits = DriftLimits()
    """Limits of drift from the training data."""
    quality: QualityLimits = QualityLimits()
    """Limits of the model's loss of quality."""
    served_features: ServedFeaturesLimits = ServedFeaturesLimits()
    """Limits of differences between served features and the feature table. `serving.log.feature_sampling` is the share
    of the answers that is compared."""
    retrain: RetrainPolicy = RetrainPolicy()
    """When a retraining starts."""
    alerts: Alerts = Alerts()
    """Receivers of alerts."""
    pages: Literal["all", "bad", "none"] = "all"
    """Windows for which Evidently renders pages, a few seconds and 10 MB each: all, those that are not healthy, or
    none."""


def _check_cron(expression: str) -> str:
    from croniter import croniter

    if len(expression.split()) != 5 or not croniter.is_valid(expression):
        raise ValueError(f"'{expression}' is no cron expression of five fields (minute hour day month weekday)")
    return expression


Cron = Annotated[str, AfterValidator(_check_cron)]


class Schedule(Section):
    """Scheduled runs, as cron expressions in UTC."""

    retrain: Cron | None = None
    """When a training starts, independently of monitoring; null: never."""
    watch: Cron | None = None
    """When live traffic is evaluated on a cluster; on this machine, `make watch EVERY=15m` does it."""
    refresh: Cron | None = None
    """When newer statistics are computed and served without a training; on this machine, `make watch` does it. Null:
    never."""
