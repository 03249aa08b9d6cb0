"""The webhook receiver and the monitoring CronJob as processes, with Kubeflow's API and a real PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import yaml
from kfp_server import Fault, KubeflowServer

from monitoring.monitoring_job import MonitoringRun
from monitoring.receiver.retrainer import RetryLaterError
from monitoring.retraining.retrain_policy import decide_retraining
from monitoring.store.monitoring_store import MonitoringStore, open_monitoring_store
from monitoring.windows.records import Finding, RetrainDecision, WindowReport
from shortlist.contracts import ShortlistError
from shortlist.kubeflow import monitoring_cronjob as watch_job
from shortlist.kubeflow import trigger_service
from shortlist.kubeflow.monitoring_cronjob import start_decided_training
from shortlist.kubeflow.retraining_starter import HOST_VARIABLE, kubeflow_starter, parse_data_locations, read_specs
from shortlist.kubeflow.training_runs import storage_config
from shortlist.spec.monitoring import RetrainPolicy
from shortlist.spec.spec import Spec

FIRST = datetime(2026, 1, 19, tzinfo=UTC)
DAY = timedelta(days=1)
TOKEN = "a-token-that-nobody-guesses"  # noqa: S105 - of the receivers in this file
ALARM = {
    "version": "4",
    "status": "firing",
    "alerts": [
        {
            "status": "firing",
            "labels": {"alertname": "ShortlistAlarm", "spec": "demo"},
            "annotations": {},
            "startsAt": "2026-01-21T00:00:00Z",
        }
    ],
}

MakeSpec = Callable[..., Spec]


def report(number: int) -> WindowReport:
    start = FIRST + number * DAY
    finding = Finding(
        column="price", kind="numeric", effect=0.5, critical=0.2, p_value=1e-9, drifted=True, reason="price moved"
    )
    return WindowReport(
        spec="demo", start=start, end=start + DAY, made=start + DAY, champion=3, versions={3: 1_000}, requests=250,
        rows=1_000, coverage=0.9, findings=(finding,),
    )  # fmt: skip


@pytest.fixture
def spec(make_spec: MakeSpec) -> Spec:
    return make_spec()


@pytest.fixture
def specs(changes: Callable[..., list[str]], tmp_path: Path) -> Path:
    folder = tmp_path / "specs"
    folder.mkdir()
    raw = yaml.safe_load((Path(__file__).parents[3] / "pipelines/specs/demo.yaml").read_text())
    for change in changes():
        section, _, content = change.partition("=")
        raw[section] = json.loads(content)
    (folder / "demo.yaml").write_text(yaml.safe_dump(raw))
    return folder


@pytest.fixture
def store(spec: Spec, postgres: str, monkeypatch: pytest.MonkeyPatch) -> MonitoringStore:
    """A store with two bad windows, in PostgreSQL."""
    monkeypatch.setenv("SHORTLIST_DATABASE", postgres)
    monitoring_store = open_monitoring_store(str(storage_config(spec.runtime)), "demo")
    for number in range(2):
        monitoring_store.add_report(report(number))
    return monitoring_store


@contextmanager
def two_receivers(specs: Path, server: KubeflowServer, folder: Path) -> Iterator[list[tuple[httpx.Client, int, Path]]]:
    """Run the service in two processes, until they are ready; give client, process and log of each."""
    environment = {**os.environ, HOST_VARIABLE: server.url, "SHORTLIST_WEBHOOK_TOKEN": TOKEN}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with ExitStack() as stack:
        started_receivers = []
        for log in (folder / "a.log", folder / "b.log"):
            port = _free_port()
            command = [
                sys.executable,
                "-m",
                "shortlist.kubeflow.trigger_service",
                "--specs",
                str(specs),
                "--port",
                str(port),
            ]
            out = stack.enter_context(log.open("w"))
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
            stack.callback(_end, process, log)
            client = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60)
            started_receivers.append((stack.enter_context(client), process, log))
        for client, process, log in started_receivers:
            deadline = time.monotonic() + 120
            while not _is_ready(client):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
        yield [(client, process.pid, log) for client, process, log in started_receivers]


def _end(process: subprocess.Popen[bytes], log: Path) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in {0, -signal.SIGTERM, -signal.SIGKILL}, log.read_text()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.long
def test_ten_webhooks_at_two_processes_start_one_run(
    specs: Path, store: MonitoringStore, server: KubeflowServer, tmp_path: Path
) -> None:
    server.faults.append(Fault("run_service_create_run", carried_out=True))  # it begins, and nobody is told
    with two_receivers(specs, server, tmp_path) as receivers, ThreadPoolExecutor(10) as senders:

        def send(number: int) -> int:
            client, *_ = receivers[number % 2]
            while (status := client.post("/alerts", json=ALARM).status_code) >= 500:
                time.sleep(0.1)
            return status

        assert list(senders.map(send, range(10))) == 10 * [200]
        numbers = receivers[0][0].get("/metrics").text
    (run,) = server.stored["runs"]
    (retraining,) = store.retrainings()
    assert retraining.run == run["run_id"]
    sent = run["runtime_config"]["parameters"]["cause"]
    assert (sent["trigger"], sent["key"]) == ("drift", retraining.key)
    assert sent["until"] == (FIRST + 2 * DAY).isoformat()
    assert 'shortlist_monitoring_retraining_running{spec="demo"} 1.0' in numbers
    assert TOKEN not in "".join(log.read_text() for *_, log in receivers)


@pytest.mark.long
def test_a_receiver_killed_while_it_starts_a_run_leaves_one_recorded_run(
    specs: Path, store: MonitoringStore, server: KubeflowServer, tmp_path: Path
) -> None:
    server.faults.append(
        Fault("run_service_create_run", carried_out=True, seconds=5)
    )  # it begins; the answer takes its time
    with two_receivers(specs, server, tmp_path) as receivers, ThreadPoolExecutor(1) as sender:
        (doomed, pid, _), (heir, *_) = receivers
        cut_off = sender.submit(doomed.post, "/alerts", json=ALARM)
        while not server.stored["runs"]:
            assert not cut_off.done(), cut_off.result().text
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            cut_off.result()
        assert not store.retrainings()
        answer = heir.post("/alerts", json=ALARM)
    assert answer.json()["alarms"]["demo"]["result"] == "started"
    (run,) = server.stored["runs"]
    assert [retraining.run for retraining in store.retrainings()] == [run["run_id"]]


def test_a_refusal_of_kubeflow_leaves_nothing_behind(
    spec: Spec, store: MonitoringStore, server: KubeflowServer, tmp_path: Path
) -> None:
    start = kubeflow_starter(spec, "", server.url, tmp_path)
    decision = decide_retraining("demo", store.reports(), (), RetrainPolicy(), FIRST)
    server.faults.append(Fault("run_service_create_run", status=403, message="namespace is not yours"))
    monitoring_run = MonitoringRun((), decision, store.claim(decision), "", (), "")
    with pytest.raises(RetryLaterError, match=r"no training could be started: .*namespace is not yours"):
        start_decided_training(store, monitoring_run, start)
    assert (store.decisions(), server.stored["runs"]) == ((), [])


def test_the_monitoring_cronjob_starts_a_decided_training_once(
    spec: Spec, store: MonitoringStore, server: KubeflowServer, tmp_path: Path
) -> None:
    start = kubeflow_starter(spec, "", server.url, tmp_path)
    decision = decide_retraining("demo", store.reports(), (), RetrainPolicy(), FIRST)
    monitoring_run = MonitoringRun((), decision, store.claim(decision), "", (), "")
    (line,) = start_decided_training(store, monitoring_run, start)
    (run,) = server.stored["runs"]
    assert line.startswith("started: ")
    assert run["run_id"] in line
    second_run = MonitoringRun((), decision, store.claim(decision), "", (), "")
    assert start_decided_training(store, second_run, start) == ()
    hold_decision = decision.model_copy(update={"action": "hold"})
    assert start_decided_training(store, MonitoringRun((), hold_decision, True, "", (), ""), start) == ()
    assert len(server.stored["runs"]) == 1


def test_a_repeated_start_of_one_decision_returns_the_same_run(
    spec: Spec, store: MonitoringStore, server: KubeflowServer, tmp_path: Path
) -> None:
    start = kubeflow_starter(spec, "", server.url, tmp_path)
    decision: RetrainDecision = decide_retraining("demo", store.reports(), (), RetrainPolicy(), FIRST)
    assert start(decision) == start(decision.model_copy(update={"made": FIRST + DAY}))
    assert len(server.stored["runs"]) == 1


@pytest.mark.parametrize("program", [trigger_service, watch_job])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "KF_PIPELINES_ENDPOINT is not set"),
        ({"--specs": "empty"}, "has no spec"),
        ({"--data": "other=s3://bucket/folder"}, "--data: got 'other=s3://bucket/folder'"),
    ],
    ids=["no host", "no spec", "data of another"],
)
def test_missing_settings_are_named(
    program: object,
    change: dict[str, str],
    says: str,
    specs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHORTLIST_WEBHOOK_TOKEN", TOKEN)
    options = {"--specs": str(specs), **change}
    arguments = [text for option in options.items() for text in option]
    assert program.main(arguments) == 1  # type: ignore[attr-defined]
    assert says in capsys.readouterr().err


def test_the_watching_job_tells_of_each_spec_that_cannot_be_watched(
    specs: Path, server: KubeflowServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(HOST_VARIABLE, server.url)
    monkeypatch.delenv("SHORTLIST_DATABASE", raising=False)
    assert watch_job.main(["--specs", str(specs)]) == 1
    assert "demo: " in capsys.readouterr().err


def test_two_files_of_one_name_are_refused(specs: Path) -> None:
    (specs / "other.yaml").write_text((specs / "demo.yaml").read_text())
    with pytest.raises(ShortlistError, match="has a spec of the name 'demo' too"):
        read_specs(specs)


def test_data_are_given_by_name(spec: Spec) -> None:
    assert parse_data_locations(["demo=s3://bucket/folder"], {"demo": spec}) == {"demo": "s3://bucket/folder"}
    assert parse_data_locations([], {"demo": spec}) == {"demo": ""}
