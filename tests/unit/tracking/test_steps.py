"""A step records its cost; a user's mistake ends it with its message only."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from shortlist.contracts import DataError, NotMeasuredError
from shortlist.system.execution import EXECUTION, count_cpu_operation
from shortlist.system.progress import EVENTS_VARIABLE
from shortlist.tracking.steps import failure_of_run, step


def test_a_step_records_time_memory_and_rate() -> None:
    with step("ingest") as running_step:
        running_step.rows = 1_000
    record = running_step.record
    assert record["name"] == "ingest"
    assert record["peak_mib"] > 1
    assert record["rows_per_s"] >= 1_000 / (record["seconds"] + 0.001)


def test_a_step_records_its_engine_and_not_that_of_the_previous_step() -> None:
    with step("build_table") as running_step:
        EXECUTION.set_engine("gpu", device="NVIDIA H200")
        count_cpu_operation("ids of texts")
    assert running_step.record["engine"] == {"name": "gpu", "device": "NVIDIA H200", "on_cpu": {"ids of texts": 1}}
    with step("evaluate_gates") as next_step:
        pass
    assert "engine" not in next_step.record


def test_a_users_mistake_has_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped, step("validate"):
        raise DataError("3 of 10 rows break 'range'")
    assert stopped.value.code == 1
    assert capsys.readouterr().err == "3 of 10 rows break 'range'\n"


def test_a_failed_measurement_is_marked_and_names_the_step_and_the_next_runs_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events = tmp_path / "events.jsonl"
    monkeypatch.setenv(EVENTS_VARIABLE, str(events))
    for error in (NotMeasuredError("Triton died"), DataError("no rows")):
        with pytest.raises(SystemExit), step("validate_export_trees"):
            raise error
    assert "The step validate_export_trees could not measure: Triton died\n" in capsys.readouterr().err
    failed = [event for line in events.read_text().splitlines() if (event := json.loads(line))["event"] == "failed"]
    assert [event["not_measured"] for event in failed] == [True, False]
    assert "The next run measures again, and reuses the finished steps." in failed[0]["message"]


def test_a_full_disk_is_a_message_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), step("ingest"):
        raise OSError(errno.ENOSPC, "No space left on device", "part-00000.parquet")
    assert capsys.readouterr().err.startswith("The disk is full (part-00000.parquet). Free some space and run again")


def test_our_own_fault_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), step("ingest"):
        _ = 1 / 0
    with pytest.raises(FileNotFoundError), step("ingest"):
        raise FileNotFoundError(errno.ENOENT, "gone")


def test_the_end_of_a_run_knows_the_message_of_the_step_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHORTLIST_PROGRESS", raising=False)
    assert failure_of_run("validate-days") == "the step validate-days failed"
    assert failure_of_run("") == "the step unknown failed"
    for name, error in (("validate", DataError("3 of 10 rows break 'range'")), ("train", ValueError("bad width"))):
        monkeypatch.setenv("SHORTLIST_PROGRESS", str(tmp_path / f"{name}.jsonl"))
        with pytest.raises((SystemExit, ValueError)), step(name):
            raise error
        with step("finalize_run"):
            failure = failure_of_run("main: exit code 1")
        expected = {"validate": "3 of 10 rows break 'range'", "train": "ValueError: bad width"}[name]
        assert failure == f"the step {name} failed: {expected}"


@pytest.mark.parametrize(("module", "frozen"), [("json", True), ("duckdb", False)])
def test_a_process_exits_without_garbage_collection_and_without_output(module: str, frozen: bool) -> None:
    """DuckDB takes what is not collected for a leak, and would say so at length."""
    ends = "atexit.register(lambda: print(gc.get_freeze_count() > 0))"  # called after those that come later
    program = f"import atexit, gc, {module}; {ends}\nfrom shortlist.tracking.steps import step\n"
    program += "with step('evaluate_gates'): pass"
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == (f"{frozen}\n", "")
