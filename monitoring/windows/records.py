"""What is known of a window of live traffic, and what was decided: the files that monitoring writes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, computed_field


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


FindingKind = Literal["numeric", "categorical", "tags", "unknown", "score", "domain"]
Verdict = Literal["healthy", "drifted", "degraded", "broken", "unjudged"]
RetrainAction = Literal["retrain", "hold", "page"]
Trigger = Literal["manual", "schedule", "drift"]


class Finding(_Record):
    """One comparison of a window with the reference."""

    column: str
    """Declared column; `score`, or `all columns` for the domain classifier."""
    kind: FindingKind
    effect: float
    """Population stability index; increase of the share for `unknown`; AUC for `domain`."""
    critical: float
    """The effect from which on it counts: the declared floor, the natural variation or the sample's, whichever is
    larger."""
    p_value: float
    """Chance of an effect as large without drift."""
    drifted: bool
    """Effect past critical, and significant among all columns of the window."""
    reason: str
    """One sentence with the numbers and what changed most."""


class Problem(_Record):
    """A reason not to trust the data of a window."""

    kind: Literal["nulls", "volume", "coverage", "clock", "schema"]
    column: str | None = None
    reason: str
    """One sentence with got, wanted and the next step."""


class Measure(_Record):
    """One number about a model in a window, with its interval and what it was on the test days."""

    name: Literal["auc", "gauc", "log_loss", "ndcg_at_10", "rate_error", "hit_rate", "label_rate", "mean_score"]
    value: float
    low: float
    high: float
    reference: float | None = None
    """On the model's own test days."""
    limit: float | None = None
    """The value past which it is too bad; None when it is only shown."""
    breached: bool = False
    """The whole interval lies past the limit."""


class Quality(_Record):
    """How good a version was in a window, over all its rows or a slice of them."""

    version: int
    slice: str = "all"
    """`all`, or `column=value`."""
    rows: int
    users: int
    measures: tuple[Measure, ...]
    problem: str = ""
    """Why there are no measures: one class, too few rows."""


class SlateTraffic(_Record):
    """The slates of one version in a window, as its server logged them."""

    version: int
    slates: int
    sources: dict[str, float]
    """Share of the candidates after filters that each source ranked highest."""
    removed: dict[str, float]
    """Share of the candidates before filters that each filter removed first."""
    short: float
    """Share of the slates with fewer items than were asked for."""
    fallback: float
    """Share of the slates for which sources were asked for more."""
    explored: float
    """Share of the slates whose places were drawn."""
    items: int
    """Different items that were shown."""
    judged: int
    """Slates with an outcome."""
    hit_rate: float | None = None
    """Share of them with a positive outcome; None without any."""
    clicks: float | None = None
    """Positive outcomes per slate, the mean over them."""
    overlap: float | None = None
    """With what the version of most rows showed, from 0 to 1: shares of items that both have; None for that version."""


class WindowReport(_Record):
    """Everything that is known of one window."""

    spec: str
    start: datetime
    end: datetime
    made: datetime
    """When the report was written."""
    champion: int | None
    """The version that most of its rows come from; it is compared with that version's reference."""
    versions: dict[int, int]
    """Rows by version."""
    requests: int
    """Answered requests in the prediction log."""
    rows: int
    """Shown rows whose outcome is known."""
    coverage: float
    """Share of the answered requests with an outcome."""
    late: int = 0
    """Outcomes that came after the window was mature."""
    duplicates: int = 0
    """Outcomes of a row that had one already; the last one counts."""
    orphans: int = 0
    """Outcomes of requests that are not in the prediction log."""
    volume_ratio: float | None = None
    """Requests against the median of the windows before; None while there are too few."""
    problems: tuple[Problem, ...] = ()
    findings: tuple[Finding, ...] = ()
    quality: tuple[Quality, ...] = ()
    slates: tuple[SlateTraffic, ...] = ()
    """By version; empty where clients bring their candidates."""
    warnings: tuple[str, ...] = ()
    """Early warnings that need no labels; they do not change the verdict."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> Verdict:
        """`broken` data come first, for nothing else can be told then; `degraded` says more than `drifted`."""
        if self.problems:
            return "broken"
        if not self.findings and not any(one.measures for one in self.quality):
            return "unjudged"
        if self.breaches:
            return "degraded"
        return "drifted" if self.drifted else "healthy"

    @property
    def drifted(self) -> tuple[Finding, ...]:
        """The comparisons that found a drift."""
        return tuple(finding for finding in self.findings if finding.drifted)

    @property
    def breaches(self) -> tuple[tuple[Quality, Measure], ...]:
        """The measures of the champion over all rows that are too bad."""
        return tuple(
            (one, measure)
            for one in self.quality
            if one.version == self.champion and one.slice == "all"
            for measure in one.measures
            if measure.breached
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """What is wrong, by name: columns of problems and findings, and measures."""
        named = [problem.column or problem.kind for problem in self.problems]
        named += [finding.column for finding in self.drifted]
        named += [measure.name for _, measure in self.breaches]
        return tuple(dict.fromkeys(named))


class RetrainDecision(_Record):
    """What a monitoring run leads to: the artefact through which the loop closes."""

    spec: str
    action: RetrainAction
    trigger: Trigger
    key: str
    """The same for the same spec, window and action, however many processes evaluate it: 16 hexadecimal digits."""
    window: datetime
    """Start of the newest window that was evaluated; the moment of the schedule for `schedule`."""
    until: datetime
    """No training that it starts may read a row from this moment on: the end of that window."""
    reasons: tuple[str, ...]
    columns: tuple[str, ...] = ()
    """What is wrong, by name."""
    alarm: bool = False
    """Whether the alarm is raised: it stays until enough good windows came."""
    made: datetime

    @property
    def cause(self) -> dict[str, Any]:
        """What the training graph gets of the decision: its parameter `cause`."""
        reasons, until = list(self.reasons), self.until.astimezone(UTC).isoformat()
        return {"trigger": self.trigger, "key": self.key, "reasons": reasons, "until": until}


class Retraining(_Record):
    """A training that a decision started."""

    key: str
    """Of the decision."""
    started: datetime
    window: datetime
    """Of the decision."""
    state: Literal["running", "promoted", "not_promoted", "held", "failed"]
    """`held`: no candidate passed the gates; `not_promoted`: its canary was rolled back, or there was no stack."""
    version: int | None = None
    reason: str = ""
    run: str = ""
    """Folder of the run."""
