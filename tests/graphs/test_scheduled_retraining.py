"""The compiled graph of scheduled trainings, and a manual training: the rows they read; one runs at a time."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from served_days import Served

from monitoring.retraining.training_starts import begin_scheduled_training, newest_scheduled_time
from monitoring.store.monitoring_store import open_monitoring_store
from pipelines.compile import GraphName
from shortlist.contracts import Columns
from shortlist.data.collected import CollectedLog
from shortlist.runs.display import Display
from shortlist.runs.local_training import graph_arguments, run_child, run_locally
from shortlist.runs.runs_folder import RunsFolder
from shortlist.spec.load import load_spec, parse_spec
from shortlist.storage.artefacts import write_json

pytestmark = pytest.mark.long

CRON = "0 3 * * *"
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)  # two trainings, besides the one that they build on
def test_the_clocks_run_and_a_persons_learn_from_collected_rows_before_their_moment(finished: Any) -> None:
    # Once a year, so that there are days after its newest moment; after all that other tests of the group trained on.
    cron = "0 0 28 4 *"
    moment = newest_scheduled_time(cron, datetime.now(UTC))
    day = moment.date() - timedelta(days=1)
    live = {"collect": True, "since": "2026-01-21T00:00:00Z", "max_share": 1}  # every row is accounted for
    data = {**finished.spec["data"], "outcome_delay": "1h", "live": live, "rules": {"min_volume_ratio": 0}}
    monitoring = {**finished.spec["monitoring"], "retrain": {"cooldown_hours": 0}}
    models = {"xgboost": finished.spec["models"]["xgboost"]}
    spec = parse_spec(yaml.safe_dump({**finished.spec, "data": data, "monitoring": monitoring, "models": models}))
    served = Served(spec, finished.runs)
    rows_before = sum(batch.counts.rows for batch in CollectedLog.open(str(served.stores), spec.name).batches())
    shown_rows = served.users(day, pl.col("label"))
    later_rows = served.users(moment.date(), pl.col("label"))

    state = RunsFolder.open(finished.runs)
    stores = state.storage_parameter(spec.runtime)
    run = state.new_run(spec.name)
    graph: GraphName = "scheduled_retraining"
    write_json(run / "arguments.json", graph_arguments(spec, "", stores) | {"cron": cron})
    with Display(run / "events.jsonl") as display:
        assert run_child(graph, spec, run, state, display) == 0, (run / "pipeline.log").read_text()[-4000:]
    by_clock = json.loads(Path(display.paths["summary"]).read_text())["rows"]
    assert by_clock["collected"] == rows_before + shown_rows.height
    # Rows from the moment on were collected, too, and are not read.
    batches = CollectedLog.open(str(served.stores), spec.name).batches()
    assert sum(batch.counts.rows for batch in batches) == rows_before + shown_rows.height + later_rows.height

    assert run_locally(spec, None, finished.runs, until=moment + timedelta(hours=12)) == 0
    by_hand = json.loads((finished.runs / "latest/summary.json").read_text())["rows"]
    morning = later_rows.filter(pl.col(Columns.TIME) < moment + timedelta(hours=12)).height
    assert 0 < morning < later_rows.height
    assert by_hand["collected"] == by_clock["collected"] + morning
    ended = served.monitoring_store.retrainings()[-2:]
    assert [retraining.trigger for retraining in ended] == ["schedule", "manual"]
    page = (served.monitoring_store.folder / "status.html").read_text()
    assert all(retraining.key in page for retraining in ended)  # a person's training, too, writes it at its end


def test_while_another_training_is_running_the_clocks_run_ends_at_once(tmp_path: Path) -> None:
    spec = load_spec(ROOT / "pipelines/specs/demo.yaml")
    state = RunsFolder.open(tmp_path / "runs")
    stores = state.storage_parameter(spec.runtime)
    run_id, running = begin_scheduled_training(
        open_monitoring_store(stores, spec.name), CRON, spec.monitoring.retrain, datetime.now(UTC)
    )
    assert run_id
    run = state.new_run(spec.name)
    graph: GraphName = "scheduled_retraining"
    write_json(run / "arguments.json", graph_arguments(spec, "", stores) | {"cron": CRON})
    with Display(run / "events.jsonl") as display:
        assert run_child(graph, spec, run, state, display) == 0, (run / "pipeline.log").read_text()[-4000:]
    (note,) = display.notes
    assert note.startswith("Nothing is trained: the retraining of ")
    assert "there is one at a time" in note
    assert [decision.key for decision in open_monitoring_store(stores, spec.name).retrainings()] == [running.key]
    assert "find_champion" not in display.finished


def test_while_another_training_is_running_a_submitted_run_ends_without_an_error(tmp_path: Path) -> None:
    spec = load_spec(ROOT / "pipelines/specs/demo.yaml")
    state = RunsFolder.open(tmp_path / "runs")
    stores = state.storage_parameter(spec.runtime)
    store = open_monitoring_store(stores, spec.name)
    assert begin_scheduled_training(store, CRON, spec.monitoring.retrain, datetime.now(UTC))[0]
    run = state.new_run(spec.name)
    graph: GraphName = "submitted"
    write_json(run / "arguments.json", graph_arguments(spec, "", stores) | {"cause": {"key": "0123456789abcdef"}})
    with Display(run / "events.jsonl") as display:
        assert run_child(graph, spec, run, state, display) == 0, (run / "pipeline.log").read_text()[-4000:]
    (note,) = display.notes
    assert "there is one at a time" in note
    assert len(store.retrainings()) == 1
    assert "find_champion" not in display.finished
