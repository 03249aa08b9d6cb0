"""One MLflow run per run of a pipeline: created once, ended with the reason, never left open by a dead process."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shortlist.storage.artefacts import write_json, write_manifest
from shortlist.tracking.lineage import Lineage
from shortlist.tracking.mlflow_store import Tracker

STARTED = datetime(2026, 1, 5, 12, tzinfo=UTC)
LINEAGE = Lineage(spec_digest="5" * 16, data_digest="d" * 16, days={}, code_version="c" * 16)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('runs')}/mlflow.db"


@pytest.fixture
def tracker(uri: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "KFP_RUN_ID", "SHORTLIST_RUN_PROCESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHORTLIST_RUN", f"{request.node.name}.1a2b")
    return Tracker(uri, request.node.name)


def run(tracker: Tracker, run_id: str) -> Any:
    return tracker._client.get_run(run_id)


def model(folder: Path) -> Path:
    folder.mkdir()
    write_json(folder / "model.json", {"kind": "dlrm"})
    write_manifest(folder)
    return folder


def test_a_pipeline_is_one_run_above_its_trainings(tracker: Tracker, tmp_path: Path) -> None:
    run_id = tracker.begin_pipeline({"trigger": "drift"}, STARTED)
    assert tracker.begin_pipeline({}, datetime.now(UTC)) == run_id  # a retried step finds it
    trained = tracker.log_training(model(tmp_path / "model"), "dlrm", {}, [], LINEAGE)
    page = tmp_path / "report.html"
    page.write_text("<html></html>")
    tracker.log_pipeline({"dlrm": {"auc": 0.7, "kind": "dlrm"}}, {"run.dlrm": trained}, [page])
    pipeline_run, training_run = run(tracker, run_id), run(tracker, trained)
    assert training_run.data.tags["mlflow.parentRunId"] == run_id
    assert (pipeline_run.info.status, pipeline_run.info.start_time) == ("FINISHED", round(STARTED.timestamp() * 1_000))
    assert pipeline_run.info.run_name == "test_a_pipeline_is_one_run_above_its_trainings"
    assert pipeline_run.data.metrics == {"dlrm.auc": 0.7}
    assert pipeline_run.data.tags.items() >= {"trigger": "drift", "run.dlrm": trained, "kind": "pipeline"}.items()
    assert [file.path for file in tracker._client.list_artifacts(run_id)] == ["report.html"]


def test_a_pipeline_that_stops_early_is_a_failed_run_with_its_reason(tracker: Tracker) -> None:
    run_id = tracker.begin_pipeline({}, STARTED)
    tracker.fail_pipeline("the step validate failed")
    ended = run(tracker, run_id)
    assert (ended.info.status, ended.data.tags["failure"]) == ("FAILED", "the step validate failed")


def test_a_long_message_is_cut_to_mlflows_limit(tracker: Tracker) -> None:
    run_id = tracker.begin_pipeline({}, STARTED)
    tracker.fail_pipeline("the step validate failed: " + 300 * "3 of 10 rows break 'range'. ")
    failure = run(tracker, run_id).data.tags["failure"]
    assert len(failure) == 5_000 and failure.startswith("the step validate failed: 3 of 10") and failure.endswith("…")


def test_a_failing_pipeline_leaves_the_trainings_of_others_alone(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_run_id = tracker.begin_pipeline({}, STARTED)
    monkeypatch.setenv("SHORTLIST_RUN", "another.9f9f")
    run_id = tracker.begin_pipeline({}, STARTED)
    tracker.fail_pipeline("the step ingest failed")
    assert (run(tracker, run_id).info.status, run(tracker, other_run_id).info.status) == ("FAILED", "RUNNING")


def test_the_run_of_a_pipeline_whose_process_died_is_marked_as_killed(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setenv("SHORTLIST_RUN_PROCESS", str(ended.pid))
    dead = tracker.begin_pipeline({}, STARTED)
    monkeypatch.setenv("SHORTLIST_RUN", "the-next.3c4d")
    alive = tracker.begin_pipeline({}, STARTED)
    assert (run(tracker, dead).info.status, run(tracker, alive).info.status) == ("KILLED", "RUNNING")


def test_outside_of_a_pipeline_no_run_is_opened(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHORTLIST_RUN")
    assert tracker.begin_pipeline({}, STARTED) == ""
    tracker.log_pipeline({"auc": 1.0}, {}, [])
    tracker.fail_pipeline("nothing")
    assert tracker._client.search_runs([tracker._experiment]) == []


@pytest.mark.long
def test_the_experiment_opens_on_runs_and_models(tracker: Tracker) -> None:
    experiment = tracker._client.get_experiment(tracker._experiment)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert tracker.page == f"#/experiments/{experiment.experiment_id}/runs"
