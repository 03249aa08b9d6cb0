"""supervisord: starts the stack's programs, restarts those that die, and writes their output to logs."""

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
from xml.parsers.expat import ExpatError

from shortlist.serving.processes.errors import StackError, last_lines
from shortlist.serving.processes.program import (
    Program,
    is_running,
    process_birth,
    read_starts,
    running_starts,
    starts_file,
)
from shortlist.serving.processes.sockets import UnixConnection
from shortlist.storage.artefacts import sha256, write_text

_BAD_NAME = 10
"""Fault code of supervisord for an unknown program."""


@dataclass(frozen=True)
class Process:
    """State of a program according to its supervisor."""

    name: str
    state: str
    """`RUNNING`, `STARTING` (started recently), `BACKOFF` (died early, will be restarted), ..."""
    pid: int | None
    uptime_seconds: float
    restarts: int
    """Number of starts after the first, since it was added."""

    @property
    def is_up(self) -> bool:
        """Whether there is a process."""
        return self.pid is not None


class Supervisor:
    """The supervisor of one stack; it runs in the background, independently of the process that started it."""

    def __init__(self, folder: Path, logs: Path, socket: Path) -> None:
        """Keep the paths of its files.

        Args:
            folder: Folder of its configuration, its programs and the records of their starts.
            logs: Folder of the programs' output.
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
        # The path of Python is passed as a variable: in the file, a # or ; in it would begin a comment.
        environment = {**os.environ, "SHORTLIST_PYTHON": sys.executable}
        command = [
            sys.executable,
            "-m",
            "supervisor.supervisord",
            "-c",
            str(self.configuration),
        ]  # an absolute path, by which the process is recognised
        process = subprocess.run(  # noqa: S603  (it goes to the background by itself)
            command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )
        deadline = time.monotonic() + 15
        while not self.is_up():
            if process.returncode or time.monotonic() > deadline:
                output = process.stdout + process.stderr
                raise StackError(f"the supervisor does not start:\n{output}{last_lines(self.logs / 'supervisord.log')}")
            time.sleep(0.02)

    def apply(
        self,
        programs: Mapping[str, Program],
        before_stop: Callable[[str], None] = lambda _: None,
        after_restart: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Run exactly these programs: start new ones, restart changed ones, stop others. Idempotent.

        Args:
            programs: By name.
            before_stop: Called before each changed or removed program is stopped.
            after_restart: Called after the restart of each changed program, before the next one is stopped.
        """
        for name, program in programs.items():
            program.write(self.program_file(name))
        self._write_configuration(programs)
        _, changed, removed = self._call("reloadConfig")[0]
        for name in sorted([*changed, *removed]):  # servers come before their Tritons
            before_stop(name)
            self._call("stopProcessGroup", name)
            self._call("removeProcessGroup", name)
            if name in programs:
                self._add(name)
                after_restart(name)
        present = {info["group"] for info in self._call("getAllProcessInfo")}
        for name in programs:
            if name not in present:
                self._add(name)

    def restart_now(self, name: str) -> None:
        """Start a program now that waits for its next restart or is no longer restarted; its restarts count from 0."""
        state = self.process(name).state
        if state in {"BACKOFF", "FATAL", "EXITED", "STOPPED"}:
            if state == "BACKOFF":
                self._call("stopProcess", name)
            self._forget_starts(name)
            self._call("startProcess", name, False)

    def processes(self) -> dict[str, Process]:
        """Return all programs by name."""
        return {info["name"]: self._process(info) for info in self._call("getAllProcessInfo")}

    def process(self, name: str) -> Process:
        """Return one program.

        Raises:
            StackError: There is no program of this name.
        """
        try:
            return self._process(self._call("getProcessInfo", name))
        except xmlrpc.client.Fault as fault:
            if fault.faultCode == _BAD_NAME:
                raise StackError(f"no program {name!r} in this stack") from None
            raise

    def shut_down(self) -> None:
        """Stop all programs at once, then the supervisor; returns when it has ended."""
        pid = int(self._call("getPID"))
        birth = process_birth(pid)
        self._call("stopAllProcesses", True)
        self._call("shutdown")
        deadline = time.monotonic() + 30
        while process_birth(pid) == birth and time.monotonic() < deadline:
            time.sleep(0.02)

    def program_file(self, name: str) -> Path:
        """Return the file of a program."""
        return self.folder / "programs" / f"{name}.json"

    @property
    def configuration(self) -> Path:
        """Its configuration file; it is on its command line, by which the process is recognised."""
        return self.folder / "supervisord.conf"

    @property
    def pid_file(self) -> Path:
        """File with its process id."""
        return self.folder / "supervisord.pid"

    def _add(self, name: str) -> None:
        self._forget_starts(name)
        self._call("addProcessGroup", name)

    def _forget_starts(self, name: str) -> None:
        # A process that still runs is known only by this file: the next start keeps or ends it.
        if not running_starts(self.program_file(name)):
            starts_file(self.program_file(name)).unlink(missing_ok=True)

    def _process(self, info: Mapping[str, Any]) -> Process:
        start_records = read_starts(starts_file(self.program_file(info["name"])))
        pid, uptime = info["pid"], float(info["now"] - info["start"])
        # The supervisor's own child may only wait for a process of an earlier supervisor.
        if pid and start_records and start_records[-1].pid != pid and is_running(start_records[-1]):
            pid, uptime = start_records[-1].pid, max(0.0, time.time() - start_records[-1].time)
        return Process(
            name=info["name"],
            state=info["statename"],
            pid=pid or None,
            uptime_seconds=uptime if pid else 0.0,
            restarts=max(0, len(start_records) - 1),
        )

    def _call(self, method: str, *arguments: str | bool, seconds: float = 60) -> Any:
        with xmlrpc.client.ServerProxy("http://localhost", transport=_Transport(self.socket, seconds)) as proxy:
            try:
                return getattr(proxy.supervisor, method)(*arguments)
            except ExpatError as error:
                raise ConnectionResetError(f"{self.socket}: the answer ended early ({error})") from None

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


