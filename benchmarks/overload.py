"""What servers do when more is asked of them than they can: `make bench-overload`.

Goodput is the rate of answers with scores within a deadline. The capacity is that of a few clients that each wait for
their answers. Then requests arrive at 1, 2 and 4 times that rate, whatever the answers do, and somebody asks for
health and metrics all the while.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
"""Of each load."""
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
    return good(await Load(client, asks, seconds=SECONDS).closed(CLIENTS))[0]


async def arriving(client: Client, question: Question, rate: float, name: str) -> tuple[float, float, pl.DataFrame]:
    """Return goodput and p99 of requests that arrive at a rate, and their ledger."""
    asks = endless([client.prepare(question.inputs)], name)
    ledger = await Load(client, asks, seconds=SECONDS).open(rate, max_under_way=4_000)
    return *good(ledger), ledger.frame()


def good(ledger: object) -> tuple[float, float]:
    """Return the answers in time per second until the load's last one became due, and the p99 of their seconds."""
    frame: pl.DataFrame = ledger.frame()  # type: ignore[attr-defined]
    answers = frame.filter(pl.col("status") == 200)
    took = (answers["answered"] - answers["sent"]).to_numpy()
    right = took[took <= DEADLINE_SECONDS]
    spent = float(frame["answered"].max() - frame["due"].min())  # type: ignore[operator]
    return len(right) / spent, float(np.percentile(right, 99)) if len(right) else DEADLINE_SECONDS


async def measure(stack: Stack, world: World, question: Question) -> tuple[list[Line], float]:
    """Return the lines, and the share of the best goodput at the largest load."""
    endpoint = Endpoint(port=stack.port, model=world.spec.name)
    async with connect(endpoint) as client:
        best = await capacity(client, question)
        lines = [Line("overload", "capacity", round(best, 1), "answers/s")]
        found = {}
        for factor in FACTORS:
            probes = Probes(stack)
            with probes.running():
                rate, p99, ledger = await arriving(client, question, factor * best, f"load-{factor}")
            found[factor] = rate
            name = f"{factor} x capacity"
            statuses = ledger["status"]
            lines += [
                Line("overload", f"{name}: goodput", round(rate, 1), "answers/s", "capacity", round(rate / best, 3)),
                Line("overload", f"{name}: p99 of these", round(p99 * 1e3), "ms"),
                Line("overload", f"{name}: refused", round(float((statuses == 503).mean() or 0.0), 3), "share"),
                Line("overload", f"{name}: failed", int((~statuses.is_in([200, 503])).sum()), "requests"),
                Line("overload", f"{name}: health and metrics", round(max(probes.seconds), 3), "s at most"),
                Line("overload", f"{name}: health and metrics without answer", probes.failed, "times"),
            ]
    return lines, found[FACTORS[-1]] / max(best, *found.values())


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
