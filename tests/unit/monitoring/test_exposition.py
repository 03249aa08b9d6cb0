"""Metrics of a monitoring store, also of an empty or damaged one."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from monitoring.alerts.alert import Alert
from monitoring.alerts.alert_records import AlertRecord, AlertRecords
from monitoring.exposition import metrics_text, serve_metrics, write_metrics
from monitoring.retraining.retrain_policy import decision_key
from monitoring.served_features.record import ServedColumn, ServedFeaturesReport
from monitoring.store.monitoring_store import MonitoringStore
from monitoring.windows.records import Finding, Measure, Problem, Quality, RetrainDecision, WindowReport
from shortlist.contracts import ShortlistError

FIRST = datetime(2026, 1, 19, tzinfo=UTC)
DAY = timedelta(days=1)


def report(number: int, **changes: object) -> WindowReport:
    start = FIRST + number * DAY
    drift = {"kind": "numeric", "critical": 0.2, "p_value": 0.0, "reason": "it moved"}
    auc = Measure(name="auc", value=0.7, low=0.69, high=0.71, reference=0.75, limit=0.72, breached=True)
    rate = Measure(name="label_rate", value=0.1, low=0.09, high=0.11)
    fields = {
        "spec": "demo",
        "start": start,
        "end": start + DAY,
        "made": start + DAY,
        "champion": 3,
        "versions": {3: 900, 4: 100},
        "requests": 250,
        "rows": 1_000,
        "coverage": 0.9,
        "late": 2,
        "findings": (
            Finding(column="price", effect=0.5, drifted=True, **drift),
            Finding(column="age", effect=0.1, drifted=False, **drift),
        ),
        "quality": (
            Quality(version=3, slice="all", rows=900, users=90, measures=(auc, rate)),
            Quality(version=3, slice="tab=1", rows=90, users=9, measures=(rate,)),
        ),
        "warnings": ("the mean score moved",),
    }
    return WindowReport.model_validate({**fields, **changes})


def decision(number: int, action: str, trigger: str = "drift", alarm: bool = False) -> RetrainDecision:
    start = FIRST + number * DAY
    return RetrainDecision(
        spec="demo",
        action=action,
        trigger=trigger,
        key=decision_key("demo", action, start, trigger),
        window=start,
        until=start + DAY,
        reasons=("price moved",),
        alarm=alarm,
        made=start + DAY,
    )


def numbers(text: str) -> dict[str, float]:
    """Return every sample of the text format, without the label of the spec."""
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.pop("spec") == "demo"
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            name = sample.name.removeprefix("shortlist_monitoring_") + (f"{{{labels}}}" if labels else "")
            assert name not in samples, f"{name} is told twice"
            samples[name] = sample.value
    return samples


@pytest.fixture
def store(tmp_path: Path) -> MonitoringStore:
    return MonitoringStore(tmp_path / "demo")


def test_metrics_of_the_newest_window(store: MonitoringStore) -> None:
    store.add_report(report(0, rows=5))
    store.add_report(report(1))
    samples = numbers(metrics_text(store))
    expected = {
        "window_start_timestamp_seconds": (FIRST + DAY).timestamp(),
        "window_end_timestamp_seconds": (FIRST + 2 * DAY).timestamp(),
        "window_requests": 250,
        "window_rows": 1_000,
        "coverage_ratio": 0.9,
        "late_outcomes": 2,
        "champion_version": 3,
        "early_warnings": 1,
        "version_rows{version=3}": 900,
        "version_rows{version=4}": 100,
        "verdict{verdict=degraded}": 1,
        "verdict{verdict=healthy}": 0,
        "drift_effect{column=price,kind=numeric}": 0.5,
        "drift_critical{column=price,kind=numeric}": 0.2,
        "drifted{column=price,kind=numeric}": 1,
        "drifted{column=age,kind=numeric}": 0,
        "quality{measure=auc,slice=all,version=3}": 0.7,
        "quality_reference{measure=auc,slice=all,version=3}": 0.75,
        "quality_limit{measure=auc,slice=all,version=3}": 0.72,
        "quality_breached{measure=auc,slice=all,version=3}": 1,
        "quality{measure=label_rate,slice=tab=1,version=3}": 0.1,
    }
    assert {name: samples[name] for name in expected} == expected
    assert sum(value for name, value in samples.items() if name.startswith("verdict{")) == 1


def test_missing_numbers_are_left_out_and_not_zero(store: MonitoringStore) -> None:
    store.add_report(report(0, champion=None))
    samples = numbers(metrics_text(store))
    assert "volume_ratio" not in samples
    assert "champion_version" not in samples
    assert "quality_reference{measure=label_rate,slice=all,version=3}" not in samples
    assert "quality_limit{measure=label_rate,slice=all,version=3}" not in samples


def test_problems_are_counted_by_kind_and_column(store: MonitoringStore) -> None:
    problems = (
        Problem(kind="nulls", column="brand", reason="many nulls"),
        Problem(kind="volume", reason="few"),
        Problem(kind="volume", reason="also few"),
    )
    store.add_report(report(0, problems=problems))
    samples = numbers(metrics_text(store))
    assert samples["problems{column=brand,kind=nulls}"] == 1
    assert samples["problems{column=,kind=volume}"] == 2
    assert samples["verdict{verdict=broken}"] == 1


def test_decisions_and_retrainings_are_counted(store: MonitoringStore) -> None:
    for number, action in enumerate(("hold", "retrain", "retrain", "page")):
        store.claim(decision(number, action, alarm=action == "page"))
    for number, state in ((1, "failed"), (2, None)):
        store.start(decision(number, "retrain"), "run")
        if state:
            store.finish(decision(number, "retrain").key, state)
    samples = numbers(metrics_text(store))
    expected = {
        "decisions_total{action=hold}": 1,
        "decisions_total{action=retrain}": 2,
        "decisions_total{action=page}": 1,
        "retrainings_total{state=failed}": 1,
        "retrainings_total{state=promoted}": 0,
        "retraining_running": 1,
        "alarm": 1,
        "decision{action=page}": 1,
        "decision{action=hold}": 0,
    }
    assert {name: samples[name] for name in expected} == expected


def test_scheduled_decisions_do_not_change_the_alarm_metric(store: MonitoringStore) -> None:
    store.claim(decision(0, "page", alarm=True))
    store.claim(decision(1, "retrain", trigger="schedule"))
    samples = numbers(metrics_text(store))
    assert (samples["alarm"], samples["decision{action=page}"]) == (1, 1)


def test_alerts_that_were_not_delivered_are_counted(store: MonitoringStore) -> None:
    alert = Alert(id="0" * 16, labels={"alertname": "ShortlistPage", "spec": "demo"}, annotations={}, starts=FIRST)
    AlertRecords(store.records).write(AlertRecord(alert=alert, waiting={"0" * 12: "HTTP 500", "1" * 12: ""}))
    assert numbers(metrics_text(store))["alerts_waiting"] == 2


def test_counters_of_an_empty_store_start_at_zero(store: MonitoringStore) -> None:
    samples = numbers(metrics_text(store))
    assert samples["retrainings_total{state=failed}"] == 0
    assert samples["alerts_waiting"] == 0
    assert samples["store_broken"] == 0
    assert "last_run_timestamp_seconds" not in samples
    assert not store.folder.exists()


def test_an_unreadable_record_sets_store_broken_and_keeps_other_metrics(store: MonitoringStore) -> None:
    store.record_run_time()
    store.add_report(report(0))
    store.claim(decision(0, "page"))
    (path,) = (store.folder / "windows").iterdir()
    path.write_text(path.read_text()[:100])
    samples = numbers(metrics_text(store))
    assert samples["store_broken"] == 1
    assert samples["decision{action=page}"] == 1
    assert "last_run_timestamp_seconds" in samples
    assert "window_rows" not in samples


def test_the_textfile_is_written_atomically(store: MonitoringStore, tmp_path: Path) -> None:
    path = tmp_path / "textfiles" / "demo.prom"
    store.add_report(report(0))
    write_metrics(store, path)
    write_metrics(store, path)
    assert numbers(path.read_text()) == numbers(metrics_text(store))
    assert [path.name for path in path.parent.iterdir()] == ["demo.prom"]


def test_metrics_are_read_on_every_scrape_and_served_on_loopback(store: MonitoringStore) -> None:
    with serve_metrics(store, 0) as port:
        url = f"http://127.0.0.1:{port}/metrics"
        assert "window_rows" not in numbers(httpx.get(url).text)
        store.add_report(report(0))
        answer = httpx.get(url)
        assert numbers(answer.text)["window_rows"] == 1_000
        assert answer.headers["content-type"].startswith("text/plain; version=")
        listening = [
            connection.laddr.ip
            for connection in psutil.Process().net_connections()
            if connection.laddr and connection.laddr.port == port
        ]
        assert set(listening) == {"127.0.0.1"}
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_a_port_in_use_is_refused_with_the_next_step(store: MonitoringStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ShortlistError, match="choose another port") as caught, serve_metrics(store, port):
            pass
        assert f"127.0.0.1:{port}" in str(caught.value)


def test_unusual_names_are_escaped_in_the_text_format(store: MonitoringStore) -> None:
    odd = 'a "quoted" \\ name\nof two lines'
    finding = Finding(
        column=odd, kind="tags", effect=0.1, critical=0.2, p_value=1.0, drifted=False, reason="nothing moved"
    )
    store.add_report(report(0, findings=(finding,)))
    families = list(text_string_to_metric_families(metrics_text(store)))
    (sample,) = next(family for family in families if family.name == "shortlist_monitoring_drift_effect").samples
    assert sample.labels["column"] == odd


def served(share: float | None) -> ServedFeaturesReport:
    served_column = ServedColumn(
        compared=100, equal=80, stale=5, counted=15, largest_difference=3.0, cause="default", reason="it differs"
    )
    sound = ServedColumn(compared=100, equal=100, largest_difference=0.0)
    code = ServedColumn(compared=100, equal=99, counted=1, largest_difference=None, cause="missing", reason="gone")
    return ServedFeaturesReport(
        spec="demo", made=FIRST, first=FIRST, last=FIRST, requests=10, rows=100, max_unequal=share,
        columns={"by_user:rows": served_column, "price": sound, "users:city": code},
    )  # fmt: skip


def test_metrics_of_served_features_by_column(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    assert "served" not in metrics_text(store) and store.served_features() is None
    store.set_served_features(served(0.1))
    text = metrics_text(store)
    for name, labels, value in (
        ("served_equal", ',column="by_user:rows"', "80.0"), ("served_unequal_ratio", ',column="by_user:rows"', "0.15"),
        ("served_largest_difference", ',column="by_user:rows"', "3.0"), ("served_stale", ',column="price"', "0.0"),
        ("served_max_unequal_ratio", ',column="price"', "0.1"), ("served_rows", "", "100.0"),
    ):  # fmt: skip
        assert f'shortlist_monitoring_{name}{{{labels.lstrip(",")}{"," if labels else ""}spec="demo"}} {value}' in text
    assert 'served_largest_difference{column="users:city"' not in text
    store.set_served_features(served(None))  # no limit is never passed
    assert 'shortlist_monitoring_served_max_unequal_ratio{column="price",spec="demo"} +Inf' in metrics_text(store)
    assert served(None).blocker == "" and "it differs" in served(0.1).blocker
    assert served(0.1).model_copy(update={"min_rows": 101}).blocker == ""  # too few rows to say
