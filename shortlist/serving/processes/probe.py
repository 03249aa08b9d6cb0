"""Asking a server on this machine whether it is ready."""

from __future__ import annotations

import http.client
from pathlib import Path

from shortlist.serving.processes.ports import HOST
from shortlist.serving.processes.sockets import UnixConnection

READY = "/v2/health/ready"
LIVE = "/v2/health/live"


def answers(at: int | Path, path: str, seconds: float = 1.0) -> bool:
    """Return whether a GET of the path is answered with 200 in time, at a port or through a Unix socket."""
    return said(at, path, seconds) is not None


def said(at: int | Path, path: str, seconds: float = 1.0) -> bytes | None:
    """Return the body of the answer to a GET of the path; None without a 200 in time."""
    plain = http.client.HTTPConnection
    connection = plain(HOST, at, timeout=seconds) if isinstance(at, int) else UnixConnection(at, seconds)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read() if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
