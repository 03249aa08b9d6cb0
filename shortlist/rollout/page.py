"""The page of a rollout: one self-contained HTML file without scripts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shortlist.evaluation.metrics.records import ConfidenceInterval
from shortlist.report.figures import DASHES, INK, MUTED, SERIES, Plot, figure_panels, plot
from shortlist.report.templates import page_environment
from shortlist.rollout.record import PlotSample, RolloutRecord
from shortlist.rollout.states.phases import Phase
from shortlist.spec.serving import Guard
from shortlist.storage.artefacts import write_text

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.axes import Axes


PAGE: Final = "rollout.html"
TEMPLATE: Final = "rollout.html.j2"
NO_NUMBER: Final = "\N{EN DASH}"


def write_page(record: RolloutRecord, out: Path) -> None:
    """Write the page of a finished or unfinished rollout, atomically."""
    write_text(out, render(record))


def render(record: RolloutRecord) -> str:
    """Return the page as HTML."""
    return _template().render(record=record, state=record.state, headline=headline(record), plot=rollout_plot(record))


def headline(record: RolloutRecord) -> str:
    """Return the outcome of a finished rollout, or the progress of an unfinished one, in one sentence."""
    state = record.state
    candidate_text, former_text = f"version {state.candidate} ({record.kind})", f"version {state.former}"
    comparison_text = "the first model" if state.former is None else f"beside {former_text}"
    match state.phase:
        case Phase.PROMOTED:
            is_again = record.returning and record.served_before
            how_promoted = " again" if is_again else " by hand" if state.manual else ""
            replaced_text = "" if state.former is None else f" in place of {former_text}"
            return f"{candidate_text} serves everybody{how_promoted}{replaced_text}"
        case Phase.ROLLED_BACK | Phase.ABORTED:
            serving_text = "nothing serves" if state.former is None else f"{former_text} serves everybody"
            return f"{candidate_text} is withdrawn; {serving_text}"
        case _:
            return f"{candidate_text}, {comparison_text}, gets {state.percent} % of the users"


def format_count(number: float | None) -> str:
    """Return digits in groups, separated by a narrow space; a dash for None."""
    return NO_NUMBER if number is None else f"{number:,.0f}".replace(",", "\u202f")


def format_milliseconds(number: float | None) -> str:
    """Return milliseconds with up to three digits; a dash for None.

    >>> format_milliseconds(7.234), format_milliseconds(123.4)
    ('7.2', '123')
    """
    return NO_NUMBER if number is None else f"{number:.1f}" if number < 100 else f"{number:.0f}"


def format_share(number: float | None) -> str:
    """Return a share in percent; a dash for None.

    >>> format_share(0.0512)
    '5.1 %'
    """
    return NO_NUMBER if number is None else f"{100 * number:.1f} %"


def format_four_decimals(number: float | None) -> str:
    """Return a number with four decimals; a dash for None."""
    return NO_NUMBER if number is None else f"{number:.4f}"


def format_three_decimals(number: float | None) -> str:
    """Return a number with three decimals; a dash for None."""
    return NO_NUMBER if number is None else f"{number:.3f}"


def format_difference(interval: ConfidenceInterval | None) -> str:
    """Return a difference with the distance to its farther bound; a dash for None.

    >>> format_difference(ConfidenceInterval(low=-0.02, value=0.001, high=0.022))
    '+0.001 ± 0.021'
    """
    if interval is None:
        return NO_NUMBER
    return f"{interval.value:+.3f} ± {max(interval.value - interval.low, interval.high - interval.value):.3f}"


def format_change(number: float, relative: bool = False) -> str:
    """Return a difference with its sign, in percent if it is relative.

    >>> format_change(-0.0123), format_change(-0.0123, relative=True)
    ('-0.0123', '-1.2 %')
    """
    return f"{100 * number:+.1f} %" if relative else f"{number:+.4f}"


def format_guard_limit(guard: Guard) -> str:
    """Return the drop that a guard allows.

    >>> format_guard_limit(Guard(max_drop=0.01)), format_guard_limit(Guard(max_relative_drop=0.1))
    ('0.01', '10 % of the stable track')
    """
    return f"{100 * guard.allowed:g} % of the stable track" if guard.is_relative else f"{guard.allowed:g}"


def format_seconds(number: float) -> str:
    """Return a time in seconds, or in minutes and seconds."""
    return f"{number:.1f}\u202fs" if number < 60 else f"{int(number // 60)}\u202fmin {int(number % 60):02d}\u202fs"


def format_name(name: str) -> str:
    """Return a name with spaces: `roll_back` as "roll back"."""
    return name.replace("_", " ")


def _format_time(iso: str) -> str:
    return f"{datetime.fromisoformat(iso):%-d %B %Y, %H:%M:%S %Z}".strip()


@cache
def _template() -> Template:
    filters: dict[str, Callable[..., Any]] = {
        "count": format_count, "ms": format_milliseconds, "share": format_share, "decimals": format_four_decimals,
        "change": format_change, "limit": format_guard_limit, "seconds": format_seconds, "words": format_name,
        "moment": _format_time,
    }  # fmt: skip
    return page_environment(Path(__file__).parent, filters).get_template(TEMPLATE)


_CAPTION = (
    "Share of the users that got the candidate, the 99th percentile of the answers at each step, the KPI of both tracks"
    " so far, and their difference with bounds that are valid under repeated analysis: below the dotted line the"
    " candidate is worse than allowed.{guards}"
)
_GUARDS = " Below it, likewise, the difference of every guarded label: {labels}."


def rollout_plot(record: RolloutRecord) -> Plot | None:
    """Return the plot of a rollout over time; None when no user got the canary."""
    if not record.steps:
        return None
    guards, kpi_limit = record.policy.guards, record.policy.kpi.max_drop
    with figure_panels(9.0, 7.2 + 1.8 * len(guards), rows=4 + len(guards)) as (
        figure,
        (format_share, latency, kpi, *differences),
    ):
        _plot_shares(format_share, record)
        _plot_tracks(latency, record, lambda sample: sample.p99_ms_stable, lambda sample: sample.p99_ms_canary)
        latency.set(ylabel="p99, ms", ylim=(0, None))
        latency.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)  # above the lines
        _plot_tracks(kpi, record, lambda sample: sample.kpi_stable, lambda sample: sample.kpi_canary)
        kpi.set(ylabel="KPI")
        _plot_difference(differences[0], record, "difference", lambda sample: sample.kpi_difference, kpi_limit)
        for axes, (label, guard) in zip(differences[1:], guards.items(), strict=True):
            _plot_difference(axes, record, label, _read_guard_difference(label), guard.allowed)
        differences[-1].set(xlabel="seconds", xlim=(0, max(record.elapsed_seconds, 1)))
        figure.align_ylabels()
        guards_text = _GUARDS.format(labels=", ".join(guards)) if guards else ""
        return plot(figure, "rollout", "Course", _CAPTION.format(guards=guards_text))


def _read_guard_difference(label: str) -> Callable[[PlotSample], ConfidenceInterval | None]:
    return lambda sample: sample.guards.get(label)


def _plot_shares(axes: Axes, record: RolloutRecord) -> None:
    moments = [*(sample.elapsed_seconds for sample in record.history), record.elapsed_seconds]
    percents = [*(sample.percent for sample in record.history), record.state.percent]
    axes.step(moments, percents, where="post", color=INK)
    axes.fill_between(moments, percents, step="post", color=MUTED, alpha=0.15, linewidth=0)
    axes.set(ylabel="canary, %", ylim=(0, 108), yticks=(0, 25, 50, 75, 100))


def _plot_tracks(
    axes: Axes,
    record: RolloutRecord,
    stable: Callable[[PlotSample], float | None],
    canary: Callable[[PlotSample], float | None],
) -> None:
    for number, (name, read) in enumerate((("stable", stable), ("canary", canary))):
        points = [(sample.elapsed_seconds, read(sample)) for sample in record.samples]
        # A gap in the data is a gap in the line.
        values = [float("nan") if value is None else value for _, value in points]
        axes.plot([x for x, _ in points], values, color=SERIES[number], linestyle=DASHES[number], label=name)


def _plot_difference(
    axes: Axes,
    record: RolloutRecord,
    name: str,
    read: Callable[[PlotSample], ConfidenceInterval | None],
    allowed: float,
) -> None:
    intervals = [(sample.elapsed_seconds, interval) for sample in record.samples if (interval := read(sample))]
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.axhline(-allowed, color=INK, linestyle=DASHES[2], linewidth=1)
    if intervals:
        x = [moment for moment, _ in intervals]
        axes.fill_between(
            x, [sample.low for _, sample in intervals], [sample.high for _, sample in intervals],
            color=SERIES[1], alpha=0.2, linewidth=0,
        )  # fmt: skip
        axes.plot(x, [sample.value for _, sample in intervals], color=SERIES[1])
    # Not the bounds: the first ones are so wide that nothing else would be visible.
    widest = max((abs(sample.value) for _, sample in intervals), default=0.0)
    reach = 2.5 * max(allowed, widest)
    axes.set(ylabel=name, ylim=(-reach, reach))
