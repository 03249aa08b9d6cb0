"""Checkpoints of the counts: a start reads what came since, and no kill or spoilt file makes it count wrongly."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shortlist.features.open_events import AnsweredRequest, StreamingPlan
from shortlist.features.tiles import Tiles
from shortlist.serving.log import event_checkpoint
from shortlist.serving.log.event_checkpoint import checkpoint_path, read_checkpoint
from shortlist.serving.log.event_log import EventReader, EventWriter
from shortlist.serving.log.log_reader import parts
from shortlist.serving.log.logs import PART, outcome_schema
from shortlist.serving.server import event_counts
from shortlist.serving.server.event_counts import EventCounts
from shortlist.serving.server.inputs import Inputs
from shortlist.serving.server.request_errors import BadRequestError
from shortlist.spec.data import Data

DATA = Data.model_validate(
    {
        "source": {"kind": "files"},
        "columns": [{"name": "user_id", "type": "integer"}, {"name": "clicked", "type": "integer"}],
        "label": "clicked",
        "clock": {"kind": "column", "column": "time", "unit": "s"},
        "split": {"warmup_days": 0, "validation_days": 1, "test_days": 1},
    }
)
PLAN = StreamingPlan(("user_id",), Tiles(timedelta(days=1), timedelta(minutes=10)), timedelta())


def event(number: int) -> AnsweredRequest:
    now = time.time_ns() // 1000
    return AnsweredRequest(f"request-{number}", now, [now], {"user_id": [number % 7]}, 1)


def counts(folder: Path) -> EventCounts:
    return EventCounts(PLAN, DATA, folder / "events", folder / "outcomes")


def rows_by_user(counted: EventCounts) -> list[int]:
    """Return the impressions of each of the users that a request of a minute later sees."""
    return rows_and_positives(counted, timedelta(minutes=1))[0]


def rows_and_positives(counted: EventCounts, after: timedelta) -> tuple[list[int], list[int]]:
    """Return the impressions of each of the users, and the positive ones, that a request of some time later sees."""
    counted.poll()
    tiles = counted._tiles
    tiles.advance((time.time_ns() + int(after.total_seconds() * 1e9)) // 1000)
    rows, positives = tiles.counts("user_id", range(7))
    return rows.tolist(), positives.tolist()


def append(folder: Path, *numbers: int) -> None:
    writer = EventWriter(folder / "events", rotate_seconds=600)
    for waiting in [writer.append(event(number)) for number in numbers]:
        waiting.result(10)
    writer.close()


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """Return a folder of 21 events that are in the checkpoint, and of 7 that are not."""
    append(tmp_path, *range(21))
    first = counts(tmp_path)
    first.poll()
    first.stop()
    append(tmp_path, *range(21, 28))
    return tmp_path


def test_a_start_counts_what_came_since_the_checkpoint(counted: Path) -> None:
    oldest = min((counted / "events").glob("*.events"))
    oldest.write_bytes(b"\0" * oldest.stat().st_size)  # it is not read again
    again = counts(counted)
    assert rows_by_user(again) == [4] * 7
    assert again.counted == 7
    again.stop()


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_a_checkpoint_that_is_not_whole_is_none_and_all_events_are_read(kept: int, counted: Path) -> None:
    path = checkpoint_path(counted / "events", PLAN)
    path.write_bytes(path.read_bytes()[:kept])
    assert read_checkpoint(path, PLAN) is None
    again = counts(counted)
    assert rows_by_user(again) == [4] * 7
    assert again.counted == 28
    again.stop()


def test_servers_that_count_other_things_do_not_read_it(counted: Path) -> None:
    other = StreamingPlan(("user_id", "page"), PLAN.tiles, PLAN.delay)
    assert read_checkpoint(checkpoint_path(counted / "events", other), other) is None


def test_a_full_disk_leaves_the_checkpoint_that_was_there(
    counted: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = checkpoint_path(counted / "events", PLAN)
    before, again = path.read_bytes(), counts(counted)

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(event_checkpoint.os, "fsync", full)
        again.poll()
    assert "no checkpoint of the counts was kept: [Errno 28] No space left on device" in caplog.text
    assert path.read_bytes() == before
    assert [one.suffix for one in (counted / "events").iterdir() if "checkpoint" in one.name] == [".checkpoint"]
    assert again.problem is None  # events are kept and counted
    assert rows_by_user(again) == [4] * 7
    again.stop()


def write_outcome(folder: Path, number: int) -> None:
    """Write a part of the outcome log: an event was clicked."""
    clicked = {"time": datetime.now(UTC), "request_id": f"request-{number}", "row": 0, "label": 1}
    path = folder / "outcomes" / "client" / PART.format(number=number)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([clicked], outcome_schema(pa.int64())), path.with_suffix(".partial"))
    path.with_suffix(".partial").rename(path)


def count_until_killed(folder: Path, first: int, told: int) -> None:
    """Append events and keep a checkpoint after every look; tell the number of each event that was acknowledged.

    The outcome of each is written after it; outcomes are looked for with every look.
    """
    event_counts._CHECKPOINT_SECONDS = event_counts._OUTCOME_POLL_SECONDS = 0.0
    server = counts(folder)
    server.start()
    for number in range(first, first + 1_000_000):
        server.append(event(number)).result(30)
        os.write(told, b"%d\n" % number)
        write_outcome(folder, number)


def kill_servers(folder: Path, kills: int) -> set[int]:
    """Kill servers at random moments; return the numbers of the events that were acknowledged."""
    random, acknowledged = Random(3), set[int]()
    for kill in range(kills):
        ours, theirs = os.pipe()
        process = os.fork()
        if not process:
            try:
                count_until_killed(folder, kill * 1_000_000, theirs)
            finally:
                os._exit(1)
        os.close(theirs)
        with os.fdopen(ours, "rb") as told:
            first = [told.readline() for _ in range(3)]  # it answers, and outcomes are written
            time.sleep(random.uniform(0.01, 0.3))  # a look takes about 0.1 s
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            *whole, _ = (b"".join(first) + told.read()).split(b"\n")  # the last number may be torn
            acknowledged |= {int(one) for one in whole}
    return acknowledged


@pytest.mark.long
def test_kills_around_checkpoints_lose_no_acknowledged_event_and_no_outcome(tmp_path: Path) -> None:
    # In a process of its own: Polars, which reads outcomes, has threads here, and no fork has them.
    told = subprocess.run([sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, check=True)
    acknowledged = {int(number) for number in told.stdout.split()}
    kept = [int(one.request.removeprefix("request-")) for one in EventReader(tmp_path / "events").read_new()]
    assert len(acknowledged) > 20
    assert acknowledged <= set(kept)
    clicked = [int(path.stem.removeprefix("part-")) for path in parts(tmp_path / "outcomes")]
    assert len(clicked) > 20
    server = counts(tmp_path)
    rows, positives = rows_and_positives(server, PLAN.tiles.delay + timedelta(minutes=1))
    assert rows == [sum(number % 7 == user for number in kept) for user in range(7)]
    assert positives == [sum(number % 7 == user for number in clicked) for user in range(7)]
    # The rest is in the checkpoint.
    assert server.counted < len(kept) + len(clicked)
    checkpoint = read_checkpoint(checkpoint_path(tmp_path / "events", PLAN), PLAN)
    assert checkpoint is not None and checkpoint.outcomes
    server.stop()


def test_a_spoilt_event_log_is_a_problem_and_lets_the_counts_fall_behind(tmp_path: Path) -> None:
    append(tmp_path, 0, 1)
    counted = counts(tmp_path)
    counted.poll()
    assert counted.problem is None
    append(tmp_path, 2)
    newest = max((tmp_path / "events").glob("*.events"))
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    seen = counted.counted_at
    counted.poll()
    assert "there is no record at byte 0" in str(counted.problem)
    assert counted.counted_at == seen
    newest.unlink()
    counted.poll()
    assert counted.problem is None
    assert counted.counted_at > seen
    counted.stop()


def test_rows_that_would_make_too_long_a_record_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_counts, "LONGEST_RECORD", 1_000)
    counted = EventCounts(
        StreamingPlan(("page",), PLAN.tiles, PLAN.delay), DATA, tmp_path / "events", tmp_path / "outcomes"
    )
    columns = {"event_time": np.array([1])}

    def inputs(*pages: str) -> Inputs:
        return Inputs(len(pages), columns, {}, {"page": list(pages)}, {})

    counted.check(inputs("x" * 100))  # 6 bytes a character at most, as "\\u0001", and 48 for a row
    with pytest.raises(BadRequestError, match="inputs page: their 2 rows may take 1002 bytes of the event log; wanted"):
        counted.check(inputs("x" * 100, "\x01" * 51))
    counted.stop()


def test_what_the_counts_lack_is_in_the_checkpoint(tmp_path: Path) -> None:
    append(tmp_path, *range(3))
    small = EventCounts(replace(PLAN, max_count_bytes=2_900), DATA, tmp_path / "events", tmp_path / "outcomes")
    assert sum(rows_by_user(small)) == 2
    assert (small.uncounted, "1 rows were not counted" in str(small.problem)) == (1, True)
    small.stop()
    again = counts(tmp_path)
    again.poll()
    assert (again.uncounted, "1 rows were not counted" in str(again.problem)) == (1, True)
    again.stop()


if __name__ == "__main__":
    sys.stdout.write(" ".join(map(str, kill_servers(Path(sys.argv[1]), 20))))
