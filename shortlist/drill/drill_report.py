"""What a drill showed: when every planted drift was noticed, what was decided, whether users were won back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Final

from monitoring.pages.drill_page import Drill, Kpi, Scenario, kpi_of
from monitoring.windows.records import RetrainAction, RetrainDecision, WindowReport
from shortlist.drill.world import DrillWorld
from shortlist.spec.data import Drift

AROUND: Final = 3
"""Windows whose mean is the KPI before and after."""
WANTED: Final[dict[str, RetrainAction]] = {
    "new_items": "retrain", "changed_tastes": "retrain", "broken_column": "page", "volume_collapse": "page",
}  # fmt: skip
"""What a drift should lead to: models learn from a changed world, never from broken data."""


@dataclass(frozen=True)
class ChangeOfChampion:
    """A promotion: the new champion and the one that it replaced, each with the fit that servers looked up then."""

    promoted: int
    """Version."""
    promoted_fit: Path
    frozen: int
    """Version."""
    frozen_fit: Path


@dataclass(frozen=True)
class Day:
    """A day of a drill, lived through."""

    number: int
    report: WindowReport
    decision: RetrainDecision | None
    """None where a later day was looked at in the same look: the day belongs to a rollout."""
    trained: bool = False
    """Whether its look started a training."""
    promoted: bool = False
    """Whether that training ended with a new champion."""
    collected_rows: int | None = None
    """Rows of live traffic that the training read."""
    change: ChangeOfChampion | None = None
    """What the promotion changed."""

    @property
    def kpi(self) -> float | None:
        """The champion's hit rate."""
        return kpi_of(self.report)

    @property
    def is_alarm(self) -> bool:
        """Whether somebody was woken up, or something was started."""
        return self.action != "hold" or (self.decision is not None and self.decision.alarm)

    @property
    def action(self) -> RetrainAction:
        """What its look led to."""
        return "hold" if self.decision is None else self.decision.action


Compare = Callable[[ChangeOfChampion, frozenset[date]], tuple[float, float]]
"""From a promotion and some days to the AUC of the promoted version and of the one before on these days."""


def summarize_drill(world: DrillWorld, days: Sequence[Day], seconds: float, compare: Compare | None = None) -> Drill:
    """Return the drill as it is shown.

    Args:
        world: The world.
        days: That were lived through.
        seconds: That they took.
        compare: Scores later days by two versions; None: nothing is compared.

    Quiet are the days before the first drift, and later ones from when the last drift was mended or answered by a new
    champion.
    """
    ends = [drift.from_day for drift in world.drifts[1:]] + [world.source.days]
    scenarios = [_scenario(world, drift, end, days, compare) for drift, end in zip(world.drifts, ends, strict=True)]
    quiet = [day for day in days if day.number < world.drifts[0].from_day]
    return Drill(
        scenarios=tuple(scenarios),
        false_alarms=sum(day.is_alarm for day in quiet),
        quiet_windows=len(quiet),
        seconds=round(seconds, 1),
        days=tuple(day.report for day in days),
    )


def _scenario(
    world: DrillWorld, drift: Drift, end: int, days: Sequence[Day], compare: Compare | None
) -> Scenario:  # fmt: skip
    before = [day for day in days if drift.from_day - AROUND <= day.number < drift.from_day]
    since = [day for day in days if drift.from_day <= day.number < end]
    alarm = next((day for day in since if day.action != "hold"), None)
    trainings = [day for day in since if day.trained]
    # A first training may be rolled back, for it saw little of the new world; what counts is that the loop goes on.
    trained = next((day for day in trainings if day.promoted), trainings[0] if trainings else None)
    over = drift.until_day if drift.until_day is not None else _answered(trained, since, end)
    kpi = Kpi(
        before=_mean(before), during=_mean([day for day in since if day.number < over]),
        after=_mean([day for day in since if day.number >= over][:AROUND]),
    )  # fmt: skip
    wanted = WANTED[drift.kind]
    decided = alarm.action if alarm else "hold"
    named = alarm.decision.columns if alarm is not None and alarm.decision is not None else ()
    promoted = trained is not None and trained.promoted
    as_wanted = decided == wanted and (wanted == "retrain") == (trained is not None) and _names(drift, named)
    aucs = None
    if compare is not None and trained is not None and trained.change is not None:
        later = frozenset(world.day(day.number) for day in since if day.number > trained.number)
        aucs = compare(trained.change, later) if later else None
    return Scenario(
        name=drift.kind, injected_at=world.begin(drift.from_day), alarm_at=alarm.report.end if alarm else None,
        columns_named=named, decision=decided, retrained=trained is not None, promoted=promoted, kpi=kpi, wanted=wanted,
        passed=as_wanted and promoted == (wanted == "retrain") and _won_back(kpi, wanted),
        collected_rows_trained_on=trained.collected_rows if trained else None,
        auc_promoted=aucs[0] if aucs else None, auc_frozen=aucs[1] if aucs else None,
    )  # fmt: skip


def _answered(trained: Day | None, since: Sequence[Day], end: int) -> int:
    """Return the first day after a training that most users saw the promoted model; else the one after the training."""
    if trained is None:
        return end
    new = trained.change.promoted if trained.change is not None else None
    later = (day.number for day in since if day.number > trained.number and day.report.champion == new)
    return next(later, trained.number + 1)


def _names(drift: Drift, named: Sequence[str]) -> bool:
    """Whether what was named is what was broken."""
    match drift.kind:
        case "broken_column":
            return tuple(named) == (drift.column,)
        case "volume_collapse":
            return tuple(named) == ("volume",)
        case "new_items":
            return "item_id" in named
        case "changed_tastes":  # no column looks different; only what users do
            return bool({"auc", "log_loss", "hit_rate"} & set(named))


def _won_back(kpi: Kpi, wanted: RetrainAction) -> bool:
    if wanted == "page":
        return True
    return kpi.after is not None and kpi.during is not None and kpi.after > kpi.during


def _mean(days: Sequence[Day]) -> float | None:
    values = [day.kpi for day in days if day.kpi is not None]
    return fmean(values) if values else None
