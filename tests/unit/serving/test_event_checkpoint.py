"""Checkpoints of the counts: a start reads the events since, and kills or broken files cause no wrong counts."""

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
import pytest

from shortlist.features.counts.tiles import Tiles
from shortlist.features.live.open_events import AnsweredRequest, StreamingPlan
from shortlist.serving.log import event_checkpoint
from shortlist.serving.log.event_checkpoint import checkpoint_path, read_checkpoint
from shortlist.serving.log.event_log import EventReader, encode_event
from shortlist.serving.log.logs import outcome_schema
from shortlist.serving.server.inference import event_counts
from shortlist.serving.server.inference.event_counts import EventCounts
from shortlist.serving.server.request_inputs.input_reader import Inputs
from shortlist.serving.server.requests.request_errors import BadRequestError
from shortlist.spec.data import Data
from shortlist.storage.append_log.reader import StreamReader
from shortlist.storage.append_log.writer import open_free_stream
from tests.served_log import append_rows, logged_rows

DATA = Data.model_validate(
    {
        "source": {"kind": "files"},
        "columns": [{"name": "user_id", "type": "integer"}, {"name": "clicked", "type": "integer"}],
        "label": "clicked",
        "clock": {"kind": "column", "column": "time", "unit": "s"},
        "split": {"warmup_days": 0, "validation_days": 1, "test_days": 1},
    }
)
PLAN = StreamingPlan((("user_id",),), Tiles(timedelta(days=1), timedelta(minutes=10)), timedelta())


def event(number: int) -> AnsweredRequest:
    now = time.time_ns() // 1000
    return AnsweredRequest(f"request-{number}", now, [now], {"user_id": [number % 7]}, 1)


def counts(folder: Path) -> EventCounts:
    return EventCounts(PLAN, DATA, folder / "events", folder / "outcomes")


def rows_by_user(counted: EventCounts) -> list[int]:
    """Return the impressions per user that a request one minute later sees."""
    return rows_and_positives(counted, timedelta(minutes=1))[0]


