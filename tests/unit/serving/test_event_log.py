"""The event log: acknowledged events are read, whatever happened to the process that wrote them."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from shortlist.features.open_events import AnsweredRequest
from shortlist.serving.log import event_log
from shortlist.serving.log.event_log import EventLogError, EventReader, EventWriter, remove_old_files


def event(number: int) -> AnsweredRequest:
    return AnsweredRequest(f"request-{number}", number, [number], {"user_id": [number], "page": ["Zürich", None]}, 2)


def long_event(number: int) -> AnsweredRequest:
    return AnsweredRequest(f"request-{number}", number, [number], {"page": ["x" * 1_000]}, 1)


def read(folder: Path) -> list[AnsweredRequest]:
    return list(EventReader(folder).read_new())


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[EventWriter]:
    writer = EventWriter(tmp_path / "events", rotate_seconds=600)
    yield writer
    writer.close()


def test_acknowledged_events_are_read_unchanged(writer: EventWriter, tmp_path: Path) -> None:
    for future in [writer.append(event(number)) for number in range(100)]:
        future.result(5)
    assert read(tmp_path / "events") == [event(number) for number in range(100)]


def test_a_reader_yields_every_event_once_during_concurrent_writes(writer: EventWriter, tmp_path: Path) -> None:
    reader, log_writer = EventReader(tmp_path / "events"), EventWriter(tmp_path / "events", rotate_seconds=600)
    assert list(reader.read_new()) == []  # the folder is not there yet
    events = []
    for number in range(10):
        (writer if number % 2 else log_writer).append(event(number)).result(5)
        events += list(reader.read_new())
    log_writer.close()
    assert events == [event(number) for number in range(10)]
    assert list(reader.read_new()) == []


@pytest.mark.parametrize("lost", range(1, 60, 7))
def test_only_the_truncated_end_of_a_file_is_skipped(lost: int, writer: EventWriter, tmp_path: Path) -> None:
    for number in range(3):
        writer.append(event(number)).result(5)
    (path,) = (tmp_path / "events").glob("*.events")
    path.write_bytes(path.read_bytes()[:-lost])
    assert read(tmp_path / "events") == [event(0), event(1)]


def test_a_file_is_read_up_to_a_broken_record(writer: EventWriter, tmp_path: Path) -> None:
    for number in range(3):
        writer.append(event(number)).result(5)
    (path,) = (tmp_path / "events").glob("*.events")
    content = bytearray(path.read_bytes())
    content[content.index(b"request-1")] ^= 1
    path.write_bytes(content)
    reader = EventReader(tmp_path / "events")
    assert list(reader.read_new()) == [event(0)]
    assert reader.is_stuck and "there is no record at byte" in str(reader.problem)
    path.unlink()
    assert list(reader.read_new()) == []
    assert not reader.is_stuck and reader.problem is None


@pytest.mark.parametrize("lost", [0, 1])
def test_a_record_that_is_too_long_is_skipped_and_reported(
    lost: int, writer: EventWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions wrote records of any length, and readers waited for ever until they were complete."""
    for log_event in (event(0), long_event(1), event(2)):
        writer.append(log_event).result(5)
    monkeypatch.setattr(event_log, "MAX_RECORD_BYTES", 1_000)
    reader = EventReader(tmp_path / "events")
    if lost:  # bytes that are no length
        (path,) = (tmp_path / "events").glob("*.events")
        content = bytearray(path.read_bytes())
        head = content.index(b"request-1") - 10
        content[head + 4] ^= 1
        path.write_bytes(content)
    assert list(reader.read_new()) == ([event(0)] if lost else [event(0), event(2)])
    assert reader.is_stuck == bool(lost)
    assert ("there is no record" if lost else "got a record of 1") in str(reader.problem)


def test_an_event_that_is_too_long_is_refused(
    writer: EventWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "MAX_RECORD_BYTES", 1_000)
    with pytest.raises(EventLogError, match=r"the event takes 1\d\d\d bytes; wanted at most 1000"):
        writer.append(long_event(0)).result(5)
    writer.append(event(1)).result(5)
    assert read(tmp_path / "events") == [event(1)]


