"""Alerts reach their destinations once, over endpoints that are down, slow or refuse, and processes that are killed."""

from __future__ import annotations

import json
import signal
import smtplib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from components.training import finalize_run
from monitoring.alerts.alert_records import AlertRecords
from monitoring.alerts.alerts import Delivery, send_alerts
from monitoring.alerts.destinations import Destination, open_destinations
from monitoring.monitoring_job import MonitoringJob, MonitoringRun, report_ended_training
from monitoring.retraining.retrain_policy import decision_key
from monitoring.store.monitoring_store import MonitoringStore, open_monitoring_store
from monitoring.store.record_files import RecordError
from monitoring.windows.records import RetrainDecision
from shortlist.cli.monitoring import commands
from shortlist.contracts import ShortlistError
from shortlist.runs.runs_folder import RunsFolder
from shortlist.spec.monitoring import Alerts, Monitoring
from shortlist.spec.runtime import Runtime
from shortlist.system.progress import EVENTS_VARIABLE
from shortlist.tracking.pipeline_run import RUN_VARIABLE

MADE = datetime(2026, 1, 21, 1, tzinfo=UTC)
TOKEN = "SHORTLIST_TEST_TOKEN"  # noqa: S105 - the name of a variable
SPEC = Path(__file__).parents[3] / "tests/specs/valid/minimal.yaml"

SEND = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from monitoring.alerts.alerts import send_alerts
from monitoring.alerts.destinations import open_destinations
from monitoring.store.monitoring_store import MonitoringStore
from monitoring.windows.records import RetrainDecision
from shortlist.spec.monitoring import Alerts, Monitoring
from shortlist.spec.runtime import Runtime
from shortlist.tracking.pipeline_run import RUN_VARIABLE
from shortlist.system.progress import EVENTS_VARIABLE
store, decision = MonitoringStore(Path(sys.argv[1])), RetrainDecision.model_validate_json(sys.argv[3])
destinations = open_destinations(Alerts(urls=[sys.argv[2]], timeout_seconds=30))
print("ready", flush=True)
sys.stdin.readline()
print(send_alerts(store, decision, destinations, datetime.now(UTC)).sent)
"""


class Receiver:
    """A real endpoint: answers as told, in turn, then with 200."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.answers: list[int] = []
        self.let_go = threading.Event()
        self.let_go.set()
        self.was_asked = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.bodies.append(json.loads(body))
                receiver.headers.append(dict(self.headers))
                receiver.paths.append(self.path)
                receiver.was_asked.set()
                receiver.let_go.wait(30)
                status = receiver.answers.pop(0) if receiver.answers else 200
                try:
                    self.send_response(status)
                    if 300 <= status < 400:
                        self.send_header("Location", receiver.url)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                except OSError:  # who asked is gone
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        # Bound and not listening: the port is ours, and connections are refused.
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self._server.daemon_threads = True
        self._server.server_bind()
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook/s3cret?key=s3cret"
        self.host = f"http://127.0.0.1:{self._server.server_port}"
        self._thread: threading.Thread | None = None

    def up(self) -> Receiver:
        self._server.server_activate()
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def close(self) -> None:
        self.let_go.set()
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    @property
    def got(self) -> list[str]:
        return [one["alerts"][0]["annotations"]["summary"] for one in self.bodies]


@pytest.fixture
def receivers() -> Iterator[Callable[[], Receiver]]:
    opened: list[Receiver] = []

    def opener() -> Receiver:
        opened.append(Receiver())
        return opened[-1]

    yield opener
    for one in opened:
        one.close()


@pytest.fixture
def receiver(receivers: Callable[[], Receiver]) -> Receiver:
    return receivers()


def destinations(*urls: str, **settings: Any) -> dict[str, Destination]:
    return open_destinations(Alerts.model_validate({"urls": urls, **settings}), pause_seconds=0.01)


def decision(number: int, action: str, alarm: bool) -> RetrainDecision:
    start = datetime(2026, 1, 19, tzinfo=UTC) + number * timedelta(days=1)
    return RetrainDecision(
        spec="demo",
        action=action,
        trigger="drift",
        key=decision_key("demo", action, start, "drift"),
        window=start,
        until=start + timedelta(days=1),
        reasons=("price moved",),
        alarm=alarm,
        made=start + timedelta(days=1),
    )


