"""The users of a drill live through whole days in order, and during a rollout only while the candidate has users."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shortlist.contracts import ShortlistError
from shortlist.deployment.local_deployer import LocalDeployer
from shortlist.drill.users import DrillUsers
from shortlist.drill.world import DrillWorld
from shortlist.rollout.states.phases import Phase
from shortlist.serving.log.log_follower import LogFollower
from shortlist.serving.log.logs import ANSWER_SCHEMA
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.paths import ServingPaths
from shortlist.spec.data import Drift, GeneratedSource
from shortlist.spec.serving import Serving
from shortlist.spec.spec import Spec
from shortlist.tracking.run_context import RunContext
from tests.served_log import append_rows

DAYS = 20


class Users(DrillUsers):
    """Users whose days are only counted, and the rollout that they meet."""

    def __init__(self, folder: Path, first_day: int = 10) -> None:
        self.phase: Phase | None = None
        self.step = 0
        self.played_days: list[int] = []
        self.fails = False
        paths = SimpleNamespace(predictions=folder / "predictions", logs=folder / "logs")
        deployer = SimpleNamespace(rollouts=self, context=SimpleNamespace(serving=Serving()), paths=paths)
        source = GeneratedSource(kind="generated", days=DAYS, users=50, items=20, start=date(2026, 1, 5))
        world = cast(DrillWorld, SimpleNamespace(source=source))
        run = RunContext(name="drill", stores=str(folder))
        super().__init__(cast(LocalDeployer, deployer), run, world, cast(Spec, None), first_day)

    def latest(self) -> Any:
        return self.phase and SimpleNamespace(state=SimpleNamespace(phase=self.phase, step=self.step))

    def play_day(self, number: int) -> None:
        if self.fails:
            raise ShortlistError("the stack is not up")
        self.played_days.append(number)
        self.next_day = number + 1


def log_answers(folder: Path) -> None:
    """Write two answers to users, and one of the load that tests a version."""
    common = {"time": datetime.now(UTC), "version": 1, "status": 200, "scores": [0.5]}
    rows = [{**common, "request_id": f"a-{track}", "track": track} for track in ("stable", None, "canary")]
    append_rows(folder / "predictions", ANSWER_SCHEMA, rows)


def follower(folder: Path) -> LogFollower:
    return LogFollower(ServingLog.on_disk(folder / "predictions", ANSWER_SCHEMA), ["track"])


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_day_is_over_when_all_that_was_answered_is_logged(tmp_path: Path) -> None:
    late = threading.Timer(0.5, log_answers, [tmp_path])
    late.start()
    Users(tmp_path)._wait_for_log(follower(tmp_path), 2)
    assert late.finished.is_set()


def test_answers_that_are_not_logged_end_the_drill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortlist.drill.users._MAX_LOG_SECONDS", 0.3)
    with pytest.raises(ShortlistError, match=r"holds 0 of 2 answers of a day, 0\.3 s after the last one"):
        Users(tmp_path)._wait_for_log(follower(tmp_path), 2)


def test_users_of_a_stack_that_does_not_run_are_an_error(tmp_path: Path) -> None:
    users = Users(tmp_path)
    users._deployer = cast(LocalDeployer, SimpleNamespace(paths=ServingPaths.for_spec(tmp_path, "drill")))
    with pytest.raises(ShortlistError, match="the stack of the drill is not up"):
        DrillUsers.play_day(users, 10)


def test_a_drill_breaks_only_columns_that_its_users_send() -> None:
    drift = Drift(kind="broken_column", from_day=3, until_day=4, column="duration")
    source = GeneratedSource(kind="generated", days=DAYS, drifts=(drift,))
    spec = SimpleNamespace(name="drill", data=SimpleNamespace(source=source))
    with pytest.raises(ShortlistError, match="got 'duration', wanted surface or device"):
        DrillWorld(cast(Any, spec))


def test_a_drill_needs_releases_that_recommend() -> None:
    drift = Drift(kind="changed_tastes", from_day=3)
    source = GeneratedSource(kind="generated", days=DAYS, drifts=(drift,))
    spec = SimpleNamespace(name="drill", retrieval=None, data=SimpleNamespace(source=source))
    with pytest.raises(ShortlistError, match="declares no retrieval; the users of a drill see"):
        DrillWorld(cast(Any, spec))


def test_without_a_rollout_no_further_day_is_played(tmp_path: Path) -> None:
    users = Users(tmp_path)
    for phase in (None, Phase.LOAD_TESTING, Phase.PROMOTED, Phase.ROLLING_BACK):
        users.phase = phase
        with users.during_rollouts():
            time.sleep(0.05)
    assert users.played_days == []


def test_a_rollout_gets_a_day_of_traffic_per_step_until_it_ends(tmp_path: Path) -> None:
    users = Users(tmp_path)
    with users.during_rollouts():
        users.phase = Phase.WATCHING
        until(lambda: len(users.played_days) == 1)
        time.sleep(0.5)
        assert len(users.played_days) == 1  # the step is not over
        users.step = 1
        until(lambda: len(users.played_days) == 2)
        users.phase = Phase.PROMOTING
    assert users.played_days == [10, 11]
    assert users.next_day == 12


def test_a_step_that_needs_more_users_gets_another_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortlist.drill.users._MAX_STEP_SECONDS", 0.1)
    users = Users(tmp_path)
    users.phase = Phase.WATCHING
    with users.during_rollouts():
        until(lambda: len(users.played_days) == 2)
    assert users.played_days[:2] == [10, 11]


def test_no_day_is_played_after_the_last_day(tmp_path: Path) -> None:
    users = Users(tmp_path, DAYS - 1)
    users.phase = Phase.SHIFTING
    with users.during_rollouts():
        until(lambda: users.next_day == DAYS)
        time.sleep(0.05)
    assert users.played_days == [DAYS - 1]


def test_servers_that_do_not_answer_users_end_the_drill(tmp_path: Path) -> None:
    users = Users(tmp_path)
    users.phase, users.fails = Phase.WATCHING, True
    with pytest.raises(ShortlistError, match="the stack is not up"), users.during_rollouts():
        time.sleep(0.05)
