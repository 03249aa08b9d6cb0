"""A rollout in the terminal: one line while it runs, a table when it is over; silent where nobody watches."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.status import Status
from rich.table import Table
from rich.text import Text

from shortlist.rollout.page import (
    NOTHING,
    change,
    count,
    difference,
    headline,
    limit,
    milliseconds,
    seconds,
    share,
    thousandths,
    words,
)
from shortlist.rollout.phases import Phase
from shortlist.rollout.record import RolloutRecord, Step
from shortlist.system.progress import EVENTS_VARIABLE, emit

_PAIRS = ("p99 ms", "KPI", "KPI gain")
"""Two numbers each; a narrow terminal writes them below each other."""
_COLOURS = {Phase.PROMOTED: "green", Phase.ROLLED_BACK: "red", Phase.ABORTED: "yellow"}
_DECIDED = {"proceed": "green", "promote": "green", "roll_back": "red", "hold": "yellow"}


def verdict_table(record: RolloutRecord) -> Group:
    """Return the steps of a rollout as a table, with its verdict below."""
    table = Table(title=f"{record.spec}: rollout {record.id}", title_justify="left")
    for heading in ("weight", "requests", "failed", "share", "p99 ms", "KPI", "KPI gain"):
        table.add_column(heading, justify="right", no_wrap=heading not in _PAIRS)
    table.add_column("decision", no_wrap=True)
    for step in record.steps:
        table.add_row(*_cells(step))
    state = record.state
    verdict = Text(
        f"{words(state.phase.value).capitalize()}: {headline(record)}", f"bold {_COLOURS.get(state.phase, '')}"
    )
    reasons = [Text(_reason(step), "dim") for step in record.steps]
    parts = [Text(state.reason)] if state.reason else []
    if record.requests is not None and record.steps:
        one = record.requests
        parts.append(
            Text(
                f"{count(one.total)} requests: {count(one.failed_stable)} failed on the stable track,"
                f" {count(one.failed_canary)} on the canary, {count(one.lost)} lost; {count(one.logged)} logged,"
                f" {count(one.doubled)} twice; {count(one.client_errors)} were the client's mistake,"
                f" {count(one.disconnected)} ended by a client that went away",
                "dim",
            )
        )
    guards = [Text(line) for line in _guards(record)]
    steps: list[RenderableType] = [table, *guards, *reasons, Text()] if record.steps else []
    return Group(*steps, verdict, *parts)


def _guards(record: RolloutRecord) -> list[str]:
    """Return a line per guarded label, of the newest step that was analyzed."""
    seen = next((step.last for step in reversed(record.steps) if step.last), None)
    lines = []
    for one in () if seen is None else seen.guards:
        between = one.difference
        found = "not known yet"
        if between is not None:
            value, low, high = (change(part, one.relative) for part in (between.value, between.low, between.high))
            found = f"{value} [{low}, {high}]"
        rates = f"{thousandths(one.stable)} / {thousandths(one.canary)}"
        lines.append(f"{one.label}: {rates}, {found}; may fall by {limit(record.policy.guards[one.label])}")
    return lines


def _reason(step: Step) -> str:
    return step.last.reason if step.last else f"at {step.percent} %: ended before anything was seen"


def _cells(step: Step) -> list[str | Text]:
    seen = step.last
    if seen is None:
        return [f"{step.percent} %", *[NOTHING] * 6, Text("hold", "yellow")]
    stable, canary = seen.stable, seen.canary
    return [
        f"{step.percent} %",
        count(stable.requests + canary.requests),
        count(stable.failed + canary.failed),
        share(seen.canary_share),
        f"{milliseconds(stable.p99_ms)} / {milliseconds(canary.p99_ms)}",
        f"{thousandths(stable.kpi)} / {thousandths(canary.kpi)}",
        difference(seen.kpi_difference),
        Text(words(seen.decision), _DECIDED[seen.decision]),
    ]


def line(record: RolloutRecord) -> str:
    """Return where a rollout is, in one line."""
    state = record.state
    where = f"{words(state.phase.value)} version {state.candidate}"
    parts = [where if not state.percent else f"{where} at {state.percent} %", seconds(record.elapsed_seconds)]
    seen = record.steps[-1].last if record.steps and state.phase is Phase.WATCHING else None
    if seen is not None:
        tracks = f"p99 {milliseconds(seen.stable.p99_ms)} / {milliseconds(seen.canary.p99_ms)} ms"
        requests = f"{count(seen.stable.requests)} / {count(seen.canary.requests)} requests"
        parts += [requests, tracks, f"{words(seen.decision)}: {seen.reason}"]
    return "  ".join(parts)


@contextmanager
def watched() -> Iterator[Callable[[RolloutRecord], None]]:
    """Give a function that shows a rollout's newest state, for `Tools.on_change`."""
    if os.environ.get(EVENTS_VARIABLE):
        yield _to_parent
    elif sys.stderr.isatty():
        with Status("rollout", console=Console(stderr=True)) as status:
            yield lambda record: status.update(Text(line(record), overflow="ellipsis", no_wrap=True))
    else:
        yield lambda _: None


def _to_parent(record: RolloutRecord) -> None:
    percent = float(record.state.percent)
    emit({"event": "progress", "label": "rollout", "done": percent, "total": 100.0, "unit": "%", "text": line(record)})
