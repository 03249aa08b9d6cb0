"""A log as streams and a table: each row once, whatever is killed, whoever reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from shortlist.contracts import ShortlistError
from shortlist.serving.log.log_follower import LogFollower
from shortlist.serving.log.log_rows import encode_rows
from shortlist.serving.log.logs import outcome_schema
from shortlist.serving.log.outcome_writer import OutcomeWriter
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.log.table_committer import UNREADABLE, TableCommitter
from shortlist.storage.append_log.segments import segments
from shortlist.storage.append_log.writer import streams

SCHEMA = outcome_schema(pa.int64())
NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)


def outcomes_log(tmp_path: Path) -> ServingLog:
    return ServingLog.on_disk(tmp_path / "outcomes", SCHEMA)


def writer_of(log: ServingLog) -> OutcomeWriter:
    assert log.streams is not None
    return OutcomeWriter(log.streams, SCHEMA)


def clicks(*numbers: int) -> list[dict[str, Any]]:
    return [{"time": NOW, "request_id": f"r{number}", "row": 0, "label": 1} for number in numbers]


def append(log: ServingLog, rows: Sequence[dict[str, Any]]) -> None:
    writer = writer_of(log)
    writer.append(rows).result()
    writer.close()


def requests_of(frames: Sequence[pl.DataFrame]) -> list[str]:
    return [name for frame in frames for name in frame["request_id"]]


def test_each_row_of_two_streams_is_committed_once(tmp_path: Path) -> None:
    log = outcomes_log(tmp_path)
    first, second = writer_of(log), writer_of(log)
    first.append(clicks(1, 2)).result()
    second.append(clicks(3)).result()
    log.commit()
    log.commit()
    first.append(clicks(4)).result()
    rows = log.read_all()
    assert sorted(rows["request_id"]) == ["r1", "r2", "r3", "r4"]
    assert rows.select("stream", "offset", "line").n_unique() == 4
    assert rows["stream"].n_unique() == 2
    for writer in (first, second):
        writer.close()


def test_an_event_that_is_sent_again_is_appended_once(tmp_path: Path) -> None:
    log = outcomes_log(tmp_path)
    writer = writer_of(log)
    click = clicks(1)[0] | {"event_id": "e1"}
    writer.append([click]).result()
    writer.append([click]).result()
    writer.append([click, clicks(2)[0] | {"event_id": "e2"}]).result()
    writer.close()
    assert sorted(log.read_all()["event_id"]) == ["e1", "e2"]


def test_a_value_of_another_type_is_refused_with_its_whole_batch(tmp_path: Path) -> None:
    log = outcomes_log(tmp_path)
    writer = writer_of(log)
    with pytest.raises(ShortlistError, match=r"outcome log: .*int"):
        writer.append([*clicks(1), {"time": NOW, "request_id": "r2", "row": "first"}])
    writer.close()
    assert log.read_all().height == 0


def test_a_committer_killed_at_any_moment_neither_loses_nor_doubles_rows(tmp_path: Path) -> None:
    log = outcomes_log(tmp_path)
    writer = writer_of(log)
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from shortlist.serving.log.table_committer import TableCommitter\n"
        "committer = TableCommitter(Path(sys.argv[1]), sys.argv[2])\n"
        "print('ready', flush=True)\n"
        "while True: committer.commit()\n"
    )
    for attempt in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(log.streams), log.address], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            for number in range(20):
                writer.append(clicks(attempt * 20 + number)).result()
            os.kill(process.pid, signal.SIGKILL)
    writer.close()
    rows = log.read_all()
    assert sorted(rows["request_id"]) == sorted(f"r{number}" for number in range(80))


def test_two_committers_at_once_take_each_record_once(tmp_path: Path) -> None:
    log = outcomes_log(tmp_path)
    append(log, clicks(0))
    assert log.streams is not None
    first, second = TableCommitter(log.streams, log.address), TableCommitter(log.streams, log.address)
    first.commit()
    append(log, clicks(1))
    stale = second._open  # it has seen the table before the first one's commit
    table = stale()
    append(log, clicks(2))
    first.commit()
    second._open = lambda: table  # type: ignore[method-assign]
    with pytest.raises(CommitFailedError):  # it takes nothing
        second._commit_once()
    with pytest.raises(ShortlistError, match="20 commits failed, each because another one came first"):
        second.commit()
    assert sorted(log.read_all()["request_id"]) == ["r0", "r1", "r2"]


def test_a_record_that_does_not_fit_is_kept_aside_named_and_counted(tmp_path: Path) -> None:
    log = outcomes_log(tmp_path)
    append(log, clicks(1))
    log.commit()
    stream = log.open_stream()
    other = pa.table({"time": [NOW], "request_id": ["r2"], "row": ["first"], "label": [1]})
    stream.append([b"no rows at all", encode_rows(other)]).result()
    stream.close()
    append(log, clicks(3))
    assert log.streams is not None
    committer = TableCommitter(log.streams, log.address)
    assert committer.commit() == 1
    assert committer.skipped == 2
    assert len(list((log.streams / UNREADABLE).iterdir())) == 2
    problems = sorted(committer.problems.values())
    assert any("no Arrow stream" in problem for problem in problems)
    assert any("column 'row': got string; wanted int32" in problem for problem in problems)
    assert sorted(log.read_all()["request_id"]) == ["r1", "r3"]


def test_a_new_column_is_null_in_earlier_rows(tmp_path: Path) -> None:
    log = outcomes_log(tmp_path)
    append(log, clicks(1))
    log.commit()
    wide = outcome_schema(pa.int64()).append(pa.field("seconds", pa.float64()))
    wide_log = ServingLog.on_disk(tmp_path / "outcomes", wide)
    assert wide_log.streams is not None
    writer = OutcomeWriter(wide_log.streams, wide)
    writer.append([clicks(2)[0] | {"seconds": 2.5}]).result()
    writer.close()
    rows = wide_log.read_all().sort("request_id")
    assert rows["seconds"].to_list() == [None, 2.5]
    assert "seconds" not in log.read_all().columns


def test_one_bad_file_of_the_table_is_left_out_named_and_read_again_once_restored(tmp_path: Path) -> None:
    log = outcomes_log(tmp_path)
    for number in (1, 2):
        append(log, clicks(number))
        log.commit()
    bad = sorted((tmp_path / "outcomes").rglob("*.parquet"))[0]
    content = bad.read_bytes()
    bad.write_bytes(b"torn")
    assert log.read_all().height == 1
    ((name, problem),) = log.unreadable.items()
    assert name in str(bad) and "restore the file from a backup" in problem
    bad.write_bytes(content)
    assert log.read_all().height == 2
    assert not log.unreadable


def test_a_follower_reads_table_and_streams_each_row_once(tmp_path: Path) -> None:
    log = outcomes_log(tmp_path)
    append(log, clicks(1))
    log.commit()
    append(log, clicks(2))
    follower = LogFollower(log, ["request_id", "label"])
    assert requests_of([*follower.read_new()]) == ["r1", "r2"]
    append(log, clicks(3))
    log.commit()
    assert requests_of([*follower.read_new()]) == ["r3"]
    assert requests_of([*follower.read_new()]) == []
    later = LogFollower(log, ["request_id"], positions=follower.positions)
    append(log, clicks(4))
    assert requests_of([*later.read_new()]) == ["r4"]


def test_a_follower_reads_removed_segments_in_the_table(tmp_path: Path) -> None:
    log = outcomes_log(tmp_path)
    append(log, clicks(1))
    follower = LogFollower(log, ["request_id"])
    assert requests_of([*follower.read_new()]) == ["r1"]
    for number in (2, 3):
        append(log, clicks(number))
    assert log.streams is not None
    TableCommitter(log.streams, log.address, keep_seconds=0).commit()
    (stream,) = streams(log.streams)
    assert len(segments(stream)) == 1
    assert sorted(requests_of([*follower.read_new()])) == ["r2", "r3"]


def test_elsewhere_a_follower_reads_new_files_and_no_row_twice_after_compaction(tmp_path: Path) -> None:
    log = outcomes_log(tmp_path)
    remote = ServingLog(SCHEMA, log.address, streams=None)
    follower = LogFollower(remote, ["request_id"])
    assert requests_of([*follower.read_new()]) == []
    for number in range(3):
        append(log, clicks(number))
        log.commit()
    assert sorted(requests_of([*follower.read_new()])) == ["r0", "r1", "r2"]
    append(log, clicks(3))
    log.commit()
    DeltaTable(log.address).optimize.compact()
    assert requests_of([*follower.read_new()]) == ["r3"]


def test_maintenance_puts_files_together_and_removes_rows_beyond_the_retention(tmp_path: Path) -> None:
    log = outcomes_log(tmp_path)
    assert log.streams is not None
    stream = log.open_stream()
    old = datetime.now(UTC) - timedelta(days=9)
    for received in (old, old, datetime.now(UTC)):
        row = clicks(1)[0] | {"received": received}
        stream.append([encode_rows(pa.Table.from_pylist([row], schema=SCHEMA))]).result()
        log.commit()
    stream.close()
    committer = TableCommitter(log.streams, log.address)
    committer.maintain()
    assert len(DeltaTable(log.address).file_uris()) == 2  # one a day
    assert log.read_all().height == 3
    committer.maintain(timedelta(days=7))
    assert log.read_all()["received"].dt.date().to_list() == [datetime.now(UTC).date()]


def test_a_record_that_was_kept_aside_is_committed_once_when_it_fits(tmp_path: Path) -> None:
    log = outcomes_log(tmp_path)
    append(log, clicks(1))
    log.commit()
    assert log.streams is not None
    aside = log.streams / UNREADABLE / f"stream-000-{'0' * 32}-99.record"
    aside.parent.mkdir()
    for _ in range(2):  # the second time as after a kill between the commit and the removal of the file
        aside.write_bytes(encode_rows(pa.Table.from_pylist(clicks(2), schema=SCHEMA)))
        assert str(aside) in log.problems[0]
        TableCommitter(log.streams, log.address).retry_unreadable()
        assert log.problems == ()
    assert sorted(log.read_all()["request_id"]) == ["r1", "r2"]
    spoilt = aside.with_name(f"stream-000-{'0' * 32}-100.record")
    spoilt.write_bytes(b"no rows")
    TableCommitter(log.streams, log.address).retry_unreadable()
    assert spoilt.exists()
