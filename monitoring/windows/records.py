"""The records that monitoring writes: reports of windows, decisions and retrainings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, computed_field


class _WindowRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


FindingKind = Literal["numeric", "categorical", "tags", "unknown", "score", "domain"]
Verdict = Literal["healthy", "drifted", "degraded", "broken", "unjudged"]
RetrainAction = Literal["retrain", "hold", "page"]
Trigger = Literal["manual", "schedule", "drift"]


class Finding(_WindowRecord):
    """One comparison of a window with the reference."""

    column: str
    """Declared column; `score`, or `all columns` for the domain classifier."""
    kind: FindingKind
    effect: float
    """Population stability index; increase of the share for `unknown`; AUC for `domain`."""
    critical: float
    """The effect above which it counts as drift: the largest of the declared limit, the natural variation, and the
    variation of the sample."""
    p_value: float
    """Probability of an effect as large without drift."""
    drifted: bool
    """Whether the effect is above `critical`, and significant among all columns of the window."""
    reason: str
    """One sentence with the numbers and the largest change."""


class Problem(_WindowRecord):
    """A reason not to trust the data of a window."""

    kind: Literal["nulls", "volume", "coverage", "clock", "schema"]
    column: str | None = None
    reason: str
    """One sentence with the number, the limit and the next step."""


class Measure(_WindowRecord):
    """One measure of a model in a window, with its interval and its value on the test days."""

    name: Literal["auc", "gauc", "log_loss", "ndcg_at_10", "rate_error", "hit_rate", "label_rate", "mean_score"]
    value: float
    low: float
    high: float
    reference: float | None = None
    """Value on the model's own test days."""
    limit: float | None = None
    """The worst acceptable value; None when the measure is only shown."""
    breached: bool = False
    """Whether the whole interval lies past the limit."""


class Quality(_WindowRecord):
    """Quality of a version in a window, over all its rows or a slice of them."""

    version: int
    slice: str = "all"
    """`all`, `column=value`, or `label <name>`."""
    rows: int
    users: int
    measures: tuple[Measure, ...]
    problem: str = ""
    """Why there are no measures, such as one class only or too few rows; else empty."""


class LiveExplorationCost(_WindowRecord):
    """What the drawn places of one version's slates cost in a window, by the scores of its model."""

    per_slate: float
    """Expected label given up per slate, over drawn slates and others."""
    share: float
    """The same as a share of the expected label of slates in the best order."""
    low: float
    """Lower bound of the share: fewer drawn slates say less."""
    limit: float | None = None
    """Largest share that `ordering.explore.max_cost` declares; None: none."""

    @property
    def exceeded(self) -> bool:
        """Whether the share is shown to be above the limit."""
        return self.limit is not None and self.low > self.limit


class SlateTraffic(_WindowRecord):
    """Statistics of one version's slates in a window, from the prediction log."""

    version: int
    slates: int
    sources: dict[str, float]
    """Share of the candidates after filters that each source ranked highest."""
    removed: dict[str, float]
    """Share of the candidates before filters that each filter removed first."""
    short: float
    """Share of the slates with fewer items than were asked for."""
    fallback: float
    """Share of the slates for which the sources had to be asked for more candidates."""
    explored: float
    """Share of the slates with explored (randomly drawn) positions."""
    exploration: LiveExplorationCost | None = None
    """What drawn positions cost; None where the log does not say it, or nothing was drawn."""
    items: int
    """Number of distinct shown items."""
    judged: int
    """Slates with an outcome."""
    hit_rate: float | None = None
    """Share of the slates with an outcome that have a positive one; None without any."""
    clicks: float | None = None
    """Mean number of positive outcomes per slate with an outcome."""
    overlap: float | None = None
    """Overlap of its shown items with those of the version with most rows, 0 to 1; None for that version."""


