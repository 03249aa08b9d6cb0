"""How many events a server keeps, and whether kills lose any: `make bench NAME=events`.

The server is the product's own with its HTTP, on one core, in a process forked from this one; clients send batches of a
hundred from this process. A batch is acknowledged by its answer, which is given when it is on disk. Servers are killed
by SIGKILL at random moments; what a client has no answer for it sends again to the next server.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from benchmarks.bench import Line, record, show
from benchmarks.freshness import DATA_SECTION, server
from benchmarks.targets import exit_code
from monitoring.windows.answered_requests import REQUEST, ROWS
from shortlist.collecting.live_labels import read_labels
from shortlist.serving.log.logs import outcome_schema
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.server.requests.paths import EVENTS
from shortlist.spec.data import Data

KILLS: Final = 200
BATCHES: Final = 2_000
BATCH: Final = 100
CLIENTS: Final = 4
"""Connections that send at once; several batches share one write to the disk."""
_START_SECONDS: Final = 60.0


class Killed(NamedTuple):
    """What servers that were killed at random moments leave behind."""

    acknowledged: int
    """Events."""
    lost: int
    """Of them."""
    twice: int
    """Events that the product's reader of labels counts again."""


def serve(folder: Path, logs: Path, port: int) -> None:
    """Serve HTTP on a port until the process is killed, on one core."""
    import uvicorn
    import uvloop

    from shortlist.serving.server.protocols.http_app import http_app
    from shortlist.serving.server.protocols.http_inference import connection_class

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    service = server(folder, logs).service
    config = uvicorn.Config(
        http_app(service), http=connection_class(service), ws="none", loop="none", lifespan="off", log_config=None,
        access_log=False, port=port,
    )  # fmt: skip
    uvloop.run(uvicorn.Server(config).serve())


