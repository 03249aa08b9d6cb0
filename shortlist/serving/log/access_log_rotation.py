"""Rotation of the access logs that a gateway writes: they are short of a limit, whatever clients send."""

from __future__ import annotations

import http.client
import logging
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from shortlist.serving.processes.sockets import UnixConnection

_log = logging.getLogger(__name__)

MAX_LOG_BYTES: Final = 256 * 2**20
"""Size of an access log (about 800 000 requests) at which it is rotated; one older file is kept."""
_LOOK_SECONDS: Final = 5.0


def rotate_logs(logs: Sequence[tuple[Path, Path]], stop: threading.Event) -> None:
    """Rotate access logs that are long enough, every few seconds until somebody sets `stop`.

    Args:
        logs: Each log, with the socket of the administration interface of the Envoy that writes it.
        stop: Ends the call.
    """
    while not stop.wait(_LOOK_SECONDS):
        for log, socket in logs:
            try:
                rotate(log, socket)
            except (OSError, http.client.HTTPException) as error:  # tried again at the next look
                _log.warning("%s: not rotated: %s", log, error)


def rotate(log: Path, socket: Path, max_bytes: int = MAX_LOG_BYTES) -> bool:
    """Rename a log that is long enough, and let Envoy begin a new one; return whether that was done.

    Raises:
        OSError: Envoy does not answer: it goes on writing the renamed file.
        HTTPException: It answers nonsense.
    """
    if not log.exists() or log.stat().st_size <= max_bytes:
        return False
    log.replace(log.with_name(f"{log.name}.1"))
    with closing(UnixConnection(socket, timeout=5)) as connection:
        connection.request("POST", "/reopen_logs")
        status = connection.getresponse().status
    if status != http.client.OK:
        raise OSError(f"Envoy answers {status} to /reopen_logs")
    return True
