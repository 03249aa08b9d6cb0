"""What a start of a server costs when a million events are open, with and without a checkpoint.

`python -m benchmarks.event_restart`. Events are half an hour old at most, in a tile of a day; each start is a process
of its own, and its seconds are of its processor, without those of loading libraries.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.bench import Line, record, show
from benchmarks.freshness import DATA, ITEMS, KEYS, USERS
from shortlist.features.open_events import AnsweredRequest, StreamingPlan
from shortlist.features.tiles import Tiles
from shortlist.serving.log.event_checkpoint import checkpoint_path
from shortlist.serving.log.event_log import EventWriter
from shortlist.serving.server.event_counts import EventCounts
from shortlist.spec.data import Data

EVENTS: Final = 1_000_000
SINCE: Final = 30_000
"""Events after the checkpoint: about a minute of them."""
SPAN_US: Final = 1_800_000_000
PLAN: Final = StreamingPlan(KEYS, Tiles(timedelta(days=1)), timedelta(milliseconds=500))


def counts(folder: Path) -> EventCounts:
    """Return what counts events in a server."""
    return EventCounts(PLAN, Data.model_validate(DATA), folder / "events", folder / "outcomes")


def append(folder: Path, first: int, until: int, now: int) -> None:
    """Append requests of one row each."""
    made, writer = random.Random(first), EventWriter(folder / "events", 600)
    waiting: list[Future[None]] = []
    for number in range(first, until):
        at = now - SPAN_US + number * SPAN_US // (EVENTS + SINCE)
        keys = {"user_id": [made.randrange(USERS)], "item_id": [made.randrange(ITEMS)]}
        waiting.append(writer.append(AnsweredRequest(f"{number:032x}", at, [at], keys, 1)))
    for one in waiting:
        one.result(60)
    writer.close()


def start(folder: Path, now: int) -> tuple[float, int]:
    """Return the processor seconds until everything is counted, and how many events were read."""
    server = counts(folder)
    began = time.process_time()
    server.poll()
    spent = time.process_time() - began
    # The requests that come next are of now: what they no longer need is forgotten, as in a server that answers.
    server._tiles.advance(now)
    server._write_checkpoint(time.time())
    server.stop()
    return spent, server.counted


def _alone(folder: Path, now: int) -> tuple[float, int]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(start, (folder, now))


def measured(folder: Path) -> list[Line]:
    """Measure; return the lines."""
    now = time.time_ns() // 1000
    append(folder, 0, EVENTS, now)
    size = sum(path.stat().st_size for path in (folder / "events").glob("*.events"))
    without, events = _alone(folder, now)
    assert events == EVENTS, events
    kept = checkpoint_path(folder / "events", PLAN).stat().st_size
    append(folder, EVENTS, EVENTS + SINCE, now)
    with_one, events = _alone(folder, now)
    assert events == SINCE, events
    name = f"{EVENTS:,} open events"
    return [
        Line("event_restart", f"{name}, event log", size / 2**20, "MiB"),
        Line("event_restart", f"{name}, checkpoint", kept / 2**20, "MiB", "event log", kept / size),
        Line("event_restart", f"{name}, start without a checkpoint", without, "CPU s"),
        Line("event_restart", f"{name}, start with one", with_one, "CPU s", "without", with_one / without),
    ]


def main() -> None:
    """Measure, print and record."""
    with TemporaryDirectory() as folder:
        lines = measured(Path(folder))
    show("A start of a server", lines)
    record(lines)


if __name__ == "__main__":
    main()
