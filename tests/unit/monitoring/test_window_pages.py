"""A monitoring run draws the pages of a window with the features that the serving version was fitted to."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from mlflow.tracking import MlflowClient

from monitoring.monitoring_job import MonitoringJob, _report_sentence
from monitoring.versions import WatchedVersion, WatchedVersions
from monitoring.windows.live_window import LiveWindow
from shortlist.contracts import Files
from shortlist.runs.runs_folder import RunsFolder
from shortlist.slates.release import SLATES, SOURCES
from shortlist.slates.retrieval.retriever import RETRIEVAL
from shortlist.spec.features import Features
from shortlist.spec.monitoring import Monitoring
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import write_json
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
    tomorrow = (window.start + timedelta(days=1)).date()
    watched = WatchedVersion(1, "xgboost", run_id, tmp_path, tmp_path / "reference", lambda: None, tomorrow)
    report = job._report(window, slates, {1: watched}, window.end, 1)  # type: ignore[arg-type]
    assert (report.learnt_by, _report_sentence(report).partition("outcomes). ")[2]) == ((1,), report.learnt_notice)
    unseen = {1: replace(watched, first_test_day=window.start.date())}
    assert job._report(window, slates, unseen, window.end, 1).learnt_by == ()  # type: ignore[arg-type]
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
    """Return a version without a release, whose features read the columns alone."""
    kinds = {"price": {"kind": "numeric", "each": ["price"]}, "page": {"kind": "vocabulary", "each": ["page"]}}
    features = Features.model_validate({"columns": [kinds[column] for column in columns]})
    days = [[{**row, "price": float(number % 20), "user_id": number} for number, row in enumerate(plain(200))]] * len(
        DAYS
    )
    Training(folder, days, features=features).build()
    (folder / "fitted").rename(folder / Files.PREPROCESSING)
    return WatchedVersion(version, "xgboost", "", folder, folder / "reference", lambda: None)


def job_and_window(
    folder: Path, price: float | None, version: int = 1
) -> tuple[MonitoringJob, LiveWindow, pl.DataFrame]:
    """Return a job, a window with one price that a version answered, and no slates."""
    stores = RunsFolder.open(folder / "runs").storage_parameter(Runtime(engine="cpu"))
    job = MonitoringJob("shop", stores, Monitoring.model_validate({"pages": "none", "window": {"min_rows": 100}}), ())
    window = live_window(600)
    rows = window.rows.with_columns(
        version=pl.lit(version),
        price=pl.lit(price, pl.Float64),
        user=pl.int_range(pl.len()).cast(pl.String),
        user_id=pl.int_range(pl.len()) % 3,
        item_id=pl.lit(1),
    )
    slates = pl.DataFrame(schema={"slate:asked": int, "version": int})
    return job, replace(window, answered_rows=600, rows=rows), slates


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
    job, window, slates = job_and_window(tmp_path, price)
    by_champion = {champion: job._report(window, slates, versions, window.end, champion) for champion in (1, 2)}
    assert [report.champion for report in by_champion.values()] == [1, 1]  # who answered the rows
    assert [entry.reason[: len(problem)] for entry in by_champion[1].problems] == ([problem] if problem else [])
    assert ("price" in by_champion[1].columns, "price" in by_champion[2].columns) == (True, False)
    assert [finding.column == "price" for finding in by_champion[1].drifted].count(True) == drifted
    assert (by_champion[2].problems, by_champion[2].verdict != "unjudged") == ((), True)


def test_a_column_is_watched_in_answers_of_the_champion_though_no_feature_reads_it(tmp_path: Path) -> None:
    versions: Any = {2: watched_version(tmp_path / "2", 2, "page")}
    job, window, slates = job_and_window(tmp_path, None, version=2)
    report = job._report(window, slates, versions, window.end, 2)
    assert [entry.reason[:41] for entry in report.problems] == ["'price' is not sent: null in all 600 rows"]


def test_a_column_that_the_champions_release_reads_is_watched_in_answers_of_another_version(tmp_path: Path) -> None:
    folders = {
        version: watched_version(tmp_path / str(version), version, *columns).folder
        for version, columns in ((1, ("price", "page")), (2, ("page",)))
    }
    release, scratch = tmp_path / "release", tmp_path / "scratch"
    registry: Any = SimpleNamespace(
        fetch=lambda version, to: SimpleNamespace(name="xgboost", run_id="", folder=folders[version]),
        reference_of=lambda version, to: folders[version] / "reference",
        retrieval_of=lambda version, to: {2: release}.get(version),
        tags_of=lambda version: {"days.test": "2030-01-01..2030-01-02"} if version == 1 else {},
    )
    job, window, slates = job_and_window(tmp_path, None)
    popular = {"kind": "popular", "keys": []}
    sections: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
        "nothing": ({}, {}, {}),
        "filters": ({"rules": [{"kind": "where", "name": "sold", "keep": "price > 0"}]}, {}, {}),
        "ordering": ({}, {"value": "score * price"}, {}),
        "source": ({}, {}, {"sources": {"popular": {**popular, "keys": ["price"]}}}),
        "context": ({}, {}, {"context": ["price"]}),
        "item_columns": ({}, {}, {"item_columns": ["price"]}),
    }
    not_sent = {}
    for reader, (filters, ordering, retrieval) in sections.items():
        (release / SOURCES).mkdir(parents=True, exist_ok=True)
        write_json(release / SLATES, {"filters": filters, "ordering": ordering})
        write_json(release / SOURCES / RETRIEVAL, {"section": {"sources": {"popular": popular}, **retrieval}})
        report = job._report(window, slates, WatchedVersions(registry, scratch), window.end, 2)
        not_sent[reader] = [entry.reason[:41] for entry in report.problems]
        assert report.learnt_by == (1,)
    expected = ["'price' is not sent: null in all 600 rows"]
    assert not_sent == {reader: [] if reader == "nothing" else expected for reader in sections}
