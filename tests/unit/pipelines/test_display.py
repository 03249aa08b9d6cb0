"""Terminal output of a run, from the events of its steps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shortlist.runs.display import Display


def display_of(folder: Path, *events: dict[str, Any], spec_argument: str = "") -> Display:
    display = Display(folder / "events.jsonl", spec_argument=spec_argument)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    display.refresh()
    return display


def test_every_finished_step_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    event = {"event": "done", "name": "ingest", "seconds": 2.0, "peak_mib": 100.0, "rows_per_s": 5000}
    display_of(
        tmp_path, {"event": "step", "step": "ingest", "paths": {}}, event, {"event": "cached", "step": "validate"}
    )
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"\[ 1/\d+\] ", lines[0]) and re.match(r"\[ 2/\d+\] ", lines[1])
    assert lines[0].partition("]")[2].split() == ["Read", "the", "log", "2.0", "s", "100", "MiB", "5,000", "rows/s"]
    assert lines[1].endswith("unchanged, reused")


def test_a_long_step_prints_its_progress_every_half_minute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(
        "shortlist.runs.display.time", SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda _: None)
    )
    progress = {"event": "progress", "step": "fit_features", "label": "days", "done": 3, "total": 4, "unit": "days"}
    steps = [{"event": "step", "step": name, "paths": {}} for name in ("collect", "fit_features")]
    display = display_of(tmp_path, *steps, {**progress, "text": "2026-03-03"})
    for moment in (29.0, 31.0, 40.0, 61.0):
        clock[0] = moment
        display.refresh()
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        f"{text} {seconds} s{amount}"
        for seconds in (30, 60)
        for text, amount in (
            ("Collect served rows running for", ""),
            ("Count statistics running for", ", days 75% 2026-03-03"),
        )
    ]


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    display = display_of(tmp_path)
    text = json.dumps({"event": "failed", "step": "validate", "message": "too many"}) + "\n"
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(text[:10])
        file.flush()
        display.refresh()
        assert display.failed == {}
        file.write(text[10:])
    display.refresh()
    assert display.failed == {"validate": "too many"}


def test_a_stopped_run_ends_with_its_message_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    display = display_of(tmp_path, {"event": "failed", "step": "validate", "message": "3 of 10 rows break 'range'"})
    display.print_results(tmp_path, 1, Path("runs"))
    printed = capsys.readouterr().out
    assert "3 of 10 rows break 'range'" in printed
    assert "runs/latest/report.html" in printed


def test_a_bug_shows_the_end_of_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = "Traceback (most recent call last):\nZeroDivisionError: division by zero\n"
    (tmp_path / "pipeline.log").write_text(log)
    display_of(tmp_path).print_results(tmp_path, 1, Path("runs"))
    printed = capsys.readouterr().out
    assert "a bug in Shortlist" in printed and "ZeroDivisionError" in printed


def test_a_bug_shows_the_end_of_its_own_steps_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = "train_trees | ZeroDivisionError: division by zero\n" + "train_network | epoch 3\n" * 50
    (tmp_path / "pipeline.log").write_text(log)
    steps = [{"event": "step", "step": name, "paths": {}} for name in ("train_network", "train_trees")]
    fault = {"event": "fault", "step": "train_trees", "message": "division by zero"}
    display_of(tmp_path, *steps, fault).print_results(tmp_path, 1, Path("runs"))
    printed = capsys.readouterr().out
    assert "\nZeroDivisionError: division by zero" in printed and "epoch 3" not in printed


def test_a_killed_step_is_named_with_what_needs_less_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [{"event": "step", "step": name, "paths": {}} for name in ("ingest", "train_trees")]
    done = {"event": "done", "name": "ingest", "seconds": 2.0, "peak_mib": 100.0}
    display = display_of(tmp_path, *steps, done)
    display.print_results(tmp_path, 1, Path("runs"))
    printed = capsys.readouterr().out
    assert display.broken_step == "train_trees" and "step train_trees was killed" in printed
    assert "runtime.steps_at_once: 1" in printed and "a bug in Shortlist" not in printed


def test_a_run_that_was_killed_between_two_steps_is_no_bug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = {"event": "step", "step": "ingest", "paths": {}}
    display = display_of(tmp_path, step, {"event": "done", "name": "ingest", "seconds": 2.0, "peak_mib": 100.0})
    (tmp_path / "pipeline.log").write_text("ingest | 24,000 rows\n")
    display.print_results(tmp_path, 1, Path("runs"))
    printed = capsys.readouterr().out
    assert "A process of the run was killed" in printed and "a bug in Shortlist" not in printed


def test_an_interrupted_run_prints_that_finished_steps_are_reused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display = display_of(tmp_path)
    display.interrupted = True
    display.print_results(tmp_path, 130, Path("runs"))
    assert "the next run reuses the finished steps" in capsys.readouterr().out


def test_a_finished_run_shows_validation_metrics_and_the_reason_for_the_chosen_candidate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")

    def model(test_auc: float, validation_log_loss: float) -> dict[str, Any]:
        test = {"auc": test_auc, "auc_low": test_auc - 0.01, "auc_high": test_auc + 0.01, "log_loss": 0.5}
        validation = {"validation_auc": 0.77, "validation_log_loss": validation_log_loss}
        return {**test, **validation, "train_rows_per_s": 1_000.0, "role": "candidate"}

    reasons = {
        "xgboost": ["passes every gate, validation log loss 0.5100, the lowest of those that pass"],
        "dlrm": ["passes every gate, but validation log loss 0.5200 is not below 0.5100 of 'xgboost'"],
    }
    summary = {
        "spec": "demo", "rows": {"test": 2_000}, "best_possible": None, "gates": [], "reasons": reasons,
        "models": {"xgboost": model(0.75, 0.51), "dlrm": model(0.76, 0.52)},
        "blessed": {"model": "xgboost", "version": "3"},
    }  # fmt: skip
    display = display_of(tmp_path)
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    display.print_results(tmp_path, 0, Path("runs"))
    printed = capsys.readouterr().out
    assert "GAUC" not in printed
    assert all(heading in " ".join(printed.split()) for heading in ("validation", "test", "0.5100", "0.7600"))
    assert "dlrm: passes every gate, but validation log loss 0.5200 is not below 0.5100 of 'xgboost'" in printed
    assert "Tune by the validation numbers" in printed


def test_the_metrics_within_users_fit_a_narrow_terminal_and_the_notice_comes_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    model = {"auc": 0.7611, "auc_low": 0.75, "auc_high": 0.77, "log_loss": 0.5123, "validation_log_loss": 0.5234}
    model |= {"gauc": 0.7151, "gauc_low": 0.701, "gauc_high": 0.729, "ndcg_at_10": 0.8124}
    unmeasured = {"auc": 0.6, "auc_low": None, "auc_high": None, "log_loss": 0.6, "gauc": None}
    summary = {
        "spec": "demo", "rows": {"test": 2_000}, "best_possible": {"auc": 0.767, "log_loss": 0.5}, "gates": [],
        "reasons": {}, "models": {"xgboost": model, "popularity": unmeasured}, "blessed": None,
        "notice": "No candidate beats the baseline 'logistic'.",
    }  # fmt: skip
    display = display_of(tmp_path)
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    display.print_results(tmp_path, 0, Path("runs"))
    printed = capsys.readouterr().out
    assert printed.strip().startswith("No candidate beats the baseline 'logistic'.")
    figures = "0.7611", "0.5123", "0.7151", "0.8124", "0.701\N{EN DASH}0.729", "0.5234", "0.7670"
    assert all(figure in printed for figure in figures)


def test_a_finished_run_ends_with_the_next_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = {"spec": "mine", "rows": {"test": 2}, "best_possible": None, "gates": [], "blessed": None, "models": {}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    display_of(tmp_path, spec_argument="specs/mine.yaml").print_results(tmp_path, 0, Path("runs"))
    assert "Next:\n  .venv/bin/shortlist check specs/mine.yaml" in capsys.readouterr().out