def test_an_error_of_any_kind_stops_neither_the_thread_nor_the_requests(
    writer: EventWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", full)
        with pytest.raises(EventLogError):
            writer.append(event(0)).result(5)
        assert writer.problem == "MemoryError: "
    writer.append(event(1)).result(5)
    assert read(tmp_path / "events") == [event(1)]


def test_a_growing_record_is_read_when_it_is_complete(writer: EventWriter, tmp_path: Path) -> None:
    writer.append(event(0)).result(5)
    (path,) = (tmp_path / "events").glob("*.events")
    whole = path.read_bytes()
    copy = tmp_path / "copy" / path.name
    copy.parent.mkdir()
    reader = EventReader(copy.parent)
    copy.write_bytes(whole[:20])
    assert list(reader.read_new()) == []
    copy.write_bytes(whole)
    assert list(reader.read_new()) == [event(0)]


def test_a_client_that_disconnects_during_a_write_does_not_block_others(
    writer: EventWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, hung_up = os.fdatasync, threading.Event()

    def slow(file: int) -> None:
        assert hung_up.wait(10)
        sync(file)

    async def two_clients() -> None:
        first = asyncio.ensure_future(asyncio.wrap_future(writer.append(event(0))))
        second = asyncio.wrap_future(writer.append(event(1)))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        hung_up.set()
        await asyncio.wait_for(second, 10)
        await asyncio.wait_for(asyncio.wrap_future(writer.append(event(2))), 10)

    monkeypatch.setattr(os, "fdatasync", slow)
    asyncio.run(two_clients())
    assert read(tmp_path / "events") == [event(0), event(1), event(2)]


def test_events_that_a_full_disk_refused_are_not_acknowledged(
    writer: EventWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.append(event(0)).result(5)
    whole = os.write

    def half(file: int, content: bytes) -> int:
        whole(file, content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "write", half)
        with pytest.raises(EventLogError, match="No space left on device; make room, or send it again later"):
            writer.append(event(1)).result(5)
        assert writer.problem == "OSError: [Errno 28] No space left on device"
    writer.append(event(2)).result(5)
    assert writer.problem is None
    assert read(tmp_path / "events") == [event(0), event(2)]


def test_a_closed_log_refuses_events(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "events", rotate_seconds=600)
    waiting = [writer.append(event(number)) for number in range(50)]
    writer.close()
    assert all(future.result(0) is None for future in waiting)
    with pytest.raises(EventLogError, match="the event log is closed"):
        writer.append(event(50)).result(5)
    assert len(read(tmp_path / "events")) == 50


def test_only_old_files_are_removed(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, rotate_seconds=0)  # a file each time
    for number in range(3):
        writer.append(event(number)).result(5)
    writer.close()
    paths = sorted(tmp_path.glob("*.events"))
    os.utime(paths[0], (time.time() - 3_601, time.time() - 3_601))
    reader = EventReader(tmp_path)
    assert remove_old_files(tmp_path, 3_600) == 1
    assert list(reader.read_new()) == [event(1), event(2)]


def write_until_killed(folder: Path, first: int, pipe: int) -> None:
    """Append events, and write the number of each acknowledged event to a pipe."""
    writer = EventWriter(folder, rotate_seconds=0.02)
    while True:
        waiting = [(number, writer.append(event(number))) for number in range(first, first + 5)]
        for number, future in waiting:
            future.result(30)
            os.write(pipe, b"%d " % number)
        first += 5


def killed(folder: Path, kills: int, seed: int) -> tuple[set[int], list[int]]:
    """Kill writers at random moments; return the numbers that were acknowledged, and those that are read."""
    random, acknowledged = Random(seed), set[int]()
    for number in range(kills):
        read_end, write_end = os.pipe()
        process = os.fork()
        if not process:
            write_until_killed(folder, number * 1_000_000, write_end)
        os.close(write_end)
        time.sleep(random.uniform(0.01, 0.06))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        with os.fdopen(read_end, "rb") as output:
            *whole, _ = output.read().split(b" ")  # the last number may be torn
            acknowledged |= {int(number) for number in whole}
    return acknowledged, [event.answered for event in read(folder)]


def test_kills_lose_no_acknowledged_event(tmp_path: Path) -> None:
    acknowledged, read_numbers = killed(tmp_path / "events", kills=20, seed=7)
    assert len(acknowledged) > 20
    assert acknowledged <= set(read_numbers)
    assert len(read_numbers) == len(set(read_numbers))
