"""`runs/latest/served_features.json`: how served feature values compare with the table's, for programs."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from monitoring.monitoring_job import MonitoringJob
from monitoring.served_features.record import ServedColumn, ServedFeatures
from shortlist.contracts import Files
from shortlist.runs.monitoring_runs import keep_served_features
from shortlist.runs.runs_folder import RunsFolder
from shortlist.spec.load import load_spec
from shortlist.storage.artefacts import write_json

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
SPEC = load_spec(Path(__file__).parents[3] / "pipelines/specs/demo.yaml")


@pytest.mark.parametrize(("newest", "written"), [("demo", True), ("drill", False)])
def test_it_is_beside_the_newest_run_of_its_spec_and_beside_no_other(
    newest: str, written: bool, tmp_path: Path
) -> None:
    state = RunsFolder.open(tmp_path / "runs")
    run = state.new_run(newest)
    write_json(run / Files.SUMMARY, {"spec": newest})
    state.point_latest_at(run)
    keep_served_features(SPEC, state)
    assert not (run / Files.SERVED_FEATURES).exists()  # nothing was compared yet
    column = ServedColumn(compared=10, equal=9, counted=1, largest_difference=1.5, cause="default", reason="it differs")
    job = MonitoringJob("demo", state.storage_parameter(SPEC.runtime), SPEC.monitoring, ())
    job.monitoring_store.set_served_features(
        ServedFeatures(spec="demo", made=NOON, first=NOON, last=NOON, rows=10, columns={"price": column})
    )
    keep_served_features(SPEC, state)
    path = tmp_path / "runs/latest/served_features.json"
    assert path.exists() == written
    if written:
        found = json.loads(path.read_text())["columns"]["price"]
        assert (found["compared"], found["equal"], found["largest_difference"]) == (10, 9, 1.5)
