"""Every promised figure, one program after another, and the summary a reader wants: `make bench`.

A program that fails does not hide the others. The exit code is 1 when a program failed or a figure is below what is
asked. A summary holds what its own run measured. `python -m benchmarks summary` shows the last results of this very
processor without measuring anything: those of others stay in the file, and say nothing about it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.bench import RESULTS, RUN_VARIABLE, console, hardware, processor_features
from benchmarks.targets import ASKED, Row, summary

PROGRAMS: Final = ("features", "loader", "xgboost_matrices", "train", "serve", "memory", "overhead")
"""Together under twenty minutes on two cores; the others take longer, or promise no speed."""
ROOT: Final = Path(__file__).parents[1]


def measure(programs: tuple[str, ...], run: str) -> tuple[frozenset[str], dict[str, int]]:
    """Run programs in turn; return those that recorded nothing, and the exit codes of all.

    Args:
        programs: Their names.
        run: Their entries in the results say it.
    """
    silent, codes, printing = set(), {}, console()
    for name in programs:
        before, began = len(entries_of(run)), time.monotonic()
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        environment = {**os.environ, RUN_VARIABLE: run}
        codes[name] = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode  # noqa: S603 - our own
        printing.print(f"{name}: {time.monotonic() - began:.0f} s\n", style="dim")
        if len(entries_of(run)) == before:
            silent.add(name)
    return frozenset(silent), codes


def results() -> list[dict[str, Any]]:
    """Return the entries there are, of every processor that ever measured."""
    return list(json.loads(RESULTS.read_text())) if RESULTS.exists() else []


def entries_of(run: str) -> list[dict[str, Any]]:
    """Return the entries that one run measured."""
    return [entry for entry in results() if entry.get("run") == run]


def entries_here() -> list[dict[str, Any]]:
    """Return the entries that were measured on this processor, whenever."""
    here = (hardware(), processor_features())
    return [entry for entry in results() if (entry.get("hardware"), entry.get("features")) == here]


def show(rows: list[Row]) -> None:
    """Print the summary."""
    table = Table(title="Summary", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("work", "ours", "peer", "ratio", "asked", "reached"):
        table.add_column(heading, justify="right" if heading in ("ours", "ratio") else "left")
    for row in rows:
        table.add_row(*row, style={"no": "red", "not measured": "dim", "cannot run": "dim"}.get(row.reached))
    printing = console()
    printing.print(table)
    features = processor_features()
    printing.print(f"Measured on {hardware()} ({', '.join(features) or 'no wide instructions'}), and nowhere else.")
    if unable := [row.row for row in rows if row.reached == "cannot run"]:
        printing.print(f"This processor cannot run: {', '.join(unable)}.")


def main() -> int:
    """Measure, unless only the summary is wanted; print it; return the exit code."""
    if sys.argv[1:] == ["summary"]:
        rows = summary(entries_here(), features=processor_features())
        show(rows)
        return int(any(row.reached == "no" for row in rows))
    began = time.monotonic()
    run = uuid.uuid4().hex[:12]
    silent, codes = measure(PROGRAMS, run)
    rows = summary(entries_of(run), [one for one in ASKED if one.program in PROGRAMS], processor_features())
    show(rows)
    printing = console()
    printing.print(f"All of it took {(time.monotonic() - began) / 60:.1f} minutes.")
    if missed := [row.row for row in rows if row.reached == "no"]:
        printing.print(f"Below what is asked: {', '.join(missed)}.")
    if silent:
        printing.print(f"Measured nothing: {', '.join(sorted(silent))}; what they said is above.")
    return int(bool(missed) or any(codes.values()))


if __name__ == "__main__":
    sys.exit(main())
