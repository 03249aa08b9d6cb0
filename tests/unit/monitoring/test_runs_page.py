"""The page of a runs folder leads to every page in it, and names what cannot be read."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from monitoring.alerts.alert import Alert
from monitoring.alerts.alert_records import AlertRecord, AlertRecords
from monitoring.pages.status_page import PAGE as STATUS_PAGE
from monitoring.store.monitoring_store import MonitoringStore, open_monitoring_store
from monitoring.windows.records import WindowReport
from shortlist.rollout.page import PAGE as ROLLOUT_PAGE
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import Rollouts
from shortlist.rollout.states.phases import Phase, RolloutState
from shortlist.runs.runs_folder import RunsFolder
from shortlist.runs.runs_page import write_runs_page
from shortlist.spec.serving import Canary
from shortlist.storage.artefacts import write_json
from tests.page_rules import HOSTILE, injected, problems_of

START = datetime(2026, 1, 5, tzinfo=UTC)
MODELS = {"trees": {"role": "candidate", "gauc": 0.7123}, "popular": {"role": "baseline", "gauc": 0.6}}


@pytest.fixture
def state(tmp_path: Path) -> RunsFolder:
    return RunsFolder.open(tmp_path / "runs")


def add_run(state: RunsFolder, name: str, spec: str, **summary: Any) -> None:
    folder = state.root / name
    folder.mkdir()
    write_json(folder / "summary.json", {"spec": spec, "metric": "gauc", "models": MODELS, "failed": None, **summary})
    (folder / "report.html").touch()


def store_of(state: RunsFolder, spec: str) -> MonitoringStore:
    store = open_monitoring_store(state.reference, spec)
    store.folder.mkdir(parents=True, exist_ok=True)
    (store.folder / STATUS_PAGE).touch()
    return store


def add_window(state: RunsFolder, spec: str, day: int) -> None:
    start = START + timedelta(days=day)
    report = WindowReport(
        spec=spec, start=start, end=start + timedelta(days=1), made=start, champion=3, versions={3: 900}, requests=300,
        rows=900, coverage=0.98, volume_ratio=1.0, problems=(), findings=(), quality=(),
    )  # fmt: skip
    store_of(state, spec).add_report(report)


def add_alert(state: RunsFolder, spec: str, summary: str, ends: datetime | None = None) -> None:
    labels = {"alertname": re.sub(r"\W", "", summary), "spec": spec}
    alert = Alert(id="0" * 16, labels=labels, annotations={"summary": summary}, starts=START, ends=ends)
    AlertRecords(store_of(state, spec).records).write(AlertRecord(alert=alert, waiting={}))


def add_rollout(state: RunsFolder, spec: str, phase: Phase) -> str:
    rollouts = Rollouts(state.root / "rollouts", spec)
    rollout = RolloutState(
        rollout=rollouts.new_id(), candidate=4, former=3, champion=3, stable=3, steps=(50, 100), phase=phase, percent=50
    )
    record = RolloutRecord(spec=spec, state=rollout, kind="dlrm", digest="0123", policy=Canary())
    rollouts.save(record)
    (rollouts.rollout_folder(record.id) / ROLLOUT_PAGE).touch()
    return record.id


def links_of(state: RunsFolder) -> tuple[str, list[str]]:
    """Return the page and its links, each of which leads to a file."""
    page = write_runs_page(state).read_text()
    links = [unquote(link) for link in re.findall(r'href="([^"#]+)"', page)]
    assert [link for link in links if not (state.root / link).is_file()] == []
    return page, links


def test_every_spec_has_its_run_champion_rollout_window_and_alerts_as_links(state: RunsFolder) -> None:
    add_run(state, "20260105-100000-shop", "shop", blessed={"model": "trees", "version": "4"})
    add_run(state, "20260106-100000-news", "news", blessed=None, models={})
    add_window(state, "shop", 0)
    add_window(state, "shop", 1)
    add_alert(state, "shop", "Drift of price")
    add_alert(state, "shop", "A former alarm", ends=START)
    rollout = add_rollout(state, "shop", Phase.WATCHING)
    page, links = links_of(state)
    assert problems_of(page) == []
    assert set(links) == {
        "20260105-100000-shop/report.html",
        "20260106-100000-news/report.html",
        f"rollouts/{rollout}/rollout.html",
        "monitoring/shop/status.html",
    }
    for text in (
        "2 specs, 2 runs",
        "trees is blessed as version 4",
        "every candidate is held",
        "GAUC 0.7123",
        "version 4 (dlrm), beside version 3, gets 50 % of the users",
        "unjudged, 6 January 2026, 00:00 UTC",
        "Drift of price",
    ):
        assert text in page, text
    assert "A former alarm" not in page
    assert "none yet" in page  # the rollout and the windows of news


def test_a_champion_is_remembered_until_it_changes(state: RunsFolder) -> None:
    assert "version 3" in write_runs_page(state, {"shop": 3}).read_text()
    assert "version 3" in write_runs_page(state).read_text()
    page = write_runs_page(state, {"shop": 4}).read_text()
    assert "version 4" in page and "version 3" not in page


def test_a_failed_run_says_where_it_stopped(state: RunsFolder) -> None:
    add_run(state, "20260105-100000-shop", "shop", models={}, blessed=None, failed={"step": "ingest", "message": "x"})
    page, links = links_of(state)
    assert "stopped at ingest" in page
    assert set(links) == {"20260105-100000-shop/report.html"}


def test_a_record_that_cannot_be_read_is_named_beside_the_readable_records(state: RunsFolder) -> None:
    add_run(state, "20260105-100000-shop", "shop", blessed=None)
    add_window(state, "shop", 0)
    (record,) = (state.root / "monitoring/shop/windows").glob("*.json")
    record.write_text("{")
    (state.root / "20260107-100000-other").mkdir()
    (state.root / "20260107-100000-other/summary.json").write_text("{")
    page, links = links_of(state)
    assert record.name in page and "✕" in page
    assert links == ["20260105-100000-shop/report.html"] * 2


def test_texts_of_records_are_never_markup(state: RunsFolder) -> None:
    add_run(state, "20260105-100000-shop", "shop", blessed={"model": HOSTILE, "version": "4"}, models={HOSTILE: {}})
    add_alert(state, "shop", HOSTILE)
    page, _ = links_of(state)
    assert not injected(page)


def test_an_empty_folder_has_a_page(state: RunsFolder) -> None:
    page = write_runs_page(state).read_text()
    assert problems_of(page) == []
    assert "No run has ended yet." in page
