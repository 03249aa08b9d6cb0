"""Asking a server on this machine whether it is ready."""

from __future__ import annotations

import http.client

from shortlist.serving.stack.ports import HOST


def answers(port: int, path: str, seconds: float = 1.0) -> bool:
    """Return whether a GET of the path is answered with 200 in time."""
    return said(port, path, seconds) is not None


def said(port: int, path: str, seconds: float = 1.0) -> bytes | None:
    """Return the body of the answer to a GET of the path; None without a 200 in time."""
    connection = http.client.HTTPConnection(HOST, port, timeout=seconds)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read() if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
