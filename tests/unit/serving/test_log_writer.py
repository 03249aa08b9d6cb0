import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shortlist.serving.log.log_writer import LogWriter, is_sampled
from shortlist.serving.log.logs import NO_SLATE, outcome_schema, prediction_schema
from shortlist.serving.log.serving_log import stream_folder
from shortlist.serving.server.prediction_log.feature_sample import NO_FEATURES
from shortlist.serving.server.prediction_log.logged_columns import to_arrow_column
from shortlist.spec.data import Data
from shortlist.spec.serving import PredictionLog
from tests.served_log import logged_rows

DATA = Data.model_validate(
    {
        "source": {"kind": "files"},
        "columns": [
            {"name": "item_id", "type": "integer"},
            {"name": "page", "type": "string"},
            {"name": "is_click", "type": "integer"},
        ],
        "label": "is_click",
        "item": "item_id",
        "clock": {"kind": "column", "column": "time", "unit": "s"},
    }
)
PREDICTIONS = prediction_schema(DATA)
NOW = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)


def prediction(request_id: str, rows: int = 2) -> tuple[Any, ...]:
    scores = np.full(rows, 0.5, np.float32)
    answer = (
        NOW,
        request_id,
        "7",
        True,
        "backend",
        "stable",
        None,
        None,
        3,
        200,
        "0" * 16,
        1.5,
        False,
        None,
        None,
        1.0,
        np.arange(rows),
        scores,
    )
    return (*answer, None, ["home"], *NO_FEATURES, *NO_SLATE)


def writer(folder: Path, flush_seconds: float = 600, max_waiting: int = 50_000) -> LogWriter:
    settings = PredictionLog(flush_seconds=flush_seconds, max_waiting=max_waiting)
    return LogWriter(stream_folder(folder), PREDICTIONS, settings, to_arrow_column)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def no_space(folder: Path) -> Iterator[None]:
    """Limit the files of this process to one byte, so that writing fails as on a full disk."""
    old_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, old_limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old_limit)
        signal.signal(signal.SIGXFSZ, handler)


def test_rows_come_back_as_they_were_added(tmp_path: Path) -> None:
    log = writer(tmp_path)
    assert log.add(prediction("a"))
    null_values = (None, np.array([np.nan], np.float32), None, None, *NO_FEATURES, *NO_SLATE)
    assert log.add(
        (NOW, "b", None, False, None, "canary", "r", 2, 4, 500, "f" * 16, 0.5, True, None, None, 0.5, *null_values)
    )
    log.close()
    first, second = logged_rows(tmp_path, PREDICTIONS).to_dicts()
    assert first["time"] == NOW
    assert (first["request_id"], first["items"], first["scores"]) == ("a", [0, 1], [0.5, 0.5])
    assert (first["page"], first["event_time"], second["page"]) == (["home"], None, None)
    assert (second["track"], second["rollout"], second["step"], second["version"]) == ("canary", "r", 2, 4)
    assert second["items"] is None
    assert (log.written, log.dropped, log.waiting) == (2, 0, 0)


def test_rows_are_written_in_the_background_within_the_declared_time(tmp_path: Path) -> None:
    log = writer(tmp_path, flush_seconds=0.05)
    log.add(prediction("a"))
    until(lambda: logged_rows(tmp_path, PREDICTIONS).height == 1)
    log.close()


def test_memory_that_fills_is_written_before_its_time(tmp_path: Path) -> None:
    log = writer(tmp_path, max_waiting=10)
    for number in range(8):
        log.add(prediction(str(number)))
    until(lambda: log.written > 0)
    log.close()
    assert logged_rows(tmp_path, PREDICTIONS).height == 8


def test_a_reader_sees_every_row_of_two_servers_once(tmp_path: Path) -> None:
    assert logged_rows(tmp_path / "not there", PREDICTIONS).height == 0
    first_writer, two = writer(tmp_path), writer(tmp_path)
    for log, name in ((first_writer, "a"), (two, "b")):
        log.add(prediction(name))
        log.flush()
    assert sorted(logged_rows(tmp_path, PREDICTIONS)["request_id"]) == ["a", "b"]
    first_writer.add(prediction("c"))
    first_writer.close()
    two.close()
    assert sorted(logged_rows(tmp_path, PREDICTIONS)["request_id"]) == ["a", "b", "c"]