class WindowReport(_WindowRecord):
    """The report of one window: its data, findings and quality."""

    spec: str
    start: datetime
    end: datetime
    made: datetime
    """When the report was written."""
    champion: int | None
    """The version with most rows; the window is compared with that version's reference."""
    versions: dict[int, int]
    """Rows by version."""
    requests: int
    """Answered requests in the prediction log."""
    rows: int
    """Shown rows whose outcome is known."""
    min_rows: int = 0
    """Fewest such rows of a window that is judged (`monitoring.window.min_rows`); 0 in reports of earlier versions."""
    coverage: float
    """Share of the answered requests with an outcome."""
    late: int = 0
    """Outcomes that came after the window was mature."""
    duplicates: int = 0
    """Outcomes of rows that already had one; the last one counts."""
    orphans: int = 0
    """Outcomes of requests that are not in the prediction log."""
    future: int = 0
    """Rows later than their own answer by more than the allowed clock skew; they are left out."""
    volume_ratio: float | None = None
    """Ratio of the requests to the median of earlier windows; None while there are too few."""
    problems: tuple[Problem, ...] = ()
    findings: tuple[Finding, ...] = ()
    quality: tuple[Quality, ...] = ()
    slates: tuple[SlateTraffic, ...] = ()
    """Slate statistics by version; empty where clients send their candidates."""
    warnings: tuple[str, ...] = ()
    """Early warnings that need no labels, and rows that were left out; they do not change the verdict."""
    learnt_by: tuple[int, ...] = ()
    """Versions whose training or validation days hold this window: it is of a replay."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> Verdict:
        """The verdict: `broken` data come before everything else, `degraded` quality before `drifted` columns."""
        if self.problems:
            return "broken"
        if not self.findings and not any(quality.measures for quality in self.quality):
            return "unjudged"
        if self.breaches:
            return "degraded"
        return "drifted" if self.drifted else "healthy"

    @property
    def learnt_notice(self) -> str:
        """Says which versions learnt from the window's days; empty where none did."""
        if not self.learnt_by:
            return ""
        versions = f"version{'s' * (len(self.learnt_by) > 1)} {', '.join(map(str, self.learnt_by))}"
        return f"Replayed days that {versions} learnt from: the live quality is not that of new days, as the test's is."

    @property
    def unjudged_reason(self) -> str:
        """Why the window is not judged: how many rows it has and needs, or why its rows could not be measured."""
        counts = f"{self.rows:,} rows with an outcome, of {self.requests:,} answered requests"
        if self.rows < self.min_rows:
            return f"it has {counts}, and needs {self.min_rows:,} (monitoring.window.min_rows)"
        problems = (quality.problem for quality in self.quality if quality.problem)
        return "; ".join((f"it has {counts}", *dict.fromkeys(problems)))

    @property
    def drifted(self) -> tuple[Finding, ...]:
        """The findings that are drift."""
        return tuple(finding for finding in self.findings if finding.drifted)

    @property
    def breaches(self) -> tuple[tuple[Quality, Measure], ...]:
        """The breached measures of the champion over all its rows."""
        return tuple(
            (quality, measure)
            for quality in self.quality
            if quality.version == self.champion and quality.slice == "all"
            for measure in quality.measures
            if measure.breached
        )

    @property
    def exploration_excesses(self) -> tuple[str, ...]:
        """A sentence for each version whose exploration is shown to cost more than declared."""
        return tuple(
            f"exploration of version {traffic.version} gave up {cost.share:.2%} of the slates' expected label (at least"
            f" {cost.low:.2%}), {cost.per_slate:.4f} per slate; ordering.explore.max_cost is {cost.limit:.2%}: declare"
            " a smaller share, or less chance, in ordering.explore"
            for traffic in self.slates
            if (cost := traffic.exploration) is not None and cost.exceeded
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of everything that is wrong: columns of problems and findings, measures, and `exploration`."""
        names = [problem.column or problem.kind for problem in self.problems]
        names += [finding.column for finding in self.drifted]
        names += [measure.name for _, measure in self.breaches]
        names += ["exploration"] * bool(self.exploration_excesses)
        return tuple(dict.fromkeys(names))


class RetrainDecision(_WindowRecord):
    """The decision of a monitoring run, through which monitoring starts trainings."""

    spec: str
    action: RetrainAction
    trigger: Trigger
    key: str
    """Identifies the spec, window, action and trigger, the same in every process: 16 hexadecimal digits."""
    window: datetime
    """Start of the newest evaluated window; the scheduled time for `schedule`."""
    until: datetime
    """Trainings of this decision read only rows before this moment: the end of that window."""
    reasons: tuple[str, ...]
    columns: tuple[str, ...] = ()
    """Names of everything that is wrong."""
    alarm: bool = False
    """Whether the alarm is raised; it is cleared by enough good windows in a row."""
    made: datetime

    @property
    def cause(self) -> dict[str, Any]:
        """The training graph's parameter `cause`."""
        reasons, until = list(self.reasons), self.until.astimezone(UTC).isoformat()
        return {"trigger": self.trigger, "key": self.key, "reasons": reasons, "until": until}


class Retraining(_WindowRecord):
    """A training that a decision started."""

    key: str
    """Key of the decision."""
    started: datetime
    window: datetime
    """Window of the decision."""
    state: Literal["running", "promoted", "not_promoted", "held", "failed"]
    """`held`: no candidate passed the gates; `not_promoted`: the canary was rolled back, or no stack was running."""
    version: int | None = None
    reason: str = ""
    run: str = ""
    """Folder or name of the run."""
    trigger: Trigger | None = None
    """Trigger of the decision; None in records of earlier versions."""
