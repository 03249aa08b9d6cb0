"""How soon events are in a score, how many a core counts, and whether kills lose any.

The server is the product's own, in this process, with a model that returns what it reads: neither Triton nor a network
is between an event and a score. A request is acknowledged by its answer, which is given when it is on disk. Servers are
killed by SIGKILL at random moments while they answer; each is a process of its own, forked from this one.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from benchmarks.bench import Line, record, show
from benchmarks.targets import exit_code
from shortlist.contracts import Columns, Files
from shortlist.features.live.open_counts import open_positives_column, open_rows_column
from shortlist.features.live.open_events import AnsweredRequest
from shortlist.serving.export.signature import FOLDER, NUMBERS, Signature
from shortlist.serving.log.event_log import EventReader
from shortlist.serving.log.logs import outcome_schema
from shortlist.serving.log.outcome_writer import OutcomeWriter
from shortlist.serving.log.serving_log import ServingLog, stream_folder
from shortlist.serving.server.inference.event_counts import EventCounts
from shortlist.serving.server.inference.service import InferenceRequest
from shortlist.serving.server.requests.headers import RequestContext
from shortlist.serving.server.requests.tensors import Tensor
from shortlist.serving.server.runtime.settings import ServerSettings
from shortlist.serving.server.scoring.predictor import Predictor
from shortlist.serving.server.server import ServerComponents
from shortlist.spec.data import Data

KILLS: Final = 200
PROBES: Final = 200
AT_ONCE: Final = 20
CLIENTS: Final = 4
"""That ask a server until it is killed."""
EVENTS: Final = 200_000
OTHERS_PER_SECOND: Final = 2_000
CANDIDATES: Final = 20
USERS: Final = 10_000
ITEMS: Final = 5_000
KEYS: Final = ("user_id", "item_id")
DATA_SECTION: Final[dict[str, Any]] = {
    "source": {"kind": "files"},
    "columns": [{"name": name, "type": "integer"} for name in (*KEYS, "clicked")],
    "label": "clicked",
    "clock": {"kind": "column", "column": "time", "unit": "s"},
    "user": "user_id",
    "item": "item_id",
    # Outcomes count as soon as they are told.
    "outcome_delay": "0s",
    "live": {"outcome_delay": "1h"},
    "split": {"warmup_days": 0, "validation_days": 1, "test_days": 1},
}
FEATURES: Final[dict[str, Any]] = {
    "columns": [
        {"kind": "current", "key": key, "counts": counts, "name": f"{key}_{counts}"}
        for key in KEYS
        for counts in ("rows", "positives")
    ],
    "tile": "1h",
    "streaming": True,
}
SIGNATURE: Final = Signature(
    model="fresh",
    kind="counts",
    numbers=(
        open_rows_column(("user_id",)),
        open_positives_column(("user_id",)),
        open_rows_column(("item_id",)),
        open_positives_column(("item_id",)),
    ),
)


class Echo:
    """A model that returns one of its inputs."""

    def __init__(self, number: int = 0) -> None:
        self.number = number

    async def scores(self, tensors: Any, rows: int, place: Any = None) -> Any:
        """Return the input of every row."""
        return tensors[NUMBERS][:, self.number].astype(np.float32)

    async def is_ready(self) -> bool:
        """It always is."""
        return True

    def close(self) -> None:
        """Let go of nothing."""


def write_model(folder: Path) -> None:
    """Write the model folder; in a process of its own, because this one is forked and must not have threads."""
    import polars as pl

    from shortlist.features.fits.fit import fit
    from shortlist.spec.features import Features
    from shortlist.spec.runtime import Runtime
    from shortlist.storage.tables import DayTableWriter

    times = [datetime(2026, 3, day, 12, tzinfo=UTC) for day in (2, 3, 4)]
    rows: dict[str, Any] = {key: [1, 1, 1] for key in KEYS}
    rows |= {Columns.TIME: times, Columns.DAY: [time.date() for time in times]}
    rows |= {Columns.LABEL: pl.Series([0, 1, 0], dtype=pl.Int8), Columns.IMPRESSION: [0, 1, 2]}
    writer = DayTableWriter(folder / "log", Files.LOG, 10)
    writer.append(pl.DataFrame(rows, schema_overrides={Columns.TIME: pl.Datetime("us", "UTC")}))
    writer.close()
    data_section, features = Data.model_validate(DATA_SECTION), Features.model_validate(FEATURES)
    fit(data_section, features, None, Runtime(engine="cpu"), folder / "log", folder / "fitted")
    (folder / "model" / FOLDER).mkdir(parents=True)
    SIGNATURE.write(folder / "model" / FOLDER)
    (folder / "model" / Files.PREPROCESSING).symlink_to(folder / "fitted")


def server(folder: Path, logs: Path, number: int = 0) -> ServerComponents:
    """Return a server's parts, its logs below a folder."""
    settings = ServerSettings(
        model="fresh", version=1, model_folder=folder / "model", predictor="localhost:1", http_port=1, grpc_port=2,
        store=None, project="fresh", predictions=logs / "predictions",
    )  # fmt: skip
    return ServerComponents(settings, cast(Predictor, Echo(number)))


