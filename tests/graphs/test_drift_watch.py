"""The compiled monitoring graph, run for real: logs of servers lead to a page, or to a training."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from served_days import Served

from shortlist.contracts import Columns, ShortlistError
from shortlist.runs.monitoring_runs import run_monitoring_locally, start_scheduled_training
from shortlist.spec.load import parse_spec
from shortlist.storage.artefacts import read_json
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.store_access import tracking_uri

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def served(finished: Any) -> Served:
    """A champion, and two days on which users did what they always do."""
    assert finished.code == 0
    served_spec = Served(parse_spec(yaml.safe_dump(finished.spec)), finished.runs)
    for number in (14, 15):
        served_spec.users(date(2026, 1, number), pl.col("label"))
    return served_spec


def test_days_without_drift_start_no_training_and_no_refresh_that_is_not_declared(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    runs, (pointer, published) = set(served.runs.iterdir()), served.published_an_hour_ago()
    assert run_monitoring_locally(served.spec, None, served.runs) == 0
    printed = capfd.readouterr().out
    assert "2026-01-14 00:00 healthy" in printed and "2026-01-15 00:00 healthy" in printed
    assert "hold: 0 of 2 windows are bad" in printed
    assert read_json(pointer)["published"] == published
    assert set(served.runs.iterdir()) - runs == {served.runs / "monitoring"}  # a look alone leaves no run behind
    page = (served.monitoring_store.folder / "status.html").read_text()
    assert "Healthy" in page and "http://" not in page.replace("http://www.w3.org", "")
    assert not list(served.monitoring_store.folder.glob("windows/*/drift.html"))  # pages are for bad windows


def test_a_missing_column_pages_and_starts_no_training_and_a_locked_store_loses_no_report(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    served.users(date(2026, 1, 16), pl.col("label"), surface=pl.lit(None, pl.String))
    reports_before = served.monitoring_store.reports()
    with closing(sqlite3.connect(served.stores / "mlflow.db", isolation_level=None)) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ShortlistError, match="database is locked"):
            run_monitoring_locally(served.spec, None, served.runs)
    assert served.monitoring_store.reports() == reports_before
    assert run_monitoring_locally(served.spec, None, served.runs) == 1
    assert "page: " in capfd.readouterr().out
    newest = served.monitoring_store.reports()[-1]
    assert (newest.verdict, newest.columns) == ("broken", ("surface",))
    assert served.monitoring_store.retrainings() == ()
    assert (served.monitoring_store.folder / "windows/20260116T000000Z/drift.html").is_file()


def test_drift_of_users_starts_one_training_with_its_reasons(served: Served) -> None:
    for number in (17, 18):
        served.users(date(2026, 1, number), (pl.col(Columns.IMPRESSION).hash(seed=number) % 10 < 3).cast(pl.Int8))
    run_monitoring_locally(served.spec, None, served.runs)
    (retraining,) = served.monitoring_store.retrainings()
    assert retraining.state in {"not_promoted", "held"}  # there is no stack to roll it out on
    decision = next(decision for decision in served.monitoring_store.decisions() if decision.key == retraining.key)
    assert (decision.action, decision.until) == ("retrain", datetime(2026, 1, 19, tzinfo=UTC))
    assert {"auc", "hit_rate"} <= set(decision.columns)
    assert "auc of version 1" in " ".join(decision.reasons)
    assert "the training reads the log that version 1 was trained on, which has no newer row" in decision.reasons[-1]
    page = (served.monitoring_store.folder / "status.html").read_text()
    assert "about to begin" not in page and "is running" not in page  # written again when the training had ended
    tracker = Tracker(tracking_uri(served.stores), "demo")
    new, *_ = tracker._client.search_runs([tracker._experiment], "tags.kind = 'xgboost'")
    assert (new.data.tags["trigger"], new.data.tags["decision"]) == ("drift", decision.key)
    assert (served.runs / "latest/report.html").is_file()
    # Whoever looks again finds it done.
    run_monitoring_locally(served.spec, None, served.runs)
    assert len(served.monitoring_store.retrainings()) == 1


def test_the_schedule_starts_each_of_its_moments_once(served: Served) -> None:
    from monitoring.monitoring_job import MonitoringJob

    watch = MonitoringJob("demo", str(served.stores), served.spec.monitoring, ())
    four = datetime(2026, 3, 1, 4, tzinfo=UTC)
    monitoring_started, now = four - timedelta(hours=1), four + timedelta(minutes=5)
    assert (
        start_scheduled_training(served.spec, watch, since=four + timedelta(minutes=1), now=now) is None
    )  # the watching began after it
    decision = start_scheduled_training(served.spec, watch, monitoring_started, now)
    assert decision is not None and (decision.trigger, decision.until) == ("schedule", four)
    assert start_scheduled_training(served.spec, watch, monitoring_started, now) is None  # somebody runs it already
    watch.monitoring_store.finish(decision.key, "failed", reason="a test")
    assert start_scheduled_training(served.spec, watch, monitoring_started, now) is None  # and it is not run again


def test_monitoring_without_a_prediction_log_is_a_clear_error(small_spec: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ShortlistError, match="no runs yet"):
        run_monitoring_locally(parse_spec(yaml.safe_dump(small_spec)), None, tmp_path / "runs")
