"""What stands around a line over windows: what they are worth, which model served, what was decided."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from monitoring.windows.records import RetrainAction, RetrainDecision, WindowReport
from shortlist.report.figures import DASHES, GRID, INK, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Slots = Sequence[WindowReport | None]
"""Windows beside each other; None where some are missing."""

_LETTERS: Final[dict[RetrainAction, str]] = {"retrain": "R", "page": "P"}
_MOST_TICKS: Final = 6


def draw_window_states(axes: Axes, shown: Slots, top: float = 1.0) -> None:
    """Mark the windows of which nothing can be told: broken (hatched), not judged (lines across), missing (grey).

    Args:
        axes: Of the measure.
        shown: The windows.
        top: Share of the panel's height that the marks take.
    """
    for at, one in enumerate(shown):
        span = (at - 0.5, at + 0.5, 0.0, top)
        if one is None:
            axes.axvspan(*span, facecolor=GRID, edgecolor="none", alpha=0.6)
            axes.text(at, top / 2, "⋯", transform=axes.get_xaxis_transform(), ha="center", va="center", color=MUTED)
        elif one.verdict in {"broken", "unjudged"}:
            hatch = "////" if one.verdict == "broken" else "---"
            axes.axvspan(*span, facecolor="none", edgecolor=MUTED, hatch=hatch, linewidth=0, alpha=0.55)
    axes.set_xlim(-0.6, len(shown) - 0.4)


def draw_versions(axes: Axes, shown: Slots, top: float = 1.0, labels: int = 9) -> None:
    """Mark where another version became the champion, with its number where there is room.

    Args:
        axes: Of the measure.
        shown: The windows.
        top: Share of the panel's height that the marks take.
        labels: How many numbers fit beside each other.
    """
    before, labelled = None, -math.inf
    for at, one in enumerate(shown):
        if one is None or one.champion in {None, before}:
            continue
        place = at if before is None else at - 0.5
        if before is not None:
            axes.axvline(place, 0, top, color=MUTED, linewidth=0.9, linestyle=DASHES[4])
        if at - labelled >= len(shown) / labels:
            across = axes.get_xaxis_transform()
            axes.text(place, top + 0.015, f"v{one.champion}", transform=across, ha="center", va="bottom", fontsize=9.5)
            labelled = at
        before = one.champion


def draw_alarms(axes: Axes, shown: Slots, alarmed: Collection[datetime]) -> None:
    """Draw a bar along the bottom where the alarm stood."""
    for at, one in enumerate(shown):
        if one and one.start in alarmed:
            along, across = [at - 0.52, at + 0.52], axes.get_xaxis_transform()
            axes.plot(along, [0.012] * 2, color=INK, linewidth=3.5, solid_capstyle="butt", transform=across)


def draw_decisions(axes: Axes, shown: Slots, decisions: Iterable[RetrainDecision]) -> None:
    """Write along the bottom where a training was begun (R) and where a person was called (P)."""
    letters: dict[int, set[str]] = {}
    for decision in decisions:
        for at, one in enumerate(shown):
            if one and one.start <= decision.window < one.end and decision.action in _LETTERS:
                letters.setdefault(at, set()).add(_LETTERS[decision.action])
    for at, some in sorted(letters.items()):
        axes.text(
            at, 0.03, "".join(sorted(some)), transform=axes.get_xaxis_transform(), ha="center", va="bottom",
            fontsize=9, fontweight="bold",
        )  # fmt: skip


def draw_ticks(axes: Axes, shown: Slots) -> None:
    """Write the days (and hours of shorter windows) below the panel."""
    known = [(at, one.start) for at, one in enumerate(shown) if one]
    chosen = known[:: max(1, -(-len(known) // _MOST_TICKS))]
    hours = any(start.hour for _, start in known)
    labels = [f"{start.day} {start:%b}" + (f"\n{start:%H:%M}" if hours else "") for _, start in chosen]
    axes.set_xticks([at for at, _ in chosen], labels)
