"""The heat map of the status page: drift of every column in every window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from monitoring.windows.records import Finding, Problem, WindowReport

CellMark = Literal["none", "sound", "calm", "drifted", "broken"]

MAX_WINDOWS: Final = 60
MAX_ROWS: Final = 25
_LEVELS: Final = (0.25, 0.5, 0.75, 1.0)
"""Strengths at which a cell gets one shade darker; at 1 an effect counts as drift."""


@dataclass(frozen=True)
class HeatCell:
    """The cell of a column in a window."""

    mark: CellMark = "none"
    """`none`: the column was not compared; `sound`: there was nothing to compare, and no problem."""
    strength: float = 0.0
    """Effect as a multiple of the critical effect."""
    reason: str = "not compared"

    @property
    def shade(self) -> int:
        """Shade of the cell, 0 (lightest) to 4."""
        return sum(self.strength >= level for level in _LEVELS)

    @property
    def marked(self) -> bool:
        """Whether the column drifted or is broken."""
        return self.mark in {"drifted", "broken"}


@dataclass(frozen=True)
class HeatRow:
    """The row of a column: its cells in all windows, in order."""

    name: str
    cells: tuple[HeatCell | None, ...]
    """None where windows are missing."""

    @property
    def marked(self) -> int:
        """Number of windows in which the column drifted or was broken."""
        return sum(cell is not None and cell.marked for cell in self.cells)

    @property
    def strongest(self) -> float:
        """Largest strength of its cells."""
        return max((cell.strength for cell in self.cells if cell), default=0.0)


@dataclass(frozen=True)
class HeatMap:
    """The heat map: the worst columns over the newest windows."""

    slots: tuple[WindowReport | None, ...]
    rows: tuple[HeatRow, ...]
    hidden_columns: int
    """Number of columns that are not shown."""
    hidden_marked: int
    """Number of hidden columns that are marked in some window."""


def make_heat_map(windows: Sequence[WindowReport]) -> HeatMap | None:
    """Return the heat map of the newest windows, the worst column first; None when no column was compared.

    Args:
        windows: Reports of the windows, the oldest first.
    """
    window_slots = fill_gaps(windows[-MAX_WINDOWS:])
    # Problems such as volume and coverage concern no column and get rows of their own.
    names = dict.fromkeys(
        name
        for window in window_slots
        if window
        for name in (*_findings_by_column(window.findings), *_problems_by_name(window))
    )
    if not names:
        return None
    compared = {finding.column for window in window_slots if window for finding in window.findings}
    rows = [
        HeatRow(name, tuple(_make_cell(window, name, name in compared) if window else None for window in window_slots))
        for name in names
    ]
    rows.sort(key=lambda row: (-row.marked, -row.strongest, row.name))
    hidden_rows = rows[MAX_ROWS:]
    return HeatMap(window_slots, tuple(rows[:MAX_ROWS]), len(hidden_rows), sum(row.marked > 0 for row in hidden_rows))


def fill_gaps(windows: Sequence[WindowReport]) -> tuple[WindowReport | None, ...]:
    """Return the windows in order, with one None for each gap of missing windows."""
    filled: list[WindowReport | None] = []
    for previous, window in zip((None, *windows), windows, strict=False):
        if previous is not None and window.start > previous.end:
            filled.append(None)
        filled.append(window)
    return tuple(filled)


def finding_strength(finding: Finding) -> float:
    """Return the effect of a finding as a multiple of its critical effect; an AUC of one half has strength 0.

    >>> domain = Finding(column="all columns", kind="domain", effect=0.7, critical=0.75, p_value=0.1,
    ...                  drifted=False, reason="")
    >>> round(finding_strength(domain), 3)
    0.8
    """
    zero_effect = 0.5 if finding.kind == "domain" else 0.0
    effect, critical = finding.effect - zero_effect, finding.critical - zero_effect
    return max(0.0, effect / critical) if critical > 0 else float(effect > 0)


def _make_cell(window: WindowReport, name: str, is_compared: bool) -> HeatCell:
    problems = _problems_by_name(window).get(name)
    if problems:
        return HeatCell("broken", 0.0, " ".join(problem.reason for problem in problems))
    findings = _findings_by_column(window.findings).get(name)
    if not findings:
        return HeatCell() if is_compared else HeatCell("sound", 0.0, "no problem")
    # A column may have two findings, of its distribution and of its unknown values: a drifted one is shown.
    worst = max(findings, key=lambda finding: (finding.drifted, finding_strength(finding)))
    reasons = " ".join(finding.reason for finding in findings if finding.drifted == worst.drifted)
    return HeatCell("drifted" if worst.drifted else "calm", finding_strength(worst), reasons)


def _problems_by_name(window: WindowReport) -> dict[str, list[Problem]]:
    by_name: dict[str, list[Problem]] = {}
    for problem in window.problems:
        by_name.setdefault(problem.column or problem.kind, []).append(problem)
    return by_name


def _findings_by_column(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    by_column: dict[str, list[Finding]] = {}
    for finding in findings:
        by_column.setdefault(finding.column, []).append(finding)
    return by_column
