"""The heat map of the status page: how far every column moved in every window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from monitoring.windows.records import Finding, Problem, WindowReport

Mark = Literal["none", "sound", "calm", "drifted", "broken"]

MOST_WINDOWS: Final = 60
MOST_ROWS: Final = 25
_LEVELS: Final = (0.25, 0.5, 0.75, 1.0)
"""Strengths at which a cell gets one shade darker; 1 is where a shift begins to count."""


@dataclass(frozen=True)
class Cell:
    """A column in a window."""

    mark: Mark = "none"
    """`none`: it was not compared; `sound`: there is nothing to compare, and no problem."""
    strength: float = 0.0
    """Effect over the critical one."""
    reason: str = "not compared"

    @property
    def shade(self) -> int:
        """How dark it is, 0 to 4."""
        return sum(self.strength >= level for level in _LEVELS)

    @property
    def marked(self) -> bool:
        """Whether something is wrong."""
        return self.mark in {"drifted", "broken"}


@dataclass(frozen=True)
class HeatRow:
    """A column in all windows, in their order."""

    name: str
    cells: tuple[Cell | None, ...]
    """None where windows are missing."""

    @property
    def marked(self) -> int:
        """Windows in which something was wrong with it."""
        return sum(cell is not None and cell.marked for cell in self.cells)

    @property
    def strongest(self) -> float:
        """How far it moved at most."""
        return max((cell.strength for cell in self.cells if cell), default=0.0)


@dataclass(frozen=True)
class HeatMap:
    """The worst columns over the newest windows."""

    slots: tuple[WindowReport | None, ...]
    rows: tuple[HeatRow, ...]
    more: int
    """Columns that are not shown."""
    more_marked: int
    """Of these, how many are marked somewhere."""


def heat_map(windows: Sequence[WindowReport]) -> HeatMap | None:
    """Return the heat map of the newest windows, the worst column first; None when nothing was ever compared.

    Args:
        windows: The oldest first.
    """
    shown = slots(windows[-MOST_WINDOWS:])
    # Volume, coverage and the like concern no column; they get rows of their own.
    names = dict.fromkeys(name for one in shown if one for name in (*_by_name(one.findings), *_problems(one)))
    if not names:
        return None
    compared = {finding.column for one in shown if one for finding in one.findings}
    rows = [
        HeatRow(name, tuple(_cell(one, name, name in compared) if one else None for one in shown)) for name in names
    ]
    rows.sort(key=lambda row: (-row.marked, -row.strongest, row.name))
    rest = rows[MOST_ROWS:]
    return HeatMap(shown, tuple(rows[:MOST_ROWS]), len(rest), sum(row.marked > 0 for row in rest))


def slots(windows: Sequence[WindowReport]) -> tuple[WindowReport | None, ...]:
    """Return windows in their order with one None wherever some are missing, however many those are."""
    filled: list[WindowReport | None] = []
    for before, one in zip((None, *windows), windows, strict=False):
        if before is not None and one.start > before.end:
            filled.append(None)
        filled.append(one)
    return tuple(filled)


def strength(finding: Finding) -> float:
    """Return how strong a finding is beside the one that begins to count; an AUC of a half is nothing.

    >>> domain = Finding(column="all columns", kind="domain", effect=0.7, critical=0.75, p_value=0.1,
    ...                  drifted=False, reason="")
    >>> round(strength(domain), 3)
    0.8
    """
    nothing = 0.5 if finding.kind == "domain" else 0.0
    effect, critical = finding.effect - nothing, finding.critical - nothing
    return max(0.0, effect / critical) if critical > 0 else float(effect > 0)


def _cell(window: WindowReport, name: str, compared: bool) -> Cell:
    problems = _problems(window).get(name)
    if problems:
        return Cell("broken", 0.0, " ".join(one.reason for one in problems))
    findings = _by_name(window.findings).get(name)
    if not findings:
        return Cell() if compared else Cell("sound", 0.0, "no problem")
    # A column may be compared twice, by its shares and by its unknown values: what drifted speaks for it.
    worst = max(findings, key=lambda one: (one.drifted, strength(one)))
    reasons = " ".join(one.reason for one in findings if one.drifted == worst.drifted)
    return Cell("drifted" if worst.drifted else "calm", strength(worst), reasons)


def _problems(window: WindowReport) -> dict[str, list[Problem]]:
    by_name: dict[str, list[Problem]] = {}
    for one in window.problems:
        by_name.setdefault(one.column or one.kind, []).append(one)
    return by_name


def _by_name(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    by_name: dict[str, list[Finding]] = {}
    for one in findings:
        by_name.setdefault(one.column, []).append(one)
    return by_name
