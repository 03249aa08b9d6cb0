"""The comparison of served features: its file in `runs/latest`, and its effect on retrainings."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from monitoring.monitoring_job import MonitoringJob
from monitoring.retraining.training_starts import begin_scheduled_training
from monitoring.served_features.record import ServedColumn, ServedFeaturesReport
from monitoring.windows.records import Finding, WindowReport
from shortlist.contracts import Files
from shortlist.runs.monitoring_runs import keep_served_features
from shortlist.runs.runs_folder import RunsFolder
from shortlist.spec.load import load_spec
from shortlist.storage.artefacts import write_json

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
SPEC = load_spec(Path(__file__).parents[3] / "pipelines/specs/demo.yaml")


def compared(max_unequal: float | None = None) -> ServedFeaturesReport:
    """Return a comparison in which 1 of 10 rows was scored with another price than the table has."""
    column = ServedColumn(compared=10, equal=9, counted=1, largest_difference=1.5, cause="default", reason="it differs")
    return ServedFeaturesReport(
        spec="demo", made=NOON, first=NOON, last=NOON, rows=10, max_unequal=max_unequal, columns={"price": column}
    )


@pytest.mark.parametrize(("newest", "written"), [("demo", True), ("drill", False)])
def test_the_comparison_is_copied_only_to_the_newest_run_of_its_spec(
    newest: str, written: bool, tmp_path: Path
) -> None:
    state = RunsFolder.open(tmp_path / "runs")
    run = state.new_run(newest)
    write_json(run / Files.SUMMARY, {"spec": newest})
    state.point_latest_at(run)
    keep_served_features(SPEC, state)
    assert not (run / Files.SERVED_FEATURES).exists()  # nothing was compared yet
    job = MonitoringJob("demo", state.storage_parameter(SPEC.runtime), SPEC.monitoring, ())
    job.monitoring_store.set_served_features(compared())
    keep_served_features(SPEC, state)
    path = tmp_path / "runs/latest/served_features.json"
    assert path.exists() == written
    if written:
        column = json.loads(path.read_text())["columns"]["price"]
        assert (column["compared"], column["equal"], column["largest_difference"]) == (10, 9, 1.5)


def drifted(day: int) -> WindowReport:
    """Return the report of a day on which the price drifted."""
    start = NOON.replace(hour=0) + timedelta(days=day)
    moved = Finding(
        column="price", kind="numeric", effect=0.5, critical=0.2, p_value=0.0, drifted=True, reason="it moved by 0.50"
    )
    return WindowReport(
        spec="demo", start=start, end=start + timedelta(days=1), made=start + timedelta(days=1), champion=1,
        versions={1: 5_000}, requests=1_000, rows=5_000, coverage=0.9, findings=(moved,),
    )  # fmt: skip


@pytest.mark.parametrize(("limit", "action"), [(0.05, "hold"), (0.1, "retrain")])  # 1 of 10 rows differs
def test_no_training_starts_while_served_values_differ_by_more_than_the_limit(
    limit: float, action: str, tmp_path: Path
) -> None:
    """Retrainings by drift and by schedule are both blocked by the stored comparison."""
    job = MonitoringJob("demo", RunsFolder.open(tmp_path / "runs").storage_parameter(SPEC.runtime), SPEC.monitoring, ())
    for day in (0, 1):
        job.monitoring_store.add_report(drifted(day))
    comparison = compared(limit)
    job.monitoring_store.set_served_features(comparison)
    now = NOON + timedelta(days=3)
    decision = job._decide(now, digest="")
    is_started, moment = begin_scheduled_training(job.monitoring_store, "0 3 * * *", SPEC.monitoring.retrain, now)
    assert decision is not None
    assert (decision.action, moment.action, is_started) == (action, action, action == "retrain")
    if action == "hold":
        assert "(served_features.max_unequal): it differs. A model trained on the table would not" in comparison.blocker
        assert comparison.blocker in decision.reasons and comparison.blocker in moment.reasons
        assert job.monitoring_store.retrainings() == ()
