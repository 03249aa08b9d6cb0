"""`shortlist tune`, and the compiled tuning graph, on the artefacts of a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from shortlist.cli.commands import app
from shortlist.cli.tune import newest_matching_table
from shortlist.contracts import ShortlistError
from shortlist.runs.display import Display
from shortlist.runs.local_training import graph_arguments, run_child
from shortlist.runs.runs_folder import RunsFolder
from shortlist.spec.load import parse_spec
from shortlist.storage.artefacts import write_json
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.store_access import tracking_uri

pytestmark = pytest.mark.long


def test_the_command_writes_a_patch_and_leaves_the_spec_unchanged(finished: Any, tmp_path: Path) -> None:
    written = tmp_path / "small.yaml"
    written.write_text(yaml.safe_dump(finished.spec))
    command = ["tune", str(written), "--trials", "2", "--runs", str(finished.runs)]
    text_before = written.read_text()
    invocation = CliRunner().invoke(app, command)
    assert invocation.exit_code == 0, invocation.output
    assert "as shipped" in invocation.output
    assert "2 trials" in invocation.output
    assert written.read_text() == text_before
    folder = finished.runs / "tune/demo/xgboost"
    assert (folder / "tuning.html").exists()
    outcome = json.loads((finished.runs / "tune/demo/latest.json").read_text())["xgboost"]
    assert outcome["best"]["value"] >= outcome["shipped"]["value"]
    assert (folder / "patch.yaml").exists() == bool(outcome["best"]["changes"])
    second_invocation = CliRunner().invoke(app, command)  # the study is there: nothing is tried again
    assert "trial   " not in second_invocation.output
    refused = CliRunner().invoke(app, [*command, "--model", "xgbost"])
    assert "no model is called 'xgbost'; did you mean 'xgboost'" in str(refused.exception)


def test_a_table_of_other_sections_is_not_reused(finished: Any, tmp_path: Path) -> None:
    spec = parse_spec(yaml.safe_dump(finished.spec))
    assert newest_matching_table(spec, finished.runs, "demo").name == "table"
    changed_spec = parse_spec(yaml.safe_dump(finished.spec), changes=["data.source.seed=8"])
    with pytest.raises(
        ShortlistError, match="wrote a feature table here with the data and features that it declares now"
    ):
        newest_matching_table(changed_spec, finished.runs, "demo")


def test_the_graph_makes_trials_in_batches_and_takes_features_from_the_cache(finished: Any) -> None:
    spec = parse_spec(yaml.safe_dump(finished.spec), changes=["tune.trials=2", "tune.minutes=null", "tune.batches=2"])
    state = RunsFolder.open(finished.runs)
    run = state.new_run("tuning")
    arguments = graph_arguments(spec, "", state.storage_parameter(spec.runtime))
    write_json(run / "arguments.json", arguments)
    with Display(run / "events.jsonl") as display:
        code = run_child("tuning", spec, run, state, display)
    assert code == 0, (run / "pipeline.log").read_text()[-3_000:]
    assert all(display.finished[step].get("cached") for step in ("ingest", "validate", "fit_features", "build_table"))
    outcome = Path(display.paths["outcome"]) / "xgboost"
    trials = json.loads((outcome / "trials.json").read_text())["trials"]
    assert [trial["shipped"] for trial in trials] == [True, False]
    assert all(trial["value"] for trial in trials)
    tracker = Tracker(tracking_uri(state.stores), spec.name)
    nested = tracker.nested_runs(json.loads((outcome.parent / "runs.json").read_text())["xgboost"])
    assert {run.tags["shipped"] for run in nested} == {"true", "false"}
