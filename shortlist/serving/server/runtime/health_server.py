"""Health and metrics on their own port and thread, so that they are served however busy the event loop is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple, Self

import orjson

from shortlist.serving.server.requests.paths import LIVE, READY

_POLL_SECONDS: Final = 1.0
"""Time between two readiness checks."""
_MAX_SILENCE_SECONDS: Final = 10.0
"""An event loop without a readiness check for this long counts as blocked."""
_CLIENT_TIMEOUT_SECONDS: Final = 10.0
"""Longest time for a client to send its request."""


class _Readiness(NamedTuple):
    """Outcome of the last readiness check, and its time (`time.monotonic`)."""

    ready: bool
    checked_at: float


class HealthServer:
    """Serves `/v2/health/live`, `/v2/health/ready` and `/metrics`; a context manager.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        problems: Returns the reason per degraded part of the server.
        metrics: Returns all metrics in Prometheus' text format.
    """

    def __init__(
        self, host: str, port: int, problems: Callable[[], Mapping[str, str]], metrics: Callable[[], bytes]
    ) -> None:
        self._readiness = _Readiness(False, -_MAX_SILENCE_SECONDS)
        self._problems = problems
        self._metrics = metrics
        handler = type("Handler", (_Handler,), {"health": self})
        self._server = _Server((host, port), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    def __enter__(self) -> Self:
        """Start serving."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    async def poll_readiness(self, is_ready: Callable[[], Awaitable[bool]]) -> None:
        """Check the server's readiness repeatedly; runs on its event loop."""
        while True:
            self.set_ready(await is_ready())
            await asyncio.sleep(_POLL_SECONDS)

    def set_ready(self, ready: bool) -> None:
        """Store whether the server is ready."""
        self._readiness = _Readiness(ready, time.monotonic())

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Return status, content type and body of a response."""
        if path == "/metrics":
            return HTTPStatus.OK, "text/plain; version=0.0.4", self._metrics()
        if path == LIVE:
            return HTTPStatus.OK, "application/json", b'{"live": true}'
        if path != READY:
            return HTTPStatus.NOT_FOUND, "application/json", orjson.dumps({"error": f"{path}: not found"})
        ready, checked_at = self._readiness
        problems = dict(self._problems())
        if (silence_seconds := time.monotonic() - checked_at) > _MAX_SILENCE_SECONDS:
            ready = False
            problems["event loop"] = f"silent for {min(silence_seconds, 1e6):.0f} s"
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return status, "application/json", orjson.dumps({"ready": ready, "problems": problems})


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    health: HealthServer
    protocol_version = "HTTP/1.1"
    timeout = _CLIENT_TIMEOUT_SECONDS

    def do_GET(self) -> None:
        """Serve a GET request."""
        status, kind, body = self.health.answer(self.path)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Do not log requests."""
