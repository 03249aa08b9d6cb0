"""`shortlist tune`, and the compiled tuning graph, on what a finished run left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pipelines.compile import COMPILED
from shortlist.cli.commands import app
from shortlist.cli.tune import newest_matching_table
from shortlist.contracts import ShortlistError
from shortlist.runs.display import Display
from shortlist.runs.local_training import run_child, tuning_arguments
from shortlist.runs.runs_folder import RunsFolder
from shortlist.spec.load import parse_spec
from shortlist.storage.artefacts import write_json
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.store_access import tracking_uri

pytestmark = pytest.mark.long


def test_the_command_leaves_a_patch_and_changes_nothing(finished: Any, tmp_path: Path) -> None:
    written = tmp_path / "small.yaml"
    written.write_text(yaml.safe_dump(finished.spec))
    command = ["tune", str(written), "--trials", "2", "--runs", str(finished.runs)]
    before = written.read_text()
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0, said.output
    assert "as shipped" in said.output
    assert "2 trials" in said.output
    assert written.read_text() == before
    folder = finished.runs / "tune/demo/xgboost"
    assert (folder / "tuning.html").exists()
    found = json.loads((finished.runs / "tune/demo/latest.json").read_text())["xgboost"]
    assert found["best"]["value"] >= found["shipped"]["value"]
    assert (folder / "patch.yaml").exists() == bool(found["best"]["changes"])
    again = CliRunner().invoke(app, command)  # the study is there: nothing is tried again
    assert "trial   " not in again.output
    refused = CliRunner().invoke(app, [*command, "--model", "xgbost"])
    assert "no model is called 'xgbost'; did you mean 'xgboost'" in str(refused.exception)


def test_a_table_of_another_declaration_is_not_taken(finished: Any, tmp_path: Path) -> None:
    spec = parse_spec(yaml.safe_dump(finished.spec))
    assert newest_matching_table(spec, finished.runs, "demo").name == "table"
    other = parse_spec(yaml.safe_dump(finished.spec), changes=["data.source.seed=8"])
    with pytest.raises(ShortlistError, match="wrote a feature table here with the data and features that it declares now"):
        newest_matching_table(other, finished.runs, "demo")


def test_the_graph_makes_trials_in_batches_and_takes_features_from_the_cache(finished: Any) -> None:
    spec = parse_spec(yaml.safe_dump(finished.spec), changes=["tune.trials=2", "tune.minutes=null", "tune.batches=2"])
    state = RunsFolder.open(finished.runs)
    run = state.new_run("tuning")
    arguments = tuning_arguments(spec, "", state.storage_parameter(spec.runtime))
    write_json(run / "arguments.json", arguments)
    with Display(run / "events.jsonl", COMPILED / "tuning.yaml") as display:
        code = run_child(COMPILED / "tuning.yaml", run, state, display)
    assert code == 0, (run / "pipeline.log").read_text()[-3_000:]
    assert all(display.finished[step].get("cached") for step in ("ingest", "validate", "fit_features", "build_table"))
    outcome = Path(display.paths["outcome"]) / "xgboost"
    trials = json.loads((outcome / "trials.json").read_text())["trials"]
    assert [trial["shipped"] for trial in trials] == [True, False]
    assert all(trial["value"] for trial in trials)
    tracker = Tracker(tracking_uri(state.stores), spec.name)
    nested = tracker.nested_runs(json.loads((outcome.parent / "runs.json").read_text())["xgboost"])
    assert {one.tags["shipped"] for one in nested} == {"true", "false"}
