"""What benchmarks share: works timed in turn, peak memory of a process, the printed table, the results file."""

from __future__ import annotations

import json
import multiprocessing
import platform
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

ROUNDS: Final = 5
RESULTS: Final = Path(__file__).parent / "results" / "latest.json"


class Cost(NamedTuple):
    """What a piece of work takes; each figure is a median of the rounds."""

    wall_s: float
    cpu_s: float
    """User and system time of all threads: what it costs where other programs take their share of the wall time."""


class Line(NamedTuple):
    """One line of the printed table, and one entry of the results."""

    work: str
    name: str
    value: float
    unit: str
    peer: str
    """What it is compared with, in the same run."""
    ratio: float
    """How many times the peer; above 1 is better for rates, below 1 for seconds and bytes."""
    bound_ratio: float | None = None
    """Share of what the machine could do at most."""


def in_turn(works: Mapping[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, Cost]:
    """Time several works A B A B: what else the machine does then hits all of them alike. Warm them up before."""
    costs: dict[str, list[Cost]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            costs[name].append(cost(work))
    return {name: Cost(*map(median, zip(*each, strict=True))) for name, each in costs.items()}


def cost(work: Callable[[], object]) -> Cost:
    """Time a work once."""
    wall, cpu = time.perf_counter(), _cpu_s()
    work()
    return Cost(time.perf_counter() - wall, _cpu_s() - cpu)


def peak_mib(work: Callable[..., object], *arguments: Any) -> float:
    """Return the peak resident memory, in MiB, of a fresh process that does a work; it lies in a module."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_mib, (work, arguments))


def show(title: str, lines: Iterable[Line]) -> None:
    """Print the table."""
    table = Table(title=title, title_justify="left")
    for heading in ("", "value", "unit", "peer", "ratio", "of the bound"):
        table.add_column(heading, justify="right" if heading in ("value", "ratio", "of the bound") else "left")
    for line in lines:
        bound = "" if line.bound_ratio is None else f"{line.bound_ratio:.2f}"
        table.add_row(line.name, f"{line.value:,.4g}", line.unit, line.peer, f"{line.ratio:.2f}", bound)
    Console().print(table)


def record(lines: Iterable[Line], results: Path = RESULTS) -> None:
    """Put lines into the results; those with the same work and name give way, the others stay."""
    fresh = [line._asdict() | {"hardware": hardware(), "date": datetime.now(UTC).date().isoformat()} for line in lines]
    names = {(entry["work"], entry["name"]) for entry in fresh}
    before = json.loads(results.read_text()) if results.exists() else []
    kept = [entry for entry in before if (entry["work"], entry["name"]) not in names]
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps(sorted(kept + fresh, key=lambda entry: entry["work"]), indent=2) + "\n")


def hardware() -> str:
    """Return the processor's name and cores."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.machine()
    return f"{name}, {multiprocessing.cpu_count()} cores"


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _peak_mib(work: Callable[..., object], arguments: tuple[Any, ...]) -> float:
    work(*arguments)
    # Not `ru_maxrss`: Linux hands a parent's own peak down to it.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1024
