"""Errors of the processes of a serving stack."""

from __future__ import annotations

import re
from pathlib import Path

from shortlist.contracts import ShortlistError

_TAIL_BYTES = 16_384
_INFO_LINE = re.compile(r"[|+]|I\d{4} ")
"""Matches table rows and Triton's information lines (`I1121 04:03:14.808368 ...`)."""


class StackError(ShortlistError):
    """A process of the stack failed or cannot be started."""


class EndedEarlyError(StackError):
    """A server process ended before it was ready."""


class PortTakenError(StackError):
    """Another process listens on a requested port."""


def last_lines(log: Path, count: int = 12) -> str:
    """Return the last lines of a log, indented, or a note that it is empty.

    Triton's tables and information lines are left out if there are other lines.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        lines = []
    informative_lines = [line for line in lines if line.strip() and not _INFO_LINE.match(line)]
    return "\n".join(f"  {line[:400]}" for line in (informative_lines or lines)[-count:]) or "  (its log is empty)"
