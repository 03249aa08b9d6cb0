"""Adoption of processes that outlive their supervisor: the next supervisor keeps them.

A supervisor can only manage its own children. So the launcher of a program whose process still runs does not start
another: it waits until that process ends, and forwards its supervisor's signals. The output of an adopted process is
lost until it is started again, because its pipe ended with the old supervisor.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from shortlist.serving.processes.program import ProcessStart, process_birth, running_starts
from shortlist.storage.artefacts import sha256

BUSY_SECONDS: Final = 30.0
"""Longest time without a health response before a process counts as broken and is restarted."""
_POLL_SECONDS: Final = 0.2
_TERMINATION_SECONDS: Final = 20.0
"""Time for a process to end by itself; a server finishes its open requests first."""
_FORWARDED_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def adopt_or_end_predecessor(program: Path) -> None:
    """Adopt the running process of a program and exit when it ends; return when there is none.

    Processes with the same name but another program (other settings, another repository) are ended first.

    Args:
        program: File with the program.
    """
    digest = sha256(program)
    starts = running_starts(program)
    same_program = [start for start in starts if start.program == digest]
    for start in starts:
        if start not in same_program[-1:]:
            end_group(start)
    if same_program:
        sys.exit(_wait_for_end(same_program[-1]))


def unresponsive(health_checks: Mapping[str, Callable[[], bool]], seconds: float) -> list[str]:
    """Return the names whose health check does not succeed once within some seconds."""
    pending = dict(health_checks)
    deadline = time.monotonic() + seconds
    while True:
        pending = {name: is_well for name, is_well in pending.items() if not is_well()}
        if not pending or time.monotonic() > deadline:
            return sorted(pending)
        time.sleep(_POLL_SECONDS)


def end_group(start: ProcessStart, seconds: float = _TERMINATION_SECONDS) -> None:
    """End a process and the group that it leads: first with SIGTERM, then with SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process_birth(start.pid) != start.born:
            return
        with suppress(ProcessLookupError):
            _signal(start, number)
        deadline = time.monotonic() + seconds
        while process_birth(start.pid) == start.born and time.monotonic() < deadline:
            time.sleep(0.05)


def _wait_for_end(start: ProcessStart) -> int:
    """Wait until the process has ended, and return the exit code 1."""

    def forward_signal(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            _signal(start, number)

    for number in _FORWARDED_SIGNALS:
        signal.signal(number, forward_signal)
    sys.stderr.write(f"process {start.pid} of this program still runs and is kept; its output is lost\n")
    sys.stderr.flush()
    try:
        handle = os.pidfd_open(start.pid)
    except ProcessLookupError:
        return 1
    while process_birth(start.pid) == start.born:  # compared after opening: the handle belongs to this very process
        select.select([handle], [], [], 1.0)
    return 1


def _signal(start: ProcessStart, number: int) -> None:
    # Its supervisor made it the leader of a group; if it is not, only the process is signalled.
    if os.getpgid(start.pid) == start.pid:
        os.killpg(start.pid, number)
    else:
        os.kill(start.pid, number)
