"""Every promised figure, one program after another, and the summary a reader wants: `make bench`.

`make bench NAME=loader OPTIONS="..."` runs one benchmark, `NAME=list` lists them, `NAME=summary` shows the last
results, and `NAME=peers OPTIONS=recommend` installs what some benchmarks compare with.

A program that fails does not hide the others. The exit code is 1 when a program failed or a figure is below what is
asked. A summary holds what its own run measured. The last results are those of this very processor:
those of others stay in the file, and say nothing about it.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import subprocess
import sys
import time
import uuid
import venv
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.bench import RESULTS, RUN_VARIABLE, console, hardware, processor_features
from benchmarks.targets import TARGETS, Row, summary

PROGRAMS: Final = ("features", "loader", "xgboost_matrices", "train", "serve", "memory", "overhead")
"""Together under twenty minutes on two cores; the others take longer, or promise no speed."""
FURTHER_PROGRAMS: Final = (
    "candidates", "drift", "events", "freshness", "gpu", "growth", "hostile", "index", "judge", "kills", "kuairand",
    "list_metrics", "month", "overload", "recommend", "sequences", "simulate", "simulate_slates", "soak", "soak_faults",
    "two_tower", "value",
)  # fmt: skip
"""Run by their name only."""
PEERS: Final = {"features": "peers", "recommend": "peers-recommend", "sequences": "peers-sequences"}
"""What benchmarks compare with, by lock file: each is installed into an environment of its own."""
ROOT: Final = Path(__file__).parents[1]


def measure(programs: tuple[str, ...], run: str) -> tuple[frozenset[str], dict[str, int]]:
    """Run programs in turn; return those that recorded nothing, and the exit codes of all.

    Args:
        programs: Their names.
        run: Their entries in the results say it.
    """
    silent, codes, printing = set(), {}, console()
    for name in programs:
        count_before, started = len(entries_of(run)), time.monotonic()
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        environment = {**os.environ, RUN_VARIABLE: run}
        codes[name] = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode  # noqa: S603 - our own
        printing.print(f"{name}: {time.monotonic() - started:.0f} s\n", style="dim")
        if len(entries_of(run)) == count_before:
            silent.add(name)
    return frozenset(silent), codes


def results() -> list[dict[str, Any]]:
    """Return the entries there are, of every processor that ever measured."""
    return list(json.loads(RESULTS.read_text())) if RESULTS.exists() else []


def entries_of(run: str) -> list[dict[str, Any]]:
    """Return the entries that one run measured."""
    return [measurement for measurement in results() if measurement.get("run") == run]


def measurements_of_processor() -> list[dict[str, Any]]:
    """Return the entries that were measured on this processor, whenever."""
    processor = (hardware(), processor_features())
    return [
        measurement
        for measurement in results()
        if (measurement.get("hardware"), measurement.get("features")) == processor
    ]


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


def describe(name: str) -> str:
    """Return the first sentence of a benchmark's description."""
    path = ROOT / "benchmarks" / name
    source = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    return (ast.get_docstring(ast.parse(source.read_text())) or "").splitlines()[0]


def install_peers(name: str) -> int:
    """Install what a benchmark compares with, in an environment of its own; return pip's exit code."""
    if name not in PEERS:
        console().print(f"no peers {name!r}; wanted: {', '.join(PEERS)}")
        return 2
    environment = ROOT / f".venv-{PEERS[name]}"
    venv.create(environment, with_pip=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "-q", "--no-input", "--no-deps", "-r"]
    lock = f"requirements/{PEERS[name]}.txt"
    return subprocess.run([*pip, lock], cwd=ROOT, check=False).returncode  # noqa: S603 - our own


def run_program(name: str, options: list[str]) -> int:
    """Run one benchmark with its options; return its exit code."""
    if name not in (*PROGRAMS, *FURTHER_PROGRAMS):
        close = difflib.get_close_matches(name, (*PROGRAMS, *FURTHER_PROGRAMS, "list", "peers", "summary"), 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        console().print(f"no benchmark {name!r}{hint} make bench NAME=list lists them")
        return 2
    return subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *options], cwd=ROOT, check=False).returncode  # noqa: S603


def main() -> int:
    """Measure, unless something else is named; print the summary; return the exit code."""
    name, *options = sys.argv[1:] or [""]
    if name == "list":
        for program in (*PROGRAMS, *FURTHER_PROGRAMS):
            console().print(f"{program:<18}{describe(program)}", soft_wrap=True)
        return 0
    if name == "peers":
        return install_peers("".join(options))
    if name and name != "summary":
        return run_program(name, options)
    if name == "summary":
        rows = summary(measurements_of_processor(), features=processor_features())
        show(rows)
        return int(any(row.reached == "no" for row in rows))
    began = time.monotonic()
    run = uuid.uuid4().hex[:12]
    silent, codes = measure(PROGRAMS, run)
    rows = summary(entries_of(run), [target for target in TARGETS if target.program in PROGRAMS], processor_features())
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
