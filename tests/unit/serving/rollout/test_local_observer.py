"""How the canary's servers are, as the judge on this machine asks them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shortlist.rollout.checks.health import Health
from shortlist.rollout.local import observer as watcher
from shortlist.rollout.local.health import ProgramHealth, ReplicaHealth, VersionHealth
from shortlist.rollout.local.observer import LocalObserver, health_of
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.states.phases import RolloutState
from shortlist.serving.paths import ServingPaths
from shortlist.spec.serving import Canary, Serving


class Servers:
    """A stack whose version says one thing after another, the last one for ever."""

    def __init__(self, *answers: VersionHealth) -> None:
        self.answers_left, self.calls = list(answers), 0

    def health(self, version: int) -> VersionHealth:
        assert version == 2
        self.calls += 1
        return self.answers_left.pop(0) if len(self.answers_left) > 1 else self.answers_left[0]


def health_of_version(ready: bool, restarts: int = 0, state: str = "RUNNING") -> VersionHealth:
    common: dict[str, Any] = {"state": state, "pid": 1, "uptime_seconds": 9.0, "ready": ready}
    triton = ProgramHealth(program="triton-v2", restarts=0, **common)
    server = ProgramHealth(program="server-v2", restarts=restarts, **common)
    return VersionHealth(version=2, replicas=(ReplicaHealth(triton=triton, server=server),))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_ASK_AGAIN_SECONDS", 0.01)


def test_servers_that_are_silent_for_a_moment_are_ready() -> None:
    servers: Any = Servers(
        health_of_version(ready=False),
        health_of_version(ready=False),
        health_of_version(ready=False),
        health_of_version(ready=True),
    )
    assert health_of(servers, 2) == Health(ready=True, restarts=0, fatal=(), version=2)
    assert servers.calls == 4


def test_servers_that_stay_silent_are_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_SILENT_SECONDS", 0.2)
    servers: Any = Servers(health_of_version(ready=False))
    assert health_of(servers, 2) == Health(ready=False, restarts=0, fatal=(), version=2)
    assert servers.calls > 1


def test_a_crash_is_told_at_once() -> None:
    servers: Any = Servers(
        health_of_version(ready=False, restarts=3, state="FATAL"), health_of_version(ready=True, restarts=3)
    )
    assert health_of(servers, 2) == Health(ready=False, restarts=3, fatal=("triton-v2", "server-v2"), version=2)
    assert servers.calls == 1


@pytest.mark.parametrize("retirement", ["", "version 1 was retired: it reads dwell"])
def test_a_rollout_is_compared_with_a_version_that_was_not_retired_alone(tmp_path: Path, retirement: str) -> None:
    state = RolloutState(rollout="r", candidate=2, former=1, champion=1, stable=1, steps=(50, 100))
    record = RolloutRecord(
        spec="demo", state=state, kind="xgboost", digest="", policy=Canary(steps=(50, 100)), retirement=retirement
    )
    paths = ServingPaths.for_spec(tmp_path, "demo")
    paths.logs.mkdir(parents=True)
    stack: Any = SimpleNamespace(paths=paths, health=lambda version: health_of_version(ready=True))
    checks = LocalObserver(stack, record, Serving()).observe_step(0, 1.0).checks
    distribution = next(check for check in checks if check.name == "distribution")
    assert (distribution.skipped, distribution.passed) == (bool(retirement), True if retirement else None)
