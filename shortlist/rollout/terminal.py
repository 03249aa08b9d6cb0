"""A rollout in the terminal: a status line while it runs, a table when it is over."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.status import Status
from rich.table import Table
from rich.text import Text

from shortlist.rollout.evidence.counts import RequestTotals
from shortlist.rollout.page import (
    NO_NUMBER,
    format_change,
    format_count,
    format_difference,
    format_guard_limit,
    format_milliseconds,
    format_name,
    format_seconds,
    format_share,
    format_three_decimals,
    headline,
)
from shortlist.rollout.record import RolloutRecord, RolloutStep
from shortlist.rollout.states.phases import Phase
from shortlist.system.progress import EVENTS_VARIABLE, emit

_PAIRS = ("p99 ms", "KPI", "KPI gain")
"""Columns with two numbers, which wrap on a narrow terminal."""
_COLOURS = {Phase.PROMOTED: "green", Phase.ROLLED_BACK: "red", Phase.ABORTED: "yellow"}
_WAITING_SECONDS = 30
"""A step that waits for evidence says so this often, where the output is no terminal."""
_WAITS = {
    Phase.STARTING: "its servers start; nobody gets it yet",
    Phase.LOAD_TESTING: "its servers answer the declared load (gates.infra); nobody gets it yet",
    Phase.DRAINING: "everybody gets it; the former servers finish their requests and stop",
}
"""What the phases that take seconds wait for."""
_DECISION_COLOURS = {"proceed": "green", "promote": "green", "roll_back": "red", "hold": "yellow"}


def verdict_table(record: RolloutRecord) -> Group:
    """Return the steps of a rollout as a table, with its verdict below."""
    table = Table(title=f"{record.spec}: rollout {record.id}", title_justify="left")
    for heading in ("weight", "requests", "failed", "share", "p99 ms", "KPI", "KPI gain"):
        table.add_column(heading, justify="right", no_wrap=heading not in _PAIRS)
    table.add_column("decision", no_wrap=True)
    for step in record.steps:
        table.add_row(*_cells(step))
    state = record.state
    verdict = Text(f"{record.outcome.capitalize()}: {headline(record)}", f"bold {_COLOURS.get(state.phase, '')}")
    reasons = [Text(_reason(step), "dim") for step in record.steps]
    parts = [Text(state.reason)] if state.reason else []
    parts += [Text(notice, "yellow") for notice in record.notices]
    if record.requests is not None and record.steps:
        parts.append(Text(_describe_totals(record.requests), "dim"))
    guards = [Text(guard_line) for guard_line in _guards(record)]
    steps: list[RenderableType] = [table, *guards, *reasons, Text()] if record.steps else []
    return Group(*steps, verdict, *parts)


def _describe_totals(totals: RequestTotals) -> str:
    by_track = [
        f"{format_name(name)} {format_count(stable)} / {format_count(canary)}"
        for name, stable, canary in totals.by_track()
    ]
    return (
        f"stable / canary: {', '.join(by_track) or 'no requests'}; of both, {format_count(totals.logged)} logged,"
        f" {format_count(totals.lost)} lost, {format_count(totals.doubled)} logged twice"
    )


def _guards(record: RolloutRecord) -> list[str]:
    """Return a line per guarded label, of the newest step that was analyzed."""
    observation = next((step.last for step in reversed(record.steps) if step.last), None)
    lines = []
    for guard in () if observation is None else observation.guards:
        interval = guard.difference
        difference_text = "not known yet"
        if interval is not None:
            value, low, high = (
                format_change(part, guard.relative) for part in (interval.value, interval.low, interval.high)
            )
            difference_text = f"{value} [{low}, {high}]"
        rates = f"{format_three_decimals(guard.stable)} / {format_three_decimals(guard.canary)}"
        allowed_drop = format_guard_limit(record.policy.guards[guard.label])
        lines.append(f"{guard.label}: {rates}, {difference_text}; may fall by {allowed_drop}")
    return lines


def _reason(step: RolloutStep) -> str:
    return step.last.reason if step.last else f"at {step.percent} %: ended before anything was seen"


def _cells(step: RolloutStep) -> list[str | Text]:
    observation = step.last
    if observation is None:
        return [f"{step.percent} %", *[NO_NUMBER] * 6, Text("hold", "yellow")]
    stable, canary = observation.stable, observation.canary
    return [
        f"{step.percent} %",
        format_count(stable.requests + canary.requests),
        format_count(stable.failed + canary.failed),
        format_share(observation.canary_share),
        f"{format_milliseconds(stable.p99_ms)} / {format_milliseconds(canary.p99_ms)}",
        f"{format_three_decimals(stable.kpi)} / {format_three_decimals(canary.kpi)}",
        format_difference(observation.kpi_difference),
        Text(format_name(observation.decision), _DECISION_COLOURS[observation.decision]),
    ]


def status_line(record: RolloutRecord) -> str:
    """Return phase, share and newest observation of a rollout in one line."""
    state = record.state
    phase_text = f"{record.outcome} version {state.candidate}"
    parts = [
        phase_text if not state.percent else f"{phase_text} at {state.percent} %",
        format_seconds(record.elapsed_seconds),
    ]
    if waits_for := _WAITS.get(state.phase):
        parts.append(waits_for)
    observation = record.steps[-1].last if record.steps and state.phase is Phase.WATCHING else None
    if observation is not None:
        stable, canary = observation.stable, observation.canary
        latencies = (
            f"p99: stable {format_milliseconds(stable.p99_ms)} ms, canary {format_milliseconds(canary.p99_ms)} ms"
        )
        requests = f"requests: stable {format_count(stable.requests)}, canary {format_count(canary.requests)}"
        parts += [requests, latencies, f"{format_name(observation.decision)}: {observation.reason}"]
        if not stable.requests + canary.requests:
            parts.append(
                f"send requests to the gateway (make status SPEC={record.spec}), play the log (.venv/bin/shortlist"
                f" replay {record.spec}), or promote without evidence: make promote SPEC={record.spec}"
            )
    return "  ".join(parts)


@contextmanager
def show_progress() -> Iterator[Callable[[RolloutRecord], None]]:
    """Yield a function that shows the newest state of a rollout, for `ControllerContext.on_change`."""
    console, printed_notices = Console(stderr=True), set[str]()

    def print_notices(record: RolloutRecord) -> None:
        for notice in record.notices:
            if notice not in printed_notices:
                printed_notices.add(notice)
                console.print(f"Notice: {notice}.", style="yellow", highlight=False, soft_wrap=True)

    if os.environ.get(EVENTS_VARIABLE):
        yield _emit_progress
    elif sys.stderr.isatty():
        with Status("rollout", console=console) as status:

            def show(record: RolloutRecord) -> None:
                print_notices(record)
                status.update(Text(status_line(record), overflow="ellipsis", no_wrap=True))

            yield show
    else:
        print_change = _print_changes()

        def show_lines(record: RolloutRecord) -> None:
            print_notices(record)
            print_change(record)

        yield show_lines


def _print_changes() -> Callable[[RolloutRecord], None]:
    """Return a function that prints a line when phase or share of users has changed, and while a step waits."""
    printed: list[tuple[Phase, int, int]] = []

    def on_change(record: RolloutRecord) -> None:
        is_watching = record.state.phase is Phase.WATCHING
        period = int(record.elapsed_seconds / _WAITING_SECONDS) if is_watching else 0
        change = record.state.phase, record.state.percent, period
        if not record.state.final and change not in printed[-1:]:
            printed.append(change)
            sys.stderr.write(f"{status_line(record)}\n")

    return on_change


def _emit_progress(record: RolloutRecord) -> None:
    percent = float(record.state.percent)
    emit(
        {
            "event": "progress",
            "label": "rollout",
            "done": percent,
            "total": 100.0,
            "unit": "%",
            "text": status_line(record),
        }
    )
