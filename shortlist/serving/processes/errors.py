"""What can go wrong with the processes that serve."""

from __future__ import annotations

import re
from pathlib import Path

from shortlist.contracts import ShortlistError

_TAIL_BYTES = 16_384
_INFO_LINE = re.compile(r"[|+]|I\d{4} ")
"""A row of a table, or a line of information (`I1121 04:03:14.808368 ...`)."""


class StackError(ShortlistError):
    """A process of the stack does not do what it should, or cannot."""


class PortTakenError(StackError):
    """Somebody else listens on a port that was asked for."""


def last_lines(log: Path, count: int = 12) -> str:
    """Return the last lines of a log that say what went wrong, indented; says so when there are none.

    Triton's tables and its lines of information are left out when there is anything else.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        lines = []
    informative_lines = [line for line in lines if line.strip() and not _INFO_LINE.match(line)]
    return "\n".join(f"  {line[:400]}" for line in (informative_lines or lines)[-count:]) or "  (its log is empty)"
