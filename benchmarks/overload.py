"""What servers do when more is asked of them than they can: `make bench-overload`.

Goodput is the rate of answers with scores within a deadline, after which a client hangs up. The capacity is that of a
few clients that each wait for their answers. Then requests arrive at 1, 2 and 4 times that rate, whatever the answers
do, and somebody asks for health and metrics all the while. The loads take turns, in several rounds: what else a machine
does changes from one minute to the next, and must not be taken for a difference between loads. The generator is a
process of its own, but on a machine with few processors it takes a share of them: its processor time is reported.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import polars as pl

from benchmarks.bench import RESULTS, Line, console, record, show
from benchmarks.serve_callers import served
from benchmarks.serve_world import Question, World, demo_world
from shortlist.rollout.local.stack import Stack
from shortlist.serving.processes.probe import said
from shortlist.serving.traffic.client import Client, Endpoint, connect
from shortlist.serving.traffic.load import Load, endless

CANDIDATES: Final = 4_096
"""Rows of a request: so many that to ask costs little beside to answer, as both share this machine's processors."""
FACTORS: Final = (1, 2, 4)
SECONDS: Final = 10.0
"""Of each load, in each round."""
ROUNDS: Final = 3
CLIENTS: Final = 16
"""That each wait for their answers, to find the capacity."""
DEADLINE_SECONDS: Final = 5.0
"""An answer that takes longer is none: nobody waits for it."""
LEAST: Final = 0.8
"""Share of the best goodput that is asked for at the largest load."""
_EVERY_SECONDS: Final = 0.2


class Probes:
    """Seconds until health and metrics of a server were there, again and again while a load runs."""

    def __init__(self, stack: Stack) -> None:
        self._port = stack.record.versions[1].ports.health
        self.seconds: list[float] = []
        self.failed = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Ask while the block runs."""
        stop = threading.Event()
        thread = threading.Thread(target=self._ask, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _ask(self, stop: threading.Event) -> None:
        while not stop.wait(_EVERY_SECONDS):
            for path in ("/v2/health/ready", "/metrics"):
                began = time.perf_counter()
                self.failed += said(self._port, path, DEADLINE_SECONDS) is None
                self.seconds.append(time.perf_counter() - began)


async def capacity(client: Client, question: Question) -> float:
    """Return the answers per second of clients that each wait for theirs."""
    asks = endless([client.prepare(question.inputs)], "capacity")
    await Load(client, asks, seconds=SECONDS / 4).closed(CLIENTS)
    found, began = Found(), time.process_time()
    ledger = await Load(client, asks, seconds=SECONDS).closed(CLIENTS)
    found.add(ledger.frame(), time.process_time() - began)
    return found.goodput


@dataclass
class Found:
    """What became of the requests of one load, in all rounds."""

    right: list[float] = field(default_factory=list)
    """Seconds of the answers within the deadline."""
    seconds: float = 0.0
    requests: int = 0
    refused: int = 0
    late: int = 0
    """Not answered within the deadline."""
    failed: int = 0
    """Answered with another error than that of too much to do."""
    busy_seconds: float = 0.0
    """Processor time of the generator."""

    @property
    def goodput(self) -> float:
        """Answers within the deadline per second."""
        return len(self.right) / self.seconds

    def add(self, frame: pl.DataFrame, busy_seconds: float) -> None:
        """Count a ledger; its time ends with the last answer."""
        took = frame.select(pl.col("answered") - pl.col("sent")).to_series()
        is_late = (frame["status"] == 0) | (took > DEADLINE_SECONDS)
        self.right += took.filter((frame["status"] == 200) & ~is_late).to_list()
        self.seconds += float(frame["answered"].max() - frame["due"].min())  # type: ignore[operator]
        self.requests += frame.height
        self.refused += int((frame["status"] == 503).sum())
        self.late += int(is_late.sum())
        self.failed += int((~frame["status"].is_in([0, 200, 503])).sum())
        self.busy_seconds += busy_seconds


async def arrive(client: Client, question: Question, rate: float, name: str, found: Found) -> None:
    """Let requests arrive at a rate, and count what became of them."""
    asks = endless([client.prepare(question.inputs)], name)
    began = time.process_time()
    ledger = await Load(client, asks, seconds=SECONDS).open(rate, max_under_way=4_000)
    found.add(ledger.frame(), time.process_time() - began)


async def measure(stack: Stack, world: World, question: Question) -> tuple[list[Line], float]:
    """Return the lines, and the share of the best goodput at the largest load."""
    endpoint = Endpoint(port=stack.port, model=world.spec.name, timeout_seconds=DEADLINE_SECONDS)
    async with connect(endpoint) as client:
        best = await capacity(client, question)
        lines = [Line("overload", "capacity", round(best, 1), "answers/s")]
        found = {factor: (Found(), Probes(stack)) for factor in FACTORS}
        for number in range(ROUNDS):
            for factor, (load, probes) in found.items():
                with probes.running():
                    await arrive(client, question, factor * best, f"load-{factor}-{number}", load)
    most = max(load.goodput for load, _ in found.values())
    for factor, (load, probes) in found.items():
        name, p99 = f"{factor} x capacity", float(np.percentile(load.right or [DEADLINE_SECONDS], 99))
        share = round(load.goodput / most, 3)
        lines += [
            Line("overload", f"{name}: goodput", round(load.goodput, 1), "answers/s", "best goodput", share),
            Line("overload", f"{name}: p99 of these", round(p99 * 1e3), "ms"),
            Line("overload", f"{name}: refused", round(load.refused / load.requests, 3), "share"),
            Line("overload", f"{name}: too late", round(load.late / load.requests, 3), "share"),
            Line("overload", f"{name}: failed", load.failed, "requests"),
            Line("overload", f"{name}: generator", round(load.busy_seconds / load.seconds, 2), "processors"),
            Line("overload", f"{name}: health and metrics", round(max(probes.seconds), 3), "s at most"),
            Line("overload", f"{name}: health and metrics without answer", probes.failed, "times"),
        ]
    return lines, found[FACTORS[-1]][0].goodput / most


def main() -> int:
    """Print the table and write the results; exit code 1 when too much goodput is lost."""
    with TemporaryDirectory(prefix="shortlist-") as folder:
        with console().status("training a model"):
            world = demo_world(Path(folder) / "world", kinds=("xgboost",))
        question = Question(world, world.models["xgboost"], CANDIDATES)
        with served(world, "xgboost") as stack:
            lines, share = asyncio.run(measure(stack, world, question))
    lines.append(Line("overload", f"{FACTORS[-1]} x capacity: share of the best goodput", round(share, 3), "share"))
    show(f"Requests of {CANDIDATES:,} rows, deadline {DEADLINE_SECONDS:g} s", lines)
    record(lines, RESULTS.with_name("overload.json"))
    return int(share < LEAST)


if __name__ == "__main__":
    sys.exit(main())
