"""How often a window without drift alarms, which shifts are found, and how long it takes: `make bench-drift`.

Windows are drawn from a world with 100 000 items; every one is compared in all columns, unknown items, score and domain
classifier, on one process per core.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from monitoring.drift_simulation import Shift, Simulation, World
from shortlist.config.monitoring import DriftLimits

LIMIT = 0.01
"""Most windows without drift that may alarm, as a share."""
RESULTS = Path(__file__).parent / "results"
FINE = DriftLimits(max_index=0.05)
SAMPLE = 1_000


@dataclass(frozen=True)
class Case:
    """Windows of a kind."""

    name: str
    rows: int
    windows: int
    world: World = field(default_factory=lambda: World(sample=SAMPLE))
    shift: Shift = field(default_factory=Shift)
    limits: DriftLimits = field(default_factory=DriftLimits)
    column: str = ""
    """The one that should be found; empty for windows without drift."""


@dataclass(frozen=True)
class Looked:
    """What was found in one window."""

    drifted: tuple[str, ...]
    naive: tuple[str, ...]
    seconds: float


SIZES = ((2_000, 600), (20_000, 200), (200_000, 30))
WORLDS = {
    "independent rows": World(sample=SAMPLE),
    "20 alike rows per user": World(alike=20, sample=SAMPLE),
    "days that differ (index about 0.1)": World(mood=0.3, sample=SAMPLE),
}
QUIET = tuple(Case(name, rows, windows, world) for name, world in WORLDS.items() for rows, windows in SIZES)
SHIFTS = (
    ("first item 8 % -> 18 %, max_index 0.05", Shift(top=0.11), FINE, "item_id"),
    ("first item 8 % -> 18 %", Shift(top=0.11), DriftLimits(), "item_id"),
    ("first item 8 % -> 31 %", Shift(top=0.25), DriftLimits(), "item_id"),
    ("price 0.3 deviations", Shift(price=0.3), DriftLimits(), "price"),
    ("price 0.5 deviations", Shift(price=0.5), DriftLimits(), "price"),
    ("price 1 deviation", Shift(price=1), DriftLimits(), "price"),
    ("30 % of the topics all the first one", Shift(topics=0.3), DriftLimits(), "topics"),
    ("score 0.5 deviations", Shift(score=0.5), DriftLimits(), "score"),
    ("unknown items +4 points", Shift(unknown=0.046), DriftLimits(), "item_id"),
    ("unknown items +10 points", Shift(unknown=0.115), DriftLimits(), "item_id"),
    ("half of the devices with other slots", Shift(twisted=0.5), DriftLimits(), "all columns"),
    ("all devices with other slots", Shift(twisted=1), DriftLimits(), "all columns"),
)
MOVED = tuple(
    Case(name, rows, windows, World(alike=alike, sample=SAMPLE), shift, limits, column)
    for name, shift, limits, column in SHIFTS
    for rows, windows, alike in ((2_000, 60, 1), (20_000, 30, 1), (20_000, 30, 20))
)


def looked(work: tuple[Case, int, int]) -> list[Looked]:
    """Compare some windows of a kind with a reference of their own."""
    case, seed, windows = work
    with TemporaryDirectory() as folder:
        simulation = Simulation(case.world, Path(folder), case.limits, seed)
        return [_one(simulation, case) for _ in range(windows)]


def _one(simulation: Simulation, case: Case) -> Looked:
    rows = simulation.window(case.rows, case.shift)
    start = time.perf_counter()
    findings = simulation.find(rows)
    seconds = time.perf_counter() - start
    drifted = tuple(finding.column for finding in findings if finding.drifted)
    return Looked(drifted, simulation.naive_alarms(rows), seconds)


def play(cases: tuple[Case, ...], console: Console) -> list[tuple[Case, list[Looked]]]:
    """Play every window of every case, ten references each."""
    played = []
    with multiprocessing.get_context("spawn").Pool() as pool:
        for case in cases:
            with console.status(f"{case.name}, {case.rows} rows"):
                parts = pool.map(looked, [(case, seed, case.windows // 10) for seed in range(10)], chunksize=1)
            played.append((case, [one for part in parts for one in part]))
    return played


def false_alarms(console: Console) -> list[dict[str, Any]]:
    """Play windows without drift, print the table, return the results."""
    table = Table(title="Windows without drift", title_justify="left")
    for heading in ("world", "rows", "windows", "false alarms", "plain chi-square at 0.001", "median s"):
        table.add_column(heading, justify="left" if heading == "world" else "right")
    results = []
    for case, looks in play(QUIET, console):
        false, naive = (
            sum(map(bool, found)) for found in ([one.drifted for one in looks], [one.naive for one in looks])
        )
        seconds = sorted(one.seconds for one in looks)[len(looks) // 2]
        shown = (
            f"{case.rows:,}",
            f"{len(looks):,}",
            f"{false}",
            f"{naive} ({naive / len(looks):.0%})",
            f"{seconds:.2f}",
        )
        table.add_row(case.name, *shown)
        peer = {"peer": "plain chi-square per column at 0.001", "peer_value": naive / len(looks)}
        # No bound where days differ: ten of them do not show how far an eleventh may go; `natural` is declared.
        bound = {} if case.world.mood else {"bound": LIMIT}
        more = {"windows": len(looks), "alarms": false, "median_seconds": round(seconds, 3), **bound, **peer}
        results.append(result(f"{case.name}, {case.rows} rows: false alarms", false / len(looks), **more))
    console.print(table)
    return results


def power(console: Console) -> list[dict[str, Any]]:
    """Play windows with a shift, print the table, return the results."""
    table = Table(title="Windows with a shift: found where it is (elsewhere)", title_justify="left")
    for heading in ("shift", "2 000 rows", "20 000 rows", "20 000 rows, 20 alike per user"):
        table.add_column(heading, justify="left" if heading == "shift" else "right")
    results, cells = [], []
    for case, looks in play(MOVED, console):
        found = sum(case.column in one.drifted for one in looks)
        elsewhere = sum(bool(set(one.drifted) - {case.column, "all columns"}) for one in looks)
        cells.append(f"{found / len(looks):.0%}" + (f" ({elsewhere})" if elsewhere else ""))
        if len(cells) == 3:
            table.add_row(case.name, *cells)
            cells = []
        alike = f", {case.world.alike} alike per user" if case.world.alike > 1 else ""
        more = {"windows": len(looks), "elsewhere": elsewhere, "shift": asdict(case.shift)}
        results.append(result(f"{case.name}, {case.rows} rows{alike}: found", found / len(looks), **more))
    console.print(table)
    return results


def speed(console: Console) -> list[dict[str, Any]]:
    """Return how long a comparison takes with as many rows for the classifier as there may be."""
    with TemporaryDirectory() as folder, console.status("speed"):
        simulation = Simulation(World(sample=20_000), Path(folder))
        simulation.find(simulation.window(2_000))  # imports
        case = Case("", 100_000, 5, simulation.world)
        seconds = min(_one(simulation, case).seconds for _ in range(case.windows))
    console.print(f"{case.rows} rows, 10 000 of them for the classifier: {seconds:.2f} s")
    return [result(f"{case.rows} rows in 7 columns, 10 000 for the classifier", seconds) | {"unit": "s"}]


def result(name: str, value: float, **more: Any) -> dict[str, Any]:
    """Return one line of the results."""
    hardware = f"{platform.machine()}, {multiprocessing.cpu_count()} cores"
    line = {"work": "drift", "name": name, "value": round(value, 5), "unit": "share", **more}
    return line | {"hardware": hardware, "date": datetime.now(UTC).date().isoformat()}


def main() -> int:
    """Print the tables and write the results; exit code 1 when too many windows without drift alarm."""
    console = Console()
    results = speed(console) + false_alarms(console) + power(console)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "drift.json").write_text(json.dumps(results, indent=2) + "\n")
    return int(any(one["value"] >= one["bound"] for one in results if "bound" in one))


if __name__ == "__main__":
    sys.exit(main())
