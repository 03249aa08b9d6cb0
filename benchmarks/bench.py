"""What benchmarks share: works timed in turn, peak memory of a process, the printed table, the results file."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

ROUNDS: Final = 5
WIDTH: Final = 100
"""Columns of what is printed where no terminal says how many it has."""
RUN_VARIABLE: Final = "SHORTLIST_BENCHMARK_RUN"
"""Names the run of all programs that a program belongs to; its entries say it."""
_FEATURES: Final = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
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
    peer: str = ""
    """What it is compared with, in the same run; empty: with nothing."""
    ratio: float | None = None
    """How many times the peer; above 1 is better for rates, below 1 for seconds and bytes."""
    bound_ratio: float | None = None
    """Share of what the machine could do at most."""
    roofs: Mapping[str, float] | None = None
    """Share of each of several limits, where there are several; `bound_ratio` is the largest of them."""


def in_turn(works: Mapping[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, Cost]:
    """Time several works A B A B: what else the machine does then hits all of them alike. Warm them up before."""
    costs: dict[str, list[Cost]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            costs[name].append(cost(work))
    return {name: Cost(*map(median, zip(*rounds_of_work, strict=True))) for name, rounds_of_work in costs.items()}


def cost(work: Callable[[], object]) -> Cost:
    """Time a work once."""
    wall, cpu = time.perf_counter(), _cpu_s()
    work()
    return Cost(time.perf_counter() - wall, _cpu_s() - cpu)


def alone(work: Callable[..., object], *arguments: Any) -> tuple[float, float]:
    """Return the seconds of a work, and the peak resident MiB of the fresh process that does it; it lies in a module.

    The seconds are without the start of the process.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_alone, (work, arguments))


def peak_mib(work: Callable[..., object], *arguments: Any) -> float:
    """Return the peak alone; see `alone`."""
    return alone(work, *arguments)[1]


def show(title: str, lines: Iterable[Line]) -> None:
    """Print the table, and how long the program has been running."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("peer")
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("bound", justify="right")
    for line in lines:
        bound = "" if line.bound_ratio is None else f"{line.bound_ratio:.2f}"
        bound += "".join(f", {name} {share:.2f}" for name, share in (line.roofs or {}).items())
        ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
        table.add_row(line.name, figure(line.value), line.unit, line.peer, ratio, bound)
    printing = console()
    printing.print(table)
    printing.print(f"After {time.time() - _started():.0f} s.")


def console() -> Console:
    """Return where programs print: as wide as the terminal, and 100 columns into a file."""
    terminal = Console(highlight=False)
    if not terminal.is_terminal and "COLUMNS" not in os.environ:
        terminal.width = WIDTH
    return terminal


def figure(value: float) -> str:
    """Return a number with four digits, or all those before the point.

    >>> figure(252092.886), figure(7.93358), figure(0.0011504)
    ('252,093', '7.934', '0.00115')
    """
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def record(
    lines: Iterable[Line], results: Path = RESULTS, machine: str | None = None, *, whole: str | None = None
) -> None:
    """Put lines into the results; those with the same work, name and processor give way, the others stay.

    Args:
        lines: What was measured.
        results: The file.
        machine: What it was measured on; this processor by default.
        whole: Work of which no other entry stays, of whatever processor: its figures do not depend on it, and a name
            that is not measured any more would contradict the others.
    """
    origin: dict[str, Any] = {"hardware": machine or hardware(), "features": processor_features()}
    origin |= {"date": datetime.now(UTC).date().isoformat(), "run": os.environ.get(RUN_VARIABLE, "")}
    fresh = [_entry(line) | origin for line in lines]
    keys = {key_of(measurement) for measurement in fresh}
    previous = json.loads(results.read_text()) if results.exists() else []
    unchanged = [
        measurement for measurement in previous if key_of(measurement) not in keys and measurement["work"] != whole
    ]
    results.parent.mkdir(exist_ok=True)
    results.write_text(
        json.dumps(sorted(unchanged + fresh, key=lambda measurement: measurement["work"]), indent=2) + "\n"
    )


def key_of(measurement: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells an entry of the results from the others: the work, its name and the processor."""
    return (measurement["work"], measurement["name"], measurement.get("hardware"), *measurement.get("features", ()))


def processor_features() -> list[str]:
    """Return the wide instructions that decide what a figure can be; those that this processor has."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return [name for name in _FEATURES if name in flags]


def hardware() -> str:
    """Return the processor's name and cores."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.machine()
    return f"{name}, {multiprocessing.cpu_count()} cores"


def _entry(line: Line) -> dict[str, Any]:
    return {name: value for name, value in line._asdict().items() if name != "roofs" or value is not None}


def _started() -> float:
    """Return when this process began, in seconds since 1970."""
    return float(psutil.Process().create_time())


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _alone(work: Callable[..., object], arguments: tuple[Any, ...]) -> tuple[float, float]:
    began = time.perf_counter()
    work(*arguments)
    seconds = time.perf_counter() - began
    # Not `ru_maxrss`: Linux hands a parent's own peak down to it.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return seconds, int(peak.split()[1]) / 1024
