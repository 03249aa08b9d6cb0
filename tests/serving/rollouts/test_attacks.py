"""A client without the backend's token sends what it likes to users of one track, whom it knows; it decides nothing."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shortlist.rollout.states.phases import Phase
from shortlist.serving.server.requests.paths import EVENTS, inference_path

pytestmark = pytest.mark.long


class Attacker:
    """Invents users and sends their requests, at most twenty each second: a busy machine is slow by itself."""

    def __init__(self, live: Any) -> None:
        self._live, self._port, self._path = live, live.stack.port, inference_path(live.world.spec.name)
        self._items = {"name": "item_id", "datatype": "INT64", "shape": [2], "data": [1, 2]}
        self.sent = 0

    def users_of(self, track: str, count: int) -> list[str]:
        """Return invented users of a track; only the backend is told it, so that this asks with its token.

        Events are split by the user too, and are no evidence.
        """
        bearer, users = f"Bearer {self._live.stack.backend_endpoint().token}", []
        for number in range(100 * count):
            headers = self._post(f"invented-{number}", b"{}", EVENTS, authorization=bearer)
            if headers["x-shortlist-track"] == track:
                users.append(f"invented-{number}")
            if len(users) == count:
                return users
        raise AssertionError(f"no users of the track {track}")

    def wrong_request(self, user: str) -> None:
        """Send a request that any version refuses."""
        assert "x-shortlist-track" not in self._post(user, b"no request")

    def empty_slate(self, user: str) -> None:
        """Ask for a slate as of 1970."""
        document = {"inputs": [{"name": "event_time", "datatype": "INT64", "shape": [1], "data": [0]}]}
        self._post(user, json.dumps(document).encode(), path=inference_path(f"{self._live.world.spec.name}.recommend"))

    def aborted_request(self, user: str) -> None:
        """Go away before the answer."""
        body = json.dumps({"inputs": [self._items]}).encode()
        head = f"POST {self._path} HTTP/1.1\r\nhost: here\r\nx-shortlist-user: {user}\r\n"
        with socket.create_connection(("127.0.0.1", self._port), timeout=10) as client:
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    def same_items(self, user: str) -> None:
        """Ask for the scores of one item, many times: all of them are the same."""
        items = self._items | {"shape": [50], "data": [1] * 50}
        self._post(user, json.dumps({"inputs": [items]}).encode())

    @contextmanager
    def attack(self, users: list[str], *deeds: Callable[[str], None]) -> Iterator[None]:
        """Do all deeds for all users, again and again, while the block runs."""
        stop = threading.Event()

        def run() -> None:
            while not stop.is_set():
                for user in users:
                    for deed in deeds:
                        deed(user)
                        self.sent += 1
                        time.sleep(0.05)
                    if stop.is_set():
                        return

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)

    def _post(self, user: str, body: bytes, path: str = "", **headers: str) -> dict[str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("POST", path or self._path, body, {"x-shortlist-user": user, **headers})
            answer = connection.getresponse()
            answer.read()
            return {name.lower(): value for name, value in answer.getheaders()}
        finally:
            connection.close()


def test_invented_users_of_the_canary_do_not_send_a_good_candidate_back(live: Any) -> None:
    attacker = Attacker(live)
    # Latencies of a busy machine are not looked at.
    limits = {"latency_floor_ms": 60_000, "max_p99_ms": 60_000}
    policy = {"steps": [50, 100], "interval_seconds": 15, "guardrails": limits}
    deployer = live.deployer_with({"traffic": {"kind": "replay", "rate": 30, "days": 2}}, policy)
    rollout = live.begin(live.other_version, deployer)
    live.reaches(Phase.WATCHING, 50)
    users = attacker.users_of("canary", 10)
    deeds = attacker.wrong_request, attacker.empty_slate, attacker.aborted_request, attacker.same_items
    with attacker.attack(users, *deeds):
        record = live.end(rollout)
    assert record.state.phase is Phase.PROMOTED, record.state.reason
    canary = live.evidence(record).requests.canary
    assert attacker.sent > 100 and canary.left_out > 50
    assert canary.client_errors > 20


def test_bad_requests_of_the_stable_track_do_not_excuse_a_bad_candidate(live: Any) -> None:
    attacker = Attacker(live)
    with attacker.attack([f"invented-{number}" for number in range(40)], attacker.same_items):  # nine of ten are stable
        record = live.roll_out(live.world.versions["all_the_same"])
    live.rolled_back(record, "at (10|50) %: constant scores")
