"""The picture of a drill: the KPI day by day, with what was broken, what was noticed and what was done."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

from monitoring.pages.drift_heatmap import slots
from monitoring.pages.plot_annotations import Slots, draw_ticks, draw_versions, draw_window_states
from monitoring.pages.status_plots import draw_measure
from monitoring.records import RetrainAction, WindowReport
from shortlist.report.figures import DASHES, INK, Plot, drawn, plot
from shortlist.rollout.page import words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CAPTION = (
    "Hit rate of every version with its interval; the dotted line is the version's own test days. A solid line is an"
    " injection, with its name; ! is the window that raised the alarm, with the decision below it; a dashed upright"
    " line is a new champion with its number. Hatched: broken data, whose values are crosses; lines across: not judged;"
    " grey: windows without a report."
)


_ROW: Final = 0.06
"""Height of a name, as a share of the panel's."""


class _Injection(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def injected_at(self) -> datetime: ...
    @property
    def alarm_at(self) -> datetime | None: ...
    @property
    def decision(self) -> RetrainAction: ...


def drill_plot(days: Sequence[WindowReport], scenarios: Sequence[_Injection]) -> Plot | None:
    """Return the KPI over all windows, None without windows."""
    from matplotlib.ticker import PercentFormatter

    if not days:
        return None
    shown = slots(sorted(days, key=lambda one: one.start))
    top = 1 - _ROW * (len(scenarios) + 1)
    with drawn(10.0, 4.4) as (figure, (axes,)):
        draw_measure(axes, shown, "hit_rate")
        low, high = axes.get_ylim()
        low -= 0.17 * (high - low)  # room below for what was decided, above for the names of what was broken
        axes.set_ylim(low, low + (high - low) / top)
        draw_window_states(axes, shown, top)
        draw_versions(axes, shown, top, labels=24)
        for number, one in enumerate(sorted(scenarios, key=lambda one: one.injected_at)):
            _draw(axes, shown, one, top + _ROW * (number + 1.8))
        draw_ticks(axes, shown)
        axes.set(ylabel="hit rate")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        return plot(figure, "drill", "Hit rate, day by day", _CAPTION)


def _draw(axes: Axes, shown: Slots, injection: _Injection, height: float) -> None:
    across = axes.get_xaxis_transform()
    began = _place(shown, injection.injected_at) - 0.5
    # Every line is longer than those before it, and its name stands to its left: no line runs through a name.
    axes.axvline(began, 0, height, color=INK, linewidth=1.2, linestyle=DASHES[0])
    axes.annotate(
        words(injection.name), (began, height), (-4, 0), xycoords=across, textcoords="offset points", ha="right",
        va="top", fontweight="bold", fontsize=10,
    )  # fmt: skip
    if injection.alarm_at is None:
        return
    at = _place(shown, injection.alarm_at) - 1  # the window that ended then
    axes.text(at, 0.075, "!", transform=across, ha="center", va="bottom", fontweight="bold", fontsize=13)
    axes.text(at, 0.015, injection.decision, transform=across, ha="center", va="bottom", fontsize=9.5)


def _place(shown: Slots, moment: datetime) -> int:
    """Return the number of the first window that begins at a moment or later; one past the last when there is none."""
    return next((at for at, one in enumerate(shown) if one and one.start >= moment), len(shown))
