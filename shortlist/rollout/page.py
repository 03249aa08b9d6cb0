"""The page of a rollout: one file that opens anywhere, with nothing to fetch and nothing that runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shortlist.evaluation.records import Interval
from shortlist.report.figures import DASHES, INK, MUTED, SERIES, Plot, drawn, plot
from shortlist.report.templates import page_environment
from shortlist.rollout.phases import Phase
from shortlist.rollout.record import RolloutRecord, Sample
from shortlist.spec.serving import Guard
from shortlist.storage.artefacts import write_text

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.axes import Axes


PAGE: Final = "rollout.html"
TEMPLATE: Final = "rollout.html.j2"
NOTHING: Final = "\N{EN DASH}"


def write_page(record: RolloutRecord, out: Path) -> None:
    """Write the page of a rollout, over or under way, whole or not at all."""
    write_text(out, render(record))


def render(record: RolloutRecord) -> str:
    """Return the page as HTML."""
    return _template().render(record=record, state=record.state, headline=headline(record), plot=rollout_plot(record))


def headline(record: RolloutRecord) -> str:
    """Return in one sentence what became of a rollout.

    The words hold for a rollout that is over, and for one under way.
    """
    state = record.state
    new, old = f"version {state.candidate} ({record.kind})", f"version {state.former}"
    beside = "the first model" if state.former is None else f"beside {old}"
    match state.phase:
        case Phase.PROMOTED:
            how = " again" if record.returning else " by hand" if state.manual else ""
            return f"{new} serves everybody{how}{'' if state.former is None else f' in place of {old}'}"
        case Phase.ROLLED_BACK | Phase.ABORTED:
            return f"{new} is withdrawn; {'nothing serves' if state.former is None else f'{old} serves everybody'}"
        case _:
            return f"{new}, {beside}, gets {state.percent} % of the users"


def count(number: float | None) -> str:
    """Digits in groups, parted by a narrow space; a dash for nothing."""
    return NOTHING if number is None else f"{number:,.0f}".replace(",", "\u202f")


def milliseconds(number: float | None) -> str:
    """Three digits that matter; a dash for nothing.

    >>> milliseconds(7.234), milliseconds(123.4)
    ('7.2', '123')
    """
    return NOTHING if number is None else f"{number:.1f}" if number < 100 else f"{number:.0f}"


def share(number: float | None) -> str:
    """A share in percent; a dash for nothing.

    >>> share(0.0512)
    '5.1 %'
    """
    return NOTHING if number is None else f"{100 * number:.1f} %"


def decimals(number: float | None) -> str:
    """Four decimals; a dash for nothing."""
    return NOTHING if number is None else f"{number:.4f}"


def thousandths(number: float | None) -> str:
    """Three decimals; a dash for nothing."""
    return NOTHING if number is None else f"{number:.3f}"


def difference(interval: Interval | None) -> str:
    """A difference with the farther of its bounds; a dash for nothing.

    >>> difference(Interval(low=-0.02, value=0.001, high=0.022))
    '+0.001 ± 0.021'
    """
    if interval is None:
        return NOTHING
    return f"{interval.value:+.3f} ± {max(interval.value - interval.low, interval.high - interval.value):.3f}"


def change(number: float, relative: bool = False) -> str:
    """A difference with its sign, in percent where it is relative.

    >>> change(-0.0123), change(-0.0123, relative=True)
    ('-0.0123', '-1.2 %')
    """
    return f"{100 * number:+.1f} %" if relative else f"{number:+.4f}"


def limit(guard: Guard) -> str:
    """Return what a guard allows.

    >>> limit(Guard(max_drop=0.01)), limit(Guard(max_relative_drop=0.1))
    ('0.01', '10 % of the stable track')
    """
    return f"{100 * guard.allowed:g} % of the stable track" if guard.is_relative else f"{guard.allowed:g}"


def seconds(number: float) -> str:
    """A time in seconds, or minutes and seconds."""
    return f"{number:.1f}\u202fs" if number < 60 else f"{int(number // 60)}\u202fmin {int(number % 60):02d}\u202fs"


def words(name: str) -> str:
    """A name as it is said: `roll_back` as "roll back"."""
    return name.replace("_", " ")


def _moment(iso: str) -> str:
    return f"{datetime.fromisoformat(iso):%-d %B %Y, %H:%M:%S %Z}".strip()


@cache
def _template() -> Template:
    filters: dict[str, Callable[..., Any]] = {
        "count": count, "ms": milliseconds, "share": share, "decimals": decimals, "change": change, "limit": limit,
        "seconds": seconds, "words": words, "moment": _moment,
    }  # fmt: skip
    return page_environment(Path(__file__).parent, filters).get_template(TEMPLATE)


_CAPTION = (
    "Share of the users that got the candidate, the 99th percentile of the answers at each step, the KPI of both tracks"
    " so far, and their difference with bounds that hold however often one looks: below the dotted line the candidate"
    " is too much worse.{guards}"
)
_GUARDS = " Below it, likewise, the difference of every guarded label: {labels}."


def rollout_plot(record: RolloutRecord) -> Plot | None:
    """Return the course of a rollout, None when nobody ever got the canary."""
    if not record.steps:
        return None
    guards, kpi_limit = record.policy.guards, record.policy.kpi.max_drop
    with drawn(9.0, 7.2 + 1.8 * len(guards), rows=4 + len(guards)) as (figure, (share, latency, kpi, *differences)):
        _shares(share, record)
        _lines(latency, record, lambda one: one.p99_ms_stable, lambda one: one.p99_ms_canary)
        latency.set(ylabel="p99, ms", ylim=(0, None))
        latency.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)  # of both, hiding neither
        _lines(kpi, record, lambda one: one.kpi_stable, lambda one: one.kpi_canary)
        kpi.set(ylabel="KPI")
        _differences(differences[0], record, "difference", lambda one: one.kpi_difference, kpi_limit)
        for axes, (label, guard) in zip(differences[1:], guards.items(), strict=True):
            _differences(axes, record, label, _difference_of(label), guard.allowed)
        differences[-1].set(xlabel="seconds", xlim=(0, max(record.elapsed_seconds, 1)))
        figure.align_ylabels()
        said = _GUARDS.format(labels=", ".join(guards)) if guards else ""
        return plot(figure, "rollout", "Course", _CAPTION.format(guards=said))


def _difference_of(label: str) -> Callable[[Sample], Interval | None]:
    return lambda one: one.guards.get(label)


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


def _differences(
    axes: Axes, record: RolloutRecord, name: str, read: Callable[[Sample], Interval | None], allowed: float
) -> None:
    known = [(one.elapsed_seconds, between) for one in record.samples if (between := read(one))]
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.axhline(-allowed, color=INK, linestyle=DASHES[2], linewidth=1)
    if known:
        x = [moment for moment, _ in known]
        axes.fill_between(
            x, [one.low for _, one in known], [one.high for _, one in known],
            color=SERIES[1], alpha=0.2, linewidth=0,
        )  # fmt: skip
        axes.plot(x, [one.value for _, one in known], color=SERIES[1])
    # The first bounds are so wide that nothing else could be seen beside them.
    widest = max((abs(one.value) for _, one in known), default=0.0)
    reach = 2.5 * max(allowed, widest)
    axes.set(ylabel=name, ylim=(-reach, reach))
