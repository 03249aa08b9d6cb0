"""A program of the stack: its command, and the record of its starts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from shortlist.storage.artefacts import read_json, sha256, write_json

COMMON_VARIABLES: Final = ("HOME", "TMPDIR", "LANG", "TZ", "PATH")
"""Variables that every program inherits from its parent."""


@dataclass(frozen=True)
class Program:
    """A program that `shortlist.serving.processes.launch` executes."""

    name: str
    """Name of the program and its log, such as `triton-v3`."""
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables, in addition to the inherited ones. Never copied from the process that describes the
    program: a changed program is restarted, and a training or a cron job has other variables than a shell."""
    inherits: bool = True
    """Whether it inherits the whole environment of its parent; else `COMMON_VARIABLES` alone."""
    repository: str | None = None
    """Folder whose digest is compared before every start."""
    digest: str | None = None
    """`folder_digest` of that folder when it was written; the folder's own manifest can be forged."""
    shared_memory: str | None = None
    """Prefix of its regions in /dev/shm; regions of a killed predecessor are removed before every start."""
    socket: str | None = None
    """Unix socket that it listens on; a killed predecessor's socket is removed before every start."""
    dies_with_parent: bool = False
    dies_with_children: bool = False
    """Whether a watchdog kills the group when the process or one of its backend dies; see `start_watchdog`."""

    def process_environment(self, parent: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of its process.

        Args:
            parent: Environment of the parent.
        """
        names = parent if self.inherits else [name for name in COMMON_VARIABLES if name in parent]
        return {**{name: parent[name] for name in names}, **self.environment}

    def write(self, path: Path) -> None:
        """Write the program to a file."""
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Program:
        """Return the program in a file of `write`."""
        values = read_json(path)
        return cls(**{**values, "command": tuple(values["command"])})


@dataclass(frozen=True)
class ProcessStart:
    """One start of a program."""

    pid: int
    born: str
    """Birth of the process from `process_birth`, which differs for a later process with the same pid."""
    time: float
    """Time of the start in seconds since 1970."""
    program: str = ""
    """SHA-256 of the program's file at the start."""


def process_birth(pid: int) -> str | None:
    """Return the boot id and start tick of a process; None when it does not run.

    Unlike the wall clock, the start tick never jumps.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        # The name in parentheses may contain any character; fields are counted from its end.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {"Z", "X"} else f"{boot}:{fields[19]}"


def starts_file(program: Path) -> Path:
    """Return the file that records the starts of a program."""
    return program.with_suffix(".starts")


def record_start(program: Path) -> None:
    """Append the start of this process to the record of a program."""
    start = ProcessStart(
        pid=os.getpid(), born=process_birth(os.getpid()) or "", time=time.time(), program=sha256(program)
    )
    path = starts_file(program)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(start)) + "\n")


def read_starts(path: Path) -> list[ProcessStart]:
    """Return the starts in a record, the oldest first; an incomplete line is skipped."""
    process_starts = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            process_starts.append(ProcessStart(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return process_starts


def running_starts(program: Path) -> list[ProcessStart]:
    """Return the starts of a program whose processes still run, the oldest first."""
    return [start for start in read_starts(starts_file(program)) if is_running(start)]


def is_running(start: ProcessStart) -> bool:
    """Return whether the very process of this start still runs."""
    return process_birth(start.pid) == start.born
