"""supervisord: starts the stack's programs, starts again those that die, keeps what they print."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Callable, Mapping, Sequence
from configparser import RawConfigParser
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from shortlist.serving.processes.errors import StackError, last_lines
from shortlist.serving.processes.program import Program, born, is_running, running, starts, starts_of
from shortlist.serving.processes.sockets import UnixConnection
from shortlist.storage.artefacts import sha256, write_text

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

    def apply(
        self,
        programs: Mapping[str, Program],
        before: Callable[[str], None] = lambda _: None,
        wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Make it run exactly these programs: new ones are started, changed ones restarted, others stopped.

        Safe to be called again after being killed halfway.

        Args:
            programs: By name.
            before: Called before each changed or removed program is stopped.
            wait: Called after the restart of each changed program: what does its work meanwhile is restarted later.
        """
        for name, program in programs.items():
            program.write(self.program_file(name))
        self._write_configuration(programs)
        _, changed, removed = self._call("reloadConfig")[0]
        for name in sorted([*changed, *removed]):  # servers come before their Tritons
            before(name)
            self._call("stopProcessGroup", name)
            self._call("removeProcessGroup", name)
            if name in programs:
                self._add(name)
                wait(name)
        present = {info["group"] for info in self._call("getAllProcessInfo")}
        for name in programs:
            if name not in present:
                self._add(name)

    def start_again(self, name: str) -> None:
        """Start a program that is waiting for its next try, or was given up on, now; its restarts count anew."""
        state = self.process(name).state
        if state in {"BACKOFF", "FATAL", "EXITED", "STOPPED"}:
            if state == "BACKOFF":
                self._call("stopProcess", name)
            self._forget_starts(name)
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

    def _add(self, name: str) -> None:
        self._forget_starts(name)
        self._call("addProcessGroup", name)

    def _forget_starts(self, name: str) -> None:
        # A process that still runs is known by nothing else: it is kept by the next start, or ended.
        if not running(self.program_file(name)):
            starts_of(self.program_file(name)).unlink(missing_ok=True)

    def _process(self, info: Mapping[str, Any]) -> Process:
        known = starts(starts_of(self.program_file(info["name"])))
        pid, uptime = info["pid"], float(info["now"] - info["start"])
        # The supervisor's own child may stand in for a process of an earlier supervisor.
        if pid and known and known[-1].pid != pid and is_running(known[-1]):
            pid, uptime = known[-1].pid, max(0.0, time.time() - known[-1].time)
        return Process(
            name=info["name"],
            state=info["statename"],
            pid=pid or None,
            uptime_seconds=uptime if pid else 0.0,
            restarts=max(0, len(known) - 1),
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


_ENDLESS = 1_000_000
"""Starts that may fail in a row. Whoever waits for a canary gives up long before (see `Stack.wait_ready`); a version
with users never may."""
_LOG = {"maxbytes": "10MB", "backups": "2"}


def configuration(programs: Sequence[Path], logs: str, socket: Path, pid_file: str) -> str:
    """Return the text of the file.

    Paths are relative to the folder in which the supervisor is started: in absolute ones, %, # and ; would mean
    something.

    Args:
        programs: Files of the programs, in the folder `programs`; each is named after its program.
        logs: Folder of the logs.
        socket: The supervisor's Unix socket.
        pid_file: Where it writes its pid.
    """
    sections = {
        "unix_http_server": {"file": str(socket), "chmod": "0700"},
        "supervisord": {
            "logfile": f"{logs}/supervisord.log",
            **{f"logfile_{key}": value for key, value in _LOG.items()},
            "pidfile": pid_file,
            "loglevel": "info",
        },
        "rpcinterface:supervisor": {
            "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
        },
        **{f"program:{file.stem}": _program(file, logs) for file in programs},
    }
    parser = RawConfigParser()
    parser.read_dict(sections)
    text = StringIO()
    parser.write(text)
    return text.getvalue()


def _program(file: Path, logs: str) -> dict[str, str]:
    name = file.stem
    return {
        "command": f'"%(ENV_SHORTLIST_PYTHON)s" -m shortlist.serving.processes.launch programs/{file.name}',
        # A program that says something else is another program: it is restarted.
        "environment": f'SHORTLIST_PROGRAM="{sha256(file)}"',
        "autostart": "true",
        "autorestart": "true",
        "startretries": str(_ENDLESS),
        # Dying earlier counts as a failed start, and the next one waits a second longer.
        "startsecs": "1" if name.startswith("envoy") else "5",
        "stopasgroup": "true",
        "killasgroup": "true",
        "stopwaitsecs": "45",  # a server answers what is under way first, and writes its log
        "priority": {"e": "1", "t": "2"}.get(name[0], "3"),
        "redirect_stderr": "true",
        "stdout_logfile": f"{logs}/{name}.log",
        **{f"stdout_logfile_{key}": value for key, value in _LOG.items()},
    }
