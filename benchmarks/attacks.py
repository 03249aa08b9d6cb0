"""A hostile client: what it sends to a stack, and how often."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from shortlist.contracts import Columns
from shortlist.serving.server.requests.headers import REQUEST_ID_HEADER, TRACK_HEADER, USER_HEADER, recommend_model
from shortlist.serving.server.requests.paths import EVENTS, inference_path
from shortlist.serving.traffic.client import Endpoint

REQUEST_IDS = "hostile-"
"""First characters of the ids of all its requests."""
_ROWS = 20
Input = dict[str, Any]
"""An input of a request in JSON."""


def as_input(name: str, values: Sequence[int | float | str]) -> Input:
    """Return an input with values of one type."""
    datatype = {int: "INT64", float: "FP64", str: "BYTES"}[type(values[0])]
    return {"name": name, "datatype": datatype, "shape": [len(values)], "data": list(values)}


class Attacker:
    """Invents users and sends their requests, without the backend's token.

    Args:
        endpoint: The stack's. Its token is used by `users_of` alone.
        items: Items that it asks for.
        label: Column of what users do with items.
        further_inputs: Returns the other inputs of a request of a user with so many rows; None: there are none.
    """

    def __init__(
        self, endpoint: Endpoint, items: Sequence[int] = (1, 2), label: str = "",
        further_inputs: Callable[[str, int], list[Input]] | None = None,
    ) -> None:  # fmt: skip
        self._endpoint, self._items, self._label, self._further_inputs = endpoint, items, label, further_inputs
        self._path = inference_path(endpoint.model)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.sent = 0
        """Number of things done so far."""

    def users_of(self, track: str, count: int) -> list[str]:
        """Return invented users of a track; only the backend is told it, so that this asks with its token.

        Events are split by the user too, and are no evidence.
        """
        bearer, users = f"Bearer {self._endpoint.token}", []
        for number in range(100 * count):
            headers = self._post(f"invented-{number}", b"{}", EVENTS, authorization=bearer)
            if headers[TRACK_HEADER] == track:
                users.append(f"invented-{number}")
            if len(users) == count:
                return users
        raise AssertionError(f"no users of the track {track}")

    def wrong_request(self, user: str) -> None:
        """Send a request that any version refuses."""
        assert TRACK_HEADER not in self._post(user, b"no request")

    def empty_slate(self, user: str) -> None:
        """Ask for a slate as of 1970."""
        document = {"inputs": [as_input(Columns.TIME, [0])]}
        self._post(user, json.dumps(document).encode(), inference_path(recommend_model(self._endpoint.model)))

    def aborted_request(self, user: str) -> None:
        """Go away before the answer."""
        body = self._body(user, [*self._items[:2]])
        head = f"POST {self._path} HTTP/1.1\r\nhost: here\r\n{USER_HEADER}: {user}\r\n"
        head += f"{REQUEST_ID_HEADER}: {REQUEST_IDS}{next(self._numbers)}\r\n"
        with socket.create_connection((self._endpoint.host, self._endpoint.port), timeout=10) as client:
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    def same_items(self, user: str) -> None:
        """Ask for the scores of one item, many times: all of them are the same."""
        self._post(user, self._body(user, [self._items[0]] * 50))

    def long_header(self, user: str) -> None:
        """Send a header that no log has room for."""
        self._post(user, self._body(user, [*self._items[:2]]), **{"x-anything": "a" * 50_000})

    def false_outcomes(self, user: str) -> None:
        """Claim that the user likes every item of a request."""
        request = f"{REQUEST_IDS}{next(self._numbers)}"
        items = [self._items[(next(self._numbers) + place) % len(self._items)] for place in range(_ROWS)]
        self._post(user, self._body(user, items), **{REQUEST_ID_HEADER: request})
        events = [
            {"event_id": f"{request}-{place}", "request_id": request, "item": item, "index": place,
             "outcome": {self._label: 1}}
            for place, item in enumerate(items)
        ]  # fmt: skip
        self._post(user, json.dumps({"events": events}).encode(), EVENTS)

    @contextmanager
    def attack(
        self, users: Sequence[str], *deeds: Callable[[str], None], rate: float = 20.0, threads: int = 1
    ) -> Iterator[None]:
        """Do all deeds for all users, again and again, while the block runs.

        Args:
            users: Their names.
            deeds: Methods of this class.
            rate: Most deeds a second; by default few, as a busy machine is slow by itself.
            threads: That do them; each waits for its answers.
        """
        stop = threading.Event()
        gap_seconds = threads / rate

        def run(first: int) -> None:
            due = time.monotonic() + gap_seconds * first / threads
            pairs = itertools.islice(itertools.cycle(itertools.product(users, deeds)), first, None, threads)
            while not stop.wait(max(0.0, due - time.monotonic())):
                user, deed = next(pairs)
                with suppress(OSError, http.client.HTTPException):  # it was refused at the door
                    deed(user)
                with self._lock:
                    self.sent += 1
                due = max(due + gap_seconds, time.monotonic())

        workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        try:
            yield
        finally:
            stop.set()
            for worker in workers:
                worker.join(60)

    def _body(self, user: str, items: Sequence[int]) -> bytes:
        inputs = [] if self._further_inputs is None else self._further_inputs(user, len(items))
        return json.dumps({"inputs": [as_input("item_id", items), *inputs]}).encode()

    def _post(self, user: str, body: bytes, path: str = "", **headers: str) -> dict[str, str]:
        connection = http.client.HTTPConnection(self._endpoint.host, self._endpoint.port, timeout=30)
        all_headers = {USER_HEADER: user, REQUEST_ID_HEADER: f"{REQUEST_IDS}{next(self._numbers)}", **headers}
        try:
            connection.request("POST", path or self._path, body, all_headers)
            answer = connection.getresponse()
            answer.read()
            return {name.lower(): value for name, value in answer.getheaders()}
        finally:
            connection.close()