def counts_of(parts: ServerComponents) -> EventCounts:
    """Return what counts events in a server."""
    assert parts.counts is not None
    return parts.counts


def tensors(user: int, items: Sequence[int]) -> list[Tensor]:
    """Return the inputs of a request."""
    return [
        Tensor("user_id", "INT64", (1,), np.array([user])),
        Tensor("item_id", "INT64", (len(items),), np.array(items)),
    ]


async def answered(parts: ServerComponents, user: int, items: Sequence[int], request: str) -> None:
    """Ask for scores; the request is acknowledged when this returns."""
    origin = RequestContext(request_id=request)
    await parts.service.answer(InferenceRequest("fresh", "", tensors(user, items), origin))


def answer_until_killed(folder: Path, logs: Path, name: int, pipe: int) -> None:
    """Answer requests, tell the id of each that was answered, and write its outcome, as its client would."""

    async def answer_in_turn(parts: ServerComponents, client: int) -> None:
        number = 0
        while True:
            request = f"{name}-{client}-{number}"
            await answered(parts, 1, [2, 3], request)
            os.write(pipe, f"{request}\n".encode())
            write_outcomes(logs, [request])
            number += 1

    async def serve() -> None:
        parts = server(folder, logs)
        counts_of(parts).start()
        await asyncio.gather(*(answer_in_turn(parts, client) for client in range(CLIENTS)))

    asyncio.run(serve())


class Killed(NamedTuple):
    """What servers that were killed at random moments leave behind."""

    acknowledged: int
    """Requests."""
    lost: int
    """Of them."""
    outcomes: int
    """That clients wrote."""
    rows_difference: int
    """Rows that the next server counts more than the event log holds; negative: fewer."""
    positives_difference: int
    """Positive rows that it counts more than there are outcomes; negative: fewer."""


def killed_servers(folder: Path, logs: Path, kills: int, seed: int) -> Killed:
    """Kill servers at random moments; return what the next one finds."""
    moments, acknowledged = random.Random(seed), set[str]()
    for number in range(kills):
        read_end, write_end = os.pipe()
        process = os.fork()
        if not process:
            try:
                answer_until_killed(folder, logs, number, write_end)
            finally:
                os._exit(1)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as acknowledgements:
            first = b"".join(
                acknowledgements.readline() for _ in range(CLIENTS + 1)
            )  # it answers, and one outcome is written
            time.sleep(moments.uniform(0, 0.1))
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            *whole, _ = (first + acknowledgements.read()).split(b"\n")  # the last id may be torn
            acknowledged |= {line.decode() for line in whole}
    requests_on_disk = {event.request for event in EventReader(logs / "events").read_new()}
    outcome_log = ServingLog.on_disk(logs / "outcomes", outcome_schema(pa.int64()))
    outcomes = outcome_log.read_all(["request_id"]).height
    rows, positives = asyncio.run(_counts_of_a_start(folder, logs))
    lost = len(acknowledged - requests_on_disk)
    return Killed(len(acknowledged), lost, outcomes, rows - 2 * len(requests_on_disk), positives - outcomes)


