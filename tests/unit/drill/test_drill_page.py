"""The JSON, the page and the terminal table of a drill show the same summary."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console

from monitoring.windows.records import Finding, Measure, Problem, Quality, WindowReport
from shortlist.drill.drill_page import (
    Drill,
    Kpi,
    Scenario,
    drill_headline,
    drill_plot,
    drill_table,
    render_drill,
    time_to_alarm,
    write_drill,
)
from shortlist.loop.policies import POLICIES
from shortlist.loop.policy_rewards import LoopEvent, PolicyDay, PolicyRewards
from shortlist.rollout.page import NO_NUMBER
from tests.page_rules import injected, planted, problems_of

FIRST = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def day(number: int, hit_rate: float = 0.4, version: int = 1, *, broken: bool = False) -> WindowReport:
    start = FIRST + number * DAY
    measure = Measure(name="hit_rate", value=hit_rate, low=hit_rate - 0.01, high=hit_rate + 0.01, reference=0.4)
    finding = Finding(
        column="item_id", kind="categorical", effect=0.1, critical=0.2, p_value=0.5, drifted=False, reason="as ever"
    )
    problem = Problem(kind="nulls", column="duration", reason="all of them are null")
    return WindowReport(
        spec="drill", start=start, end=start + DAY, made=start + DAY, champion=version, versions={version: 900},
        requests=300, rows=900, coverage=1.0, problems=(problem,) if broken else (), findings=(finding,),
        quality=(Quality(version=version, rows=900, users=200, measures=(measure,)),),
    )  # fmt: skip


def scenario(**changes: object) -> Scenario:
    return Scenario(
        name="new_items", injected_at=FIRST + 7 * DAY, alarm_at=FIRST + 9 * DAY,
        columns_named=("item_id", "creator_id"),
        decision="retrain", retrained=True, promoted=True, kpi=Kpi(before=0.4, during=0.31, after=0.39),
        wanted="retrain", passed=True,
    ).model_copy(update=changes)  # fmt: skip


BROKEN = scenario(
    name="broken_column", injected_at=FIRST + 3 * DAY, alarm_at=FIRST + 4 * DAY, columns_named=("duration",),
    decision="page", retrained=False, promoted=False, kpi=Kpi(before=0.4, during=0.38, after=0.4), wanted="page",
)  # fmt: skip
UNSEEN = scenario(
    name="changed_tastes", injected_at=FIRST + 10 * DAY, alarm_at=None, columns_named=(), decision="hold",
    retrained=False, promoted=False, kpi=Kpi(before=0.39, during=0.2, after=None), passed=False,
)  # fmt: skip
DAYS = (
    day(0),
    day(1),
    day(2),
    day(3, broken=True),
    day(4),
    day(5),
    day(6),
    day(7, 0.31),
    day(8, 0.31),
    day(9, 0.39, 2),
)


REWARDS = PolicyRewards(
    days=tuple(
        PolicyDay(day=(FIRST + number * DAY).date(), policy=policy, reward_per_slate=1.0 + place / 10, slates=100)
        for number in range(10)
        for place, policy in enumerate(POLICIES)
    ),
    events=(
        LoopEvent(day=(FIRST + 7 * DAY).date(), kind="new_items"),
        LoopEvent(day=(FIRST + 9 * DAY).date(), kind="promoted", version=2),
    ),
)


def drill(*scenarios: Scenario, false_alarms: int = 0) -> Drill:
    return Drill(
        scenarios=scenarios, false_alarms=false_alarms, quiet_windows=50, seconds=512.3, days=DAYS, rewards=REWARDS
    )  # fmt: skip


def test_the_json_file_has_the_documented_keys(tmp_path: Path) -> None:
    write_drill(drill(scenario(), UNSEEN), tmp_path / "run")
    facts = json.loads((tmp_path / "run" / "drill.json").read_text())
    assert (facts["false_alarms"], facts["quiet_windows"], facts["seconds"], facts["passed"]) == (0, 50, 512.3, False)
    promised = {"injected_at", "alarm_at", "columns_named", "decision", "retrained", "promoted", "kpi"}
    promised |= {"collected_rows_trained_on", "reward_after", "reward_frozen"}
    assert all(promised <= set(scenario_facts) for scenario_facts in facts["scenarios"])
    first, last = facts["scenarios"]
    assert first["kpi"] == {"before": 0.4, "during": 0.31, "after": 0.39}
    assert (first["name"], first["alarm_at"], first["hours_to_alarm"]) == ("new_items", "2026-03-10T00:00:00Z", 48.0)
    assert (last["alarm_at"], last["hours_to_alarm"], last["kpi"]["after"]) == (None, None, None)
    assert [day["kpi"] for day in facts["days"]] == [0.4] * 7 + [0.31, 0.31, 0.39]
    assert [day["verdict"] for day in facts["days"]].count("broken") == 1
    assert facts["rewards"]["days"][0] == {
        "day": "2026-03-01", "policy": "best_possible", "reward_per_slate": 1.0, "slates": 100,
    }  # fmt: skip
    assert set(facts["rewards"]["regret"]) == set(POLICIES)


def test_a_kpi_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValidationError, match="finite number"):
        Kpi(before=float("nan"), during=0.4, after=None)


@pytest.mark.parametrize(
    ("drill_result", "passed", "text"),
    [
        (drill(BROKEN, scenario()), True, "2 of 2 scenarios went as wanted; 0 false alarms in 50 quiet windows"),
        (drill(BROKEN, UNSEEN), False, "1 of 2 scenarios went as wanted"),
        (drill(BROKEN, false_alarms=1), False, "1 false alarm in 50"),
        (drill(), False, "0 of 0"),  # nothing was shown, so nothing passed
    ],
)
def test_a_drill_passes_only_when_all_scenarios_pass_without_false_alarms(
    drill_result: Drill, passed: bool, text: str
) -> None:
    assert drill_result.passed is passed
    assert text in drill_headline(drill_result)
    page = render_drill(drill_result)
    assert drill_headline(drill_result) in page
    assert ("✓ Passed" in page, "✕ Not passed" in page) == (passed, not passed)


def test_the_page_is_one_file_with_a_table_and_three_plots(tmp_path: Path) -> None:
    write_drill(drill(BROKEN, scenario(), UNSEEN), tmp_path)
    page = (tmp_path / "drill.html").read_text()
    assert not any(forbidden in page for forbidden in ("<script", "src=", "@import", 'href="http'))
    assert page.count("<svg") == 3
    assert problems_of(page) == []
    assert page.count('<th scope="row">') == 3
    page_text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))
    assert (
        "broken column 2026-03-04 ✓ yes 1 day 2026-03-05 duration page no training page 40.0 % 38.0 % 40.0 %"
        in page_text
    )
    assert (
        "✓ yes 2 days 2026-03-10 item_id, creator_id retrain new model promoted retrain 40.0 % 31.0 % 39.0 %"
        in page_text
    )
    assert (
        f"✕ no {NO_NUMBER} nobody noticed {NO_NUMBER} hold no training retrain 39.0 % 20.0 % {NO_NUMBER}" in page_text
    )


def test_the_plot_marks_faults_alarms_decisions_and_promotions() -> None:
    plot = drill_plot(DAYS, (BROKEN, scenario()))
    assert plot is not None
    for mark in (">broken column<", ">new items<", ">!<", ">page<", ">retrain<", ">v1<", ">v2<"):
        assert mark in plot.svg
    quiet = drill_plot(DAYS, (UNSEEN,))
    assert quiet is not None
    assert ">changed tastes<" in quiet.svg
    assert ">!<" not in quiet.svg
    assert drill_plot((), ()) is None


@dataclass(frozen=True)
class _Named:
    name: str
    injected_at: datetime = FIRST
    alarm_at: datetime | None = None
    decision: str = "hold"


def test_names_are_escaped() -> None:
    hostile = '"><script>alert(1)</script>[red]'
    page = render_drill(drill(scenario(columns_named=(hostile,))))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "[red]" in _table_text(drill(scenario(columns_named=(hostile,))), 200)
    plot = drill_plot(DAYS, (_Named(hostile),))
    assert plot is not None
    assert "<script" not in plot.svg


def test_hostile_texts_of_a_drill_are_escaped() -> None:
    page = render_drill(planted(drill(BROKEN, scenario(), UNSEEN), kept={"kind"}))
    assert injected(page, least=3) == []
    assert problems_of(page) == []


def _table_text(drill_result: Drill, width: int) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(drill_table(drill_result))
    return captured.get()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(width: int) -> None:
    table_text = _table_text(drill(BROKEN, scenario(), UNSEEN), width)
    assert max(len(line) for line in table_text.splitlines()) <= width
    assert "…" not in table_text
    for text in (
        "broken column",
        "2026-03-04",
        "duration",
        "promoted",
        "40.0 31.0 39.0",
        f"39.0 20.0 {NO_NUMBER}",
        "yes",
        "no",
    ):
        assert text in table_text


def test_the_table_shows_training_rows_and_clicks_with_and_without_the_training() -> None:
    learnt = scenario(collected_rows_trained_on=12_345, reward_after=1.76543, reward_frozen=1.7)
    for width in (80, 120):
        table_text = _table_text(drill(learnt), width)
        assert max(map(len, table_text.splitlines())) <= width
        for text in ("12,345 live", "1.700 1.765", "named", "learnt from"):
            assert text in table_text
    assert "live" not in _table_text(drill(UNSEEN), 80)


def test_the_time_to_an_alarm_is_in_the_worlds_time() -> None:
    assert time_to_alarm(scenario()) == "2 days"
    assert time_to_alarm(scenario(alarm_at=FIRST + 7 * DAY + timedelta(hours=6))) == "6 hours"
    assert time_to_alarm(UNSEEN) == NO_NUMBER
