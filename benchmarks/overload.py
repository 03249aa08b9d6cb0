"""What servers do when more is asked of them than they can.

Goodput is the rate of answers with scores within a deadline, after which a client hangs up. The capacity is that of a
few clients that each wait for their answers. Then requests arrive at 1, 2 and 4 times that rate, whatever the answers
do, and somebody asks for health and metrics all the while. The loads take turns, in several rounds: what else a machine
does changes from one minute to the next, and must not be taken for a difference between loads.

Where there are two processors or more, the last one is the generator's and the others are the servers': a user's
machine is another one. Goodput per processor second of the servers is what they make of the time that they get, also on
a machine that others use too.

`OPTIONS="--works recommend --seconds 5 --rounds 1"` is a short form; it is not recorded.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import orjson
import psutil

from benchmarks.bench import RESULTS, Line, console, record, show
from benchmarks.open_loop import LATE, Load, TimedRequest
from benchmarks.recommend import release_of, slate_request
from benchmarks.serve_callers import served
from benchmarks.serve_world import Question, World, demo_world
from shortlist.rollout.local.lifecycle import stack_supervisor
from shortlist.rollout.local.stack import Stack
from shortlist.serving.processes.probe import get_body
from shortlist.serving.traffic.requests import prepare

CANDIDATES: Final = {"4,096 rows": 4_096, "128 rows": 128}
"""Rows of a request: of one that takes mostly scoring, and of one that takes mostly what a refusal takes too."""
RECOMMEND: Final = "recommend"
"""A slate of ten, from 500 candidates of the catalogue."""
ITEMS: Final = 10_000
"""Size of the catalogue."""
FACTORS: Final = (1, 2, 4)
SECONDS: Final = 10.0
"""Of each load, in each round."""
SETTLED_SECONDS: Final = 2.0
"""From the start of a load; goodput counts from then until its end."""
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
                self.failed += get_body(self._port, path, DEADLINE_SECONDS) is None
                self.seconds.append(time.perf_counter() - began)


@dataclass
class LoadOutcome:
    """What became of the requests of one load, in all rounds."""

    took: list[float] = field(default_factory=list)
    """Seconds of the answers within the deadline, from when they were due."""
    settled: int = 0
    """Of them, those while the load was on and no longer new."""
    settled_seconds: float = 0.0
    statuses: list[int] = field(default_factory=list)
    late_by: list[float] = field(default_factory=list)
    """Seconds by which requests left after they were due: the generator's own part."""
    seconds: float = 0.0
    generator_seconds: float = 0.0
    """Processor time of the generator."""
    server_seconds: float = 0.0
    """Processor time of all that serves."""

    @property
    def goodput(self) -> float:
        """Answers within the deadline per second."""
        return self.settled / self.settled_seconds

    @property
    def efficiency(self) -> float:
        """Answers within the deadline per processor second of all that serves."""
        return len(self.took) / self.server_seconds

    def add(self, requests: Sequence[TimedRequest], seconds: float) -> None:
        """Count the requests of a load of so many seconds."""
        right = [
            request
            for request in requests
            if request.status == 200 and request.answered - request.due <= DEADLINE_SECONDS
        ]
        self.took += [request.answered - request.due for request in right]
        self.settled += sum(SETTLED_SECONDS <= request.answered < seconds for request in right)
        self.settled_seconds += seconds - SETTLED_SECONDS
        self.statuses += [request.status for request in requests]
        self.late_by += [request.sent - request.due for request in requests]
        self.seconds += max(request.answered for request in requests)

    def share(self, *statuses: int) -> float:
        """Return the share of requests with one of some statuses."""
        return sum(status in statuses for status in self.statuses) / len(self.statuses)


class Arrivals:
    """Runs loads of one request against a stack.

    Args:
        stack: The stack that is asked.
        request: Path, body and headers of the request.
        folder: Folder of the load generator's files.
        processors: Processors of the load generator.
    """

    def __init__(
        self, stack: Stack, request: tuple[str, bytes, Mapping[str, str]], folder: Path, processors: Sequence[int]
    ) -> None:
        path, body, headers = request
        self._file = folder / "load.json"
        self._answers = folder / "answers.json"
        self._body = folder / "body"
        self._body.write_bytes(body)
        fields = {"host": "127.0.0.1", **headers, "content-length": len(body), "x-request-id": "load-{number}"}
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        self._head = "\r\n".join([*lines, "", ""])
        self._stack = stack
        self._processors = tuple(processors)

    def run(self, outcome: LoadOutcome, seconds: float, **options: Any) -> None:
        """Let requests arrive, and count what became of them."""
        load = Load(
            self._stack.port, self._head, str(self._body), seconds, DEADLINE_SECONDS,
            processors=self._processors, **options,
        )  # fmt: skip
        self._file.write_bytes(orjson.dumps(load._asdict()))
        seconds_before = self._server_seconds()
        command = [sys.executable, "-m", "benchmarks.open_loop", str(self._file), str(self._answers)]
        subprocess.run(command, check=True)  # noqa: S603 - our own
        report = orjson.loads(self._answers.read_bytes())
        outcome.server_seconds += self._server_seconds() - seconds_before
        outcome.generator_seconds += report["busy_seconds"]
        outcome.add([TimedRequest(*fields) for fields in report["asked"]], seconds)

    def _server_seconds(self) -> float:
        programs = stack_supervisor(self._stack.paths, self._stack.record).processes().values()
        pids = [program.pid for program in programs if program.pid is not None]
        processes = {
            process for pid in pids for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))
        }
        return sum(sum(process.cpu_times()[:2]) for process in processes)


