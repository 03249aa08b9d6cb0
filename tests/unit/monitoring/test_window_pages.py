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


def watched_version(folder: Path, version: int, *columns: str) -> WatchedVersion:
    """Return a version whose features read the columns alone."""
    kinds = {"price": {"kind": "numeric", "each": ["price"]}, "page": {"kind": "vocabulary", "each": ["page"]}}
    features = Features.model_validate({"columns": [kinds[column] for column in columns]})
    days = [[{**row, "price": float(number % 20), "user_id": number} for number, row in enumerate(plain(200))]] * len(
        DAYS
    )
    Training(folder, days, features=features).build()
    (folder / "fitted").rename(folder / Files.PREPROCESSING)
    return WatchedVersion(version, "xgboost", "", folder, folder / "reference")


@pytest.mark.parametrize(
    ("price", "problem", "drifted"),
    [
        (None, "'price' is not sent: null in all 600 rows", False),
        (999.0, "", True),
    ],
)
def test_a_column_that_the_champion_does_not_read_is_neither_fault_nor_drift(
    price: float | None, problem: str, drifted: bool, tmp_path: Path
) -> None:
    versions: Any = {
        1: watched_version(tmp_path / "1", 1, "price", "page"),
        2: watched_version(tmp_path / "2", 2, "page"),
    }
    stores = RunsFolder.open(tmp_path / "runs").storage_parameter(Runtime(engine="cpu"))
    job = MonitoringJob("shop", stores, Monitoring.model_validate({"pages": "none", "window": {"min_rows": 100}}), ())
    window = replace(live_window(600), answered_rows=600)
    rows = window.rows.with_columns(
        price=pl.lit(price, pl.Float64),
        user=pl.int_range(pl.len()).cast(pl.String),
        user_id=pl.int_range(pl.len()) % 3,
        item_id=pl.lit(1),
    )
    slates = pl.DataFrame(schema={"slate:asked": int, "version": int})
    by_champion = {
        champion: job._report(replace(window, rows=rows), slates, versions, window.end, champion) for champion in (1, 2)
    }
    assert [report.champion for report in by_champion.values()] == [1, 1]  # who answered the rows
    assert [entry.reason[: len(problem)] for entry in by_champion[1].problems] == ([problem] if problem else [])
    assert ("price" in by_champion[1].columns, "price" in by_champion[2].columns) == (True, False)
    assert [finding.column == "price" for finding in by_champion[1].drifted].count(True) == drifted
    assert (by_champion[2].problems, by_champion[2].verdict != "unjudged") == ((), True)
