"""Alerts reach who should know, once, over endpoints that are down, slow or rude and processes that die."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from monitoring.alerts.alert import Alert
from monitoring.alerts.alert_queue import AlertQueue
from monitoring.alerts.alert_sender import AlertSender, Delivery
from monitoring.alerts.alerts import send_alerts
from monitoring.retraining.retrain_policy import decision_key
from monitoring.store.monitoring_store import MonitoringStore
from monitoring.store.record_files import RecordError
from monitoring.windows.records import RetrainDecision
from shortlist.contracts import ShortlistError
from shortlist.spec.monitoring import Alerts
from shortlist.storage.records.folder import FolderRecordStore

MADE = datetime(2026, 1, 21, 1, tzinfo=UTC)
TOKEN = "SHORTLIST_TEST_TOKEN"  # noqa: S105 - the name of a variable

DELIVER = """
import sys, time
from pathlib import Path
from monitoring.alerts.alert import Alert
from monitoring.alerts.alert_sender import AlertSender
from monitoring.alerts.alert_queue import AlertQueue
from shortlist.spec.monitoring import Alerts
from shortlist.storage.records.folder import FolderRecordStore
queue = AlertQueue(FolderRecordStore(Path(sys.argv[1]).parent))
courier = AlertSender(queue, Alerts(urls=[sys.argv[2]], timeout_seconds=30))
"""


class Receiver:
    """A real endpoint: answers as told, in turn, then with 200."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
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


class FolderOutbox(AlertQueue):
    def __init__(self, folder: Path) -> None:
        super().__init__(FolderRecordStore(folder.parent))
        self.folder = folder


@pytest.fixture
def outbox(tmp_path: Path) -> FolderOutbox:
    return FolderOutbox(tmp_path / "outbox")


def alert(number: int = 0) -> Alert:
    return Alert(
        id=f"{number:016x}",
        labels={"alertname": "ShortlistPage", "spec": "demo", "severity": "critical"},
        annotations={"summary": f"alert {number}"},
        starts=MADE,
    )


def courier(outbox: AlertQueue, *urls: str, age: timedelta = timedelta(0), **settings: Any) -> AlertSender:
    alerts = Alerts.model_validate({"urls": urls, **settings})
    return AlertSender(outbox, alerts, pause_seconds=0.01, clock=lambda: datetime.now(UTC) + age)


def test_an_alert_arrives_as_alertmanager_would_send_it(outbox: FolderOutbox, receiver: Receiver) -> None:
    receiver.up()
    sender = courier(outbox, receiver.url)
    assert sender.put([alert()]) == 1
    assert sender.deliver() == Delivery(sent=1)
    assert receiver.bodies == [alert().webhook()]
    assert receiver.headers[0]["Content-Type"] == "application/json"
    assert "Authorization" not in receiver.headers[0]


def test_an_alert_is_sent_once_however_often_it_is_put(outbox: FolderOutbox, receiver: Receiver) -> None:
    receiver.up()
    sender = courier(outbox, receiver.url)
    assert [sender.put([alert()]), sender.put([alert()])] == [1, 0]
    sender.deliver()
    assert sender.put([alert()]) == 0
    assert sender.deliver() == Delivery()
    assert receiver.got == ["alert 0"]


def test_an_endpoint_that_is_down_at_first_gets_everything_in_order_at_the_next_look(
    outbox: FolderOutbox, receiver: Receiver
) -> None:
    for number in range(3):
        courier(outbox, receiver.url, age=timedelta(seconds=number)).put([alert(number)])
    down = courier(outbox, receiver.url).deliver()
    assert (down.sent, down.lost, down.waiting) == (0, 0, 3)
    assert down.problems == (f"{receiver.host}: ConnectError: [Errno 111] Connection refused",)
    assert {letter.problem for letter in outbox.waiting()} == set(down.problems)
    receiver.up()
    assert courier(outbox, receiver.url).deliver() == Delivery(sent=3)  # another process, after a restart
    assert receiver.got == ["alert 0", "alert 1", "alert 2"]


