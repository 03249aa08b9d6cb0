"""Summary of a drill: detection, decision and recovery of every planted drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from monitoring.windows.records import RetrainAction, RetrainDecision, WindowReport
from shortlist.drill.drill_page import Drill, Kpi, Scenario, champion_hit_rate
from shortlist.drill.world import DrillWorld
from shortlist.loop.policies import FROZEN, LOOP
from shortlist.loop.policy_rewards import PolicyRewards
from shortlist.spec.data import Drift

SETTLING_DAYS: Final = 6
"""First live days, in which the first release meets the statistics that its own slates bring: it was trained on those
of an old recommender. What it learns from them is no false alarm."""
KPI_WINDOWS: Final = 3
"""Number of windows whose mean is the KPI before and after a fault."""
EXPECTED_ACTIONS: Final[dict[str, RetrainAction]] = {
    "new_items": "retrain", "changed_tastes": "retrain", "broken_column": "page", "volume_collapse": "page",
}  # fmt: skip
"""The expected action of each drift: a changed world leads to a retraining, broken data page a person."""


@dataclass(frozen=True)
class DrillDay:
    """A day of a drill."""

    number: int
    report: WindowReport
    decision: RetrainDecision | None
    """Decision of its monitoring run; None for a day of a rollout that was monitored together with a later one."""
    trained: bool = False
    """Whether its monitoring run started a training."""
    promoted: bool = False
    """Whether that training ended with a new champion."""
    collected_rows: int | None = None
    """Rows of live traffic that the training read; None without a training."""
    new_version: int | None = None
    """The promoted version; None without a promotion."""

    @property
    def kpi(self) -> float | None:
        """The champion's hit rate."""
        return champion_hit_rate(self.report)

    @property
    def is_alarm(self) -> bool:
        """Whether the alarm was raised, a person was paged, or a training was started."""
        return self.action != "hold" or (self.decision is not None and self.decision.alarm)

    @property
    def action(self) -> RetrainAction:
        """Action of its decision."""
        return "hold" if self.decision is None else self.decision.action


def summarize_drill(
    world: DrillWorld, days: Sequence[DrillDay], seconds: float, rewards: PolicyRewards,
    settling_days: int = SETTLING_DAYS,
) -> Drill:  # fmt: skip
    """Return the summary of a drill.

    Quiet days are those before the first drift, without the first days.

    Args:
        world: The world.
        days: The days that were monitored.
        seconds: Duration of the drill.
        rewards: What all policies earned.
        settling_days: Number of first days that are not quiet; see `SETTLING_DAYS`.
    """
    ends = [drift.from_day for drift in world.drifts[1:]] + [world.source.days]
    scenarios = [_scenario(world, drift, end, days, rewards) for drift, end in zip(world.drifts, ends, strict=True)]
    quiet = [day for day in days[settling_days:] if day.number < world.drifts[0].from_day]
    return Drill(
        scenarios=tuple(scenarios),
        false_alarms=sum(day.is_alarm for day in quiet),
        quiet_windows=len(quiet),
        seconds=round(seconds, 1),
        days=tuple(day.report for day in days),
        rewards=rewards,
    )


def _scenario(
    world: DrillWorld, drift: Drift, end: int, days: Sequence[DrillDay], rewards: PolicyRewards
) -> Scenario:  # fmt: skip
    days_before = [day for day in days if drift.from_day - KPI_WINDOWS <= day.number < drift.from_day]
    days_since = [day for day in days if drift.from_day <= day.number < end]
    alarm_day = next((day for day in days_since if day.action != "hold"), None)
    # Of broken data nothing may be learnt; what they leave in the statistics may lead to a training after them.
    fault_end = end if drift.until_day is None else drift.until_day
    training_days = [day for day in days_since if day.trained and day.number < fault_end]
    # A first training may be rolled back, since it saw few rows of the new world; a later one may be promoted.
    training_day = next((day for day in training_days if day.promoted), training_days[0] if training_days else None)
    first_day_after = (
        drift.until_day if drift.until_day is not None else _first_day_of_new_model(training_day, days_since, end)
    )
    kpi = Kpi(
        before=_mean_kpi(days_before), during=_mean_kpi([day for day in days_since if day.number < first_day_after]),
        after=_mean_kpi([day for day in days_since if day.number >= first_day_after][:KPI_WINDOWS]),
    )  # fmt: skip
    expected_action = EXPECTED_ACTIONS[drift.kind]
    action = alarm_day.action if alarm_day else "hold"
    columns = alarm_day.decision.columns if alarm_day is not None and alarm_day.decision is not None else ()
    promoted = training_day is not None and training_day.promoted
    is_as_expected = (
        action == expected_action
        and (expected_action == "retrain") == (training_day is not None)
        and _names_fault(drift, columns)
    )
    later_days = [
        world.date_of(day.number) for day in days_since if training_day is not None and day.number > training_day.number
    ]
    return Scenario(
        name=drift.kind, injected_at=world.start_of(drift.from_day),
        alarm_at=alarm_day.report.end if alarm_day else None, columns_named=columns, decision=action,
        retrained=training_day is not None, promoted=promoted, kpi=kpi, wanted=expected_action,
        passed=is_as_expected and promoted == (expected_action == "retrain") and _has_recovered(kpi, expected_action),
        collected_rows_trained_on=training_day.collected_rows if training_day else None,
        reward_after=rewards.mean_reward(LOOP, later_days), reward_frozen=rewards.mean_reward(FROZEN, later_days),
    )  # fmt: skip


def _first_day_of_new_model(training_day: DrillDay | None, days_since: Sequence[DrillDay], end: int) -> int:
    """Return the first day that the promoted model was the main version; else the day after the training."""
    if training_day is None:
        return end
    new_version = training_day.new_version
    later_days = (
        day.number for day in days_since if day.number > training_day.number and day.report.champion == new_version
    )
    return next(later_days, training_day.number + 1)


def _names_fault(drift: Drift, columns: Sequence[str]) -> bool:
    """Return whether the named columns are those of the fault."""
    match drift.kind:
        case "broken_column":
            return tuple(columns) == (drift.column,)
        case "volume_collapse":
            return tuple(columns) == ("volume",)
        case "new_items":
            return "item_id" in columns
        case "changed_tastes":  # no column changes, only the users' behaviour, and scores by their newest statistics
            return bool({"auc", "log_loss", "hit_rate", "score"} & set(columns))


def _has_recovered(kpi: Kpi, expected_action: RetrainAction) -> bool:
    if expected_action == "page":
        return True
    return kpi.after is not None and kpi.during is not None and kpi.after > kpi.during


def _mean_kpi(days: Sequence[DrillDay]) -> float | None:
    values = [day.kpi for day in days if day.kpi is not None]
    return fmean(values) if values else None
