"""The file that supervisord reads."""

from __future__ import annotations

from collections.abc import Sequence
from configparser import RawConfigParser
from io import StringIO
from pathlib import Path

from shortlist.storage.artefacts import sha256

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
