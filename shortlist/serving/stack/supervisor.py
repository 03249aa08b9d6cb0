"""supervisord: starts the stack's programs, starts again those that die, keeps what they print."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shortlist.artefacts import write_text
from shortlist.serving.stack.errors import StackError, last_lines
from shortlist.serving.stack.program import Program, born, starts
from shortlist.serving.stack.sockets import UnixConnection
from shortlist.serving.stack.supervisor_configuration import configuration

_BAD_NAME = 10
"""Fault of the supervisor for a program it does not know."""


@dataclass(frozen=True)
class Process:
    """A program as its supervisor sees it."""

    name: str
    state: str
    """`RUNNING`, `STARTING` (running, but not for long), `BACKOFF` (died early, is about to be started again), ..."""
    pid: int | None
    uptime_seconds: float
    restarts: int
    """Starts after the first since it was added."""

    @property
    def is_up(self) -> bool:
        """Whether there is a process."""
        return self.pid is not None


class Supervisor:
    """The supervisor of one stack; it lives on when whoever started it ends."""

    def __init__(self, folder: Path, logs: Path, socket: Path) -> None:
        """Say where it keeps its files.

        Args:
            folder: Of its configuration, its programs and the records of their starts.
            logs: Of what everything prints.
            socket: Its Unix socket.
        """
        self.folder = folder
        self.logs = logs
        self.socket = socket

    def is_up(self) -> bool:
        """Return whether it answers."""
        try:
            return bool(self._call("getState", seconds=5)["statename"] == "RUNNING")
        except (OSError, http.client.HTTPException, xmlrpc.client.Error):
            return False

    def start(self) -> None:
        """Start it, unless it runs.

        Raises:
            StackError: It does not start.
        """
        if self.is_up():
            return
        self._write_configuration({})
        # Our Python's path travels as a variable: in the file, a # or a ; in it would begin a comment.
        environment = {**os.environ, "SHORTLIST_PYTHON": sys.executable}
        command = [
            sys.executable,
            "-m",
            "supervisor.supervisord",
            "-c",
            str(self.configuration),
        ]  # absolute, so that it tells whose it is
        done = subprocess.run(  # noqa: S603  (it goes to the background by itself)
            command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )
        deadline = time.monotonic() + 15
        while not self.is_up():
            if done.returncode or time.monotonic() > deadline:
                said = done.stdout + done.stderr
                raise StackError(f"the supervisor does not start:\n{said}{last_lines(self.logs / 'supervisord.log')}")
            time.sleep(0.02)

    def apply(self, programs: Mapping[str, Program]) -> None:
        """Make it run exactly these programs: new ones are started, changed ones restarted, others stopped.

        Safe to be called again after being killed halfway.
        """
        for name, program in programs.items():
            program.write(self.program_file(name))
        self._write_configuration(programs)
        _, changed, removed = self._call("reloadConfig")[0]
        for name in sorted([*changed, *removed]):  # servers come before their Tritons
            self._call("stopProcessGroup", name)
            self._call("removeProcessGroup", name)
        running = {info["group"] for info in self._call("getAllProcessInfo")}
        for name in programs:
            if name not in running:
                self._starts(name).unlink(missing_ok=True)
                self._call("addProcessGroup", name)

    def start_again(self, name: str) -> None:
        """Start a program that is waiting for its next try, or was given up on, now; its restarts count anew."""
        state = self.process(name).state
        if state in {"BACKOFF", "FATAL", "EXITED", "STOPPED"}:
            if state == "BACKOFF":
                self._call("stopProcess", name)
            self._starts(name).unlink(missing_ok=True)
            self._call("startProcess", name, False)

    def processes(self) -> dict[str, Process]:
        """Return every program by name."""
        return {info["name"]: self._process(info) for info in self._call("getAllProcessInfo")}

    def process(self, name: str) -> Process:
        """Return one program.

        Raises:
            StackError: There is none of this name.
        """
        try:
            return self._process(self._call("getProcessInfo", name))
        except xmlrpc.client.Fault as fault:
            if fault.faultCode == _BAD_NAME:
                raise StackError(f"no program {name!r} in this stack") from None
            raise

    def shut_down(self) -> None:
        """Ask it to stop everything, all at once, and then itself; returns when it is gone."""
        pid = int(self._call("getPID"))
        this = born(pid)
        self._call("stopAllProcesses", True)
        self._call("shutdown")
        deadline = time.monotonic() + 30
        while born(pid) == this and time.monotonic() < deadline:
            time.sleep(0.02)

    def program_file(self, name: str) -> Path:
        """Return where a program is written down."""
        return self.folder / "programs" / f"{name}.json"

    @property
    def configuration(self) -> Path:
        """Its configuration file; on its command line, which tells it from others."""
        return self.folder / "supervisord.conf"

    @property
    def pid_file(self) -> Path:
        """Where it writes its pid."""
        return self.folder / "supervisord.pid"

    def _starts(self, name: str) -> Path:
        return self.program_file(name).with_suffix(".starts")

    def _process(self, info: Mapping[str, Any]) -> Process:
        is_up = bool(info["pid"])
        return Process(
            name=info["name"],
            state=info["statename"],
            pid=info["pid"] or None,
            uptime_seconds=float(info["now"] - info["start"]) if is_up else 0.0,
            restarts=max(0, len(starts(self._starts(info["name"]))) - 1),
        )

    def _call(self, method: str, *arguments: str | bool, seconds: float = 60) -> Any:
        with xmlrpc.client.ServerProxy("http://localhost", transport=_Transport(self.socket, seconds)) as proxy:
            return getattr(proxy.supervisor, method)(*arguments)

    def _write_configuration(self, programs: Mapping[str, Program]) -> None:
        (self.folder / "programs").mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        files = [self.program_file(name) for name in programs]
        logs = os.path.relpath(self.logs, self.folder)
        write_text(self.configuration, configuration(files, logs, self.socket, self.pid_file.name))


class _Transport(xmlrpc.client.Transport):
    def __init__(self, socket: Path, seconds: float) -> None:
        super().__init__()
        self._socket = socket
        self._seconds = seconds

    def make_connection(self, host: object) -> http.client.HTTPConnection:
        connection = UnixConnection(self._socket, self._seconds)
        self._connection = (str(self._socket), connection)  # what `close` closes
        return connection
