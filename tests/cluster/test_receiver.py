"""Alertmanager's webhooks start one training, however often they are sent, and only if the policy allows it."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from monitoring.alerts.alert import Alert
from monitoring.alerts.destinations import Webhook
from monitoring.receiver import app as receiver_module
from monitoring.receiver.app import receiver_app
from monitoring.receiver.bearer import BearerTokens
from monitoring.receiver.retrainer import Retrainer, RetrainerResponse, begin_retraining
from monitoring.retraining.retrain_policy import decide_retraining
from monitoring.store.monitoring_store import MonitoringStore, open_monitoring_store
from monitoring.windows.records import Finding, RetrainDecision, WindowReport
from shortlist.contracts import ShortlistError
from shortlist.kubeflow.trigger_service import SERVER
from shortlist.spec.monitoring import RetrainPolicy
from shortlist.storage.storage_config import StorageConfig

FIRST = datetime(2026, 1, 19, tzinfo=UTC)
DAY = timedelta(days=1)
TOKEN = "a-token-that-nobody-guesses"  # noqa: S105 - of the receivers in this file
REPLACEMENT = "the-token-that-comes-next"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


def report(number: int, drifted: bool = True) -> WindowReport:
    start = FIRST + number * DAY
    finding = Finding(
        column="price", kind="numeric", effect=0.5, critical=0.2, p_value=1e-9, drifted=drifted, reason="price moved"
    )
    return WindowReport(
        spec="demo", start=start, end=start + DAY, made=start + DAY, champion=3, versions={3: 1_000}, requests=250,
        rows=1_000, coverage=0.9, findings=(finding,),
    )  # fmt: skip


def notification(*alerts: tuple[str, str, str]) -> dict[str, Any]:
    """Return a notification of alerts, each with a name, a spec and a status.

    It has the fields of Message in Alertmanager's notify/webhook/webhook.go, and of Data and Alert in its
    template/template.go (0.34); a field of labels that are not there is null.
    """
    return {
        "version": "4",
        "groupKey": "{}:{}",
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "shortlist",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "routeLabels": None,
        "notification_reason": "first notification",
        "externalURL": "http://alertmanager:9093",
        "alerts": [
            {
                "status": status,
                "labels": {"alertname": name, "spec": spec, "severity": "warning"},
                "annotations": {"summary": "live traffic went bad"},
                "startsAt": "2026-01-21T00:00:00.000Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": "http://prometheus:9090/graph",
                "fingerprint": "c0ffee",
            }
            for name, spec, status in alerts
        ],
    }


ALARM = notification(("ShortlistAlarm", "demo", "firing"))


class Kubeflow:
    """Starts nothing, counts, and can be away; a run is named after its decision, as the real one's is."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.is_away = False
        self.seconds = 0.0
        self._lock = threading.Lock()

    def __call__(self, decision: RetrainDecision) -> str:
        time.sleep(self.seconds)
        if self.is_away:
            raise ShortlistError("Kubeflow at http://me:pa55word@kfp:8888 does not answer")
        with self._lock:
            self.started.append(decision.key)
        return f"run-{decision.key}"


@pytest.fixture
def kubeflow() -> Kubeflow:
    return Kubeflow()