@pytest.fixture
def store(tmp_path: Path) -> MonitoringStore:
    return MonitoringStore(tmp_path / "demo")


def page(number: int = 1) -> RetrainDecision:
    return decision(number, "page", alarm=False)


def test_an_alert_arrives_in_alertmanagers_format(store: MonitoringStore, receiver: Receiver) -> None:
    receiver.up()
    assert send_alerts(store, page(), destinations(receiver.url), MADE) == Delivery(sent=1)
    (record,) = AlertRecords(store.records).read().values()
    assert receiver.bodies == [record.alert.webhook()]
    assert receiver.headers[0]["Content-Type"] == "application/json"
    assert "Authorization" not in receiver.headers[0]


def test_an_endpoint_that_is_down_at_first_gets_the_alert_in_a_later_run(
    store: MonitoringStore, receivers: Callable[[], Receiver]
) -> None:
    down, up = receivers(), receivers().up()
    first = send_alerts(store, page(), destinations(down.url, up.url), MADE)
    problem = f"{down.host}: ConnectError: [Errno 111] Connection refused"
    assert (first, up.got) == (
        Delivery(sent=1, waiting=1, problems=(problem,)),
        ["demo: a person must act: price moved"],
    )
    down.up()
    assert send_alerts(store, None, destinations(down.url, up.url), MADE) == Delivery(sent=1)  # after a restart
    assert (down.got, len(up.got)) == (["demo: a person must act: price moved"], 1)


def test_a_newer_alert_takes_the_place_of_one_that_was_not_accepted(store: MonitoringStore, receiver: Receiver) -> None:
    assert send_alerts(store, page(1), destinations(receiver.url), MADE).waiting == 1
    assert send_alerts(store, page(2), destinations(receiver.url), MADE).waiting == 1
    receiver.up()
    assert send_alerts(store, None, destinations(receiver.url), MADE) == Delivery(sent=1)
    assert receiver.bodies[0]["commonAnnotations"]["key"] == page(2).key


@pytest.mark.parametrize("state", ["held", "failed"])
def test_a_training_that_led_to_no_champion_is_alerted_when_it_ends(
    tmp_path: Path, receiver: Receiver, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.up()
    runtime = Runtime(engine="cpu")
    stores = RunsFolder.open(tmp_path / "runs").storage_parameter(runtime)
    store = open_monitoring_store(stores, "demo")
    monitoring = Monitoring(alerts=Alerts(urls=(receiver.url,)))
    job = MonitoringJob("demo", stores, monitoring, ())
    retrain = decision(1, "retrain", alarm=True)
    assert job.begin_training(MonitoringRun((), retrain, store.claim(retrain), "", (), ""), "")
    assert f"{retrain.key[:8]} is running" in job.page.read_text()
    monkeypatch.setenv(RUN_VARIABLE, "20260120-020000-demo.1a2b")
    if state == "held":
        store.finish(retrain.key, "held", None, "no candidate passed the gates")
    monkeypatch.setattr("shortlist.tracking.mlflow_store.Tracker.fail_pipeline", lambda *_: None)  # writes to MLflow
    status = SimpleNamespace(state="SUCCEEDED" if state == "held" else "FAILED", error_message="a step failed")
    finalize_run("demo", monitoring.model_dump_json(), stores, {"key": retrain.key}, status)
    (notes,) = (body["commonAnnotations"] for body in receiver.bodies)
    assert notes["summary"].endswith(f"led to no new champion ({state})")
    assert (notes["run"], notes["key"]) == ("20260120-020000-demo.1a2b", retrain.key)
    page_text = job.page.read_text()
    assert retrain.key in page_text and f" {state}</span>" in page_text and "is running" not in page_text
    assert job.send_alerts(None, MADE) == Delivery()  # the next monitoring run does not repeat it


def test_an_unset_variable_of_a_destination_does_not_fail_the_end_of_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "events.jsonl"))
    stores = RunsFolder.open(tmp_path / "runs").storage_parameter(Runtime(engine="cpu"))
    monitoring = Monitoring(alerts=Alerts(urls=("https://example.org/${NOT_SET_ANYWHERE}",)))
    report_ended_training("demo", stores, monitoring)
    assert "NOT_SET_ANYWHERE" in (tmp_path / "events.jsonl").read_text()


