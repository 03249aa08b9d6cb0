"""A process of the stack: what is executed, and the record of its starts."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shortlist.storage.artefacts import read_json, sha256, write_json


@dataclass(frozen=True)
class Program:
    """One program, as `shortlist.serving.processes.launch` starts it."""

    name: str
    """Such as `triton-v3`; also of its log."""
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    """Added to the environment, or all of it."""
    inherits: bool = True
    """Whether it sees the environment of whoever starts it."""
    repository: str | None = None
    """A folder that is compared with its manifest before every start."""
    digest: str | None = None
    """`folder_digest` of that folder when it was written; a manifest can be forged with its files."""
    shared_memory: str | None = None
    """Prefix of its regions in /dev/shm; what a killed predecessor left is removed before every start."""
    socket: str | None = None
    """The Unix socket it listens on; what a killed predecessor left is removed before every start."""
    dies_with_parent: bool = False
    dies_with_children: bool = False
    """See `shortlist.serving.processes.launch`."""

    def write(self, path: Path) -> None:
        """Write it to a file."""
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Program:
        """Return what `write` wrote."""
        values = read_json(path)
        return cls(**{**values, "command": tuple(values["command"])})


@dataclass(frozen=True)
class ProcessStart:
    """One start of a program."""

    pid: int
    born: str
    """Tells the process from a later one with the same pid."""
    time: float
    """Seconds since 1970."""
    program: str = ""
    """SHA-256 of the program's file then."""


def born(pid: int) -> str | None:
    """Return the boot and the clock tick in which a process began; None when there is none.

    The wall clock may jump; this does not.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        # The name in parentheses may hold anything; what follows is counted from its end.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {"Z", "X"} else f"{boot}:{fields[19]}"


def starts_of(program: Path) -> Path:
    """Return the record of the starts of the program in a file."""
    return program.with_suffix(".starts")


def note_start(program: Path) -> None:
    """Append this process to the record of a program's starts."""
    start = ProcessStart(pid=os.getpid(), born=born(os.getpid()) or "", time=time.time(), program=sha256(program))
    path = starts_of(program)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(start)) + "\n")


def starts(path: Path) -> list[ProcessStart]:
    """Return the starts in a record, the oldest first; a line cut short by a crash is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(ProcessStart(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


def running(program: Path) -> list[ProcessStart]:
    """Return the starts of a program whose processes still run, the oldest first."""
    return [start for start in starts(starts_of(program)) if is_running(start)]


def is_running(start: ProcessStart) -> bool:
    """Return whether the very process of this start still runs."""
    return born(start.pid) == start.born