_MAX_START_RETRIES = 1_000_000
"""Consecutive failed starts that are allowed: a version with users is restarted for ever. Waiting for a canary ends
much earlier, see `Stack.wait_ready`."""
_LOG = {"maxbytes": "10MB", "backups": "2"}


def configuration(programs: Sequence[Path], logs: str, socket: Path, pid_file: str) -> str:
    """Return the text of the configuration file.

    Paths are relative to the folder in which the supervisor is started: %, # and ; are special characters in absolute
    ones.

    Args:
        programs: Files of the programs, in the folder `programs`; each is named after its program.
        logs: Folder of the logs.
        socket: The supervisor's Unix socket.
        pid_file: File for its process id.
    """
    sections = {
        "unix_http_server": {"file": str(socket), "chmod": "0700"},
        "supervisord": {
            "logfile": f"{logs}/supervisord.log",
            **{f"logfile_{key}": value for key, value in _LOG.items()},
            "pidfile": pid_file,
            "umask": "077",  # logs and regions of shared memory are read by nobody else
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
        # A changed program file changes the environment, so the program is restarted.
        "environment": f'SHORTLIST_PROGRAM="{sha256(file)}"',
        "autostart": "true",
        "autorestart": "true",
        "startretries": str(_MAX_START_RETRIES),
        # Dying earlier counts as a failed start, and the next one waits a second longer.
        "startsecs": "1" if name.startswith("envoy") else "5",
        "stopasgroup": "true",
        "killasgroup": "true",
        "stopwaitsecs": "45",  # a server first answers requests in flight and writes its log
        "priority": {"e": "1", "t": "2"}.get(name[0], "3"),
        "redirect_stderr": "true",
        "stdout_logfile": f"{logs}/{name}.log",
        **{f"stdout_logfile_{key}": value for key, value in _LOG.items()},
    }
