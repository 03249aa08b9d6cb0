"""A monitoring run draws the pages of a window with the features that the serving version was fitted to."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from mlflow.tracking import MlflowClient

from monitoring.monitoring_job import MonitoringJob
from monitoring.versions import WatchedVersion
from monitoring.windows.live_window import LiveWindow
from shortlist.contracts import Files
from shortlist.runs.runs_folder import RunsFolder
from shortlist.spec.features import Features
from shortlist.spec.monitoring import Monitoring
from shortlist.spec.runtime import Runtime
from tests.unit.monitoring.test_reference import DAYS, Training, plain

START = datetime(2026, 3, 9, tzinfo=UTC)
COLUMNS = [{"kind": "numeric", "each": ["price"]}, {"kind": "current", "key": ["user_id"], "name": "requests_now"}]


def live_window(rows: int) -> LiveWindow:
    """Return a window of answers to one user each, half of them clicked."""
    live = pl.DataFrame(
        {
            "request_id": [f"r{number}" for number in range(rows)],
            "version": np.full(rows, 1),
            "label": pl.Series(np.arange(rows) % 2, dtype=pl.Int8),
            "score": pl.Series(np.linspace(0.1, 0.9, rows), dtype=pl.Float32),
            "page": ["home"] * rows,
        }
    )
    return LiveWindow(START, START + timedelta(days=1), rows, live, 1.0, 0, 0, 0, 0, live.select("version", "score"))


@pytest.mark.parametrize("streaming", [True, {"delay": "2s"}])
def test_pages_are_drawn_for_a_version_whose_features_count_events_as_they_arrive(
    streaming: object, tmp_path: Path
) -> None:
    features = Features.model_validate({"columns": COLUMNS, "tile": "1h", "streaming": streaming})
    training = Training(tmp_path, [plain() for _ in DAYS], features=features)
    training.build()
    (tmp_path / "fitted").rename(tmp_path / Files.PREPROCESSING)
    stores = RunsFolder.open(tmp_path / "runs").storage_parameter(Runtime(engine="cpu"))
    job = MonitoringJob("shop", stores, Monitoring.model_validate({"pages": "all"}), ())
    run_id = job._tracker.open_run("training", {"shop": "1"})
    window, slates = (
        replace(live_window(100), future=1, answered_rows=100),
        pl.DataFrame(schema={"slate:asked": int, "version": int}),
    )
    versions: Any = {1: WatchedVersion(1, "xgboost", run_id, tmp_path, tmp_path / "reference")}
    report = job._report(window, slates, versions, window.end, 1)
    assert (report.future, report.warnings[0]) == (
        1,
        "1 of 100 rows lie more than 5 minutes in the future; they are left out.",
    )
    (folder,) = (job.folder / "windows").iterdir()
    assert {page.name for page in folder.glob("*.html")} == {"drift.html", "quality.html"}
    client = MlflowClient(job._tracker.uri)
    logged = client.list_artifacts(run_id, f"monitoring/{folder.name}")
    assert {Path(file.path).name for file in logged} == {"drift.html", "quality.html"}
