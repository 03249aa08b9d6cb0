"""The plots of the status page: quality of the models per window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from monitoring.pages.drift_heatmap import MAX_WINDOWS, fill_gaps
from monitoring.pages.plot_annotations import (
    WindowSlots,
    draw_alarms,
    draw_decisions,
    draw_ticks,
    draw_versions,
    draw_window_states,
)
from monitoring.pages.status_page_data import StatusPageData
from monitoring.windows.records import Measure
from shortlist.report.figures import DASHES, INK, MARKERS, MUTED, SERIES, Plot, figure_panels, plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MeasureName = Literal["auc", "gauc", "log_loss", "rate_error", "hit_rate", "label_rate", "mean_score"]

_TITLES: Final[dict[MeasureName, tuple[str, str]]] = {
    "hit_rate": ("Hit rate", "Share of the answers whose best items were taken."),
    "auc": ("AUC", "How well clicks are told from other rows; a half is guessing."),
    "gauc": ("GAUC", "How well one user's clicks are told from the same user's other rows; a half is guessing."),
    "rate_error": ("Rate error", "Difference of mean score and label rate, as a share of the label rate."),
    "label_rate": ("Label rate and mean score", "How often items were taken, and how often the scores expected it."),
}
_MAX_MARKERS: Final = 31


@dataclass(frozen=True)
class _Point:
    position: int
    version: int
    measure: Measure
    is_trusted: bool
    """False for windows whose data are broken."""


def kpi_plots(page_data: StatusPageData) -> list[Plot]:
    """Return one plot per measure over the newest windows; measures that no window has are left out."""
    window_slots = fill_gaps(page_data.windows[-MAX_WINDOWS:])
    plots = (_kpi_plot(page_data, window_slots, name) for name in _TITLES)
    return [kpi_plot for kpi_plot in plots if kpi_plot is not None]


def _kpi_plot(page_data: StatusPageData, window_slots: WindowSlots, name: MeasureName) -> Plot | None:
    from matplotlib.ticker import PercentFormatter

    if not _points(window_slots, name):
        return None
    with figure_panels(5.0, 2.9) as (figure, (axes,)):
        draw_measure(axes, window_slots, name)
        if name == "label_rate":
            _draw_mean_score(axes, window_slots)
        draw_window_states(axes, window_slots)
        draw_versions(axes, window_slots)
        draw_alarms(axes, window_slots, page_data.alarmed_windows)
        draw_decisions(axes, window_slots, page_data.decisions)
        draw_ticks(axes, window_slots)
        if name not in {"auc", "gauc"}:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        bottom, top = axes.get_ylim()
        axes.set_ylim(bottom - 0.12 * (top - bottom), top)  # room for the marks along the bottom
        title, caption = _TITLES[name]
        return plot(figure, f"kpi_{name}", title, caption)


def draw_measure(axes: Axes, window_slots: WindowSlots, name: MeasureName) -> None:
    """Draw a measure of every version with its interval, and its value on the test days."""
    points = _points(window_slots, name)
    for version in dict.fromkeys(point.version for point in points):
        point_by_position = {point.position: point for point in points if point.version == version}
        number = colour_number(window_slots, version)
        marker = MARKERS[number] if len(window_slots) <= _MAX_MARKERS or len(point_by_position) == 1 else "."
        _draw_values(axes, point_by_position, SERIES[number], marker)
        _draw_references(axes, point_by_position, SERIES[number])


def _draw_values(axes: Axes, point_by_position: Mapping[int, _Point], colour: str, marker: str) -> None:
    positions = range(min(point_by_position), max(point_by_position) + 1)
    # The line is interrupted at missing windows and at windows whose data are broken.
    trusted_measures = [
        point_by_position[position].measure
        if position in point_by_position and point_by_position[position].is_trusted
        else None
        for position in positions
    ]
    values = [measure.value if measure else math.nan for measure in trusted_measures]
    lower_errors = [measure.value - measure.low if measure else math.nan for measure in trusted_measures]
    upper_errors = [measure.high - measure.value if measure else math.nan for measure in trusted_measures]
    axes.errorbar(
        positions, values, [lower_errors, upper_errors], color=colour, linestyle=DASHES[0], linewidth=1.4,
        elinewidth=0.9, marker=marker, markersize=4,
    )  # fmt: skip
    untrusted = [point for point in point_by_position.values() if not point.is_trusted]
    axes.plot(
        [point.position for point in untrusted],
        [point.measure.value for point in untrusted],
        "x",
        color=MUTED,
        markersize=5,
    )


def _draw_references(axes: Axes, point_by_position: Mapping[int, _Point], colour: str) -> None:
    positions = range(min(point_by_position), max(point_by_position) + 1)
    references = [
        point_by_position[position].measure.reference if position in point_by_position else None
        for position in positions
    ]
    levels = [math.nan if reference is None else reference for reference in references]
    edges = [position - 0.5 for position in (*positions, positions.stop)]
    axes.stairs(levels, edges, baseline=None, color=colour, linestyle=DASHES[2], linewidth=1)


def colour_number(window_slots: WindowSlots, version: int) -> int:
    """Return the number of a version's colour; consecutive versions have different colours."""
    versions = dict.fromkeys(quality.version for window in window_slots if window for quality in window.quality)
    return sorted(versions).index(version) % len(SERIES)


def _draw_mean_score(axes: Axes, window_slots: WindowSlots) -> None:
    points = [point for point in _points(window_slots, "mean_score") if point.is_trusted]
    value_by_position = {point.position: point.measure.value for point in points}
    values = [value_by_position.get(position, math.nan) for position in range(len(window_slots))]
    axes.plot(values, color=INK, linestyle=DASHES[1], marker="_", linewidth=1.2, label="mean score")
    axes.legend(loc="upper right", bbox_to_anchor=(1, 1.16), borderaxespad=0, fontsize=9.5)


def _points(window_slots: WindowSlots, name: MeasureName) -> list[_Point]:
    return [
        _Point(position, quality.version, measure, window.verdict != "broken")
        for position, window in enumerate(window_slots)
        if window
        for quality in window.quality
        if quality.slice == "all"
        for measure in quality.measures
        if measure.name == name
    ]
