"""Health and metrics on a port and a thread of their own: they are answered however busy the event loop is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple, Self

import orjson

_EVERY_SECONDS: Final = 1.0
"""Between two looks at whether the server is ready."""
_SILENT_SECONDS: Final = 10.0
"""An event loop that did not look for so long answers nobody."""
_PATIENCE_SECONDS: Final = 10.0
"""Longest time for a client to ask."""


class _Seen(NamedTuple):
    """What the last look found."""

    ready: bool
    at: float


class HealthServer:
    """Answers `/v2/health/live`, `/v2/health/ready` and `/metrics`; a context manager.

    Args:
        host: Its address.
        port: Its port.
        problems: Returns what is wrong though requests are answered.
        metrics: Returns everything in Prometheus' text format.
    """

    def __init__(
        self, host: str, port: int, problems: Callable[[], Mapping[str, str]], metrics: Callable[[], bytes]
    ) -> None:
        self._seen = _Seen(False, -_SILENT_SECONDS)
        self._problems = problems
        self._metrics = metrics
        handler = type("Handler", (_Handler,), {"health": self})
        self._server = _Server((host, port), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    def __enter__(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()

    async def keep_looking(self, is_ready: Callable[[], Awaitable[bool]]) -> None:
        """Look again and again whether the server is ready; runs on its event loop."""
        while True:
            self.note(await is_ready())
            await asyncio.sleep(_EVERY_SECONDS)

    def note(self, ready: bool) -> None:
        """Say from now on that the server is ready, or not."""
        self._seen = _Seen(ready, time.monotonic())

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Return status, type and body of an answer."""
        if path == "/metrics":
            return HTTPStatus.OK, "text/plain; version=0.0.4", self._metrics()
        if path == "/v2/health/live":
            return HTTPStatus.OK, "application/json", b"{}"
        if path != "/v2/health/ready":
            return HTTPStatus.NOT_FOUND, "application/json", orjson.dumps({"error": f"{path}: not found"})
        ready, at = self._seen
        problems = dict(self._problems())
        if (silent := time.monotonic() - at) > _SILENT_SECONDS:
            ready = False
            problems["event loop"] = f"silent for {min(silent, 1e6):.0f} s"
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return status, "application/json", orjson.dumps({"ready": ready, "problems": problems})


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    health: HealthServer
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE_SECONDS

    def do_GET(self) -> None:
        """Answer."""
        status, kind, body = self.health.answer(self.path)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write no line per question."""
