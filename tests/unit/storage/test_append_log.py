"""Append-only streams: what was acknowledged is read once, in order, whatever happened to the process that wrote it."""

import os
import signal
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Barrier

import pytest

from shortlist.storage.append_log import reader as reader_module
from shortlist.storage.append_log import writer as writer_module
from shortlist.storage.append_log.reader import StreamReader
from shortlist.storage.append_log.segments import HEAD_BYTES, LogSegment, remove_segments, segments
from shortlist.storage.append_log.writer import AppendLog, AppendLogError, open_free_stream, stream_id, streams


def record(number: int) -> bytes:
    return b"record %d" % number


def append(log: AppendLog, *numbers: int) -> None:
    log.append([record(number) for number in numbers]).result(10)


def read(folder: Path) -> list[bytes]:
    return [content for content, _ in StreamReader(folder).read_new()]


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """Return a closed stream with the records 0 to 3."""
    log = AppendLog(tmp_path / "stream")
    for number in range(4):
        append(log, number)
    log.close()
    return log.folder


def test_threads_that_make_a_streams_id_at_once_agree(tmp_path: Path) -> None:
    for number in range(50):
        folder = tmp_path / str(number)
        folder.mkdir()
        barrier = Barrier(4)

        def make_id(_: int, folder: Path = folder, barrier: Barrier = barrier) -> str:
            barrier.wait()
            return stream_id(folder)

        with ThreadPoolExecutor(4) as threads:
            assert len(set(threads.map(make_id, range(4)))) == 1
        assert [path.name for path in folder.iterdir()] == ["id"]


def test_a_stream_whose_id_cannot_be_made_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> str:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(writer_module, "stream_id", fail)
        with pytest.raises(AppendLogError, match="no room"):
            AppendLog(tmp_path / "stream")
    append(AppendLog(tmp_path / "stream"), 1)
    assert read(tmp_path / "stream") == [record(1)]


def test_records_are_read_in_order_and_from_any_offset(stream: Path) -> None:
    records = list(StreamReader(stream).read_new())
    assert [content for content, _ in records] == [record(number) for number in range(4)]
    assert [content for content, _ in StreamReader(stream, records[1].end).read_new()] == [record(2), record(3)]


def test_a_reader_yields_each_record_once_while_segments_rotate(tmp_path: Path) -> None:
    log = AppendLog(tmp_path / "stream", rotate_bytes=1)  # a segment for each write
    reader = StreamReader(log.folder)
    assert list(reader.read_new()) == []
    contents = []
    for number in range(10):
        append(log, 2 * number, 2 * number + 1)
        contents += [content for content, _ in reader.read_new()]
    assert contents == [record(number) for number in range(20)]
    assert len(segments(log.folder)) == 10
    assert list(reader.read_new()) == []


def test_a_segment_is_rotated_by_age(tmp_path: Path) -> None:
    log = AppendLog(tmp_path / "stream", rotate_seconds=0)
    append(log, 0)
    append(log, 1)
    assert len(segments(log.folder)) == 2


def test_batches_that_arrive_during_a_write_share_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, writes = os.fdatasync, []

    def count(file: int) -> None:
        writes.append(file)
        time.sleep(0.05)
        sync(file)

    monkeypatch.setattr(os, "fdatasync", count)
    log = AppendLog(tmp_path / "stream")
    for durable in [log.append([record(number)]) for number in range(200)]:
        durable.result(10)
    assert len(read(log.folder)) == 200
    assert len(writes) <= 4


@pytest.mark.parametrize("lost", [1, len(record(3)), len(record(3)) + 1, len(record(3)) + HEAD_BYTES - 1])
def test_a_torn_record_is_cut_off_at_the_next_start(lost: int, stream: Path) -> None:
    path = segments(stream)[-1].path
    os.truncate(path, path.stat().st_size - lost)
    assert read(stream) == [record(0), record(1), record(2)]
    log = AppendLog(stream)
    assert path.stat().st_size == 3 * (HEAD_BYTES + len(record(0)))
    append(log, 4)
    assert read(stream) == [record(0), record(1), record(2), record(4)]


def test_zeros_that_a_power_failure_left_are_cut_off(stream: Path) -> None:
    path = segments(stream)[-1].path
    size = path.stat().st_size
    os.truncate(path, size + 4_096)
    append(AppendLog(stream), 4)
    assert path.stat().st_size == size
    assert read(stream) == [record(number) for number in range(5)]


@pytest.mark.parametrize("position", [0, 5, 9, HEAD_BYTES + 1])  # in mark, length, checksum and record
def test_a_damaged_record_is_left_out_and_named_and_those_behind_it_are_read(position: int, stream: Path) -> None:
    path = segments(stream)[-1].path
    content = bytearray(path.read_bytes())
    begin = content.index(record(1)) - HEAD_BYTES
    content[begin + position] ^= 1
    path.write_bytes(content)
    append(AppendLog(stream), 4)  # a start cuts off none of the records behind
    reader = StreamReader(stream)
    assert [content for content, _ in reader.read_new()] == [record(0), record(2), record(3), record(4)]
    length = HEAD_BYTES + len(record(1))
    assert [str(damage) for damage in reader.damages] == [
        f"{path}: {length} bytes at byte {begin} are no record; they are left out"
    ]


def test_offsets_that_a_power_failure_took_are_not_reused(stream: Path) -> None:
    """A committer may have read bytes that were not on the disk yet: new records must lie behind them."""
    *_, (_, end) = StreamReader(stream).read_new()
    path = segments(stream)[-1].path
    os.truncate(path, 0)
    append(AppendLog(stream), 4)
    assert [content for content, _ in StreamReader(stream, end).read_new()] == [record(4)]


