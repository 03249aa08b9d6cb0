"""The pictures of the status page: what the models were worth, window by window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from monitoring.pages.drift_heatmap import MOST_WINDOWS, slots
from monitoring.pages.plot_annotations import (
    Slots,
    draw_alarms,
    draw_decisions,
    draw_ticks,
    draw_versions,
    draw_window_states,
)
from monitoring.pages.status_page_data import StatusPageData
from monitoring.windows.records import Measure
from shortlist.report.figures import DASHES, INK, MARKERS, MUTED, SERIES, Plot, drawn, plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Name = Literal["auc", "gauc", "log_loss", "rate_error", "hit_rate", "label_rate", "mean_score"]

_TITLES: Final[dict[Name, tuple[str, str]]] = {
    "hit_rate": ("Hit rate", "Share of the answers whose best items were taken."),
    "auc": ("AUC", "How well clicks are told from other rows; a half is guessing."),
    "gauc": ("GAUC", "How well one user's clicks are told from the same user's other rows; a half is guessing."),
    "rate_error": ("Rate error", "Difference of mean score and label rate, as a share of the label rate."),
    "label_rate": ("Label rate and mean score", "How often items were taken, and how often the scores expected it."),
}
_MOST_MARKERS: Final = 31


@dataclass(frozen=True)
class _Point:
    at: int
    version: int
    measure: Measure
    trusted: bool
    """False for windows whose data are broken."""


def kpi_plots(loop: StatusPageData) -> list[Plot]:
    """Return one picture per measure over the newest windows; measures that no window has are left out."""
    shown = slots(loop.windows[-MOST_WINDOWS:])
    pictures = (_kpi_plot(loop, shown, name) for name in _TITLES)
    return [one for one in pictures if one is not None]


def _kpi_plot(loop: StatusPageData, shown: Slots, name: Name) -> Plot | None:
    from matplotlib.ticker import PercentFormatter

    if not _points(shown, name):
        return None
    with drawn(5.0, 2.9) as (figure, (axes,)):
        draw_measure(axes, shown, name)
        if name == "label_rate":
            _draw_mean_score(axes, shown)
        draw_window_states(axes, shown)
        draw_versions(axes, shown)
        draw_alarms(axes, shown, loop.alarmed)
        draw_decisions(axes, shown, loop.decisions)
        draw_ticks(axes, shown)
        if name not in {"auc", "gauc"}:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        bottom, top = axes.get_ylim()
        axes.set_ylim(bottom - 0.12 * (top - bottom), top)  # room for the marks along the bottom
        title, caption = _TITLES[name]
        return plot(figure, f"kpi_{name}", title, caption)


def draw_measure(axes: Axes, shown: Slots, name: Name) -> None:
    """Draw a measure of every version with its interval, and what it was on the test days."""
    points = _points(shown, name)
    for version in dict.fromkeys(one.version for one in points):
        own = {one.at: one for one in points if one.version == version}
        number = version_colour(shown, version)
        marker = MARKERS[number] if len(shown) <= _MOST_MARKERS or len(own) == 1 else "."
        _draw_values(axes, own, SERIES[number], marker)
        _draw_references(axes, own, SERIES[number])


def _draw_values(axes: Axes, own: Mapping[int, _Point], colour: str, marker: str) -> None:
    at = range(min(own), max(own) + 1)
    # A hole is drawn as a hole, and so is a window whose data cannot be trusted.
    trusted = [own[n].measure if n in own and own[n].trusted else None for n in at]
    values = [one.value if one else math.nan for one in trusted]
    below = [one.value - one.low if one else math.nan for one in trusted]
    above = [one.high - one.value if one else math.nan for one in trusted]
    axes.errorbar(
        at, values, [below, above], color=colour, linestyle=DASHES[0], linewidth=1.4, elinewidth=0.9, marker=marker,
        markersize=4,
    )  # fmt: skip
    doubted = [one for one in own.values() if not one.trusted]
    axes.plot([one.at for one in doubted], [one.measure.value for one in doubted], "x", color=MUTED, markersize=5)


def _draw_references(axes: Axes, own: Mapping[int, _Point], colour: str) -> None:
    at = range(min(own), max(own) + 1)
    references = [own[n].measure.reference if n in own else None for n in at]
    levels = [math.nan if one is None else one for one in references]
    edges = [place - 0.5 for place in (*at, at.stop)]
    axes.stairs(levels, edges, baseline=None, color=colour, linestyle=DASHES[2], linewidth=1)


def version_colour(shown: Slots, version: int) -> int:
    """Return the number of a version's colour; versions that follow each other never share one."""
    every = dict.fromkeys(quality.version for one in shown if one for quality in one.quality)
    return sorted(every).index(version) % len(SERIES)


def _draw_mean_score(axes: Axes, shown: Slots) -> None:
    points = [one for one in _points(shown, "mean_score") if one.trusted]
    by_place = {one.at: one.measure.value for one in points}
    values = [by_place.get(at, math.nan) for at in range(len(shown))]
    axes.plot(values, color=INK, linestyle=DASHES[1], marker="_", linewidth=1.2, label="mean score")
    axes.legend(loc="upper right", bbox_to_anchor=(1, 1.16), borderaxespad=0, fontsize=9.5)


def _points(shown: Slots, name: Name) -> list[_Point]:
    return [
        _Point(at, quality.version, measure, one.verdict != "broken")
        for at, one in enumerate(shown)
        if one
        for quality in one.quality
        if quality.slice == "all"
        for measure in quality.measures
        if measure.name == name
    ]
