"""The compiled graph that the clock starts, run for real while another training is running: nothing is trained."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from monitoring.monitoring_store import open_monitoring_store
from monitoring.retraining.moments import begin_moment
from pipelines.compile import COMPILED
from shortlist.runs.display import Display
from shortlist.runs.monitoring_runs import monitoring_arguments
from shortlist.runs.runs_folder import RunsFolder
from shortlist.runs.submit import run_child, training_arguments
from shortlist.spec.load import load_spec
from shortlist.storage.artefacts import write_json

CRON = "0 3 * * *"
ROOT = Path(__file__).parents[2]


def test_while_another_training_is_running_the_clocks_run_ends_at_once(tmp_path: Path) -> None:
    spec = load_spec(ROOT / "pipelines/specs/demo.yaml")
    state = RunsFolder.open(tmp_path / "runs")
    stores = state.storage_parameter(spec.runtime)
    begun, running = begin_moment(
        open_monitoring_store(stores, spec.name), CRON, spec.monitoring.retrain, datetime.now(UTC)
    )
    assert begun
    run, graph = state.new_run(spec.name), COMPILED / "scheduled_retraining.yaml"
    write_json(run / "arguments.json", monitoring_arguments(spec, "", stores) | {"cron": CRON})
    with Display(run / "events.jsonl", graph) as display:
        assert run_child(graph, run, state, display) == 0, (run / "pipeline.log").read_text()[-4000:]
    (note,) = display.notes
    assert note.startswith("Nothing is trained: the retraining of ")
    assert "there is one at a time" in note
    assert [one.key for one in open_monitoring_store(stores, spec.name).retrainings()] == [running.key]
    assert "find_champion" not in display.finished


def test_while_another_training_is_running_a_submitted_run_ends_without_an_error(tmp_path: Path) -> None:
    spec = load_spec(ROOT / "pipelines/specs/demo.yaml")
    state = RunsFolder.open(tmp_path / "runs")
    stores = state.storage_parameter(spec.runtime)
    book = open_monitoring_store(stores, spec.name)
    assert begin_moment(book, CRON, spec.monitoring.retrain, datetime.now(UTC))[0]
    run, graph = state.new_run(spec.name), COMPILED / "submitted.yaml"
    write_json(run / "arguments.json", training_arguments(spec, "", stores) | {"cause": {"key": "0123456789abcdef"}})
    with Display(run / "events.jsonl", graph) as display:
        assert run_child(graph, run, state, display) == 0, (run / "pipeline.log").read_text()[-4000:]
    (note,) = display.notes
    assert "there is one at a time" in note
    assert len(book.retrainings()) == 1
    assert "find_champion" not in display.finished