@pytest.mark.parametrize("answers", [[500], [503, 500], [429], [408, 429]])
def test_a_hiccup_is_tried_again_within_the_run(store: MonitoringStore, receiver: Receiver, answers: list[int]) -> None:
    receiver.answers = list(answers)
    receiver.up()
    assert send_alerts(store, page(), destinations(receiver.url), MADE) == Delivery(sent=1)
    assert len(receiver.bodies) == len(answers) + 1


def test_an_endpoint_that_keeps_failing_is_asked_three_times_a_run(store: MonitoringStore, receiver: Receiver) -> None:
    receiver.answers = [500] * 3
    receiver.up()
    store.claim(retrain := decision(1, "retrain", alarm=True))
    store.start(retrain, "run")
    store.finish(retrain.key, "held", None)  # an alarm and a failed retraining: two alerts
    failed = send_alerts(store, retrain, destinations(receiver.url), MADE)
    assert failed == Delivery(waiting=2, problems=(f"{receiver.host}: HTTP 500",))
    assert len(receiver.bodies) == 3
    assert send_alerts(store, None, destinations(receiver.url), MADE) == Delivery(sent=2)


def test_a_slow_endpoint_does_not_hold_up_a_run(store: MonitoringStore, receiver: Receiver) -> None:
    receiver.let_go.clear()
    receiver.up()
    slow = send_alerts(store, page(), destinations(receiver.url, timeout_seconds=0.1), MADE)
    assert (slow.sent, slow.waiting) == (0, 1)
    assert slow.problems[0].startswith(f"{receiver.host}: ReadTimeout")


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 413])
def test_what_an_endpoint_refuses_is_asked_once_a_run(store: MonitoringStore, receiver: Receiver, status: int) -> None:
    receiver.answers = [status]
    receiver.up()
    refused = send_alerts(store, page(), destinations(receiver.url), MADE)
    assert refused == Delivery(waiting=1, problems=(f"{receiver.host}: HTTP {status}; check the URL and the token",))
    assert len(receiver.bodies) == 1
    assert send_alerts(store, None, destinations(receiver.url), MADE) == Delivery(sent=1)  # mended


def test_an_alert_for_an_address_that_is_not_declared_any_more_is_dropped(
    store: MonitoringStore, receivers: Callable[[], Receiver]
) -> None:
    send_alerts(store, page(), destinations(receivers().url), MADE)
    assert send_alerts(store, None, destinations(receivers().up().url), MADE) == Delivery()


def test_without_destinations_nothing_is_stored(store: MonitoringStore) -> None:
    assert send_alerts(store, page(), {}, MADE) == Delivery()
    assert not store.folder.exists()