def test_a_full_disk_loses_only_rows_beyond_the_buffer(tmp_path: Path) -> None:
    log = writer(tmp_path, max_waiting=5)
    with no_space(tmp_path):
        accepted = []
        for number in range(8):
            accepted.append(log.add(prediction(str(number))))
            log.flush()
        assert "File too large" in (log.problem or "")
    assert accepted == [True] * 5 + [False] * 3
    assert (log.dropped, log.written, log.waiting) == (3, 0, 5)
    assert list(stream_folder(tmp_path).rglob("*.segment")) == []  # no half-written record stays
    log.flush()  # there is space again
    assert log.problem is None
    assert log.add(prediction("later"))
    log.close()
    assert logged_rows(tmp_path, PREDICTIONS)["request_id"].to_list() == ["0", "1", "2", "3", "4", "later"]
    assert (log.dropped, log.written) == (3, 6)


def test_rows_lost_at_the_end_on_a_full_disk_are_counted(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.add(prediction("a"))
    with no_space(tmp_path):
        log.close()
    assert (log.dropped, log.written, log.waiting) == (1, 0, 0)
    assert not log.add(prediction("after the end"))


def test_long_rows_fill_the_buffer_sooner(tmp_path: Path) -> None:
    log = LogWriter(
        stream_folder(tmp_path), PREDICTIONS, PredictionLog(flush_seconds=600, max_waiting_bytes=2**20), to_arrow_column
    )
    with no_space(tmp_path):
        accepted = []
        for number in range(5):
            accepted.append(log.add(prediction(str(number)), size=2**18 + 2**16))
            log.flush()
    assert accepted == [True, True, True, False, False]  # four have more than the mebibyte
    assert log.waiting_bytes == 3 * (2**18 + 2**16)
    log.flush()
    assert log.add(prediction("later"), size=2**20)
    log.close()
    assert logged_rows(tmp_path, PREDICTIONS)["request_id"].to_list() == ["0", "1", "2", "later"]
    assert (log.dropped, log.written) == (2, 4)


def test_a_row_of_another_shape_does_not_stop_the_log(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.add(("no time", *prediction("a")[1:]))
    log.flush()
    log.add(prediction("b"))
    log.close()
    assert log.dropped == 1
    assert logged_rows(tmp_path, PREDICTIONS)["request_id"].to_list() == ["b"]


def test_a_killed_process_keeps_all_up_to_the_last_flush(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        import numpy as np, pyarrow as pa
        from datetime import datetime, UTC
        from shortlist.spec.serving import PredictionLog
        from shortlist.serving.log.log_writer import LogWriter
        from shortlist.serving.log.logs import outcome_schema
        from shortlist.serving.log.serving_log import stream_folder
        settings = PredictionLog(flush_seconds=600)
        log = LogWriter(stream_folder(Path(sys.argv[1])), outcome_schema(pa.int64()), settings)
        for number in range(100):
            log.add((datetime.now(UTC), str(number), number, 0, 1, None, None, None))
            if number == 49:
                log.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    root = str(Path(__file__).parents[3])
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env={**os.environ, "PYTHONPATH": root}, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    assert logged_rows(tmp_path, outcome_schema(pa.int64())).height == 50


def test_adding_does_not_wait_for_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, hanging, works_again = LogWriter._write, threading.Event(), threading.Event()

    def hang(self: LogWriter, rows: Any) -> None:
        hanging.set()
        works_again.wait()
        write(self, rows)

    monkeypatch.setattr(LogWriter, "_write", hang)
    log = writer(tmp_path, flush_seconds=0.01, max_waiting=100)
    log.add(prediction("0"))
    hanging.wait()
    accepted = [log.add(prediction(str(number))) for number in range(1, 150)]  # the disk hangs all the while
    assert (accepted.count(True), log.dropped) == (99, 50)
    works_again.set()
    log.close()
    assert logged_rows(tmp_path, PREDICTIONS)["request_id"].to_list() == [str(number) for number in range(100)]


def test_the_same_requests_are_sampled_everywhere() -> None:
    names = [f"request {number}" for number in range(10_000)]
    half = {name for name in names if is_sampled(name, 0.5)}
    tenth = {name for name in names if is_sampled(name, 0.1)}
    assert 4_800 < len(half) < 5_200
    assert 900 < len(tenth) < 1_100
    assert tenth < half
    # Who chooses ids that the public hash samples does not know which of them the secret one does.
    assert 0.05 < sum(is_sampled(name, 0.1, "a secret") for name in tenth) / len(tenth) < 0.16
