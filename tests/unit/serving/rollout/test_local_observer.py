"""How the canary's servers are, as the judge on this machine asks them."""

from __future__ import annotations

from typing import Any

import pytest

from shortlist.rollout.checks import Health
from shortlist.rollout.local import observer as watcher
from shortlist.rollout.local.health import ProgramHealth, ReplicaHealth, VersionHealth
from shortlist.rollout.local.observer import health_of


class Servers:
    """A stack whose version says one thing after another, the last one for ever."""

    def __init__(self, *said: VersionHealth) -> None:
        self.left, self.asked = list(said), 0

    def health(self, version: int) -> VersionHealth:
        assert version == 2
        self.asked += 1
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


def said(ready: bool, restarts: int = 0, state: str = "RUNNING") -> VersionHealth:
    common: dict[str, Any] = {"state": state, "pid": 1, "uptime_seconds": 9.0, "ready": ready}
    triton = ProgramHealth(program="triton-v2", restarts=0, **common)
    server = ProgramHealth(program="server-v2", restarts=restarts, **common)
    return VersionHealth(version=2, replicas=(ReplicaHealth(triton=triton, server=server),))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_ASK_AGAIN_SECONDS", 0.01)


def test_servers_that_are_silent_for_a_moment_are_ready() -> None:
    servers: Any = Servers(said(ready=False), said(ready=False), said(ready=False), said(ready=True))
    assert health_of(servers, 2) == Health(ready=True, restarts=0, fatal=())
    assert servers.asked == 4


def test_servers_that_stay_silent_are_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_SILENT_SECONDS", 0.2)
    servers: Any = Servers(said(ready=False))
    assert health_of(servers, 2) == Health(ready=False, restarts=0, fatal=())
    assert servers.asked > 1


def test_a_crash_is_told_at_once() -> None:
    servers: Any = Servers(said(ready=False, restarts=3, state="FATAL"), said(ready=True, restarts=3))
    assert health_of(servers, 2) == Health(ready=False, restarts=3, fatal=("triton-v2", "server-v2"))
    assert servers.asked == 1
