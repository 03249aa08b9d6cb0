"""A month of logs in minutes: what a server costs on its 30th day against its first: `make bench NAME=month`.

A day is 86 400 answers and as many outcomes, appended to streams, committed to the tables hourly and maintained. Then
a server starts, follows what its users were shown and did, counts live, and answers, in a process of its own; of three
servers in turn the least of each cost counts, because what else the machine does only adds to it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import polars as pl
import psutil
import pyarrow as pa

from benchmarks.bench import Line, record, show
from benchmarks.freshness import DATA_SECTION, ITEMS, USERS, answered, counts_of, server, write_model
from benchmarks.targets import exit_code
from shortlist.serving.log.log_rows import encode_rows
from shortlist.serving.log.logs import outcome_schema, prediction_schema
from shortlist.serving.log.serving_log import ServingLog, stream_folder
from shortlist.serving.log.table_committer import TableCommitter
from shortlist.serving.server.recommendations.user_items import UserItems
from shortlist.spec.data import Data

DAYS: Final = 30
ANSWERS: Final = 86_400
COMMITS: Final = 24
"""Commits of a day."""
PROBES: Final = 400
ROUNDS: Final = 3
IDLE_SECONDS: Final = 10.0
WINDOW: Final = timedelta(days=1)
"""How long the server remembers what users were shown."""
DATA: Final = Data.model_validate(DATA_SECTION)
_NAMES: Final = {"p50_ms": "answer, p50", "cpu_share": "processor time while idle", "memory": "resident memory",
                 "descriptors": "open descriptors", "start_seconds": "start, until all logs are read"}  # fmt: skip
_UNITS: Final = {"p50_ms": "ms", "cpu_share": "cores", "memory": "MiB", "descriptors": "", "start_seconds": "s"}


def write_logs(logs: Path, days: int, answers: int = ANSWERS, commits: int = COMMITS) -> None:
    """Write the logs of some days that end now, as servers, users and the committer leave them."""
    streams = {kind: ServingLog.on_disk(logs / kind, schema).open_stream() for kind, schema in _schemas().items()}
    committers = {kind: TableCommitter(stream_folder(logs / kind), str(logs / kind), 0.0) for kind in streams}
    step = timedelta(days=1) / commits
    for number in range(days * commits):
        moment = datetime.now(UTC) - (days * commits - number) * step
        for kind, rows in _rows(moment, step, number, answers // commits):
            streams[kind].append([encode_rows(rows)]).result()
            committers[kind].commit()
            if number % (commits // 8) == 0:
                committers[kind].maintain()
    for stream in streams.values():
        stream.close()


def _schemas() -> dict[str, pa.Schema]:
    return {"predictions": prediction_schema(DATA), "outcomes": outcome_schema(pa.int64())}


def _rows(moment: datetime, step: timedelta, number: int, count: int) -> Iterator[tuple[str, pa.Table]]:
    generator = np.random.default_rng(number)
    users, items = generator.integers(0, USERS, count), generator.integers(0, ITEMS, count)
    times = [moment + step * place / count for place in range(count)]
    names = [f"{number}-{place}" for place in range(count)]
    common: dict[str, Any] = {"track": "stable", "version": 1, "status": 200, "latency_ms": 5.0, "degraded": False}
    answers = [
        {
            **common,
            "time": at,
            "request_id": name,
            "user": str(user),
            "user_id": [user],
            "items": [item],
            "scores": [0.5],
        }
        for at, name, user, item in zip(times, names, users.tolist(), items.tolist(), strict=True)
    ]
    outcomes = [
        {"time": at, "received": at, "request_id": name, "row": 0, "label": place % 2}
        for place, (at, name) in enumerate(zip(times, names, strict=True))
    ]
    for (kind, schema), rows in zip(_schemas().items(), (answers, outcomes), strict=True):
        yield kind, pa.Table.from_pylist(rows, schema=schema)


def serve(folder: Path, logs: Path) -> dict[str, float]:
    """Start a server on the logs; return what it costs."""
    process, began = psutil.Process(), time.perf_counter()
    components = server(folder, logs)
    items = UserItems(DATA, pl.Int64(), logs / "predictions", logs / "outcomes", WINDOW)
    items.start()
    counts = counts_of(components)
    counts.start()
    while counts.counted_at is None or not items.has_polled:
        time.sleep(0.005)
    costs = {"start_seconds": time.perf_counter() - began}

    async def ask() -> list[float]:
        seconds = []
        for number in range(PROBES):
            began = time.perf_counter()
            await answered(components, number % USERS, [1, 2, 3], f"probe-{number}")
            seconds.append(time.perf_counter() - began)
            await asyncio.sleep(0.01)
        return seconds

    costs["p50_ms"] = float(np.median(asyncio.run(ask()))) * 1000
    before = sum(process.cpu_times()[:2])
    time.sleep(IDLE_SECONDS)
    costs["cpu_share"] = (sum(process.cpu_times()[:2]) - before) / IDLE_SECONDS
    costs["memory"], costs["descriptors"] = process.memory_info().rss / 2**20, float(process.num_fds())
    items.stop()
    asyncio.run(components.close())
    return costs


def measured(folder: Path, days: int = DAYS, answers: int = ANSWERS, commits: int = COMMITS) -> list[Line]:
    """Return the costs of a server on the last day, with the first day as their peer."""
    write_model(folder)
    lengths = (1, days)
    for length in lengths:
        write_logs(folder / f"{length}-days", length, answers, commits)
    every: dict[int, list[dict[str, float]]] = {length: [] for length in lengths}
    for _ in range(ROUNDS):
        for length in lengths:
            command = [sys.executable, "-m", "benchmarks.month", str(folder), str(folder / f"{length}-days")]
            completed = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own
            every[length].append(json.loads(completed.stdout.splitlines()[-1]))
    costs = {
        length: {name: min(cost[name] for cost in server_costs) for name in _NAMES}
        for length, server_costs in every.items()
    }
    return [
        Line("month", f"{_NAMES[name]}, day {days}", costs[days][name], _UNITS[name], f"day 1: {costs[1][name]:.3g}",
             costs[days][name] / costs[1][name])
        for name in _NAMES
    ]  # fmt: skip


def main() -> None:
    """Measure, print and record; exit with 1 where day 30 costs more than is asked."""
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(serve(*map(Path, sys.argv[1:3]))) + "\n")
        return
    with TemporaryDirectory() as folder:
        lines = measured(Path(folder))
    show("A month of logs", lines)
    record(lines)
    sys.exit(exit_code(lines))


if __name__ == "__main__":
    main()