def rows_and_positives(counted: EventCounts, offset: timedelta) -> tuple[list[int], list[int]]:
    """Return the impressions and positives per user that a request some time later sees."""
    counted.poll()
    tiles = counted._tiles
    tiles.advance((time.time_ns() + int(offset.total_seconds() * 1e9)) // 1000)
    rows, positives, _ = tiles.counts(("user_id",), range(7))
    return rows.tolist(), positives.tolist()


def append(folder: Path, *numbers: int) -> None:
    stream = open_free_stream(folder / "events", rotate_bytes=1)  # a segment each time
    stream.append([encode_event(event(number)) for number in numbers]).result(10)
    stream.close()


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """Return a folder with 21 events in the checkpoint, and 7 events after it."""
    append(tmp_path, *range(21))
    first = counts(tmp_path)
    first.poll()
    first.stop()
    append(tmp_path, *range(21, 28))
    return tmp_path


def test_a_start_counts_the_events_since_the_checkpoint(counted: Path) -> None:
    oldest = min((counted / "events").rglob("*.segment"))
    oldest.write_bytes(b"\0" * oldest.stat().st_size)  # it is not read again
    restarted = counts(counted)
    assert rows_by_user(restarted) == [4] * 7
    assert restarted.counted == 7
    restarted.stop()


@pytest.mark.parametrize("kept_bytes", [0, 7, 100, -1])
def test_an_incomplete_checkpoint_is_ignored_and_all_events_are_read(kept_bytes: int, counted: Path) -> None:
    path = checkpoint_path(counted / "events", PLAN)
    path.write_bytes(path.read_bytes()[:kept_bytes])
    assert read_checkpoint(path, PLAN) is None
    restarted = counts(counted)
    assert rows_by_user(restarted) == [4] * 7
    assert restarted.counted == 28
    restarted.stop()


def test_a_start_keeps_who_contributed_what_counts(tmp_path: Path) -> None:
    """Rows of another user or sender do not count after a start either, whether in the checkpoint or after it."""
    plan = replace(PLAN, keys=(("page",), ("user_id", "page")), user="user_id", max_share=0.01)
    now = time.time_ns() // 1000
    requests = [
        AnsweredRequest(
            f"{number}", now, [now], {"page": [["home", 1.5, None][number % 3]]}, 1, "", [f"u{number % 70}"]
        )
        for number in range(600)
    ]
    hostile = AnsweredRequest("hostile", now, [now], {"page": ["home"]}, 9, "x", ["s192.0.2.7"])

    def started() -> EventCounts:
        counted = EventCounts(plan, DATA, tmp_path / "events", tmp_path / "outcomes")
        counted.poll()
        return counted

    def append(events: list[AnsweredRequest]) -> None:
        stream = open_free_stream(tmp_path / "events")
        stream.append([encode_event(event) for event in events]).result(10)
        stream.close()

    append(requests)
    first = started()
    shares = first._tiles.state().shares
    (tile,) = shares.tiles.values()
    assert tile.whole["u3"] == 9
    decided = first._tiles.decide(hostile)
    assert len(decided.uncounted) == 6  # 0.01 (200 + c) are two, and a typical user has three
    append([decided])
    first.poll()
    first._write_checkpoint()
    first.stop()
    restarted = started()
    assert restarted.counted == 0  # all of it was in the checkpoint
    again = replace(hostile, request="again")
    assert len(restarted._tiles.decide(again).uncounted) == 9
    assert restarted._tiles._shares.state().tiles.keys() == shares.tiles.keys()
    append([replace(requests[0], request="later", contributors=["ulater"])])
    restarted.poll()
    (tile,) = restarted._tiles.state().shares.tiles.values()
    assert (tile.whole["u3"], tile.whole["ulater"], tile.whole["s192.0.2.7"], tile.senders) == (9, 1, 3, 3)
    restarted.stop()


def test_servers_with_another_plan_do_not_read_the_checkpoint(counted: Path) -> None:
    other_plan = StreamingPlan((("user_id",), ("page",)), PLAN.tiles, PLAN.delay)
    assert read_checkpoint(checkpoint_path(counted / "events", other_plan), other_plan) is None


def test_a_full_disk_leaves_the_old_checkpoint_unchanged(
    counted: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = checkpoint_path(counted / "events", PLAN)
    old_bytes, restarted = path.read_bytes(), counts(counted)

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(event_checkpoint.os, "fsync", full)
        restarted.poll()
    assert "no checkpoint of the counts was kept: [Errno 28] No space left on device" in caplog.text
    assert path.read_bytes() == old_bytes
    assert [path.suffix for path in (counted / "events").iterdir() if "checkpoint" in path.name] == [".checkpoint"]
    assert restarted.problem is None  # events are kept and counted
    assert rows_by_user(restarted) == [4] * 7
    restarted.stop()


def write_outcome(folder: Path, number: int) -> None:
    """Append an outcome: an event was clicked."""
    clicked = {"time": datetime.now(UTC), "request_id": f"request-{number}", "row": 0, "label": 1}
    append_rows(folder / "outcomes", outcome_schema(pa.int64()), [clicked])


def count_until_killed(folder: Path, first: int, pipe: int) -> None:
    """Append events with a checkpoint after every poll; write the number of each acknowledged event to a pipe.

    The outcome of each is written after it; outcomes are looked for with every look.
    """
    event_counts._CHECKPOINT_SECONDS = event_counts._OUTCOME_POLL_SECONDS = 0.0
    server = counts(folder)
    server.start()
    for number in range(first, first + 1_000_000):
        server.append(event(number)).result(30)
        os.write(pipe, b"%d\n" % number)
        write_outcome(folder, number)


def kill_servers(folder: Path, kills: int) -> set[int]:
    """Kill servers at random moments; return the numbers of the events that were acknowledged."""
    random, acknowledged = Random(3), set[int]()
    for kill in range(kills):
        read_end, write_end = os.pipe()
        process = os.fork()
        if not process:
            try:
                count_until_killed(folder, kill * 1_000_000, write_end)
            finally:
                os._exit(1)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as output:
            first = [output.readline() for _ in range(3)]  # it answers, and outcomes are written
            time.sleep(random.uniform(0.01, 0.3))  # a look takes about 0.1 s
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            *whole, _ = (b"".join(first) + output.read()).split(b"\n")  # the last number may be torn
            acknowledged |= {int(number) for number in whole}
    return acknowledged


@pytest.mark.long
def test_kills_around_checkpoints_lose_no_acknowledged_event_and_no_outcome(tmp_path: Path) -> None:
    # In a process of its own: Polars, which reads outcomes, has threads here, and no fork has them.
    process = subprocess.run([sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, check=True)
    acknowledged = {int(number) for number in process.stdout.split()}
    kept_numbers = [
        int(event.request.removeprefix("request-")) for event in EventReader(tmp_path / "events").read_new()
    ]
    assert len(acknowledged) > 20
    assert acknowledged <= set(kept_numbers)
    logged = logged_rows(tmp_path / "outcomes", outcome_schema(pa.int64()))["request_id"]
    clicked = [int(request.removeprefix("request-")) for request in logged]
    assert len(clicked) > 20
    server = counts(tmp_path)
    rows, positives = rows_and_positives(server, PLAN.tiles.delay + timedelta(minutes=1))
    assert rows == [sum(number % 7 == user for number in kept_numbers) for user in range(7)]
    assert positives == [sum(number % 7 == user for number in clicked) for user in range(7)]
    # The rest is in the checkpoint.
    assert server.counted < len(kept_numbers) + len(clicked)
    checkpoint = read_checkpoint(checkpoint_path(tmp_path / "events", PLAN), PLAN)
    assert checkpoint is not None and checkpoint.outcomes
    server.stop()


def test_a_damaged_event_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    append(tmp_path, 0, 1)
    counted = counts(tmp_path)
    counted.poll()
    assert counted.problem is None
    append(tmp_path, 2)
    newest = max((tmp_path / "events").rglob("*.segment"))
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    append(tmp_path, 3)
    counted_at = counted.counted_at
    counted.poll()
    assert "are no record; they are left out" in str(counted.problem)
    assert counted.counted == 3
    assert counted.counted_at > counted_at
    newest.unlink()
    counted.poll()
    assert counted.problem is None
    counted.stop()


def test_a_stream_that_cannot_be_read_delays_the_counts_until_its_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path, 0)
    counted = counts(tmp_path)
    counted.poll()
    counted_at = counted.counted_at
    append(tmp_path, 1)

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as once:
        once.setattr(StreamReader, "read_new", broken)
        counted.poll()
        assert "Input/output error; its events are counted as soon as it can be read" in str(counted.problem)
        assert (counted.counted, counted.counted_at) == (1, counted_at)
    counted.poll()
    assert (counted.counted, counted.problem) == (2, None)
    counted.stop()


def test_rows_that_exceed_the_longest_record_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_counts, "MAX_RECORD_BYTES", 1_000)
    counted = EventCounts(
        StreamingPlan((("page",),), PLAN.tiles, PLAN.delay), DATA, tmp_path / "events", tmp_path / "outcomes"
    )
    columns = {"event_time": np.array([1])}

    def inputs(*pages: str) -> Inputs:
        return Inputs(len(pages), columns, {}, {"page": list(pages)}, {})

    counted.check_record_length(inputs("x" * 100))  # 6 bytes a character at most, as "\\u0001", and 48 for a row
    with pytest.raises(BadRequestError, match="inputs page: their 2 rows may take 1002 bytes of the event log; wanted"):
        counted.check_record_length(inputs("x" * 100, "\x01" * 51))
    counted.stop()


def test_the_checkpoint_contains_the_number_of_uncounted_rows(tmp_path: Path) -> None:
    append(tmp_path, *range(3))
    small = EventCounts(replace(PLAN, max_count_bytes=2_900), DATA, tmp_path / "events", tmp_path / "outcomes")
    assert sum(rows_by_user(small)) == 2
    assert (small.uncounted, "1 rows were not counted" in str(small.problem)) == (1, True)
    small.stop()
    restarted = counts(tmp_path)
    restarted.poll()
    assert (restarted.uncounted, "1 rows were not counted" in str(restarted.problem)) == (1, True)
    restarted.stop()


if __name__ == "__main__":
    sys.stdout.write(" ".join(map(str, kill_servers(Path(sys.argv[1]), 20))))
