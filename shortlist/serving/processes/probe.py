"""HTTP probes of servers on this machine."""

from __future__ import annotations

import http.client
from pathlib import Path

from shortlist.serving.processes.ports import HOST
from shortlist.serving.processes.sockets import UnixConnection


def is_answered(address: int | Path, path: str, seconds: float = 1.0) -> bool:
    """Return whether a GET request, to a port or a Unix socket, is answered with 200 in time."""
    return get_body(address, path, seconds) is not None


def get_body(address: int | Path, path: str, seconds: float = 1.0) -> bytes | None:
    """Return the response body of a GET request; None without a 200 in time."""
    http_connection = http.client.HTTPConnection
    connection = (
        http_connection(HOST, address, timeout=seconds)
        if isinstance(address, int)
        else UnixConnection(address, seconds)
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read() if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