def test_a_full_disk_acknowledges_nothing_and_the_next_batch_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, write = AppendLog(tmp_path / "stream"), os.write
    append(log, 0)

    def write_half(file: int, content: bytes) -> int:
        write(file, content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "write", write_half)
        for number in (1, 2):
            with pytest.raises(AppendLogError, match="No space left on device; make room, or send it again later"):
                append(log, number)
        assert log.problem == "OSError: [Errno 28] No space left on device"
    append(log, 3)
    assert log.problem is None
    reader = StreamReader(log.folder)
    assert [content for content, _ in reader.read_new()] == [record(0), record(3)]
    assert not reader.damages
    assert len(segments(log.folder)) == 2


def test_records_that_are_too_long_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortlist.storage.append_log.writer.MAX_RECORD_BYTES", 8)
    log = AppendLog(tmp_path / "stream")
    with pytest.raises(AppendLogError, match=r"takes 9 bytes, all take 21; wanted at most 8 bytes a record"):
        log.append([b"123456789"]).result(5)
    log.append([b"12345678"]).result(5)
    assert read(log.folder) == [b"12345678"]


def test_a_closed_log_wrote_its_batches_and_refuses_further_batches(tmp_path: Path) -> None:
    log = AppendLog(tmp_path / "stream")
    for number in range(50):
        log.append([record(number)])
    log.close()
    assert len(read(log.folder)) == 50
    with pytest.raises(AppendLogError, match="the log is closed; ask another server"):
        append(log, 50)


def test_a_stream_has_one_writer_and_accepts_its_successor(tmp_path: Path) -> None:
    first = open_free_stream(tmp_path)
    with pytest.raises(AppendLogError, match="another process appends to this stream"):
        AppendLog(first.folder)
    second = open_free_stream(tmp_path)
    assert streams(tmp_path) == [first.folder, second.folder]
    assert first.stream != second.stream
    append(first, 0)
    first.close()
    third = open_free_stream(tmp_path)
    append(third, 1)
    assert (third.folder, third.stream) == (first.folder, first.stream)
    assert read(first.folder) == [record(0), record(1)]


def test_a_stream_that_is_made_again_has_another_id(stream: Path) -> None:
    identity = stream_id(stream)
    (stream / "id").unlink()
    assert stream_id(stream) != identity
    assert stream_id(stream) == stream_id(stream)


def test_only_old_segments_before_an_offset_are_removed(tmp_path: Path) -> None:
    log = AppendLog(tmp_path / "stream", rotate_bytes=1)
    for number in range(4):
        append(log, number)
    ends = [end for _, end in StreamReader(log.folder).read_new()]
    assert remove_segments(log.folder, ends[1], min_age_seconds=3_600) == 0
    reader = StreamReader(log.folder)
    assert remove_segments(log.folder, ends[1], min_age_seconds=0) == 2
    assert [content for content, _ in reader.read_new()] == [record(2), record(3)]
    late = StreamReader(log.folder, ends[0])
    assert [content for content, _ in late.read_new()] == [record(2), record(3)]
    assert late.missed == (ends[0], ends[1])
    assert remove_segments(log.folder, ends[3], min_age_seconds=0) == 1  # the last one holds the end of the stream


def append_until_killed(folder: Path, first: int, pipe: int) -> None:
    """Append batches of three records, and write the number of each acknowledged record to a pipe."""
    log = AppendLog(folder, rotate_seconds=0.02)
    while True:
        batches = [range(first + 3 * batch, first + 3 * batch + 3) for batch in range(5)]
        waiting = [(batch, log.append([b"%d %s" % (number, b"x" * 500) for number in batch])) for batch in batches]
        for batch, durable in waiting:
            durable.result(30)
            os.write(pipe, b"".join(b"%d " % number for number in batch))
        first += 15


def numbers_after_kills(folder: Path, kills: int, seed: int) -> tuple[set[int], list[int]]:
    """Kill writers at random moments; return the numbers that were acknowledged, and those that are read."""
    random, acknowledged = Random(seed), set[int]()
    for number in range(kills):
        read_end, write_end = os.pipe()
        process = os.fork()
        if not process:
            append_until_killed(folder, number * 1_000_000, write_end)
        os.close(write_end)
        time.sleep(random.uniform(0.01, 0.06))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        with os.fdopen(read_end, "rb") as output:
            *numbers, _ = output.read().split(b" ")  # the last number may be torn
            acknowledged |= {int(number) for number in numbers}
    return acknowledged, [int(content.split()[0]) for content in read(folder)]


def test_kills_lose_no_acknowledged_record(tmp_path: Path) -> None:
    acknowledged, numbers = numbers_after_kills(tmp_path / "stream", kills=20, seed=zlib.crc32(b"kills"))
    assert len(acknowledged) > 60
    assert acknowledged <= set(numbers)
    assert numbers == sorted(set(numbers))


def test_a_reader_lists_no_segments_while_there_is_no_new_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AppendLog(tmp_path / "stream", rotate_bytes=1)
    listings: list[Path] = []

    def counted(folder: Path) -> list[LogSegment]:
        listings.append(folder)
        return segments(folder)

    monkeypatch.setattr(reader_module, "segments", counted)
    append(log, 0)
    time.sleep(0.1)  # more than a tick of the file system's clock
    reader = StreamReader(log.folder)
    assert [content for content, _ in reader.read_new()] == [record(0)]
    for _ in range(20):
        assert list(reader.read_new()) == []
    assert len(listings) == 1
    append(log, 1)  # in the next segment
    assert [content for content, _ in reader.read_new()] == [record(1)]
    log.close()
    later = AppendLog(tmp_path / "stream")  # after a restart offsets are left out
    append(later, 2)
    assert [content for content, _ in reader.read_new()] == [record(2)]
    later.close()