@pytest.mark.parametrize("answers", [[500], [503, 500], [429], [408, 429]])
def test_a_hiccup_is_tried_again_within_the_look(outbox: FolderOutbox, receiver: Receiver, answers: list[int]) -> None:
    receiver.answers = list(answers)
    receiver.up()
    sender = courier(outbox, receiver.url)
    sender.put([alert()])
    assert sender.deliver() == Delivery(sent=1)
    assert len(receiver.bodies) == len(answers) + 1


def test_an_endpoint_that_keeps_failing_is_asked_three_times_a_look_however_much_waits(
    outbox: FolderOutbox, receiver: Receiver
) -> None:
    receiver.answers = [500] * 3
    receiver.up()
    sender = courier(outbox, receiver.url)
    sender.put([alert(0), alert(1), alert(2)])
    failed = sender.deliver()
    assert (failed.sent, failed.waiting, failed.problems) == (0, 3, (f"{receiver.host}: HTTP 500",))
    assert len(receiver.bodies) == 3
    assert sender.deliver() == Delivery(sent=3)


def test_a_slow_endpoint_does_not_hold_up_a_look(outbox: FolderOutbox, receiver: Receiver) -> None:
    receiver.let_go.clear()
    receiver.up()
    sender = courier(outbox, receiver.url, timeout_seconds=0.1)
    sender.put([alert()])
    slow = sender.deliver()
    assert (slow.sent, slow.waiting) == (0, 1)
    assert slow.problems[0].startswith(f"{receiver.host}: ReadTimeout")
    receiver.let_go.set()
    assert courier(outbox, receiver.url).deliver().sent == 1


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 413])
def test_what_an_endpoint_refuses_is_not_tried_for_ever_and_not_forgotten(
    outbox: FolderOutbox, receiver: Receiver, status: int
) -> None:
    receiver.answers = [status]
    receiver.up()
    sender = courier(outbox, receiver.url)
    sender.put([alert(0), alert(1)])
    refused = sender.deliver()
    assert (refused.sent, refused.lost, refused.waiting) == (1, 1, 0)
    assert refused.problems == (
        f"{receiver.host}: HTTP {status}; the alert is not sent again. Check the URL and the token",
    )
    assert len(receiver.bodies) == 2
    (kept,) = (outbox.folder / "lost").iterdir()
    assert json.loads(kept.read_text())["problem"] == refused.problems[0]
    assert sender.put([alert(0)]) == 0
    assert sender.deliver() == Delivery()


def test_an_endpoint_that_is_down_does_not_keep_the_others_waiting(
    outbox: FolderOutbox, receivers: Callable[[], Receiver]
) -> None:
    down, up = receivers(), receivers().up()
    sender = courier(outbox, down.url, up.url)
    assert sender.put([alert(0), alert(1)]) == 4
    half = sender.deliver()
    assert (half.sent, half.waiting, len(half.problems)) == (2, 2, 1)
    assert up.got == ["alert 0", "alert 1"]
    down.up()
    assert sender.deliver() == Delivery(sent=2)
    assert len(up.bodies) == 2


def test_an_alert_that_nobody_takes_is_given_up_after_a_time_and_counted(
    outbox: FolderOutbox, receiver: Receiver
) -> None:
    courier(outbox, receiver.url).put([alert()])
    young = courier(outbox, receiver.url, age=timedelta(hours=71)).deliver()
    assert (young.lost, young.waiting) == (0, 1)
    old = courier(outbox, receiver.url, age=timedelta(hours=73)).deliver()
    assert (old.lost, old.waiting) == (1, 0)
    assert old.problems[0].endswith("alerts of more than 72 h (keep_hours) are given up")
    assert outbox.count("lost") == 1


def test_an_old_alert_is_tried_once_more_before_it_is_given_up(outbox: FolderOutbox, receiver: Receiver) -> None:
    courier(outbox, receiver.url).put([alert()])
    receiver.up()
    assert courier(outbox, receiver.url, age=timedelta(days=30)).deliver() == Delivery(sent=1)