def process(store: MonitoringStore, url: str, new: RetrainDecision) -> subprocess.Popen[str]:
    arguments = [str(store.folder), url, new.model_dump_json()]
    sender = subprocess.Popen(
        [sys.executable, "-c", SEND, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert sender.stdout is not None
    assert sender.stdout.readline() == "ready\n"
    return sender


def test_a_process_killed_while_it_sends_loses_no_alert(store: MonitoringStore, receiver: Receiver) -> None:
    receiver.up()
    receiver.let_go.clear()
    with process(store, receiver.url, page()) as sender:
        assert sender.stdin is not None
        sender.stdin.write("\n")
        sender.stdin.flush()
        assert receiver.was_asked.wait(30)  # it has the alert, and no answer was given
        sender.send_signal(signal.SIGKILL)
    receiver.let_go.set()
    assert send_alerts(store, None, destinations(receiver.url), MADE) == Delivery(sent=1)
    assert set(receiver.got) == {"demo: a person must act: price moved"}


@pytest.mark.long
def test_processes_that_send_at_once_send_every_alert_once(store: MonitoringStore, receiver: Receiver) -> None:
    receiver.up()
    senders = [process(store, receiver.url, page()) for _ in range(5)]
    for sender in senders:
        assert sender.stdin is not None
        sender.stdin.write("\n")
        sender.stdin.flush()
    assert sum(int(sender.communicate()[0]) for sender in senders) == 1
    assert len(receiver.bodies) == 1


def test_a_run_that_finds_another_process_sending_sends_no_alert(
    store: MonitoringStore, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitoring.alerts.alerts._LOCK_SECONDS", 0.0)
    with AlertRecords(store.records).lock(0.0):
        delivery = send_alerts(store, page(), destinations(receiver.url), MADE)
    assert delivery.problems == ("another process is sending alerts; the next monitoring run sends what is left",)


def test_a_torn_record_is_named(store: MonitoringStore, receiver: Receiver) -> None:
    send_alerts(store, page(), destinations(receiver.url), MADE)
    path = store.folder / "alerts" / "ShortlistPage.json"
    path.write_text("{")
    with pytest.raises(RecordError, match="move it away; the next monitoring run goes on") as caught:
        AlertRecords(store.records).read()
    assert str(path) in str(caught.value)


def test_a_story_is_told_from_the_first_alarm_to_the_promotion(receiver: Receiver, tmp_path: Path) -> None:
    receiver.up()
    store = MonitoringStore(tmp_path / "demo")
    alerts = destinations(receiver.url)
    retrain, again = decision(1, "retrain", alarm=True), decision(2, "retrain", alarm=True)
    assert send_alerts(store, decision(0, "hold", alarm=False), alerts, MADE) == Delivery()
    for one, state, version in ((retrain, "held", None), (again, "promoted", 4)):
        store.claim(one)
        assert send_alerts(store, one, alerts, MADE).sent == 1
        store.start(one, "run")
        assert send_alerts(store, one, alerts, MADE) == Delivery()  # looked at again while it trains
        store.finish(one.key, state, version)
        assert send_alerts(store, None, alerts, MADE).sent == 1
        assert send_alerts(store, one, alerts, MADE) == Delivery()
    assert send_alerts(store, decision(3, "hold", alarm=False), alerts, MADE).sent == 1
    assert receiver.got == [
        "demo: the alarm is raised; a training starts",
        "demo: the retraining of 2026-01-20 00:00 led to no new champion (held)",
        "demo: the alarm is raised; a training starts",
        "demo: the retraining of 2026-01-21 00:00 led to version 4,"
        " after the retraining of 2026-01-20 00:00 led to no new champion (held)",
        "demo: the alarm is over",
    ]
    assert [body["status"] for body in receiver.bodies] == ["firing", "firing", "firing", "resolved", "resolved"]


def test_a_page_is_told_once_per_window_however_often_one_looks(receiver: Receiver, tmp_path: Path) -> None:
    receiver.up()
    store, alerts = MonitoringStore(tmp_path / "demo"), destinations(receiver.url)
    sent = [send_alerts(store, decision(number, "page", alarm=False), alerts, MADE).sent for number in (1, 1, 1, 2, 2)]
    assert sent == [1, 0, 0, 1, 0]


def test_a_token_is_sent_and_no_secret_is_written_or_printed(
    store: MonitoringStore, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(TOKEN, " t0ken\n")
    receiver.answers = [403]
    receiver.up()
    with caplog.at_level("DEBUG"):
        url = receiver.url.replace("s3cret", f"${{{TOKEN}}}")
        problems = send_alerts(store, page(), destinations(url, token_env=TOKEN), MADE).problems
    assert receiver.headers[0]["Authorization"] == "Bearer t0ken"
    assert receiver.paths == ["/hook/t0ken?key=t0ken"]
    stored = "".join(path.read_text() for path in store.folder.rglob("*.json"))
    shown = "".join(record.getMessage() for record in caplog.records if record.name.startswith(("httpx", "apprise")))
    assert "t0ken" not in stored + "".join(problems) + shown


def test_a_password_in_an_address_is_used_and_not_printed(store: MonitoringStore, receiver: Receiver) -> None:
    receiver.answers = [403]
    receiver.up()
    url = receiver.url.replace("http://", "http://me:s3cret@")
    (problem,) = send_alerts(store, page(), destinations(url), MADE).problems
    assert receiver.headers[0]["Authorization"].startswith("Basic ")
    assert problem.startswith(f"{receiver.host}: HTTP 403")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "the environment variable 'SHORTLIST_TEST_TOKEN' is not set. Set it to the secret"),
        ("  ", "the environment variable 'SHORTLIST_TEST_TOKEN' is not set"),
        ("two w0rds", "is no bearer token: it has spaces"),
        ("w0rd\nX-Other: 1", "is no bearer token: it has spaces"),
        ("schlüssel-w0rd", "is no bearer token: it has spaces"),
    ],
)
def test_a_token_that_is_not_there_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, value: str | None, message: str
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    if value is not None:
        monkeypatch.setenv(TOKEN, value)
    with pytest.raises(ShortlistError, match=message) as caught:
        destinations("http://127.0.0.1:9/", token_env=TOKEN)
    assert "w0rd" not in str(caught.value)


def test_a_secret_of_an_address_that_is_not_set_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(ShortlistError, match=r"'slack://\$\{SHORTLIST_TEST_TOKEN\}/#a': the environment variable"):
        destinations(f"slack://${{{TOKEN}}}/#a")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense://there", "got 'nonsense://there'; .* Wanted: http"),
        ("slack://", "wanted an address such as"),
        ("hooks.example.org/x", "wanted an address such as"),
        ("https://", "wanted an address such as"),
    ],
)
def test_an_address_that_cannot_be_read_is_refused(url: str, message: str) -> None:
    with pytest.raises((ShortlistError, ValueError), match=message):
        destinations(url)


