"""Program that kfp.local starts for a step: it asks the run's step server for a process and waits for its end.

It runs without site-packages (`python -I -S`), which takes some hundredths of a second. Where no server answers, or the
server declines, it replaces itself by the command in its arguments.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys

SOCKET_VARIABLE = "SHORTLIST_STEP_SERVER"
"""Environment variable with the path of the server's socket."""
CLIENT_VARIABLE = "SHORTLIST_STEP_CLIENT"
"""Environment variable with the path of this file."""
NUMBER = struct.Struct("!q")
"""Encoding of lengths, process ids and statuses."""
DECLINED = 0
"""Answer of the server in place of a process id: the client starts the step itself."""


def main() -> None:
    """Run `python -I -S -c CODE_OF_THIS_FILE -m MODULE ARGUMENTS...`; end with the step's exit code or signal."""
    command = sys.argv[1:]
    status = _run(command[1:]) if command[0] == "-m" else None
    if status is None:
        os.execv(sys.executable, [sys.executable, *command])  # noqa: S606 - our own interpreter
    code = os.waitstatus_to_exitcode(status)
    if code < 0:  # the signal that ended the step ends this process, too, so that kfp.local sees the same status
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _run(arguments: list[str]) -> int | None:
    """Return the wait status of the step; None when no server started it."""
    pid = DECLINED
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(os.environ[SOCKET_VARIABLE])
            request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109 - pathlib takes long to import
            text = json.dumps(request).encode()
            socket.send_fds(server, [NUMBER.pack(len(text))], [0, 1, 2])
            server.sendall(text)
            pid = receive_number(server)
            return None if pid == DECLINED else receive_number(server)
        except (KeyError, OSError):
            if pid == DECLINED:
                return None
    sys.stderr.write(f"The process that starts the steps of this run has ended; step process {pid} is stopped.\n")
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        os.kill(pid, signal.SIGKILL)
    return 1 << 8  # exit code 1


def receive_number(connection: socket.socket) -> int:
    """Return the next number.

    Raises:
        ConnectionError: The other side has ended.
    """
    return int(NUMBER.unpack(receive(connection, NUMBER.size))[0])


def receive(connection: socket.socket, size: int) -> bytes:
    """Return the next bytes of a connection.

    Raises:
        ConnectionError: The other side has ended.
    """
    parts = []
    while size:
        part = connection.recv(size)
        if not part:
            raise ConnectionError("closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    main()