def test_an_alert_for_an_endpoint_that_is_not_declared_any_more_is_reported(
    outbox: FolderOutbox, receivers: Callable[[], Receiver]
) -> None:
    courier(outbox, receivers().url).put([alert()])
    gone = courier(outbox, receivers().up().url).deliver()
    assert (gone.lost, gone.problems) == (1, ("alerts waited for an endpoint that is no longer declared",))


def test_a_torn_file_hides_no_other_alert(outbox: FolderOutbox, receiver: Receiver) -> None:
    receiver.up()
    sender = courier(outbox, receiver.url)
    sender.put([alert(0), alert(1)])
    torn = next((outbox.folder / "waiting").glob(f"{alert(0).id}*"))
    torn.write_text(torn.read_text()[:50])
    delivery = sender.deliver()
    assert (delivery.sent, delivery.lost) == (1, 1)
    assert delivery.problems == ("a waiting alert's file was torn or edited; it is in the outbox's lost/",)
    assert receiver.got == ["alert 1"]


def test_without_endpoints_nothing_is_kept(outbox: FolderOutbox) -> None:
    sender = courier(outbox)
    assert sender.put([alert()]) == 0
    assert sender.deliver() == Delivery()
    assert not outbox.folder.exists()


def test_a_process_killed_between_writing_and_sending_loses_nothing(
    outbox: FolderOutbox, receiver: Receiver, tmp_path: Path
) -> None:
    receiver.up()
    receiver.let_go.clear()
    (tmp_path / "alert.json").write_text(alert().model_dump_json())
    script = "courier.put([Alert.model_validate_json(Path(sys.argv[3]).read_text())])\ncourier.deliver()"
    arguments = [str(outbox.folder), receiver.url, str(tmp_path / "alert.json")]
    with subprocess.Popen([sys.executable, "-c", DELIVER + script, *arguments]) as sender:
        assert receiver.was_asked.wait(30)  # it has the alert, and no answer was given
        sender.send_signal(signal.SIGKILL)
    receiver.let_go.set()
    assert outbox.count("waiting") == 1
    assert courier(outbox, receiver.url).deliver() == Delivery(sent=1)
    assert set(receiver.got) == {"alert 0"}