def test_apprise_sends_a_message_and_its_problem_shows_no_secret(
    store: MonitoringStore, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "t0ken")
    url = f"json://me:${{{TOKEN}}}@{receiver.host.removeprefix('http://')}/hook"
    (problem,) = send_alerts(store, page(), destinations(url), MADE).problems
    assert problem.startswith("json://me:****@127.0.0.1")
    assert "t0ken" not in problem
    receiver.up()
    assert send_alerts(store, None, destinations(url), MADE) == Delivery(sent=1)
    (message,) = receiver.bodies
    assert (message["title"], message["type"]) == ("[FIRING] demo: a person must act: price moved", "failure")
    assert message["message"].startswith("price moved\n")


def test_an_alert_is_sent_by_mail(store: MonitoringStore, monkeypatch: pytest.MonkeyPatch) -> None:
    mails: list[tuple[str, list[str], str]] = []

    class Server:  # smtplib's: no mail server runs here
        def __init__(self, *_: object, **__: object) -> None: ...
        def login(self, user: str, password: str) -> None:
            assert (user, password) == ("watch", "t0ken")

        def sendmail(self, sender: str, receivers: list[str], message: str) -> None:
            mails.append((sender, receivers, message))

        def quit(self) -> None: ...

    monkeypatch.setattr(smtplib, "SMTP", Server)
    monkeypatch.setenv(TOKEN, "t0ken")
    url = f"mailto://watch:${{{TOKEN}}}@mail.example.org?to=team@example.org&mode=insecure"
    assert send_alerts(store, page(), destinations(url), MADE) == Delivery(sent=1)
    ((_, receivers, message),) = mails
    assert receivers == ["team@example.org"]
    assert "[FIRING] demo: a person must act: price moved" in message


def test_the_command_sends_a_test_to_every_destination(receiver: Receiver, tmp_path: Path) -> None:
    receiver.up()
    receiver.answers = [200, 200, 403]
    spec = tmp_path / "minimal.yaml"
    urls = f"monitoring: {{alerts: {{urls: ['{receiver.url}', '{receiver.url}&b=2']}}}}\n"
    spec.write_text(SPEC.read_text() + urls)
    outcome = CliRunner().invoke(commands, ["alerts", str(spec), "--test"])
    assert [body["status"] for body in receiver.bodies] == ["firing", "resolved", "firing"]
    assert outcome.exit_code == 1
    assert f"refused   {receiver.host}: HTTP 403" in outcome.output


def test_the_command_shows_what_waits(receiver: Receiver, tmp_path: Path) -> None:
    spec = tmp_path / "minimal.yaml"
    spec.write_text(SPEC.read_text() + f"monitoring: {{alerts: {{urls: ['{receiver.url}']}}}}\n")
    RunsFolder.open(tmp_path / "runs")
    store = MonitoringStore(tmp_path / "runs" / "monitoring" / "minimal")
    send_alerts(store, page(), destinations(receiver.url), MADE)
    outcome = CliRunner().invoke(commands, ["alerts", str(spec), "--runs", str(tmp_path / "runs")])
    assert outcome.exception is None, outcome.output
    assert outcome.output.splitlines()[0] == "firing  2026-01-21 00:00  demo: a person must act: price moved"
    assert outcome.output.splitlines()[1].startswith(f"  waiting  {receiver.host}: ConnectError")
