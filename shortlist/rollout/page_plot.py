"""The picture of a rollout: who got the canary when, and what they saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shortlist.report.figures import DASHES, INK, MUTED, SERIES, Plot, drawn, plot
from shortlist.rollout.record import RolloutRecord, Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CAPTION = (
    "Share of the users that got the candidate, the 99th percentile of the answers at each step, the KPI of both tracks"
    " so far, and their difference with bounds that hold however often one looks: below the dotted line the candidate"
    " is too much worse."
)


def rollout_plot(record: RolloutRecord) -> Plot | None:
    """Return the course of a rollout, None when nobody ever got the canary."""
    if not record.steps:
        return None
    with drawn(9.0, 7.2, rows=4) as (figure, (share, latency, kpi, difference)):
        _shares(share, record)
        _lines(latency, record, lambda one: one.p99_ms_stable, lambda one: one.p99_ms_canary)
        latency.set(ylabel="p99, ms", ylim=(0, None))
        latency.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)  # of both, hiding neither
        _lines(kpi, record, lambda one: one.kpi_stable, lambda one: one.kpi_canary)
        kpi.set(ylabel="KPI")
        _differences(difference, record)
        difference.set(xlabel="seconds", xlim=(0, max(record.elapsed_seconds, 1)))
        figure.align_ylabels()
        return plot(figure, "rollout", "Course", _CAPTION)


def _shares(axes: Axes, record: RolloutRecord) -> None:
    moments = [*(one.elapsed_seconds for one in record.history), record.elapsed_seconds]
    percents = [*(one.percent for one in record.history), record.state.percent]
    axes.step(moments, percents, where="post", color=INK)
    axes.fill_between(moments, percents, step="post", color=MUTED, alpha=0.15, linewidth=0)
    axes.set(ylabel="canary, %", ylim=(0, 108), yticks=(0, 25, 50, 75, 100))


def _lines(
    axes: Axes,
    record: RolloutRecord,
    stable: Callable[[Sample], float | None],
    canary: Callable[[Sample], float | None],
) -> None:
    for number, (name, read) in enumerate((("stable", stable), ("canary", canary))):
        points = [(one.elapsed_seconds, read(one)) for one in record.samples]
        # A hole is drawn as a hole: no line across a time in which nothing was known.
        values = [float("nan") if value is None else value for _, value in points]
        axes.plot([x for x, _ in points], values, color=SERIES[number], linestyle=DASHES[number], label=name)


def _differences(axes: Axes, record: RolloutRecord) -> None:
    known = [(one.elapsed_seconds, one.kpi_difference) for one in record.samples if one.kpi_difference]
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.axhline(-record.policy.kpi.max_drop, color=INK, linestyle=DASHES[2], linewidth=1)
    if known:
        x = [moment for moment, _ in known]
        axes.fill_between(
            x, [one.low for _, one in known], [one.high for _, one in known],
            color=SERIES[1], alpha=0.2, linewidth=0,
        )  # fmt: skip
        axes.plot(x, [one.value for _, one in known], color=SERIES[1])
    # The first bounds are so wide that nothing else could be seen beside them.
    widest = max((abs(one.value) for _, one in known), default=0.0)
    reach = 2.5 * max(record.policy.kpi.max_drop, widest)
    axes.set(ylabel="difference", ylim=(-reach, reach))
