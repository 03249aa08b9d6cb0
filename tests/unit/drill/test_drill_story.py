"""A drill fails when drift is missed, falsely reported or attributed to another column, or broken data are learnt."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from monitoring.windows.records import Measure, Problem, Quality, RetrainDecision, WindowReport
from shortlist.drill.drill_page import Drill
from shortlist.drill.drill_report import DrillDay, summarize_drill
from shortlist.drill.world import DrillWorld
from shortlist.loop.policies import POLICIES
from shortlist.loop.policy_rewards import PolicyDay, PolicyRewards
from shortlist.spec.data import Drift, GeneratedSource

BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
DRIFTS = (
    Drift(kind="broken_column", from_day=3, until_day=4, column="device"),
    Drift(kind="new_items", from_day=6),
)


def day(
    number: int, action: Any = "hold", columns: tuple[str, ...] = (), *, kpi: float = 0.5, **ended: bool
) -> DrillDay:
    start = BEGIN + timedelta(days=number)
    end = start + timedelta(days=1)
    measure = Measure(name="hit_rate", value=kpi, low=kpi, high=kpi)
    report = WindowReport(
        spec="drill", start=start, end=end, made=end, champion=1, versions={1: 10}, requests=10, rows=10, coverage=1.0,
        problems=(Problem(kind="nulls", column="device", reason="gone"),) if action == "page" else (),
        quality=(Quality(version=1, rows=10, users=5, measures=(measure,)),),
    )  # fmt: skip
    decision = RetrainDecision(
        spec="drill", action=action, trigger="drift", key="0" * 16, window=start, until=end, reasons=("because",),
        columns=columns, made=end,
    )  # fmt: skip
    return DrillDay(number, report, decision, ended.get("trained", False), ended.get("promoted", False))


def world() -> DrillWorld:
    source = GeneratedSource(kind="generated", days=10, start=date(2026, 1, 5), drifts=DRIFTS)
    drill_world = SimpleNamespace(source=source, drifts=DRIFTS, start_of=lambda number: BEGIN + timedelta(days=number),
        date_of=lambda number: date(2026, 1, 5) + timedelta(days=number),
    )  # fmt: skip
    return cast(DrillWorld, drill_world)


GOOD = {
    0: day(0), 1: day(1), 2: day(2),
    3: day(3, "page", ("device",)), 4: day(4), 5: day(5),
    6: day(6, kpi=0.3), 7: day(7, "retrain", ("item_id", "auc"), kpi=0.3, trained=True, promoted=True),
    8: day(8, kpi=0.45), 9: day(9, kpi=0.45),
}  # fmt: skip


REWARDS = PolicyRewards(
    days=tuple(
        PolicyDay(
            day=date(2026, 1, 5) + timedelta(days=number), policy=policy, reward_per_slate=number + place, slates=9
        )
        for number in range(10)
        for place, policy in enumerate(POLICIES)
    ),
    events=(),
)
"""Clicks per slate: the number of the day, and of the policy."""


def story(settling: int = 0, **changes: DrillDay) -> Drill:
    days = GOOD | {int(name.removeprefix("day")): changed for name, changed in changes.items()}
    return summarize_drill(world(), [days[number] for number in sorted(days)], 12.0, REWARDS, settling)


def test_a_loop_that_closes_passes() -> None:
    report = story()
    broken, new = report.scenarios
    assert report.passed and (report.quiet_windows, report.false_alarms) == (3, 0)
    assert (broken.alarm_at, broken.kpi.before) == (BEGIN + timedelta(days=4), 0.5)
    assert (new.kpi.before, new.kpi.during, new.kpi.after) == (0.5, 0.3, pytest.approx(0.45))
    assert new.hours_to_alarm == 48


def test_what_the_first_release_learns_from_its_own_slates_is_no_false_alarm() -> None:
    early = story(settling=2, day1=day(1, "retrain", ("score",), trained=True))
    assert (early.quiet_windows, early.false_alarms) == (1, 0)
    assert not story(settling=2, day2=day(2, "retrain", ("score",), trained=True)).passed


def test_a_training_after_broken_data_is_no_fault_and_one_on_them_is() -> None:
    assert story(day5=day(5, "retrain", ("score",), trained=True)).scenarios[0].passed
    assert not story(day3=day(3, "page", ("device",), trained=True)).scenarios[0].passed


def test_clicks_after_a_training_are_compared_with_those_of_the_first_release() -> None:
    promoted = replace(GOOD[7], collected_rows=700, new_version=2)
    broken, new = story(day7=promoted).scenarios
    assert (new.reward_after, new.reward_frozen) == (pytest.approx(8.5 + 1), pytest.approx(8.5 + 2))  # of days 8 and 9
    assert new.collected_rows_trained_on == 700
    assert (broken.reward_after, broken.reward_frozen, broken.collected_rows_trained_on) == (None, None, None)


def test_days_of_a_rollout_that_most_users_spent_with_the_old_model_are_no_recovery() -> None:
    """No decision is about the first of them, because it was looked at together with the next one."""
    promoted = replace(GOOD[7], new_version=2)
    in_between = replace(day(8, kpi=0.2), decision=None)
    last_day = day(9, kpi=0.45)
    quality = tuple(quality_of_slice.model_copy(update={"version": 2}) for quality_of_slice in last_day.report.quality)
    last_day = replace(last_day, report=last_day.report.model_copy(update={"champion": 2, "quality": quality}))
    report = story(day7=promoted, day8=in_between, day9=last_day)
    new = report.scenarios[1]
    assert (new.kpi.during, new.kpi.after) == (pytest.approx((0.3 + 0.3 + 0.2) / 3), 0.45)
    assert report.passed and not in_between.is_alarm and in_between.action == "hold"


def test_a_second_training_may_bring_the_recovery() -> None:
    report = story(
        day7=day(7, "retrain", ("item_id",), kpi=0.3, trained=True),
        day8=day(8, "retrain", ("item_id",), kpi=0.3, trained=True, promoted=True),
    )
    new = report.scenarios[1]
    assert report.passed and new.alarm_at == BEGIN + timedelta(days=8)
    assert (new.kpi.during, new.kpi.after) == (pytest.approx(0.3), pytest.approx(0.45))


@pytest.mark.parametrize(
    "changed",
    [
        {"day1": day(1, "page", ("volume",))},  # cries wolf
        {"day3": day(3)},  # sleeps
        {"day3": day(3, "page", ("surface",))},  # names another column
        {"day3": day(3, "page", ("device", "surface"))},  # and one too many
        {"day3": day(3, "retrain", ("device",), trained=True, promoted=True)},  # learns from broken data
        {"day7": day(7, "page", ("item_id",))},  # wakes somebody up instead
        {"day7": day(7, "retrain", ("surface",), trained=True, promoted=True)},  # for another reason
        {"day7": day(7, "retrain", ("item_id",), trained=True)},  # not promoted
        {"day8": day(8, kpi=0.2), "day9": day(9, kpi=0.2)},  # nobody is won back
    ],
)
def test_a_loop_that_does_not_close_fails(changed: dict[str, DrillDay]) -> None:
    assert not story(**changed).passed
