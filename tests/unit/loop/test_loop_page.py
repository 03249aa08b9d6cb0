"""The JSON, the page and the terminal table of a loop show the same rewards; regret is what was missed."""

from __future__ import annotations

import json
import re
from datetime import date, timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console

from shortlist.loop.loop_page import loop_headline, loop_table, render_loop, write_loop
from shortlist.loop.loop_record import Loop
from shortlist.loop.policies import POLICIES
from shortlist.loop.policy_rewards import LoopEvent, PolicyDay
from tests.page_rules import injected, planted, problems_of

FIRST = date(2026, 1, 13)
REWARDS = {"best_possible": 3.0, "loop": 2.5, "frozen": 2.0, "popularity": 1.5, "chance": 1.0}
DAYS = tuple(
    PolicyDay(day=FIRST + timedelta(days=number), policy=policy, reward_per_slate=REWARDS[policy], slates=100)
    for number in range(10)
    for policy in POLICIES
)
EVENTS = (
    LoopEvent(day=FIRST + timedelta(days=2), kind="changed_tastes"),
    LoopEvent(day=FIRST + timedelta(days=3), kind="refreshed"),
    LoopEvent(day=FIRST + timedelta(days=3), kind="promoted", version=2),
)
LOOP = Loop(spec="loop", days=DAYS, exploration_cost=0.0123, events=EVENTS, requests_per_second=612.0)


def test_regret_is_what_was_missed_against_the_best_possible() -> None:
    assert LOOP.regret == {
        "best_possible": 0.0, "loop": 500.0, "frozen": 1_000.0, "popularity": 1_500.0, "chance": 2_000.0
    }  # fmt: skip
    assert LOOP.cumulated_regret("loop")[:3] == [50.0, 100.0, 150.0]
    assert LOOP.share_of_possible == pytest.approx(0.75)


def test_the_json_file_has_the_documented_keys(tmp_path: Path) -> None:
    write_loop(LOOP, tmp_path / "run")
    facts = json.loads((tmp_path / "run" / "loop.json").read_text())
    assert facts["days"][1] == {"day": "2026-01-13", "policy": "loop", "reward_per_slate": 2.5, "slates": 100}
    assert len(facts["days"]) == 50
    assert facts["regret"] == LOOP.regret
    assert (facts["exploration_cost"], facts["requests_per_second"]) == (0.0123, 612.0)


def test_a_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValidationError, match="finite number"):
        PolicyDay(day=FIRST, policy="loop", reward_per_slate=float("nan"), slates=1)


def test_the_page_is_one_file_with_two_plots(tmp_path: Path) -> None:
    write_loop(LOOP, tmp_path)
    page = (tmp_path / "loop.html").read_text()
    assert not any(forbidden in page for forbidden in ("<script", "src=", "@import", 'href="http'))
    assert page.count("<svg") == 2
    assert problems_of(page) == []
    for mark in (">changed tastes<", ">2<", ">popularity<", ">best possible<"):
        assert mark in page
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))
    assert loop_headline(LOOP) in text
    assert "After 10 days the loop earns 2.50 clicks per slate, 75% of the way from chance to the best possible" in text
    assert "first release, frozen 2.000 1,000" in text
    assert "2026-01-16 promoted: version 2" in text


def test_hostile_texts_of_a_loop_are_escaped() -> None:
    page = render_loop(planted(LOOP, kept={"kind", "policy"}))
    assert injected(page) == []
    assert problems_of(page) == []


def test_the_table_fits_a_terminal() -> None:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(loop_table(LOOP))
    table = captured.get()
    assert max(map(len, table.splitlines())) <= 80
    assert "exploration cost 1.2%" in re.sub(r"\s+", " ", table) and "2.500" in table