@pytest.mark.long
def test_ten_processes_that_deliver_at_once_send_every_alert_once(
    outbox: FolderOutbox, receiver: Receiver, tmp_path: Path
) -> None:
    receiver.up()
    courier(outbox, receiver.url).put([alert(number) for number in range(5)])
    (tmp_path / "alert.json").write_text(alert(5).model_dump_json())
    script = """
print("ready", flush=True)
while not Path(sys.argv[4]).exists():
    time.sleep(0.005)
courier.put([Alert.model_validate_json(Path(sys.argv[3]).read_text())])
print(courier.deliver().sent)
"""
    arguments = [str(outbox.folder), receiver.url, str(tmp_path / "alert.json"), str(tmp_path / "go")]
    senders = [
        subprocess.Popen([sys.executable, "-c", DELIVER + script, *arguments], stdout=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    for one in senders:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    (tmp_path / "go").touch()
    sent = [int(one.communicate()[0]) for one in senders]
    assert sum(sent) == 6
    assert sorted(receiver.got) == [f"alert {number}" for number in range(6)]
    assert (outbox.count("waiting"), outbox.count("sent"), outbox.count("lost")) == (0, 6, 0)


def test_who_finds_another_process_delivering_leaves_it_to_that(
    outbox: FolderOutbox, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitoring.alerts.alert_sender._PATIENCE", 0.0)
    receiver.up()
    sender = courier(outbox, receiver.url)
    sender.put([alert()])
    with outbox.delivering(0) as is_alone:
        assert is_alone
        busy = sender.deliver()
    assert (busy.sent, busy.waiting) == (0, 1)
    assert busy.problems == ("another process is delivering alerts; what waits is sent in the next monitoring run",)
    assert receiver.bodies == []
    assert sender.deliver() == Delivery(sent=1)


def test_the_token_and_the_urls_secrets_go_to_the_endpoint_and_nowhere_else(
    outbox: FolderOutbox, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv(TOKEN, "t0ken\n")  # as a mounted secret ends
    receiver.answers = [401]
    receiver.up()
    sender = courier(outbox, receiver.url, token_env=TOKEN)
    sender.put([alert(0), alert(1)])
    told = str(sender.deliver())
    assert receiver.headers[0]["Authorization"] == "Bearer t0ken"
    written = "".join(path.read_text() for path in outbox.folder.rglob("*.json"))
    assert written
    for secret in ("t0ken", "s3cret"):
        assert secret not in written + told + caplog.text


def test_a_password_in_a_url_is_used_and_not_shown(outbox: FolderOutbox, receiver: Receiver) -> None:
    receiver.answers = [403]
    receiver.up()
    sender = courier(outbox, receiver.url.replace("http://", "http://me:s3cret@"))
    sender.put([alert()])
    (problem,) = sender.deliver().problems
    assert receiver.headers[0]["Authorization"].startswith("Basic ")
    assert problem.startswith(f"{receiver.host}: HTTP 403")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "the environment variable 'SHORTLIST_TEST_TOKEN' is not set. Set it to the bearer token"),
        ("  ", "the environment variable 'SHORTLIST_TEST_TOKEN' is not set"),
        ("two w0rds", "is no bearer token: it has spaces"),
        ("w0rd\nX-Other: 1", "is no bearer token: it has spaces"),
        ("schlüssel-w0rd", "is no bearer token: it has spaces"),
    ],
)
def test_a_token_that_is_not_there_stops_the_start(
    outbox: FolderOutbox, monkeypatch: pytest.MonkeyPatch, value: str | None, message: str
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    if value is not None:
        monkeypatch.setenv(TOKEN, value)
    with pytest.raises(ShortlistError, match=message) as caught:
        courier(outbox, "http://127.0.0.1:9/", token_env=TOKEN)
    assert "w0rd" not in str(caught.value)


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


def test_a_story_is_told_from_the_first_alarm_to_the_promotion(receiver: Receiver, tmp_path: Path) -> None:
    receiver.up()
    store = MonitoringStore(tmp_path / "demo")
    alerts = Alerts.model_validate({"urls": [receiver.url]})
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
        "demo: the retraining of 2026-01-21 00:00 led to version 4",
        "demo: the alarm is over",
    ]
    assert [body["status"] for body in receiver.bodies] == ["firing", "firing", "firing", "resolved", "resolved"]


def test_a_page_is_told_once_per_window_however_often_one_looks(receiver: Receiver, tmp_path: Path) -> None:
    receiver.up()
    store, alerts = MonitoringStore(tmp_path / "demo"), Alerts.model_validate({"urls": [receiver.url]})
    sent = [send_alerts(store, decision(number, "page", alarm=False), alerts, MADE).sent for number in (1, 1, 1, 2, 2)]
    assert sent == [1, 0, 0, 1, 0]


def test_news_that_a_killed_process_brought_halfway_is_brought_whole(outbox: FolderOutbox, receiver: Receiver) -> None:
    # Killed after the letter was written and before it was noted what people were told.
    receiver.up()
    sender = courier(outbox, receiver.url)
    sender.put([alert()])
    (outbox.folder / "told" / "ShortlistPage.json").unlink()
    assert sender.put([alert()]) == 0
    assert outbox.latest() == {"ShortlistPage": alert()}
    assert sender.deliver() == Delivery(sent=1)


def test_a_torn_note_of_what_people_were_told_is_named(outbox: FolderOutbox) -> None:
    courier(outbox, "http://127.0.0.1:9/").put([alert()])
    path = outbox.folder / "told" / "ShortlistPage.json"
    path.write_text("{")
    with pytest.raises(RecordError, match="move it away and run make watch again") as caught:
        outbox.latest()
    assert str(path) in str(caught.value)