def request_of(work: str, world: World) -> tuple[str, bytes, Mapping[str, str]]:
    """Return path, body and headers of the request of a work."""
    model = world.models["xgboost"]
    if work == RECOMMEND:
        return slate_request(world, Question(world, model, 1))
    prepared = prepare(Question(world, model, CANDIDATES[work]).inputs, "http", world.spec.name)
    return f"/v2/models/{world.spec.name}/infer", prepared.body, prepared.headers


def measure(
    arrivals: Arrivals, stack: Stack, work: str, seconds: float = SECONDS, rounds: int = ROUNDS
) -> tuple[list[Line], float]:
    """Return the lines of a work, and the share of the best goodput at the largest load."""
    arrivals.run(LoadOutcome(), seconds / 4, clients=CLIENTS)
    alone = LoadOutcome()
    arrivals.run(alone, seconds, clients=CLIENTS)
    if not alone.goodput:
        raise SystemExit(f"{work}: no answer within {seconds:g} s; other programs keep this machine busy")
    measured = {factor: (LoadOutcome(), Probes(stack)) for factor in FACTORS}
    for number in range(rounds):
        for factor, (load, probes) in measured.items():
            with probes.running():
                arrivals.run(load, seconds, rate=factor * alone.goodput, seed=number)
    best_goodput = max(load.goodput for load, _ in measured.values())
    best = max(load.efficiency for load, _ in measured.values())
    lines = [Line("overload", f"{work}, capacity", round(alone.goodput, 1), "answers/s")]
    for factor, (load, probes) in measured.items():
        lines += _lines(f"{work}, {factor} x capacity", load, probes, best_goodput, best)
    return lines, measured[FACTORS[-1]][0].goodput / best_goodput


def _lines(name: str, load: LoadOutcome, probes: Probes, best_goodput: float, best: float) -> list[Line]:
    p50, p99 = (round(1e3 * float(quantile)) for quantile in np.percentile(load.took or [DEADLINE_SECONDS], (50, 99)))
    share, efficiency = round(load.goodput / best_goodput, 3), round(load.efficiency / best, 3)
    late_ms = round(1e3 * float(np.percentile(load.late_by, 99)), 1)
    failed = sum(status not in {200, 503, LATE} for status in load.statuses)
    return [
        Line("overload", f"{name}: goodput", round(load.goodput, 1), "answers/s", "best goodput", share),
        Line(
            "overload", f"{name}: answers", round(load.efficiency, 1), "per processor second", "best of these",
            efficiency,
        ),
        Line("overload", f"{name}: p50 of these", p50, "ms"),
        Line("overload", f"{name}: p99 of these", p99, "ms"),
        Line("overload", f"{name}: refused", round(load.share(503), 3), "share"),
        Line("overload", f"{name}: too late", round(load.share(LATE), 3), "share"),
        Line("overload", f"{name}: failed", failed, "requests"),
        Line("overload", f"{name}: servers", round(load.server_seconds / load.seconds, 2), "processors"),
        Line("overload", f"{name}: generator", round(load.generator_seconds / load.seconds, 2), "processors"),
        Line("overload", f"{name}: p99 of how late requests left", late_ms, "ms"),
        Line("overload", f"{name}: health and metrics", round(max(probes.seconds), 3), "s at most"),
        Line("overload", f"{name}: health and metrics without answer", probes.failed, "times"),
    ]  # fmt: skip


def main() -> int:
    """Print the table and write the results; exit code 1 when too much goodput is lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    works = (*CANDIDATES, RECOMMEND)
    parser.add_argument("--works", nargs="+", choices=works, default=works)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each load, in each round")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    usable = sorted(os.sched_getaffinity(0))
    shares: list[float] = []
    lines: list[Line] = []
    with TemporaryDirectory(prefix="shortlist-") as name:
        folder = Path(name)
        with console().status("training a model"):
            world = demo_world(folder / "world", kinds=("xgboost",))
            release = release_of(world, ITEMS, folder)
        if len(usable) > 1:
            os.sched_setaffinity(0, usable[:-1])  # what is started from here runs there too
        with served(world, "xgboost", release) as stack:
            for work in options.works:
                arrivals = Arrivals(stack, request_of(work, world), folder, usable[-1:])
                measured, share = measure(arrivals, stack, work, options.seconds, options.rounds)
                shares.append(share)
                last = f"{work}, {FACTORS[-1]} x capacity: share of the best goodput"
                lines += [*measured, Line("overload", last, round(share, 3), "share")]
    show(f"Overload, deadline {DEADLINE_SECONDS:g} s, {len(usable)} processors", lines)
    if (tuple(options.works), options.seconds, options.rounds) == (works, SECONDS, ROUNDS):
        RESULTS.with_name("overload.json").unlink(missing_ok=True)  # of one run only
        record(lines, RESULTS.with_name("overload.json"))
    return int(min(shares) < LEAST)


if __name__ == "__main__":
    sys.exit(main())
