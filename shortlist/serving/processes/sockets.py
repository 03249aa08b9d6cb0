"""HTTP over Unix sockets, used for the supervisor and Envoy instead of further ports."""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
import tempfile
from pathlib import Path

from shortlist.serving.processes.errors import StackError

_MAX_PATH_LENGTH = 100
"""Longest path of a socket: Linux allows 108 bytes, of which the names below the folder take about 20."""


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection through a Unix socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(self._path))
        except OSError:
            self.sock.close()
            raise


def socket_folder(root: Path) -> Path:
    """Return the folder of a stack's sockets, created if missing, with access for this user only.

    It lies below the system's temporary folder under a short name that follows from `root`: the path of a Unix
    socket is limited to about 100 characters.

    Raises:
        StackError: The path is too long, or another user owns the folder.
    """
    name = hashlib.sha256(str(root).encode()).hexdigest()[:10]
    folder = Path(tempfile.gettempdir()) / f"shortlist-{os.getuid()}-{name}"
    if len(str(folder)) + 20 > _MAX_PATH_LENGTH:
        raise StackError(f"{folder}: too long a path for sockets; set TMPDIR to a shorter one, such as /tmp")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise StackError(f"{folder}: must belong to you and be closed to others; remove it and start again")
    return folder
