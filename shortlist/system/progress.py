"""Progress of long work: a bar in a terminal, or events for a parent process that draws it, or nothing."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EVENTS_VARIABLE = "SHORTLIST_PROGRESS"
"""Environment variable with the path of a JSON-lines file to which events are appended."""

Advance = Callable[[float, str], None]
"""advance(units done since the last call, text to show)."""

_SECONDS_BETWEEN_EVENTS = 0.1
_step = ""
"""Name of this process's step."""


def begin_step(name: str, paths: dict[str, str]) -> None:
    """Emit that this process runs a step; its progress is reported under the step's name.

    Args:
        name: Name of the step.
        paths: Paths of its outputs that the parent process reads, by artefact.
    """
    global _step  # noqa: PLW0603 - a process runs one step
    _step = name
    emit({"event": "step", "step": name, "paths": paths})


def emit(event: dict[str, Any]) -> None:
    """Append an event to the file that a parent process reads; do nothing without one."""
    path = os.environ.get(EVENTS_VARIABLE)
    if path:
        if event["event"] == "progress":
            event = event | {"step": _step}
        with Path(path).open("a", encoding="utf-8") as file:  # one short line: several processes' appends do not mix
            file.write(json.dumps(event) + "\n")


def read_events() -> list[dict[str, Any]]:
    """Return the events of this run so far; empty without a parent process."""
    path = Path(os.environ.get(EVENTS_VARIABLE, ""))
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


@contextmanager
def progress(label: str, total: float | None = None, unit: str = "rows") -> Iterator[Advance]:
    """Show progress of the block.

    Args:
        label: Name of the work, two or three words.
        total: Units of the whole work, when known.
        unit: Name of the units.

    Yields:
        A function to call with the units done since the last call and a short text (such as the running loss).
    """
    if os.environ.get(EVENTS_VARIABLE):
        with _report_to_parent(label, total, unit) as advance:
            yield advance
    elif sys.stderr.isatty():
        with _show_in_terminal(label, total, unit) as advance:
            yield advance
    else:
        yield _ignore_progress


def _ignore_progress(units: float, text: str = "") -> None:
    """Do nothing: there is no terminal and no parent process."""


@contextmanager
def _report_to_parent(label: str, total: float | None, unit: str) -> Iterator[Advance]:
    units_done = 0.0
    last_event_time = 0.0

    def advance(units: float, text: str = "") -> None:
        nonlocal units_done, last_event_time
        units_done += units
        now = time.monotonic()
        if now - last_event_time >= _SECONDS_BETWEEN_EVENTS or (total is not None and units_done >= total):
            last_event_time = now
            emit({"event": "progress", "label": label, "done": units_done, "total": total, "unit": unit, "text": text})

    advance(0)
    yield advance


@contextmanager
def _show_in_terminal(label: str, total: float | None, unit: str) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
    )
    with Progress(*columns, TextColumn("{task.fields[text]}"), console=Console(stderr=True)) as bars:
        task = bars.add_task(label, total=total, text="")

        def advance(units: float, text: str = "") -> None:
            bars.update(task, advance=units, text=text)

        yield advance