@contextmanager
def forked_server(folder: Path, logs: Path, port: int) -> Iterator[int]:
    """While the block runs, a server answers on a port; yields its process, which is killed at the end."""
    process = os.fork()
    if not process:
        try:
            serve(folder, logs, port)
        finally:
            os._exit(1)
    try:
        _wait_until_live(port)
        yield process
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _wait_until_live(port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        try:
            connection.request("GET", "/v2/health/live")
            connection.getresponse().read()
            return
        except OSError:
            time.sleep(0.01)
        finally:
            connection.close()
    raise TimeoutError("the server did not start")


def batch_body(name: str) -> bytes:
    """Return a batch of events, whose ids begin with a name."""
    events: list[dict[str, Any]] = [
        {"event_id": f"{name}-{place}", "request_id": f"r-{name}-{place}", "item": place, "index": 0, "seen": True,
         "outcome": {"clicked": place % 2}}
        for place in range(BATCH)
    ]  # fmt: skip
    return json.dumps({"events": events}).encode()


class Sender:
    """A client that sends batch after batch, and sends again what was not answered.

    Args:
        port: Of the server.
        name: Begins the ids of its events.
    """

    def __init__(self, port: int, name: str) -> None:
        self._port, self._name = port, name
        self._connection: http.client.HTTPConnection | None = None
        self._next = 0
        self.acknowledged: list[str] = []
        """Names of the batches that were answered."""
        self.seconds: list[float] = []
        """Time that each took."""

    def send(self) -> bool:
        """Send the next batch; return whether it is acknowledged. Otherwise it is sent again by the next call."""
        name = f"{self._name}-{self._next}"
        began = time.perf_counter()
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
            self._connection.request("POST", EVENTS, batch_body(name))
            response = self._connection.getresponse()
            accepted = json.loads(response.read()).get("accepted")
        except (OSError, http.client.HTTPException, ValueError):
            self._connection = None
            return False
        if accepted != BATCH:
            raise RuntimeError(f"{name}: {accepted} events were accepted, status {response.status}")
        self.seconds.append(time.perf_counter() - began)
        self.acknowledged.append(name)
        self._next += 1
        return True


def send_at_rate_of_server(folder: Path, logs: Path, port: int, batches: int) -> tuple[float, float]:
    """Return events per second that a server acknowledges, and the p99 of a batch in seconds."""
    senders = [Sender(port, f"rate-{number}") for number in range(CLIENTS)]

    def send(sender: Sender) -> None:
        while len(sender.acknowledged) < batches // CLIENTS:
            sender.send()

    with forked_server(folder, logs, port):
        began = time.perf_counter()
        _in_threads(senders, send)
        seconds = time.perf_counter() - began
    times = np.concatenate([sender.seconds for sender in senders])
    return len(times) * BATCH / seconds, float(np.quantile(times, 0.99))


def kill_servers(folder: Path, logs: Path, port: int, kills: int, seed: int) -> Killed:
    """Kill servers at random moments while clients send; return what a reader of the log finds then."""
    moments = random.Random(seed)
    began = datetime.now(UTC)
    senders = [Sender(port, f"kill-{number}") for number in range(CLIENTS)]
    for _ in range(kills):
        is_killed = threading.Event()

        def send(sender: Sender, stop: threading.Event = is_killed) -> None:
            while not stop.is_set():
                sender.send()

        with forked_server(folder, logs, port) as process:
            threads = [threading.Thread(target=send, args=(sender,)) for sender in senders]
            for thread in threads:
                thread.start()
            time.sleep(moments.uniform(0.02, 0.2))
            os.kill(process, signal.SIGSTOP)  # what is under way stays under way
            is_killed.set()
        for thread in threads:
            thread.join()
    names = [name for sender in senders for name in sender.acknowledged]
    answers = pl.DataFrame({"name": names}).with_columns(items=pl.int_ranges(pl.lit(BATCH))).explode("items")
    requests = answers.select(
        pl.lit(began).alias("time"),
        pl.format("r-{}-{}", "name", "items").alias("request_id"),
        pl.lit("127.0.0.1").alias("sender"),
        pl.int_range(pl.len(), dtype=pl.UInt64).alias(REQUEST),
        pl.lit(1, pl.Int64).alias(ROWS),
        pl.concat_list("items").alias("items"),
    )
    log = ServingLog.on_disk(logs / "outcomes", outcome_schema(pa.int64()))
    log.commit()
    labels = read_labels(log, requests, Data.model_validate(DATA_SECTION))
    return Killed(requests.height, requests.height - labels.frame.height, labels.repeated)


def _in_threads(senders: list[Sender], work: Any) -> None:
    threads = [threading.Thread(target=work, args=(sender,)) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(folder: Path, kills: int = KILLS, batches: int = BATCHES) -> list[Line]:
    """Return the figures."""
    # A process of its own writes the model: this one is forked and must not have threads.
    command = [sys.executable, "-c", f"from benchmarks import freshness; from pathlib import Path;"
               f" freshness.write_model(Path({str(folder)!r}))"]  # fmt: skip
    subprocess.run(command, check=True)  # noqa: S603 - our own
    port = free_port()
    rate, p99 = send_at_rate_of_server(folder, folder / "rate", port, batches)
    killed = kill_servers(folder, folder / "kills", port, kills, seed=1)
    lost = f"{killed.lost} of {killed.acknowledged:,} events lost, {killed.twice} counted twice"
    return [
        Line("events", f"events kept on one core, in batches of {BATCH}", rate, "events/s"),
        Line("events", f"a batch of {BATCH}, until it is acknowledged, p99", p99, "s"),
        Line("events", "kills survived", kills if not killed.lost + killed.twice else 0, "kills", lost),
    ]


def free_port() -> int:
    """Return a port that nobody listens on now."""
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def main() -> None:
    """Measure, print and record; exit with 1 where a figure is below what is asked."""
    with TemporaryDirectory() as folder:
        lines = measure(Path(folder))
    show("Events", lines)
    record(lines)
    sys.exit(exit_code(lines))


if __name__ == "__main__":
    main()
