"""The content of the status page: champion, windows, decisions, retrainings and rollouts of a spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from monitoring.retraining.alarm import Alarm, evaluate_alarm, reports_of_current_model
from monitoring.served_features.record import ServedFeaturesReport
from monitoring.windows.records import RetrainDecision, Retraining, WindowReport
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.states.phases import Phase
from shortlist.spec.monitoring import RetrainPolicy


@dataclass(frozen=True)
class StatusPageData:
    """Content of the status page; sequences are in any order."""

    spec: str
    created_at: datetime
    """When the monitoring run began."""
    champion: int | None
    champion_since: datetime | None
    reports: Sequence[WindowReport]
    decisions: Sequence[RetrainDecision]
    retrainings: Sequence[Retraining]
    rollouts: Sequence[RolloutRecord]
    links: Mapping[datetime, Sequence[str]]
    """Paths of a window's pages, relative to the status page, by the window's start."""
    waiting: str
    """One line about windows that are not ready yet; may be empty."""
    rollout_pages: str = "../../rollouts"
    """Folder of the rollouts, relative to the status page."""
    policy: RetrainPolicy = field(default_factory=RetrainPolicy)
    """The declared policy, by which windows raise and clear the alarm."""
    counted_until: datetime | None = None
    """End of the newest tile of the statistics that servers use; None before the first publication."""
    served_features: ServedFeaturesReport | None = None
    """The newest comparison of served feature values with the feature table; None while there is none."""

    @cached_property
    def windows(self) -> tuple[WindowReport, ...]:
        """Reports of all windows, the oldest first."""
        return tuple(sorted(self.reports, key=lambda report: report.start))

    @property
    def newest(self) -> WindowReport | None:
        """Report of the newest window; None while there is none."""
        return max(self.reports, key=lambda report: report.start, default=None)

    @property
    def judged(self) -> WindowReport | None:
        """Report of the newest window in which the quality of a model could be measured."""
        with_measures = (report for report in self.reports if any(quality.measures for quality in report.quality))
        return max(with_measures, key=lambda report: report.start, default=None)

    @property
    def newest_decisions(self) -> tuple[RetrainDecision, ...]:
        """All decisions, the newest first by `made`, since windows of scheduled decisions are other times."""
        return tuple(sorted(self.decisions, key=lambda decision: (decision.made, decision.until), reverse=True))

    @property
    def decision(self) -> RetrainDecision | None:
        """The newest decision about the newest window; None while there is none."""
        newest = self.newest
        window_decisions = (
            decision for decision in self.newest_decisions if newest and decision.window == newest.start
        )
        return next((decision for decision in window_decisions if decision.trigger == "drift"), None)

    @property
    def newest_retrainings(self) -> tuple[Retraining, ...]:
        """All retrainings, the newest first."""
        return tuple(sorted(self.retrainings, key=lambda retraining: retraining.started, reverse=True))

    @property
    def running(self) -> Retraining | None:
        """The newest running retraining; None when none is running."""
        return next((retraining for retraining in self.newest_retrainings if retraining.state == "running"), None)

    @property
    def newest_rollouts(self) -> tuple[RolloutRecord, ...]:
        """All rollouts, the newest first."""
        return tuple(sorted(self.rollouts, key=lambda rollout: rollout.id, reverse=True))

    @cached_property
    def counted_windows(self) -> tuple[WindowReport, ...]:
        """Reports of the windows that the current model served, the oldest first."""
        return reports_of_current_model(self.windows, self.newest_retrainings[::-1])

    @cached_property
    def alarm(self) -> Alarm:
        """The current alarm, computed from `counted_windows`."""
        return evaluate_alarm(self.counted_windows, self.policy)

    @property
    def alarmed_windows(self) -> frozenset[datetime]:
        """Starts of the windows whose decision found the alarm raised."""
        return frozenset(
            decision.window for decision in self.decisions if decision.trigger == "drift" and decision.alarm
        )

    @property
    def broken_since(self) -> datetime | None:
        """Start of the first of the newest consecutive broken windows; None when the newest is not broken."""
        since = None
        for window in reversed(self.windows):
            if window.verdict != "broken":
                break
            since = window.start
        return since

    @property
    def serving_since(self) -> datetime | None:
        """When the champion was promoted; None when that is unknown."""
        if self.champion_since is not None or self.champion is None:
            return self.champion_since
        champion_rollouts = (rollout for rollout in self.newest_rollouts if rollout.state.candidate == self.champion)
        changes = (
            change for rollout in champion_rollouts for change in rollout.history if change.phase is Phase.PROMOTED
        )
        return next((datetime.fromisoformat(change.time) for change in changes), None)
