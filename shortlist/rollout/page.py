"""The page of a rollout: one file that opens anywhere, with nothing to fetch and nothing that runs."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shortlist.evaluation.records import Interval
from shortlist.rollout.page_plot import rollout_plot
from shortlist.rollout.phases import Phase
from shortlist.rollout.record import RolloutRecord
from shortlist.storage.artefacts import write_text

if TYPE_CHECKING:
    from jinja2 import Template

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
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # Reasons may quote logs of other programs: everything is escaped unless it is a picture of our own.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {
        "count": count, "ms": milliseconds, "share": share, "decimals": decimals,
        "seconds": seconds, "words": words, "moment": _moment,
    }  # fmt: skip
    environment.filters |= filters
    return environment.get_template(TEMPLATE)
