"""Annotations of a plot over windows: their state, the champion, alarms and decisions."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from monitoring.windows.records import RetrainAction, RetrainDecision, WindowReport
from shortlist.report.figures import DASHES, GRID, INK, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WindowSlots = Sequence[WindowReport | None]
"""Consecutive windows; None where windows are missing."""

_LETTERS: Final[dict[RetrainAction, str]] = {"retrain": "R", "page": "P"}
_MAX_TICKS: Final = 6


def draw_window_states(axes: Axes, window_slots: WindowSlots, top: float = 1.0) -> None:
    """Mark the windows without a valid measure: broken (hatched), not judged (lines across), missing (grey).

    Args:
        axes: Axes of the measure.
        window_slots: The windows.
        top: Share of the panel's height that the marks take.
    """
    for position, window in enumerate(window_slots):
        span = (position - 0.5, position + 0.5, 0.0, top)
        if window is None:
            axes.axvspan(*span, facecolor=GRID, edgecolor="none", alpha=0.6)
            axes.text(
                position, top / 2, "⋯", transform=axes.get_xaxis_transform(), ha="center", va="center", color=MUTED
            )
        elif window.verdict in {"broken", "unjudged"}:
            hatch = "////" if window.verdict == "broken" else "---"
            axes.axvspan(*span, facecolor="none", edgecolor=MUTED, hatch=hatch, linewidth=0, alpha=0.55)
    axes.set_xlim(-0.6, len(window_slots) - 0.4)


def draw_versions(axes: Axes, window_slots: WindowSlots, top: float = 1.0, labels: int = 9) -> None:
    """Mark where another version became the champion, with its number where there is room.

    Args:
        axes: Axes of the measure.
        window_slots: The windows.
        top: Share of the panel's height that the marks take.
        labels: Most version numbers that fit beside each other.
    """
    previous_champion, last_label = None, -math.inf
    for position, window in enumerate(window_slots):
        if window is None or window.champion in {None, previous_champion}:
            continue
        line_position = position if previous_champion is None else position - 0.5
        if previous_champion is not None:
            axes.axvline(line_position, 0, top, color=MUTED, linewidth=0.9, linestyle=DASHES[4])
        if position - last_label >= len(window_slots) / labels:
            transform = axes.get_xaxis_transform()
            axes.text(
                line_position,
                top + 0.015,
                f"v{window.champion}",
                transform=transform,
                ha="center",
                va="bottom",
                fontsize=9.5,
            )
            last_label = position
        previous_champion = window.champion


def draw_alarms(axes: Axes, window_slots: WindowSlots, alarmed: Collection[datetime]) -> None:
    """Draw a bar along the bottom where the alarm was raised."""
    for position, window in enumerate(window_slots):
        if window and window.start in alarmed:
            bar_ends, transform = [position - 0.52, position + 0.52], axes.get_xaxis_transform()
            axes.plot(bar_ends, [0.012] * 2, color=INK, linewidth=3.5, solid_capstyle="butt", transform=transform)


def draw_decisions(axes: Axes, window_slots: WindowSlots, decisions: Iterable[RetrainDecision]) -> None:
    """Mark along the bottom where a training was started (R) and where a person was paged (P)."""
    letters: dict[int, set[str]] = {}
    for decision in decisions:
        for position, window in enumerate(window_slots):
            if window and window.start <= decision.window < window.end and decision.action in _LETTERS:
                letters.setdefault(position, set()).add(_LETTERS[decision.action])
    for position, window_letters in sorted(letters.items()):
        axes.text(
            position, 0.03, "".join(sorted(window_letters)), transform=axes.get_xaxis_transform(), ha="center",
            va="bottom", fontsize=9, fontweight="bold",
        )  # fmt: skip


def draw_ticks(axes: Axes, window_slots: WindowSlots) -> None:
    """Write the days (and hours of shorter windows) below the panel."""
    starts = [(position, window.start) for position, window in enumerate(window_slots) if window]
    labelled_starts = starts[:: max(1, -(-len(starts) // _MAX_TICKS))]
    has_hours = any(start.hour for _, start in starts)
    labels = [f"{start.day} {start:%b}" + (f"\n{start:%H:%M}" if has_hours else "") for _, start in labelled_starts]
    axes.set_xticks([position for position, _ in labelled_starts], labels)
