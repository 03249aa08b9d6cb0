"""Programs that outlive their supervisor: the next one keeps them instead of starting them again.

A supervisor can only look after its own children. So the launcher of a program whose process still runs does not start
another: it stays, ends when that process ends, and passes on the signals that its supervisor sends. What an adopted
process prints is lost until it is started again, as the pipe it prints into went with its supervisor.
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

from shortlist.serving.processes.program import ProcessStart, born, running
from shortlist.storage.artefacts import sha256

BUSY_SECONDS: Final = 30.0
"""Longest time that a process may be silent, on a busy machine, before it counts as broken and is started again."""
_ASK_AGAIN_SECONDS: Final = 0.2
_LONGEST_END_SECONDS: Final = 20.0
"""Time that a process gets to end by itself; a server answers what is under way first."""
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def adopt_or_end_earlier(program: Path) -> None:
    """Stand in for the running process of a program, and exit when it ends; returns when there is none.

    Processes of another program under this name (other settings, another repository) are ended first.

    Args:
        program: File of the program.
    """
    wanted = sha256(program)
    left = running(program)
    same = [start for start in left if start.program == wanted]
    for start in left:
        if start not in same[-1:]:
            end_group(start)
    if same:
        sys.exit(_stand_in_for(same[-1]))


def silent(asked: Mapping[str, Callable[[], bool]], seconds: float) -> list[str]:
    """Return those that do not say within some seconds that they are well; each is asked until it has said so once."""
    waiting = dict(asked)
    deadline = time.monotonic() + seconds
    while True:
        waiting = {name: is_well for name, is_well in waiting.items() if not is_well()}
        if not waiting or time.monotonic() > deadline:
            return sorted(waiting)
        time.sleep(_ASK_AGAIN_SECONDS)


def end_group(start: ProcessStart, seconds: float = _LONGEST_END_SECONDS) -> None:
    """End a process that leads its group, and its group: politely, then at once."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if born(start.pid) != start.born:
            return
        with suppress(ProcessLookupError):
            _signal(start, number)
        deadline = time.monotonic() + seconds
        while born(start.pid) == start.born and time.monotonic() < deadline:
            time.sleep(0.05)


def _stand_in_for(start: ProcessStart) -> int:
    """Return 1 when the process has ended, whoever ended it."""

    def pass_on(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            _signal(start, number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    sys.stderr.write(f"process {start.pid} of this program still runs and is kept; what it prints is not\n")
    sys.stderr.flush()
    try:
        handle = os.pidfd_open(start.pid)
    except ProcessLookupError:
        return 1
    while born(start.pid) == start.born:  # asked after it was opened: the handle is of this very process
        select.select([handle], [], [], 1.0)
    return 1


def _signal(start: ProcessStart, number: int) -> None:
    # Its supervisor made it the leader of a group; one that is not must not take others along.
    if os.getpgid(start.pid) == start.pid:
        os.killpg(start.pid, number)
    else:
        os.kill(start.pid, number)
