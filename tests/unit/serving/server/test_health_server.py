"""Health and metrics are served while the event loop is blocked."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from shortlist.serving.server.runtime import health_server
from shortlist.serving.server.runtime.health_server import HealthServer


@pytest.fixture
def health() -> Iterator[HealthServer]:
    with HealthServer("127.0.0.1", 0, lambda: {"log": "a full disk"}, lambda: b"requests 7\n") as server:
        yield server


def get(health: HealthServer, path: str) -> tuple[int, bytes]:
    address = f"http://127.0.0.1:{health._server.server_address[1]}{path}"
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_response_has_the_last_readiness_and_the_problems(health: HealthServer) -> None:
    assert get(health, "/v2/health/ready")[0] == 503
    health.set_ready(True)
    status, body = get(health, "/v2/health/ready")
    assert (status, json.loads(body)) == (200, {"ready": True, "problems": {"log": "a full disk"}})
    health.set_ready(False)
    assert get(health, "/v2/health/ready")[0] == 503
    assert get(health, "/v2/health/live")[0] == 200
    assert get(health, "/metrics") == (200, b"requests 7\n")
    assert get(health, "/v2/models/shop/infer")[0] == 404


def test_while_the_event_loop_is_busy_metrics_are_answered_and_after_a_while_it_is_not_ready(
    health: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_server, "_MAX_SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(health_server, "_POLL_SECONDS", 0.01)

    async def is_ready() -> bool:
        return True

    async def run() -> None:
        looking = asyncio.create_task(health.poll_readiness(is_ready))
        while (await asyncio.to_thread(get, health, "/v2/health/ready"))[0] != 200:
            await asyncio.sleep(0.01)
        time.sleep(0.6)
        status, body = get(health, "/v2/health/ready")  # neither does it here
        assert (status, "silent for" in json.loads(body)["problems"]["event loop"]) == (503, True)
        assert get(health, "/metrics")[0] == 200
        looking.cancel()

    asyncio.run(run())
