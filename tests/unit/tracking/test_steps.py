"""A step records what it cost; a user's mistake ends it with its message alone."""

from __future__ import annotations

import errno

import pytest

from shortlist.contracts import DataError
from shortlist.tracking.steps import step


def test_a_step_records_time_memory_and_rate() -> None:
    with step("ingest") as this:
        this.rows = 1_000
    record = this.record
    assert record["name"] == "ingest"
    assert record["peak_mib"] > 1
    assert record["rows_per_s"] >= 1_000 / (record["seconds"] + 0.001)


def test_a_users_mistake_has_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped, step("validate"):
        raise DataError("3 of 10 rows break 'range'")
    assert stopped.value.code == 1
    assert capsys.readouterr().err == "3 of 10 rows break 'range'\n"


def test_a_full_disk_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), step("ingest"):
        raise OSError(errno.ENOSPC, "No space left on device", "part-00000.parquet")
    assert capsys.readouterr().err.startswith("The disk is full (part-00000.parquet). Make room and run again")


def test_our_own_fault_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), step("ingest"):
        _ = 1 / 0
    with pytest.raises(FileNotFoundError), step("ingest"):
        raise FileNotFoundError(errno.ENOENT, "gone")
