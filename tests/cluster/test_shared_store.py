"""Monitoring store, alerts and rollouts on PostgreSQL: concurrent decisions of machines are carried out once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitoring.alerts.alert import Alert
from monitoring.alerts.alert_records import AlertRecord, AlertRecords
from monitoring.retraining.retrain_policy import decision_key
from monitoring.store.monitoring_store import MonitoringStore, open_monitoring_store
from monitoring.store.process_identity import ProcessIdentity
from monitoring.store.record_files import RecordError
from monitoring.windows.records import RetrainDecision, WindowReport
from shortlist.cli import main
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import RolloutError, Rollouts, open_rollouts
from shortlist.rollout.states.operator_commands import OperatorCommand
from shortlist.rollout.states.phases import Phase, RolloutState
from shortlist.runs.runs_folder import RunsFolder
from shortlist.spec.load import load_spec
from shortlist.spec.serving import Canary
from shortlist.storage.objects import open_object_store
from shortlist.storage.records.opening import open_record_store
from shortlist.storage.records.store import LockedError
from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.pipeline_run import RUN_ID_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
FIRST, DAY = datetime(2026, 1, 19, tzinfo=UTC), timedelta(days=1)
BEGIN = """
import sys, time
from pathlib import Path
from monitoring.store.monitoring_store import open_monitoring_store
from monitoring.windows.records import RetrainDecision
store, decision = open_monitoring_store(sys.argv[1], "demo"), RetrainDecision.model_validate_json(sys.argv[2])
"""


@pytest.fixture(params=["files", "postgres"])
def stores(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "runs" / "stores"
    if request.param == "files":
        return str(StorageConfig(folder=folder, epoch="1"))
    monkeypatch.setenv("RECORDS", request.getfixturevalue("postgres"))
    return str(StorageConfig(folder=folder, cluster="one", database_variable="RECORDS"))


@pytest.fixture
def store(stores: str) -> MonitoringStore:
    return open_monitoring_store(stores, "demo")


def store_at(stores: str, time: timedelta) -> MonitoringStore:
    return MonitoringStore(
        Path("unused"), lambda: datetime.now(UTC) + time, open_record_store(stores, "monitoring", "demo")
    )


def report(day: int = 0) -> WindowReport:
    start = FIRST + day * DAY
    return WindowReport.model_validate(
        {
            "spec": "demo", "start": start, "end": start + DAY, "made": start + DAY, "champion": 1,
            "versions": {1: 1000}, "requests": 100, "rows": 1000, "coverage": 1.0, "late": 0, "duplicates": 0,
            "orphans": 0, "volume_ratio": 1.0, "problems": [], "quality": [], "warnings": [], "findings": [],
        }
    )  # fmt: skip


def decision(day: int = 0, action: str = "retrain") -> RetrainDecision:
    window = FIRST + day * DAY
    return RetrainDecision.model_validate(
        {
            "key": decision_key("demo", action, window, "drift"), "spec": "demo", "made": window + DAY,
            "action": action, "trigger": "drift", "window": window, "until": window + DAY, "columns": ["price"],
            "reasons": ["price drifted"], "alarm": True,
        }
    )  # fmt: skip


def process(stores: str, script: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BEGIN + script, stores, decision().model_dump_json(), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@contextmanager
def printed_line(running: subprocess.Popen[str], text: str) -> Iterator[None]:
    """Wait for a process's word; kill the process when the block ends."""
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == f"{text}\n"
        yield
    finally:
        running.kill()
        running.communicate()


