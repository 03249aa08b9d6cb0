"""The loop of a spec at one moment: what serves, what was seen, what was decided, what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from monitoring.retraining.alarm import Alarm, evaluate_alarm, reports_of_current_model
from monitoring.served_features.record import ServedFeatures
from monitoring.windows.records import RetrainDecision, Retraining, WindowReport
from shortlist.rollout.phases import Phase
from shortlist.rollout.record import RolloutRecord
from shortlist.spec.monitoring import RetrainPolicy


@dataclass(frozen=True)
class StatusPageData:
    """Everything that the status page shows; lists come in any order."""

    spec: str
    made: datetime
    """When the monitoring run began."""
    champion: int | None
    champion_since: datetime | None
    reports: Sequence[WindowReport]
    decisions: Sequence[RetrainDecision]
    retrainings: Sequence[Retraining]
    rollouts: Sequence[RolloutRecord]
    links: Mapping[datetime, Sequence[str]]
    """Paths of pages about a window, relative to the status page, by the window's start."""
    waiting: str
    """What is not ready yet, one line; may be empty."""
    rollout_pages: str = "../../rollouts"
    """Folder of the rollouts, relative to the status page."""
    policy: RetrainPolicy = field(default_factory=RetrainPolicy)
    """As declared; it says when windows raise the alarm, and when they end it."""
    counted_until: datetime | None = None
    """The end of the newest tile of the statistics that servers use; None while nothing is published."""
    served_features: ServedFeatures | None = None
    """The newest comparison of what scored with the feature table; None while none was made."""

    @cached_property
    def windows(self) -> tuple[WindowReport, ...]:
        """All windows, the oldest first."""
        return tuple(sorted(self.reports, key=lambda one: one.start))

    @property
    def newest(self) -> WindowReport | None:
        """The newest window."""
        return max(self.reports, key=lambda one: one.start, default=None)

    @property
    def judged(self) -> WindowReport | None:
        """The newest window in which the quality of a model could be measured."""
        with_measures = (one for one in self.reports if any(quality.measures for quality in one.quality))
        return max(with_measures, key=lambda one: one.start, default=None)

    @property
    def newest_decisions(self) -> tuple[RetrainDecision, ...]:
        """All decisions, the newest first; `made` alone orders them, for a schedule has moments of its own."""
        return tuple(sorted(self.decisions, key=lambda one: (one.made, one.until), reverse=True))

    @property
    def decision(self) -> RetrainDecision | None:
        """What was decided last about the newest window; None while nothing was."""
        newest = self.newest
        about = (one for one in self.newest_decisions if newest and one.window == newest.start)
        return next((one for one in about if one.trigger == "drift"), None)

    @property
    def newest_retrainings(self) -> tuple[Retraining, ...]:
        """All retrainings, the newest first."""
        return tuple(sorted(self.retrainings, key=lambda one: one.started, reverse=True))

    @property
    def running(self) -> Retraining | None:
        """The newest retraining that is under way."""
        return next((one for one in self.newest_retrainings if one.state == "running"), None)

    @property
    def newest_rollouts(self) -> tuple[RolloutRecord, ...]:
        """All rollouts, the newest first."""
        return tuple(sorted(self.rollouts, key=lambda one: one.id, reverse=True))

    @cached_property
    def counted(self) -> tuple[WindowReport, ...]:
        """The windows that say something about the model that serves now, the oldest first."""
        return reports_of_current_model(self.windows, self.newest_retrainings[::-1])

    @cached_property
    def alarm(self) -> Alarm:
        """The alarm as it stands: it follows from the windows alone."""
        return evaluate_alarm(self.counted, self.policy)

    @property
    def alarmed(self) -> frozenset[datetime]:
        """Starts of the windows at which a decision found the alarm raised."""
        return frozenset(one.window for one in self.decisions if one.trigger == "drift" and one.alarm)

    @property
    def broken_since(self) -> datetime | None:
        """Start of the first of the broken windows up to now; None when the newest is not broken."""
        since = None
        for one in reversed(self.windows):
            if one.verdict != "broken":
                break
            since = one.start
        return since

    @property
    def serving_since(self) -> datetime | None:
        """When the champion began to serve everybody, as far as that is known."""
        if self.champion_since is not None or self.champion is None:
            return self.champion_since
        served = (one for one in self.newest_rollouts if one.state.candidate == self.champion)
        changes = (change for one in served for change in one.history if change.phase is Phase.PROMOTED)
        return next((datetime.fromisoformat(change.time) for change in changes), None)