@pytest.fixture(params=["files", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MonitoringStore:
    """A store with two bad windows, in files and in a real PostgreSQL."""
    stores = StorageConfig(folder=tmp_path / "stores", epoch="1")
    if request.param == "postgres":
        monkeypatch.setenv("SHORTLIST_DATABASE", request.getfixturevalue("postgres"))
        stores = StorageConfig(cluster="test", database_variable="SHORTLIST_DATABASE")
    monitoring_store = open_monitoring_store(str(stores), "demo")
    for number in range(2):
        monitoring_store.add_report(report(number))
    return monitoring_store


@pytest.fixture
def files_book(tmp_path: Path) -> MonitoringStore:
    monitoring_store = open_monitoring_store(str(StorageConfig(folder=tmp_path / "stores", epoch="1")), "demo")
    for number in range(2):
        monitoring_store.add_report(report(number))
    return monitoring_store


def retrainer(store: MonitoringStore, kubeflow: Kubeflow, **policy: Any) -> Retrainer:
    return Retrainer(store, RetrainPolicy(**policy), kubeflow)


@pytest.fixture
def bearer(tmp_path: Path) -> BearerTokens:
    file = tmp_path / "tokens"
    file.write_text(f"{TOKEN}\n")
    return BearerTokens(file)


@contextmanager
def served(retrainers: dict[str, Retrainer], bearer: BearerTokens) -> Iterator[httpx.Client]:
    """Serve with a real uvicorn on a free port."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        port = listening.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(receiver_app(retrainers, bearer), **SERVER))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=HEADERS, timeout=60) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def client(files_book: MonitoringStore, kubeflow: Kubeflow, bearer: BearerTokens) -> Iterator[httpx.Client]:
    with served({"demo": retrainer(files_book, kubeflow)}, bearer) as http_client:
        yield http_client


@pytest.mark.long
def test_ten_identical_webhooks_at_two_receivers_start_one_run(
    store: MonitoringStore, kubeflow: Kubeflow, bearer: BearerTokens
) -> None:
    kubeflow.seconds = 0.1
    with ExitStack() as stack:
        clients = [stack.enter_context(served({"demo": retrainer(store, kubeflow)}, bearer)) for _ in range(2)]
        senders = stack.enter_context(ThreadPoolExecutor(10))

        def send(number: int) -> list[int]:
            """Send as Alertmanager does: again, as long as the answer is 5xx."""
            codes: list[int] = []
            while not codes or codes[-1] >= 500:
                codes.append(clients[number % 2].post("/alerts", json=ALARM).status_code)
            return codes

        answers = list(senders.map(send, range(10)))
    assert len(kubeflow.started) == 1
    (retraining,) = store.retrainings()
    assert (retraining.run, retraining.state) == (f"run-{kubeflow.started[0]}", "running")
    assert [codes[-1] for codes in answers] == 10 * [200]


def test_a_failed_start_releases_the_claim_and_the_next_alert_starts_the_training(
    store: MonitoringStore, kubeflow: Kubeflow, bearer: BearerTokens, caplog: pytest.LogCaptureFixture
) -> None:
    kubeflow.is_away = True
    with served({"demo": retrainer(store, kubeflow)}, bearer) as client, caplog.at_level(logging.INFO):
        refused = client.post("/alerts", json=ALARM)
        assert refused.status_code == 503
        assert refused.headers["Retry-After"] == "30"
        assert "does not answer" in refused.json()["error"]
        assert "pa55word" not in refused.text + caplog.text
        assert not store.retrainings()
        kubeflow.is_away = False
        answer = client.post("/alerts", json=ALARM)
    assert answer.json()["alarms"]["demo"]["result"] == "started"
    assert len(store.retrainings()) == 1


def test_a_claim_of_another_process_is_waited_for(
    files_book: MonitoringStore, client: httpx.Client, kubeflow: Kubeflow
) -> None:
    claimed = decide_retraining("demo", files_book.reports(), (), RetrainPolicy(), FIRST)
    assert files_book.claim(claimed)
    assert client.post("/alerts", json=ALARM).status_code == 503
    files_book.release(claimed.key)  # what its owner does when it cannot begin
    assert client.post("/alerts", json=ALARM).status_code == 200
    assert kubeflow.started == [claimed.key]


def test_a_training_that_began_cannot_be_given_back(files_book: MonitoringStore, client: httpx.Client) -> None:
    client.post("/alerts", json=ALARM)
    (retraining,) = files_book.retrainings()
    files_book.release(retraining.key)
    assert [decision.key for decision in files_book.decisions()] == [retraining.key]


def test_a_late_start_reports_the_training_of_another_process(files_book: MonitoringStore, kubeflow: Kubeflow) -> None:
    decision = decide_retraining("demo", files_book.reports(), (), RetrainPolicy(), FIRST)
    assert files_book.claim(decision)
    assert files_book.start(decision, "run-of-the-other")
    assert begin_retraining(files_book, decision, kubeflow) == RetrainerResponse(
        "hold", f"another process has begun {decision.key}", f"run-{decision.key}"
    )


def test_an_error_at_the_start_releases_the_claim(files_book: MonitoringStore) -> None:
    def broken(_decision: RetrainDecision) -> str:
        raise RuntimeError("a fault of ours")

    broken_retrainer = Retrainer(files_book, RetrainPolicy(), broken)
    for _ in range(2):  # twice: the second one could claim it again
        with pytest.raises(RuntimeError, match="a fault of ours"):
            broken_retrainer.consider()
    assert not files_book.decisions()


@pytest.mark.parametrize(
    ("windows", "ended", "policy", "result", "says"),
    [
        ([report(2, drifted=False)], [], {"bad_windows": 3}, "hold", "2 of 3 windows are bad; 3 raise the alarm"),
        ([report(2)], [0], {"cooldown_hours": 72}, "hold", "cool-down of 72 h"),
        ([report(2)], [0], {"cooldown_hours": 0, "max_per_week": 1}, "page", "1 retraining within seven days"),
        ([report(2)], [0], {"cooldown_hours": 0, "max_failures": 1}, "page", "in a row led to no new champion"),
    ],
    ids=["no alarm", "cool-down", "weekly cap", "failures in a row"],
)
def test_an_alert_starts_nothing_that_the_policy_forbids(
    windows: list[WindowReport],
    ended: list[int],
    policy: dict[str, Any],
    result: str,
    says: str,
    store: MonitoringStore,
    kubeflow: Kubeflow,
    bearer: BearerTokens,
) -> None:
    for _ in ended:
        decision_before = decide_retraining("demo", store.reports(), (), RetrainPolicy(), FIRST)
        assert decision_before.action == "retrain"
        assert store.claim(decision_before)
        assert store.start(decision_before, "run-before")
        store.finish(decision_before.key, "held", reason="no candidate passed the gates")
    for window in windows:
        store.add_report(window)
    with served({"demo": retrainer(store, kubeflow, **policy)}, bearer) as client:
        answer = client.post("/alerts", json=ALARM).json()["alarms"]["demo"]
    assert answer["result"] == result
    assert says in answer["reason"]
    assert not kubeflow.started


def test_nothing_is_trained_before_a_window_was_looked_at(tmp_path: Path, kubeflow: Kubeflow) -> None:
    empty = open_monitoring_store(str(StorageConfig(folder=tmp_path / "stores", epoch="1")), "demo")
    assert retrainer(empty, kubeflow).consider().result == "hold"


@pytest.mark.parametrize(
    "alert",
    [
        ("ShortlistAlarm", "demo", "resolved"),
        ("ShortlistPage", "demo", "firing"),
        ("ShortlistColumnDrifted", "demo", "firing"),
        ("KubePodCrashLooping", "demo", "firing"),
        ("ShortlistAlarm", "", "firing"),
    ],
)
def test_other_alerts_are_accepted_and_start_no_training(
    alert: tuple[str, str, str], client: httpx.Client, kubeflow: Kubeflow
) -> None:
    answer = client.post("/alerts", json=notification(alert))
    assert (answer.status_code, answer.json()) == (200, {"alarms": {}})
    assert not kubeflow.started


def test_an_unknown_spec_is_named_and_does_not_block_known_specs(client: httpx.Client, kubeflow: Kubeflow) -> None:
    two_alerts = notification(("ShortlistAlarm", "theirs", "firing"), ("ShortlistAlarm", "demo", "firing"))
    answer = client.post("/alerts", json=two_alerts).json()["alarms"]
    assert {spec: alarm["result"] for spec, alarm in answer.items()} == {"theirs": "unknown", "demo": "started"}
    assert len(kubeflow.started) == 1


def test_a_spec_that_cannot_start_does_not_block_other_specs(
    files_book: MonitoringStore, tmp_path: Path, kubeflow: Kubeflow, bearer: BearerTokens
) -> None:
    away = Kubeflow()
    away.is_away = True
    second = open_monitoring_store(str(StorageConfig(folder=tmp_path / "other" / "stores", epoch="1")), "demo")
    for number in range(2):
        second.add_report(report(number))
    retrainers = {"first": retrainer(files_book, away), "second": retrainer(second, kubeflow)}
    two_alerts = notification(("ShortlistAlarm", "first", "firing"), ("ShortlistAlarm", "second", "firing"))
    with served(retrainers, bearer) as client:
        assert client.post("/alerts", json=two_alerts).status_code == 503  # Alertmanager sends all of it again
        assert len(kubeflow.started) == 1
        away.is_away = False
        assert client.post("/alerts", json=two_alerts).status_code == 200
    assert (len(away.started), len(kubeflow.started)) == (1, 1)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer ü"]
)
def test_requests_without_the_token_are_refused(
    header: str | None, client: httpx.Client, kubeflow: Kubeflow, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="monitoring"), caplog.at_level(logging.DEBUG, logger="uvicorn"):
        client.headers.pop("Authorization")
        headers = [] if header is None else [(b"Authorization", header.encode())]
        answer = client.post("/alerts", json=ALARM, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert TOKEN[:-1] not in answer.text + caplog.text
    assert not kubeflow.started


def test_a_token_is_replaced_without_a_restart(tmp_path: Path, client: httpx.Client) -> None:
    file = tmp_path / "tokens"

    def admits(token: str) -> bool:
        headers = {"Authorization": f"Bearer {token}"}
        return client.post("/alerts", json=notification(), headers=headers).status_code == 200

    assert (admits(TOKEN), admits(REPLACEMENT)) == (True, False)
    file.write_text(f"{TOKEN}\n{REPLACEMENT}\n")
    assert (admits(TOKEN), admits(REPLACEMENT)) == (True, True)
    file.write_text(f"{REPLACEMENT}\n")
    assert (admits(TOKEN), admits(REPLACEMENT)) == (False, True)
    file.unlink()
    assert client.post("/alerts", json=notification()).status_code == 503
    assert client.get("/readyz").status_code == 503


def test_tokens_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORTLIST_WEBHOOK_TOKEN", f"{TOKEN}\n{REPLACEMENT}")
    assert all(BearerTokens(None).is_authorized(f"Bearer {token}") for token in (TOKEN, REPLACEMENT))


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "cannot be read"), ("", "holds no bearer token"), ("\n \n", "holds no bearer token"), ("1234", "below 16")],
)
def test_no_receiver_starts_without_a_token_that_cannot_be_guessed(text: str | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ShortlistError, match=says) as problem:
        BearerTokens(file)
    assert "1234" not in str(problem.value)


def _changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    body = json.loads(json.dumps(ALARM))
    change(body)
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "Invalid JSON"),
        (b"{", 400, "Invalid JSON"),
        (b"[]", 400, "body: Input should be an object"),
        (_changed(lambda body: body.update(version="3")), 400, "version: Input should be '4'"),
        (_changed(lambda body: body.pop("alerts")), 400, "alerts: Field required"),
        (_changed(lambda body: body["alerts"][0].update(status="odd")), 400, "alerts.0.status"),
        (_changed(lambda body: body["alerts"][0].update(startsAt="2026-01-21")), 400, "alerts.0.startsAt"),
        (_changed(lambda body: body["alerts"][0]["labels"].update(spec=1)), 400, "alerts.0.labels.spec"),
        (_changed(lambda body: body["alerts"][0]["labels"].update(spec="x" * 5_000)), 400, "alerts.0.labels.spec"),
        (_changed(lambda body: body.update(alerts=1_001 * body["alerts"])), 400, "alerts: Tuple should have at most"),
        (b" " * 1_100_000, 413, "at most 1048576 bytes"),
    ],
)
def test_a_body_that_is_no_notification_is_refused(
    body: bytes, status: int, says: str, client: httpx.Client, kubeflow: Kubeflow
) -> None:
    answer = client.post("/alerts", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, says in answer.json()["error"]) == (status, True), answer.text
    assert not kubeflow.started


def test_what_is_no_post_of_json_is_refused(client: httpx.Client) -> None:
    assert client.post("/alerts", content="a=1", headers={"Content-Type": "text/plain"}).status_code == 415
    assert client.get("/alerts").status_code == 405
    assert client.get("/nothing").status_code == 404


def test_a_body_that_never_ends_is_given_up(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_module, "_BODY_SECONDS", 0.05)
    ended = threading.Event()

    def slow() -> Iterator[bytes]:
        yield b"{"
        ended.wait(1)

    try:
        answer = client.post("/alerts", content=slow(), headers={"Content-Type": "application/json"})
    finally:
        ended.set()
    assert answer.status_code == 408


def test_the_log_has_the_reason_why_no_training_started(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    client.post("/alerts", json=ALARM)
    with caplog.at_level(logging.INFO, logger="monitoring.receiver"):
        client.post("/alerts", json=ALARM)
    assert "demo: hold: the retraining of 2026-01-20 00:00 is running since" in caplog.text


def test_every_spec_is_shown_to_prometheus_once_per_number(
    files_book: MonitoringStore, tmp_path: Path, kubeflow: Kubeflow, bearer: BearerTokens
) -> None:
    other_monitoring_store = open_monitoring_store(
        str(StorageConfig(folder=tmp_path / "other" / "stores", epoch="1")), "other"
    )
    retrainers = {"demo": retrainer(files_book, kubeflow), "other": retrainer(other_monitoring_store, kubeflow)}
    with served(retrainers, bearer) as client:
        lines = client.get("/metrics").text.splitlines()
    assert lines.count("# TYPE shortlist_monitoring_store_broken gauge") == 1
    assert {
        'shortlist_monitoring_store_broken{spec="demo"} 0.0',
        'shortlist_monitoring_store_broken{spec="other"} 0.0',
    } <= set(lines)


def test_what_our_own_watcher_sends_is_understood(client: httpx.Client, kubeflow: Kubeflow) -> None:
    labels = {"alertname": "ShortlistAlarm", "spec": "demo", "severity": "warning"}
    alert = Alert(id="0" * 16, labels=labels, annotations={"summary": "demo: the alarm is raised"}, starts=FIRST)
    Webhook(str(client.base_url.join("/alerts")), TOKEN, timeout_seconds=30, pause_seconds=0.01).send(alert)
    assert len(kubeflow.started) == 1


def test_a_book_that_cannot_be_read_holds_the_alert_back(client: httpx.Client, files_book: MonitoringStore) -> None:
    assert client.post("/alerts", json=ALARM).status_code == 200
    (torn,) = files_book.folder.glob("retrainings/*.json")
    torn.write_text("{")
    assert client.post("/alerts", json=ALARM).status_code == 503
    assert client.get("/readyz").status_code == 503


def test_a_database_that_goes_away_holds_the_alert_back_and_takes_it_when_it_is_back(
    postgres: str,
    kubeflow: Kubeflow,
    bearer: BearerTokens,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import psycopg

    from shortlist.storage.records.postgres_server import Server

    monkeypatch.setattr(Server.__init__, "__defaults__", (0.2,))  # its patience, in seconds
    monkeypatch.setenv("SHORTLIST_DATABASE", postgres)
    postgres_store = open_monitoring_store(
        str(StorageConfig(cluster="test", database_variable="SHORTLIST_DATABASE")), "demo"
    )
    for number in range(2):
        postgres_store.add_report(report(number))
    server, _, database = postgres.rpartition("/")

    def allow(connections: bool) -> None:
        with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
            connection.execute(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS {str(connections).lower()}')
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            connection.execute(end, [database])

    with served({"demo": retrainer(postgres_store, kubeflow)}, bearer) as client:
        allow(False)
        away = client.post("/alerts", json=ALARM)
        assert (away.status_code, client.get("/readyz").status_code) == (503, 503)
        allow(True)
        back = client.post("/alerts", json=ALARM)
    assert back.json()["alarms"]["demo"]["result"] == "started"
    password = server.split(":")[2].partition("@")[0]
    assert password not in away.text + caplog.text


def test_a_concurrent_request_does_not_wait_forever(
    files_book: MonitoringStore, kubeflow: Kubeflow, bearer: BearerTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_module, "_LOCK_TIMEOUT_SECONDS", 0.05)
    inside, leave = threading.Event(), threading.Event()

    def slow(decision: RetrainDecision) -> str:
        inside.set()
        leave.wait(30)
        return kubeflow(decision)

    slow_retrainer = Retrainer(files_book, RetrainPolicy(), slow)
    with served({"demo": slow_retrainer}, bearer) as client, ThreadPoolExecutor(1) as second_thread:
        first = second_thread.submit(client.post, "/alerts", json=ALARM)
        assert inside.wait(30)
        assert client.post("/alerts", json=ALARM).status_code == 503
        leave.set()
        assert first.result().status_code == 200
    assert len(kubeflow.started) == 1


def test_silent_connections_do_not_block_other_connections(client: httpx.Client, kubeflow: Kubeflow) -> None:
    address = client.base_url.host, client.base_url.port
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(300)]
        assert client.get("/healthz").status_code == 200
        assert client.post("/alerts", json=ALARM).status_code == 200
        assert silent[0].recv(1) == b""  # the oldest went, as there are so many
    assert len(kubeflow.started) == 1


def test_an_idle_connection_is_closed(
    files_book: MonitoringStore, kubeflow: Kubeflow, bearer: BearerTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SERVER["http"], "idle_seconds", 0.2)
    with served({"demo": retrainer(files_book, kubeflow)}, bearer) as client:
        address = client.base_url.host, client.base_url.port
        for sent in (b"", b"POST /alerts HTTP/1.1\r\nHost: here\r\n"):
            with (
                socket.create_connection(address, timeout=60) as silent,
                suppress(ConnectionError),  # where it was closed before it sent anything
            ):
                silent.sendall(sent)
                assert silent.recv(1) == b""


def test_probes_are_answered_during_many_alerts(
    files_book: MonitoringStore, kubeflow: Kubeflow, bearer: BearerTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_module, "_MAX_REQUESTS", 1)
    inside, leave = threading.Event(), threading.Event()

    def slow(decision: RetrainDecision) -> str:
        inside.set()
        leave.wait(60)
        return kubeflow(decision)

    with (
        served({"demo": Retrainer(files_book, RetrainPolicy(), slow)}, bearer) as client,
        ThreadPoolExecutor(1) as second_thread,
    ):
        first = second_thread.submit(client.post, "/alerts", json=ALARM)
        assert inside.wait(60)
        refused = client.post("/alerts", json=ALARM)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "30")
        assert "1 requests are under way" in refused.json()["error"]
        assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
        assert client.get("/metrics").status_code == 200
        leave.set()
        assert first.result().status_code == 200


def test_health_and_numbers_need_no_token(client: httpx.Client) -> None:
    client.post("/alerts", json=ALARM)
    client.post("/alerts", json=notification(("ShortlistAlarm", "theirs", "firing")))
    client.headers.pop("Authorization")
    client.post("/alerts", json=ALARM)
    assert (client.get("/healthz").status_code, client.get("/readyz").status_code) == (200, 200)
    numbers = client.get("/metrics").text
    assert 'shortlist_receiver_requests_total{status="200"} 2.0' in numbers
    assert 'shortlist_receiver_requests_total{status="401"} 1.0' in numbers
    assert 'shortlist_receiver_alarms_total{result="started",spec="demo"} 1.0' in numbers
    assert 'shortlist_receiver_alarms_total{result="unknown",spec=""} 1.0' in numbers