async def _counts_of_a_start(folder: Path, logs: Path) -> tuple[int, int]:
    """Return the rows, and the positive ones, of the user that a server which starts now counts."""
    parts = server(folder, logs)
    counts_of(parts).poll()
    time.sleep(counts_of(parts).max_delay_seconds + 0.1)  # the newest rows are shown after features.streaming.delay
    inputs = parts.service.inputs.read(
        [*tensors(1, [2]), Tensor(Columns.TIME, "INT64", (1,), np.array([time.time_ns() // 1000]))], 0
    )
    counts = counts_of(parts).columns(inputs)
    await parts.close()
    return int(counts[open_rows_column(("user_id",))][0]), int(counts[open_positives_column(("user_id",))][0])


async def _probed(parts: ServerComponents, probes: int, logs: Path, *, outcomes: bool) -> list[float]:
    """Return the seconds from each of some events until a score holds it.

    The event is a request, or the outcome of one that is counted. Each is about a user of its own.
    """

    async def score(user: int) -> float:
        inputs = parts.service.inputs.read(tensors(user, [1]), time.time_ns() // 1000)
        scores = await Echo(int(outcomes)).scores(parts.service.tensors(inputs, {}), 1)
        return float(scores[0])

    async def probe(number: int) -> float:
        user = -1 - number
        request = f"probe-{outcomes}-{number}"
        score_before = await score(user)
        began = time.perf_counter()
        await answered(parts, user, [1], request)
        if outcomes:
            await asyncio.sleep(1)
            began = time.perf_counter()
            write_outcomes(logs, [request])
        while await score(user) <= score_before:
            await asyncio.sleep(0.02)  # one thread at a time runs: the counting needs its own
        return time.perf_counter() - began

    async def several(first: int) -> list[float]:
        await asyncio.sleep(first * 0.037)
        return [await probe(number) for number in range(first, probes, AT_ONCE)]

    return [seconds for delays in await asyncio.gather(*map(several, range(AT_ONCE))) for seconds in delays]


def write_outcomes(logs: Path, requests: Sequence[str]) -> None:
    """Append outcomes: the first row of every request was clicked."""
    now = datetime.now(UTC)
    writer = OutcomeWriter(stream_folder(logs / "outcomes"), outcome_schema(pa.int64()))
    writer.append([{"time": now, "request_id": request, "row": 0, "label": 1} for request in requests]).result()
    writer.close()


@contextmanager
def background_traffic(parts: ServerComponents, rows_per_second: int) -> Iterator[None]:
    """While the block runs, have other users answered, so many candidates a second."""
    stopped = False

    async def ask() -> None:
        number, random_stream = 0, random.Random(3)
        began = time.perf_counter()
        while not stopped:
            items = [random_stream.randrange(ITEMS) for _ in range(CANDIDATES)]
            await answered(parts, random_stream.randrange(USERS), items, f"other-{number}")
            number += 1
            await asyncio.sleep(max(0, number * CANDIDATES / rows_per_second - (time.perf_counter() - began)))

    task = asyncio.get_running_loop().create_task(ask())
    try:
        yield
    finally:
        stopped = True
        task.cancel()


async def _seconds_to_scores(folder: Path, logs: Path, probes: int) -> tuple[list[float], list[float]]:
    parts = server(folder, logs)
    counts_of(parts).start()
    write_outcomes(logs, ["nobody's"])  # what reads parts is loaded when it is first needed
    while not counts_of(parts).counted:
        await asyncio.sleep(0.01)
    with background_traffic(parts, OTHERS_PER_SECOND):
        requests = await _probed(parts, probes, logs, outcomes=False)
        outcomes = await _probed(parts, probes, logs, outcomes=True)
    await parts.close()
    return requests, outcomes


def seconds_to_scores(folder: Path, logs: Path, probes: int) -> tuple[list[float], list[float]]:
    """Return the seconds until a score holds a request, and an outcome, of each of some probes, while others are asked.

    Both contain `features.streaming.delay`, 500 ms, of the request.
    """
    return asyncio.run(_seconds_to_scores(folder, logs, probes))


def events_per_cpu_second(folder: Path, logs: Path, events: int, candidates: int) -> float:
    """Return how many rows and outcomes are kept and counted per second of processor time, one of ten rows clicked.

    It contains encoding, CRC, writing, `fdatasync`, reading, decoding and counting by user and by item.
    """
    random_stream, parts = random.Random(5), server(folder, logs)
    counts = counts_of(parts)
    requests = events * 10 // (11 * candidates)
    now = int((time.time() - 60) * 1e6)  # servers count a time later than now as now
    request_batches = [
        AnsweredRequest(
            f"request-{number}", now, [now],
            {
                "user_id": [random_stream.randrange(USERS)],
                "item_id": [random_stream.randrange(ITEMS) for _ in range(candidates)],
            },
            candidates,
        )
        for number in range(requests)
    ]  # fmt: skip
    clicked = random_stream.choices(request_batches, k=requests * candidates // 10)
    for part in range(0, len(clicked), 10_000):
        write_outcomes(logs, [event.request for event in clicked[part : part + 10_000]])
    time_tensor = Tensor(Columns.TIME, "INT64", (1,), np.array([now + 60_000_000]))
    read = parts.service.inputs.read([*tensors(1, [1]), time_tensor], now)
    began = time.process_time()
    for first in range(0, requests, 100):
        for waiting in [counts.append(batch) for batch in request_batches[first : first + 100]]:
            waiting.result(60)
    counts.poll()
    counts.columns(read)
    spent = time.process_time() - began
    assert counts.counted == requests * candidates + len(clicked), counts.counted
    counts.stop()
    return counts.counted / spent


def measured(folder: Path, kills: int, probes: int, events: int) -> list[Line]:
    """Measure everything; return the lines."""
    subprocess.run([sys.executable, "-m", "benchmarks.freshness", str(folder)], check=True)  # noqa: S603 - our own
    killed = killed_servers(folder, folder / "killed", kills, seed=1)
    if killed.lost or killed.rows_difference or killed.positives_difference:
        sys.exit(
            f"{killed.lost} of {killed.acknowledged} acknowledged requests are lost; the next server is wrong by"
            f" {killed.rows_difference} rows, and by {killed.positives_difference} of {killed.outcomes} outcomes"
        )
    requests, outcomes = seconds_to_scores(folder, folder / "probed", probes)
    lines = [
        Line("freshness", "kills survived", kills, "kills"),
        Line("freshness", "acknowledged requests lost by kills", killed.lost, f"of {killed.acknowledged}"),
        Line("freshness", "outcomes lost by kills", abs(killed.positives_difference), f"of {killed.outcomes}"),
    ]
    for name, seconds in (("request", requests), ("outcome", outcomes)):
        at = ((share, float(np.percentile(seconds, share))) for share in (50, 99))
        lines += [Line("freshness", f"{name} to score, p{share}", value, "s") for share, value in at]
    for candidates, name in ((CANDIDATES, f"requests of {CANDIDATES} rows"), (1, "requests of 1 row")):
        rate = events_per_cpu_second(folder, folder / f"rate-{candidates}", events, candidates)
        lines.append(Line("freshness", f"events kept and counted on one core, {name}", rate, "events/s"))
    return lines


def main() -> None:
    """Measure, print and record; exit with 1 where a figure is below what is asked."""
    if len(sys.argv) > 1:  # a process of its own, see `write_model`
        write_model(Path(sys.argv[1]))
        return
    with TemporaryDirectory() as folder:
        lines = measured(Path(folder), KILLS, PROBES, EVENTS)
    show("Events to scores", lines)
    record(lines)
    sys.exit(exit_code(lines))


if __name__ == "__main__":
    main()