@pytest.mark.long
def test_of_ten_watchers_that_decide_at_once_one_starts_a_run(
    stores: str, store: MonitoringStore, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    script = """
print("ready", flush=True)
while not Path(sys.argv[3]).exists():
    time.sleep(0.005)
print(store.claim(decision) and store.start(decision, sys.argv[4]))
"""
    ten = [process(stores, script, str(go), f"run-{number}") for number in range(10)]
    try:
        for watcher in ten:
            assert watcher.stdout is not None
            assert watcher.stdout.readline() == "ready\n"
        go.touch()
        answers = [process.communicate(timeout=90)[0] for process in ten]
    finally:
        for one in ten:
            one.kill()
            one.communicate()
    assert sorted(answers) == ["False\n"] * 9 + ["True\n"]
    (started,) = store.retrainings()
    assert started.run == f"run-{answers.index('True' + chr(10))}"


def test_a_claim_of_a_killed_process_can_be_claimed(stores: str, store: MonitoringStore) -> None:
    with printed_line(
        process(stores, "assert store.claim(decision); print('done', flush=True); time.sleep(600)"), "done"
    ):
        assert not store.claim(decision())
    assert store.unfinished() == (decision(),)
    assert store.claim(decision())
    assert store.start(decision(), "run")
    assert store.finish(decision().key, "promoted", version=2).state == "promoted"
    assert store.recover() == ()


def test_a_process_killed_during_a_write_blocks_no_other_process(stores: str, store: MonitoringStore) -> None:
    with printed_line(process(stores, "\nwith store._lock(): print('in', flush=True); time.sleep(600)"), "in"):
        assert open_record_store(stores, "monitoring", "demo").is_locked("book")
    assert store.claim(decision())


def test_reports_come_back_oldest_first(store: MonitoringStore) -> None:
    assert [store.add_report(report(day)) for day in (2, 0, 1, 0)] == [True, True, True, False]
    assert store.reports() == (report(0), report(1), report(2))
    assert store.reports(newest=2) == (report(1), report(2))
    assert store.add_report(report(1), replace=True)
    assert store.reports() == (report(0), report(1), report(2))


def test_a_torn_report_is_named(stores: str, store: MonitoringStore) -> None:
    store.add_report(report())
    state = open_record_store(stores, "monitoring", "demo")
    state.replace("windows/20260119T000000Z.json", "{")
    with pytest.raises(RecordError, match=r"monitoring/demo/windows/20260119T000000Z\.json: not a window's report"):
        store.reports()
    state.replace("windows/20260120T000000Z.json", report().model_dump_json())
    state.remove("windows/20260119T000000Z.json")
    with pytest.raises(RecordError, match=r"holds the record 20260119T000000Z\.json"):
        store.reports()


def test_a_monitoring_run_records_its_time(store: MonitoringStore) -> None:
    assert store.last_run_time() is None
    store.record_run_time()
    last_run = store.last_run_time()
    assert last_run is not None
    assert abs(last_run - datetime.now(UTC)) < timedelta(minutes=1)


def test_a_released_decision_can_be_claimed_by_the_next(store: MonitoringStore) -> None:
    assert store.claim(decision())
    assert not store.claim(decision())
    store.release(decision().key)
    assert store.decisions() == ()
    assert store.claim(decision())
    store.start(decision(), "run")
    store.release(decision().key)
    assert store.decisions() == (decision(),)  # it began: nobody may begin it again


def test_a_step_of_a_kubeflow_run_is_named_by_it_and_its_end_is_no_death(
    stores: str, store: MonitoringStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_ID_VARIABLE, "0f9e-11")
    script = "assert store.claim(decision) and store.start(decision, 'run'); print('done', flush=True); time.sleep(600)"
    with printed_line(process(stores, script), "done"):
        pass  # the step's pod ends long before its run
    assert store.recover() == ()
    assert store_at(stores, timedelta(hours=23)).recover() == ()
    (lost,) = store_at(stores, timedelta(hours=25)).recover()
    assert lost.reason == "Kubeflow run 0f9e-11 ran it, and has not reported for 24 h"


def test_an_owner_outside_a_cluster_keeps_its_format() -> None:
    assert set(ProcessIdentity.this_process(FIRST).model_dump()) == {"place", "pid", "born", "since"}


def test_the_newest_alert_of_a_name_is_shared(stores: str, store: MonitoringStore) -> None:
    alert = Alert(
        id="0123456789abcdef", labels={"alertname": "ShortlistPage", "spec": "demo", "severity": "critical"},
        annotations={"summary": "look"}, starts=FIRST, ends=None, link="",
    )  # fmt: skip
    record = AlertRecord(alert=alert, waiting={"0" * 12: ""})
    AlertRecords(store.records).write(record)
    assert AlertRecords(open_monitoring_store(stores, "demo").records).read() == {"ShortlistPage": record}


def test_one_process_sends_alerts_at_a_time(stores: str, store: MonitoringStore) -> None:
    other = AlertRecords(open_monitoring_store(stores, "demo").records)
    with AlertRecords(store.records).lock(0.0), pytest.raises(LockedError), other.lock(0.0):
        pass
    with other.lock(0.0):
        pass


def rollout(name: str) -> RolloutRecord:
    state = RolloutState(rollout=name, candidate=2, former=1, champion=1, stable=1, steps=(5, 100))
    return RolloutRecord(spec="demo", state=state, kind="xgboost", digest="", policy=Canary())


@pytest.fixture
def rollouts(stores: str) -> Rollouts:
    return open_rollouts(stores, "demo")


def test_a_rollouts_state_outlives_its_controller(stores: str, rollouts: Rollouts) -> None:
    record = rollout(rollouts.new_id())
    rollouts.save(record)
    reopened = open_rollouts(stores, "demo")
    assert (reopened.read(record.id), reopened.latest(), reopened.unfinished()) == (record, record, record)
    finished_record = record.with_state(record.state.model_copy(update={"phase": Phase.ABORTED}))
    reopened.save(finished_record)
    assert (rollouts.latest(), rollouts.unfinished()) == (finished_record, None)
    assert rollouts.ids() == [record.id]


def test_specs_do_not_see_each_others_rollouts(stores: str, rollouts: Rollouts) -> None:
    other_rollouts = open_rollouts(stores, "my-demo")
    rollouts.save(rollout(rollouts.new_id()))
    other_rollouts.save(rollout(other_rollouts.new_id()))
    assert [len(spec_rollouts.ids()) for spec_rollouts in (rollouts, other_rollouts)] == [1, 1]
    with rollouts.lock(), other_rollouts.lock():
        assert rollouts.is_locked()


def test_a_killed_controller_frees_the_lock(stores: str, rollouts: Rollouts) -> None:
    script = """
from shortlist.rollout.rollouts import open_rollouts
with open_rollouts(sys.argv[1], "demo").lock():
    print("held", flush=True); time.sleep(600)
"""
    with printed_line(process(stores, script), "held"):
        assert rollouts.is_locked()
        with pytest.raises(RolloutError, match="another rollout is just beginning"), rollouts.lock():
            pytest.fail("two held it")
    with rollouts.lock(30):
        assert rollouts.is_locked()
    assert not rollouts.is_locked()


def test_an_order_reaches_another_process(stores: str, rollouts: Rollouts) -> None:
    record = rollout(rollouts.new_id())
    rollouts.save(record)
    assert rollouts.pending_command(record.id) is None
    open_rollouts(stores, "demo").send_command(record.id, OperatorCommand(action="rollback", reason="enough"))
    assert rollouts.pending_command(record.id) == OperatorCommand(action="rollback", reason="enough")


def test_a_missing_and_a_truncated_rollout_are_named(stores: str, rollouts: Rollouts) -> None:
    with pytest.raises(RolloutError, match=r"rollouts.*/x/state\.json: there is no rollout 'x'; the newest is none"):
        rollouts.read("x")
    record = rollout(rollouts.new_id())
    open_record_store(stores, "rollouts", "demo").replace(f"{record.id}/state.json", "{")
    with pytest.raises(Exception, match=r"state\.json: not a rollout's state \(no JSON"):
        rollouts.latest()


def test_a_controller_that_lost_its_lock_to_another_cannot_write_its_state(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    monkeypatch.setenv("RECORDS", postgres)
    stores = str(StorageConfig(folder=tmp_path / "stores", database_variable="RECORDS"))
    old, new = open_rollouts(stores, "demo"), open_rollouts(stores, "demo")
    record = rollout(old.new_id())
    with old.lock():
        old.save(record)
        with psycopg.connect(postgres, autocommit=True) as server:
            terminate_others = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            )
            server.execute(f"{terminate_others} AND pid <> pg_backend_pid()")
        with new.lock(30):
            next_record = record.with_state(record.state.model_copy(update={"reason": "taken over"}))
            new.save(next_record)
        with pytest.raises(LockedError, match="another process took it over"):
            old.save(record)
    assert new.latest() == next_record


def test_the_page_of_a_rollout_is_stored_for_other_machines(s3: Any, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "stores"
    rollouts = open_rollouts(str(StorageConfig(folder=folder, objects=s3.url)), "demo")
    record = rollout(rollouts.new_id())
    rollouts.save(record)
    (rollouts.rollout_folder(record.id) / "rollout.html").write_text("page")
    rollouts.publish(record.id, "rollout.html")
    assert rollouts.page(record.id, "rollout.html") == f"{s3.url}/rollouts/{record.id}/rollout.html"
    assert open_object_store(StorageConfig(objects=s3.url)).read(f"rollouts/{record.id}/rollout.html") == b"page"


def test_a_book_reads_a_year_of_windows_in_one_question(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORDS", postgres)
    store = open_monitoring_store(str(StorageConfig(folder=tmp_path / "stores", database_variable="RECORDS")), "demo")
    for day in range(365):
        store.add_report(report(day))
    began = time.monotonic()
    assert len(store.reports()) == 365
    assert time.monotonic() - began < 5


def test_a_fresh_machine_shows_the_rollout_that_another_one_recorded(
    s3: Any,
    postgres: str,
    redis: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    addresses = {"SHORTLIST_DATABASE": postgres, "SHORTLIST_REDIS": redis, "MLFLOW_TRACKING_URI": "http://mlflow"}
    for name, address in addresses.items():
        monkeypatch.setenv(name, address)
    declared = yaml.safe_load((ROOT / "pipelines/specs/demo.yaml").read_text())
    declared["runtime"] = {"profile": "cluster", "objects": {"kind": "bucket", "url": s3.url}}
    spec = tmp_path / "demo.yaml"
    spec.write_text(yaml.safe_dump(declared))
    other_machine = RunsFolder.open(tmp_path / "other").storage_parameter(load_spec(spec).runtime)
    other_rollouts = open_rollouts(other_machine, "demo")
    record = rollout(other_rollouts.new_id())
    aborted = record.state.model_copy(update={"phase": Phase.ABORTED, "reason": "aborted by hand"})
    other_rollouts.save(record.with_state(aborted))
    command = ["canary-status", str(spec), "--target", "cluster", "--runs", str(tmp_path / "fresh")]
    monkeypatch.setattr(sys, "argv", ["shortlist", *command])
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")  # in a pod, where the command is run for a person outside
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code or 0) == 0
    assert "aborted by hand" in capsys.readouterr().out
