"""While a rollout is under way parts of the system die, one after another; users of the stable track do not notice."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest

from shortlist.rollout.phases import Phase
from shortlist.rollout.rollouts import RolloutError

pytestmark = pytest.mark.long

HALF = {"steps": [50, 100], "interval_seconds": 300, "deadline_seconds": 600}


@pytest.fixture(scope="module")
def half_way(stack_up: Any) -> Iterator[Any]:
    """The stack in the middle of a rollout that would stay there for minutes."""
    deployer = stack_up.deployer_with({}, HALF)
    with stack_up.visited():
        rollout = stack_up.begin(stack_up.other, deployer)
        stack_up.reaches(Phase.WATCHING, 50)
        yield stack_up
        if not rollout.done():
            deployer.rollback()
        assert stack_up.end(rollout).state.phase is Phase.ABORTED
        # As Envoy saw it, too; what it saw of those that the kills broke off is in its books.
        requests = stack_up.evidence(stack_up.record()).requests
        assert requests.total > 100
        assert requests.failed_canary == 0
    assert stack_up.record().requests.doubled == 0


def is_still_watched(live: Any) -> bool:
    """Whether the rollout goes on, and the judge looks."""
    record = live.record()
    return record.state.phase is Phase.WATCHING and not live.problems()


def test_a_second_rollout_is_refused_while_one_runs(half_way: Any) -> None:
    with pytest.raises(RolloutError, match=r"rollout .* is under way \(watching, 50 % of the users\)"):
        half_way.deployer.canary(half_way.world.versions["swapped"])
    assert is_still_watched(half_way)


@pytest.mark.parametrize("name", ["envoy-a", "envoy-b"])
def test_an_envoy_that_is_killed_loses_nothing_but_what_it_had_in_hand(half_way: Any, name: str) -> None:
    half_way.comes_back(name, half_way.kill(name))
    assert half_way.failed_stable() == []
    assert is_still_watched(half_way)


def test_users_wait_while_the_champions_triton_is_killed_and_comes_back(half_way: Any) -> None:
    program = f"triton-v{half_way.champion}"
    half_way.comes_back(program, half_way.kill(program))
    assert half_way.failed_stable() == []
    assert is_still_watched(half_way)


def test_the_process_in_which_the_champions_triton_runs_its_model_may_be_killed(half_way: Any) -> None:
    program = f"triton-v{half_way.champion}"
    before = half_way.pid(program)
    half_way.kill_process(half_way.backend_of(half_way.champion), program)
    half_way.comes_back(program, before)
    assert half_way.failed_stable() == []
    assert is_still_watched(half_way)


def test_a_killed_server_of_the_champion_loses_nothing_but_what_it_had_in_hand(half_way: Any) -> None:
    program = f"server-v{half_way.champion}"
    half_way.comes_back(program, half_way.kill(program))
    assert half_way.failed_stable() == []
    assert is_still_watched(half_way)


def test_without_the_online_store_answers_are_made_without_users_features_until_it_is_back(half_way: Any) -> None:
    store, away = half_way.world.store / "online.db", half_way.world.store / "away.db"
    shutil.move(store, away)
    try:
        half_way.until(lambda: len(half_way.problems()) == 2, "both servers complain")
        assert all("answers, but users: " in one and "online.db" in one for one in half_way.problems())
    finally:
        shutil.move(away, store)
    half_way.until(lambda: half_way.problems() == [], "users' features are read again")
    moment = time.time()
    half_way.until(lambda: newest(half_way) > moment + 0.5, "answers are logged")
    rows = half_way.predictions("time", "track", "degraded").with_columns(pl.col("time").dt.timestamp("us") / 1e6)
    assert rows.filter("degraded").group_by("track").len().height == 2
    assert not rows.filter(pl.col("time") > moment)["degraded"].any()
    assert half_way.failed_stable() == []


def test_a_rollback_from_another_process_ends_the_rollout_at_once(half_way: Any) -> None:
    before = half_way.champion
    command = half_way.command("rollback")
    said, error = command.communicate(timeout=180)
    assert (command.returncode, error) == (0, "")
    assert "Aborted" in said and "rolled back by hand" in said
    route = half_way.stack.record.route
    assert (route.stable, route.percent, half_way.record().state.phase) == (before, 0, Phase.ABORTED)


def waits_for(live: Any, check: str) -> bool:
    """Whether the judge, at its last look, missed something."""
    last = live.record().steps[-1].last
    return any(one.name == check and one.passed is None for one in last.checks)


def newest(live: Any) -> float:
    """Return the moment of the newest logged answer."""
    return float(live.predictions("time")["time"].dt.timestamp("us").max()) / 1e6
