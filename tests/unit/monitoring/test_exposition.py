"""Prometheus reads what is in the store, whatever state the store is in."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from monitoring.alerts.alert import Alert
from monitoring.alerts.alert_queue import AlertQueue
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
    known = {
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
    return WindowReport.model_validate({**known, **changes})


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
    """Return every sample as it stands in the text, the spec's label left out."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.pop("spec") == "demo"
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            name = sample.name.removeprefix("shortlist_monitoring_") + (f"{{{labels}}}" if labels else "")
            assert name not in found, f"{name} is told twice"
            found[name] = sample.value
    return found


@pytest.fixture
def store(tmp_path: Path) -> MonitoringStore:
    return MonitoringStore(tmp_path / "demo")


def test_the_newest_window_is_told_in_numbers(store: MonitoringStore) -> None:
    store.add_report(report(0, rows=5))
    store.add_report(report(1))
    told = numbers(metrics_text(store))
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
    assert {name: told[name] for name in expected} == expected
    assert sum(value for name, value in told.items() if name.startswith("verdict{")) == 1


def test_what_is_not_known_is_left_out_and_never_a_nought(store: MonitoringStore) -> None:
    store.add_report(report(0, champion=None))
    told = numbers(metrics_text(store))
    assert "volume_ratio" not in told
    assert "champion_version" not in told
    assert "quality_reference{measure=label_rate,slice=all,version=3}" not in told
    assert "quality_limit{measure=label_rate,slice=all,version=3}" not in told


def test_problems_are_told_by_kind_and_column(store: MonitoringStore) -> None:
    problems = (
        Problem(kind="nulls", column="brand", reason="many nulls"),
        Problem(kind="volume", reason="few"),
        Problem(kind="volume", reason="also few"),
    )
    store.add_report(report(0, problems=problems))
    told = numbers(metrics_text(store))
    assert told["problems{column=brand,kind=nulls}"] == 1
    assert told["problems{column=,kind=volume}"] == 2
    assert told["verdict{verdict=broken}"] == 1


def test_decisions_and_retrainings_are_counted(store: MonitoringStore) -> None:
    for number, action in enumerate(("hold", "retrain", "retrain", "page")):
        store.claim(decision(number, action, alarm=action == "page"))
    for number, state in ((1, "failed"), (2, None)):
        store.start(decision(number, "retrain"), "run")
        if state:
            store.finish(decision(number, "retrain").key, state)
    told = numbers(metrics_text(store))
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
    assert {name: told[name] for name in expected} == expected


def test_what_the_schedule_decides_says_nothing_of_the_alarm(store: MonitoringStore) -> None:
    store.claim(decision(0, "page", alarm=True))
    store.claim(decision(1, "retrain", trigger="schedule"))
    told = numbers(metrics_text(store))
    assert (told["alarm"], told["decision{action=page}"]) == (1, 1)


def test_alerts_that_were_not_delivered_are_counted(store: MonitoringStore) -> None:
    outbox = AlertQueue(store.records)
    alert = Alert(id="0" * 16, labels={"alertname": "ShortlistPage", "spec": "demo"}, annotations={}, starts=FIRST)
    outbox.put(alert, ["http://one.example/", "http://two.example/", "http://three.example/"], FIRST)
    lost, sent, _ = outbox.waiting()
    outbox.lost(lost, "refused")
    outbox.sent(sent)
    told = numbers(metrics_text(store))
    assert [told[name] for name in ("outbox_waiting", "outbox_lost_total", "outbox_sent_total")] == [1, 1, 1]


def test_an_empty_book_counts_noughts_so_that_the_first_event_is_an_increase(store: MonitoringStore) -> None:
    told = numbers(metrics_text(store))
    assert told["retrainings_total{state=failed}"] == 0
    assert told["outbox_lost_total"] == 0
    assert told["store_broken"] == 0
    assert "last_run_timestamp_seconds" not in told
    assert not store.folder.exists()


def test_a_book_that_cannot_be_read_says_so_and_tells_the_rest(store: MonitoringStore) -> None:
    store.record_run_time()
    store.add_report(report(0))
    store.claim(decision(0, "page"))
    (path,) = (store.folder / "windows").iterdir()
    path.write_text(path.read_text()[:100])
    told = numbers(metrics_text(store))
    assert told["store_broken"] == 1
    assert told["decision{action=page}"] == 1
    assert "last_run_timestamp_seconds" in told
    assert "window_rows" not in told


def test_the_textfile_is_written_whole(store: MonitoringStore, tmp_path: Path) -> None:
    path = tmp_path / "textfiles" / "demo.prom"
    store.add_report(report(0))
    write_metrics(store, path)
    write_metrics(store, path)
    assert numbers(path.read_text()) == numbers(metrics_text(store))
    assert [one.name for one in path.parent.iterdir()] == ["demo.prom"]


def test_prometheus_gets_the_book_as_it_is_when_it_asks_and_from_this_machine_alone(store: MonitoringStore) -> None:
    with serve_metrics(store, 0) as port:
        url = f"http://127.0.0.1:{port}/metrics"
        assert "window_rows" not in numbers(httpx.get(url).text)
        store.add_report(report(0))
        answer = httpx.get(url)
        assert numbers(answer.text)["window_rows"] == 1_000
        assert answer.headers["content-type"].startswith("text/plain; version=")
        listening = [one.laddr.ip for one in psutil.Process().net_connections() if one.laddr and one.laddr.port == port]
        assert set(listening) == {"127.0.0.1"}
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_a_port_that_somebody_has_is_refused_with_what_to_do(store: MonitoringStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ShortlistError, match="choose another port") as caught, serve_metrics(store, port):
            pass
        assert f"127.0.0.1:{port}" in str(caught.value)


def test_odd_names_survive_the_format(store: MonitoringStore) -> None:
    odd = 'a "quoted" \\ name\nof two lines'
    finding = Finding(
        column=odd, kind="tags", effect=0.1, critical=0.2, p_value=1.0, drifted=False, reason="nothing moved"
    )
    store.add_report(report(0, findings=(finding,)))
    families = list(text_string_to_metric_families(metrics_text(store)))
    (sample,) = next(one for one in families if one.name == "shortlist_monitoring_drift_effect").samples
    assert sample.labels["column"] == odd


def served(share: float | None) -> ServedFeaturesReport:
    seen = ServedColumn(
        compared=100, equal=80, stale=5, counted=15, largest_difference=3.0, cause="default", reason="it differs"
    )
    sound = ServedColumn(compared=100, equal=100, largest_difference=0.0)
    code = ServedColumn(compared=100, equal=99, counted=1, largest_difference=None, cause="missing", reason="gone")
    return ServedFeaturesReport(
        spec="demo", made=FIRST, first=FIRST, last=FIRST, requests=10, rows=100, max_unequal=share,
        columns={"by_user:rows": seen, "price": sound, "users:city": code},
    )  # fmt: skip


def test_served_features_are_told_by_column_with_their_limit(tmp_path: Path) -> None:
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
