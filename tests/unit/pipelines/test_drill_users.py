"""The users of a drill send whole days in order, and during a rollout only while the candidate has users."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shortlist.contracts import ShortlistError
from shortlist.deployment.local_deployer import LocalDeployer
from shortlist.drill.users import DrillUsers
from shortlist.drill.world import DrillWorld
from shortlist.rollout.states.phases import Phase
from shortlist.serving.log.logs import ANSWER_SCHEMA
from shortlist.spec.serving import ReplayTraffic, Serving
from tests.served_log import append_rows

DAYS = 20


class Stack:
    """Rollouts in a phase, and who asked for what."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logged = True
        self.phase: Phase | None = None
        self.step = 0
        self.played_days: list[str] = []
        self.fails = False

    def latest(self) -> Any:
        return self.phase and SimpleNamespace(state=SimpleNamespace(phase=self.phase, step=self.step))

    def play(self, log: Path, traffic: ReplayTraffic) -> dict[str, int]:
        if self.fails:
            raise ShortlistError("the stack is not up")
        self.played_days.append(log.name)
        if self.logged:
            self.log(log.name)
        return {"answered": 2}

    def log(self, name: str) -> None:
        """Write two answers, and one of the load that tests a version."""
        common = {"time": datetime.now(UTC), "version": 1, "status": 200, "scores": [0.5]}
        rows = [{**common, "request_id": f"{name}-{track}", "track": track} for track in ("stable", None, "canary")]
        append_rows(self.folder / "predictions", ANSWER_SCHEMA, rows)

    def users(self, first_day: int = 10) -> DrillUsers:
        context = SimpleNamespace(serving=Serving())
        paths = SimpleNamespace(predictions=self.folder / "predictions", logs=self.folder / "logs")
        deployer = SimpleNamespace(rollouts=self, play=self.play, context=context, paths=paths)
        world = SimpleNamespace(source=SimpleNamespace(days=DAYS), write_day_log=lambda number: Path(str(number)))
        return DrillUsers(cast(LocalDeployer, deployer), cast(DrillWorld, world), first_day)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_day_is_asked_for_once(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    users = stack.users()
    users.play_day(10)
    assert (stack.played_days, users.next_day) == (["10"], 11)


def test_a_day_is_over_when_all_that_was_answered_is_logged(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    stack.logged = False
    users = stack.users()
    late = threading.Timer(0.5, stack.log, ["10"])
    late.start()
    users.play_day(10)
    assert late.finished.is_set()


def test_answers_that_are_not_logged_end_the_drill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortlist.drill.users._MAX_LOG_SECONDS", 0.3)
    stack = Stack(tmp_path)
    stack.logged = False
    with pytest.raises(ShortlistError, match=r"holds 0 of 2 answers of a day, 0\.3 s after the last one"):
        stack.users().play_day(10)


def test_without_a_rollout_no_further_day_is_played(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    for phase in (None, Phase.LOAD_TESTING, Phase.PROMOTED, Phase.ROLLING_BACK):
        stack.phase = phase
        with stack.users().during_rollouts():
            time.sleep(0.05)
    assert stack.played_days == []


def test_a_rollout_gets_a_day_of_traffic_per_step_until_it_ends(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    users = stack.users()
    with users.during_rollouts():
        stack.phase = Phase.WATCHING
        until(lambda: len(stack.played_days) == 1)
        time.sleep(0.5)
        assert len(stack.played_days) == 1  # the step is not over
        stack.step = 1
        until(lambda: len(stack.played_days) == 2)
        stack.phase = Phase.PROMOTING
    assert stack.played_days == ["10", "11"]
    assert users.next_day == 12


def test_a_step_that_needs_more_users_gets_another_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortlist.drill.users._MAX_STEP_SECONDS", 0.1)
    stack = Stack(tmp_path)
    stack.phase = Phase.WATCHING
    with stack.users().during_rollouts():
        until(lambda: len(stack.played_days) == 2)
    assert stack.played_days[:2] == ["10", "11"]


def test_no_day_is_played_after_the_last_day(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    users = stack.users(DAYS - 1)
    stack.phase = Phase.SHIFTING
    with users.during_rollouts():
        until(lambda: users.next_day == DAYS)
        time.sleep(0.05)
    assert stack.played_days == [str(DAYS - 1)]


def test_servers_that_do_not_answer_users_end_the_drill(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    stack.phase, stack.fails = Phase.WATCHING, True
    with pytest.raises(ShortlistError, match="the stack is not up"), stack.users().during_rollouts():
        time.sleep(0.05)
