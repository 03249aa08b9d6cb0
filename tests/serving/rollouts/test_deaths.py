"""While a rollout is under way parts of the system die, one after another; users of the stable track do not notice."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import Any

import polars as pl
import psutil
import pytest

from shortlist.rollout.local.stack import Stack
from shortlist.rollout.rollouts import RolloutError
from shortlist.rollout.states.phases import Phase

pytestmark = pytest.mark.long

HALF = {
    "steps": [50, 100], "interval_seconds": 300, "deadline_seconds": 600,
    # What dies here makes answers late, and so does a busy machine.
    "guardrails": {"latency_floor_ms": 60_000, "max_p99_ms": 60_000},
}  # fmt: skip


@pytest.fixture(scope="module")
def halfway(stack_up: Any) -> Iterator[Any]:
    """The stack in the middle of a rollout that would stay there for minutes."""
    deployer = stack_up.deployer_with({}, HALF)
    with stack_up.visited():
        rollout = stack_up.begin(stack_up.other_version, deployer)
        stack_up.reaches(Phase.WATCHING, 50)
        yield stack_up
        if not rollout.done():
            deployer.rollback()
        assert stack_up.end(rollout).state.phase is Phase.ABORTED
        # As Envoy saw it, too; what it saw of those that the kills broke off is in its books.
        requests = stack_up.evidence(stack_up.record()).requests
        assert requests.total > 100
        assert requests.canary.failed == 0
    assert stack_up.record().requests.doubled == 0


def is_still_watched(live: Any) -> bool:
    """Whether the rollout goes on, and the judge looks."""
    record = live.record()
    return record.state.phase is Phase.WATCHING and not live.problems()


def test_a_second_rollout_is_refused_while_one_runs(halfway: Any) -> None:
    with pytest.raises(RolloutError, match=r"rollout .* is under way \(watching, 50 % of the users\)"):
        halfway.deployer.canary(halfway.world.versions["swapped"])
    assert is_still_watched(halfway)


@pytest.mark.parametrize("name", ["envoy-a", "envoy-b"])
def test_an_envoy_that_is_killed_loses_nothing_but_what_it_had_in_hand(halfway: Any, name: str) -> None:
    halfway.comes_back(name, halfway.kill(name))
    assert halfway.failed_stable() == []
    assert is_still_watched(halfway)


def test_users_wait_while_the_champions_triton_is_killed_and_comes_back(halfway: Any) -> None:
    program = f"triton-v{halfway.champion}"
    halfway.comes_back(program, halfway.kill(program))
    assert halfway.failed_stable() == []
    assert is_still_watched(halfway)


def test_the_process_in_which_the_champions_triton_runs_its_model_may_be_killed(halfway: Any) -> None:
    program = f"triton-v{halfway.champion}"
    pid_before = halfway.pid(program)
    halfway.kill_process(halfway.backend_of(halfway.champion), program)
    halfway.comes_back(program, pid_before)
    assert halfway.failed_stable() == []
    assert is_still_watched(halfway)


def test_a_killed_server_of_the_champion_loses_nothing_but_what_it_had_in_hand(halfway: Any) -> None:
    program = f"server-v{halfway.champion}"
    halfway.comes_back(program, halfway.kill(program))
    assert halfway.failed_stable() == []
    assert is_still_watched(halfway)


def test_a_killed_supervisor_is_started_again_and_the_candidate_is_not_blamed(halfway: Any) -> None:
    assert is_still_watched(halfway)  # its controller is who notices
    former_pid = int((halfway.paths.programs / "supervisord.pid").read_text())
    psutil.Process(former_pid).kill()
    halfway.until(lambda: Stack.connect(halfway.paths) is not None, "nobody starts the supervisor")
    halfway.until(lambda: halfway.problems() == [], "the stack is not well again")
    assert int((halfway.paths.programs / "supervisord.pid").read_text()) != former_pid
    assert halfway.failed_stable() == []
    assert is_still_watched(halfway)


def test_without_the_online_store_answers_are_made_without_users_features_until_it_is_back(halfway: Any) -> None:
    store, away = halfway.world.store / "online.db", halfway.world.store / "away.db"
    shutil.move(store, away)
    try:
        halfway.until(lambda: len(halfway.problems()) == 2, "both servers complain")
        assert all("answers, but users: " in problem and "online.db" in problem for problem in halfway.problems())
    finally:
        shutil.move(away, store)
    halfway.until(lambda: halfway.problems() == [], "users' features are read again")
    moment = time.time()
    halfway.until(lambda: newest(halfway) > moment + 0.5, "answers are logged")
    rows = halfway.predictions("time", "track", "degraded").with_columns(pl.col("time").dt.timestamp("us") / 1e6)
    assert rows.filter("degraded").group_by("track").len().height == 2
    assert not rows.filter(pl.col("time") > moment)["degraded"].any()
    assert halfway.failed_stable() == []


def test_a_rollback_from_another_process_ends_the_rollout_at_once(halfway: Any) -> None:
    former = halfway.champion
    command = halfway.command("rollback")
    output, error = command.communicate(timeout=180)
    assert (command.returncode, error) == (0, "")
    assert "Aborted" in output and "rolled back by hand" in output
    route = halfway.stack.record.route
    assert (route.stable, route.percent, halfway.record().state.phase) == (former, 0, Phase.ABORTED)


def waits_for(live: Any, check: str) -> bool:
    """Whether the judge, at its last look, missed something."""
    last = live.record().steps[-1].last
    return any(check_result.name == check and check_result.passed is None for check_result in last.checks)


def newest(live: Any) -> float:
    """Return the moment of the newest logged answer."""
    return float(live.predictions("time")["time"].dt.timestamp("us").max()) / 1e6
