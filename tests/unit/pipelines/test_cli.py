"""The command line: names of specs, messages, exit codes."""

from __future__ import annotations

import errno
import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shortlist.cli import main
from shortlist.cli.options import find_spec
from shortlist.contracts import ShortlistError
from shortlist.ranking import registry
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.states.phases import Phase, RolloutState
from shortlist.spec.serving import Canary

ROOT = Path(__file__).parents[3]


def shortlist(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["shortlist", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_shipped_spec_goes_by_its_name_and_others_by_path() -> None:
    assert find_spec("criteo") == ROOT / "pipelines/specs/criteo.yaml"
    assert find_spec("mine.yaml") == Path("mine.yaml")


def test_check_counts_columns_and_features_of_a_valid_spec(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shortlist(monkeypatch, "check", "criteo") == 0
    assert "valid; 40 columns, 65 features" in capsys.readouterr().out


def test_an_invalid_spec_is_a_message_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shortlist(monkeypatch, "check", str(ROOT / "tests/specs/invalid/unknown_key.yaml")) == 2
    captured = capsys.readouterr()
    assert "unknown key; did you mean 'rounds'?" in captured.err
    assert "Traceback" not in captured.err + captured.out


def test_check_finds_features_that_cannot_be_planned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    spec = (ROOT / "tests/specs/valid/minimal.yaml").read_text()
    hourly = "features:\n  tile: 1h\n  columns:\n    - {kind: count, key: [user_id], name: seen, window: 90m}\n"
    hourly += "    - {kind: count, key: [item_id], name: shown, window: 50m}\n"
    (tmp_path / "mine.yaml").write_text(spec.replace("features:\n  columns:\n", hourly))
    (tmp_path / "log.csv").write_text("user_id,item_id,clicked,time\n1,2,1,1760000000\n")
    assert shortlist(monkeypatch, "check", str(tmp_path / "mine.yaml"), "--data", str(tmp_path)) == 2
    captured = capsys.readouterr()
    assert "count 'seen': window 90m is no multiple of features.tile (60m)" in captured.err
    assert "count 'shown': window 50m is no multiple of features.tile (60m)" in captured.err
    assert "price" in captured.err.replace("price_", "")  # the log lacks the column
    assert "Traceback" not in captured.err + captured.out


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_kind_whose_package_is_not_installed_names_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    spec = (ROOT / "tests/specs/valid/minimal.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(spec.replace("xgboost: {kind: xgboost", "trees: {kind: catboost"))
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    options = ["--runs", str(tmp_path / "runs")] if command == "run" else []
    # A check says it and goes on: the training may be on a cluster, whose image has the package.
    assert shortlist(monkeypatch, command, str(tmp_path / "mine.yaml"), *options) == (2 if command == "run" else 0)
    captured = capsys.readouterr()
    line = captured.err.strip() if command == "run" else captured.out.splitlines()[1]
    assert line.endswith(
        "models.trees: kind catboost needs the package catboost, which is not installed; install it by"
        " make setup-catboost"
    )
    assert not (tmp_path / "runs").exists()


def test_an_unknown_spec_suggests_the_closest_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shortlist(monkeypatch, "check", "kuairan") == 2
    assert "did you mean 'kuairand.yaml'" in capsys.readouterr().err


def test_schema_is_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert shortlist(monkeypatch, "schema") == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Spec"


def test_a_spec_that_reads_files_needs_their_location(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert shortlist(monkeypatch, "run", "criteo", "--runs", str(tmp_path / "runs")) == 2
    assert "name their location, e.g. make run SPEC=criteo DATA=path" in capsys.readouterr().err


def test_missing_data_is_an_error_before_any_file_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = str(tmp_path / "gone.tsv")
    assert shortlist(monkeypatch, "run", "criteo", "--data", data, "--runs", str(tmp_path / "runs")) == 2
    assert "gone.tsv" in capsys.readouterr().err


@pytest.mark.parametrize(("returning", "phase", "code"), [(False, Phase.ABORTED, 0), (True, Phase.PROMOTED, 0),
                                                          (True, Phase.ROLLED_BACK, 2)])  # fmt: skip
def test_rollback_succeeds_only_when_the_former_version_serves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], returning: bool, phase: Phase, code: int
) -> None:
    state = RolloutState(
        rollout="r", candidate=2, former=1, champion=1, stable=1, steps=(5, 100), phase=phase, reason="it is odd"
    )
    record = RolloutRecord(
        spec="demo", state=state, kind="xgboost", digest="", policy=Canary(steps=(5, 100)), returning=returning
    )
    rollouts = SimpleNamespace(page=lambda rollout, name: name, location=lambda rollout, name: name)

    def roll_back(version: int | None, degraded: bool, on_change: Callable[[RolloutRecord], None]) -> RolloutRecord:
        on_change(record.model_copy(update={"state": state.model_copy(update={"phase": Phase.STARTING})}))
        return record

    deployer = SimpleNamespace(
        name="demo", rollouts=rollouts, rollback=roll_back, describe_older_versions=lambda serving: f"not {serving}"
    )
    monkeypatch.setattr("shortlist.cli.serving._target_deployer", lambda spec, target, runs: deployer)
    assert shortlist(monkeypatch, "rollback", "demo") == code
    next_step = "the rollout of version 2 was rolled back (it is odd). Then make rollback SPEC=demo again."
    printed = capsys.readouterr()
    assert (next_step in printed.err) == (code == 2)
    assert ("not 1" in printed.out) == (code == 0)
    assert "starting version 2" in printed.err


@pytest.mark.parametrize(("answered", "code"), [(3, 0), (2, 1)])
def test_a_replay_fails_when_a_request_got_no_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answered: int, code: int
) -> None:
    summary = {
        "sent": 3, "answered": answered, "failed_by_track": {"stable": 3 - answered}, "lost": 0, "seconds": 1.0,
        "refused": 0, "reasons": [], "ended_within_day": None,
        "rate": 3, "wanted_rate": 3, "p50_ms": None, "outcomes": 0,
        "slates_sent": 0, "slates_answered": 0, "first_day": "2026-01-05", "last_day": "2026-01-05", "log_rows": 3,
        "collected_rows": 0,
    }  # fmt: skip
    replays: list[tuple[float | None, ...]] = []

    def replay(*arguments: float | None) -> dict[str, Any]:
        replays.append(arguments)
        return summary

    deployer = SimpleNamespace(replay=replay)
    monkeypatch.setattr("shortlist.cli.serving._deployer", lambda spec, runs: deployer)
    assert shortlist(monkeypatch, "replay", "demo") == code
    assert f"{answered} answered" in capsys.readouterr().out
    shortlist(monkeypatch, "replay", "demo", "--rounds", "1", "--days", "4")
    assert replays == [(30.0, None, None, None), (None, None, 1, 4)]  # a number of rounds is no number of seconds


def test_a_canary_of_an_older_version_names_the_held_newest_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "20260301-000000-demo").mkdir()
    gates = [
        {"model": model, "name": name, "passed": model == "trees" and name == "auc", "reason": "it is low"}
        for model in ("trees", "network")
        for name in ("auc", "slices")
    ]
    summary = {"spec": "demo", "blessed": None, "gates": gates}
    (tmp_path / "20260301-000000-demo" / "summary.json").write_text(json.dumps(summary))

    def canary(version: int | None, on_change: Any) -> None:
        raise ShortlistError("version 3 serves everybody already")

    rollouts = SimpleNamespace(unfinished=lambda: None)
    deployer = SimpleNamespace(name="demo", rollouts=rollouts, canary=canary, candidate_version=lambda: 3)
    monkeypatch.setattr("shortlist.cli.serving._target_deployer", lambda spec, target, runs: deployer)
    held = (
        f"The newest run, {tmp_path}/20260301-000000-demo, held its candidates (trees: slices; network: auc, slices)."
        " The newest blessed version is 3, of an earlier run.\n"
    )
    assert shortlist(monkeypatch, "deploy-canary", "demo", "--runs", str(tmp_path)) == 2
    assert capsys.readouterr().err.startswith(held)
    assert shortlist(monkeypatch, "deploy-canary", "demo", "--version", "3", "--runs", str(tmp_path)) == 2
    assert "held" not in capsys.readouterr().err
    blessed = {**summary, "blessed": {"model": "trees", "version": "4"}}
    (tmp_path / "20260302-000000-demo").mkdir()
    (tmp_path / "20260302-000000-demo" / "summary.json").write_text(json.dumps(blessed))
    assert shortlist(monkeypatch, "deploy-canary", "demo", "--runs", str(tmp_path)) == 2
    assert "held" not in capsys.readouterr().err


COMMANDS = ("serve", "status", "deploy-canary", "canary-status", "promote", "rollback", "replay")


@pytest.mark.parametrize(
    "arguments", [("ui",), ("export", "demo", "out"), *((command, "demo") for command in COMMANDS)]
)
def test_commands_without_runs_name_the_next_step(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert shortlist(monkeypatch, *arguments, "--runs", str(tmp_path / "none")) == 2
    assert "no runs yet; make run first" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "runs/stores"),
        OSError(errno.EDQUOT, "Disk quota exceeded", "runs/stores"),
        sqlite3.OperationalError("database or disk is full"),
    ],
)
def test_a_full_disk_is_a_message_and_exit_code_2(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("shortlist.runs.local_training.RunsFolder.open", fail)
    assert shortlist(monkeypatch, "run", "demo", "--runs", str(tmp_path)) == 2
    printed_error = capsys.readouterr().err
    assert printed_error.startswith("The disk is full (") and "Free some space and run again" in printed_error
    assert "Traceback" not in printed_error
