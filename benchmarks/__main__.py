"""Every promised figure, one program after another, and the summary a reader wants: `make bench`.

A program that fails does not hide the others. The exit code is 1 when a program failed or a figure is below what is
asked. `python -m benchmarks summary` shows the last results without measuring anything.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.asked import ASKED, Row, summary
from benchmarks.bench import RESULTS, console

PROGRAMS: Final = ("features", "loader", "xgboost_matrices", "train", "serve", "memory", "overhead")
"""Together under twenty minutes on two cores; the others take longer, or promise no speed."""
ROOT: Final = Path(__file__).parents[1]


def measure(programs: tuple[str, ...]) -> tuple[frozenset[str], dict[str, int]]:
    """Run programs in turn; return those that recorded nothing, and the exit codes of all."""
    silent, codes, printing = set(), {}, console()
    for name in programs:
        before, began = _written(), time.monotonic()
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        codes[name] = subprocess.run(command, cwd=ROOT, check=False).returncode  # noqa: S603 - our own programs
        printing.print(f"{name}: {time.monotonic() - began:.0f} s\n", style="dim")
        if _written() == before:
            silent.add(name)
    return frozenset(silent), codes


def results() -> list[dict[str, Any]]:
    """Return the entries there are."""
    return list(json.loads(RESULTS.read_text())) if RESULTS.exists() else []


def show(rows: list[Row]) -> None:
    """Print the summary."""
    table = Table(title="Summary", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("work", "ours", "peer", "ratio", "asked", "reached"):
        table.add_column(heading, justify="right" if heading in ("ours", "ratio") else "left")
    for row in rows:
        table.add_row(*row, style={"no": "red", "not measured": "dim"}.get(row.reached))
    console().print(table)


def main() -> int:
    """Measure, unless only the summary is wanted; print it; return the exit code."""
    if sys.argv[1:] == ["summary"]:
        rows = summary(results())
        show(rows)
        return int(any(row.reached == "no" for row in rows))
    began = time.monotonic()
    silent, codes = measure(PROGRAMS)
    rows = summary(results(), [one for one in ASKED if one.program in PROGRAMS], silent)
    show(rows)
    printing = console()
    printing.print(f"All of it took {(time.monotonic() - began) / 60:.1f} minutes.")
    if missed := [row.row for row in rows if row.reached == "no"]:
        printing.print(f"Below what is asked: {', '.join(missed)}.")
    if silent:
        printing.print(f"Measured nothing: {', '.join(sorted(silent))}; what they said is above.")
    return int(bool(missed) or any(codes.values()))


def _written() -> int:
    return RESULTS.stat().st_mtime_ns if RESULTS.exists() else 0


if __name__ == "__main__":
    sys.exit(main())
