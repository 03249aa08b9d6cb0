"""The monitoring store under concurrent and killed processes: nothing is done twice, and nothing blocks forever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from monitoring.retraining.retrain_policy import decision_key
from monitoring.store.monitoring_store import MonitoringStore, open_monitoring_store
from monitoring.store.record_files import RecordError
from monitoring.windows.records import Finding, Problem, RetrainDecision, WindowReport
from shortlist.contracts import ShortlistError
from shortlist.tracking.pipeline_run import RUN_PROCESS_VARIABLE

FIRST = datetime(2026, 1, 19, tzinfo=UTC)
DAY = timedelta(days=1)

BEGIN = """
import sys, time
from pathlib import Path
from monitoring.store.monitoring_store import MonitoringStore, open_monitoring_store
from shortlist.tracking.pipeline_run import RUN_PROCESS_VARIABLE
from monitoring.windows.records import RetrainDecision
store = MonitoringStore(Path(sys.argv[1]))
decision = RetrainDecision.model_validate_json(sys.argv[2])
def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.005)
"""


def report(number: int = 0, **changes: object) -> WindowReport:
    start = FIRST + number * DAY
    finding = Finding(
        column="price", kind="numeric", effect=0.5, critical=0.2, p_value=1e-9, drifted=True, reason="price moved"
    )
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
        "findings": (finding,),
    }
    return WindowReport.model_validate({**fields, **changes})


def decision(number: int = 0, action: str = "retrain", **changes: object) -> RetrainDecision:
    start = FIRST + number * DAY
    fields = {
        "spec": "demo",
        "action": action,
        "trigger": "drift",
        "key": decision_key("demo", action, start, "drift"),
        "window": start,
        "until": start + DAY,
        "reasons": ("price moved",),
        "columns": ("price",),
        "alarm": action == "retrain",
        "made": start + DAY,
    }
    return RetrainDecision.model_validate({**fields, **changes})


@pytest.fixture
def store(tmp_path: Path) -> MonitoringStore:
    return MonitoringStore(tmp_path / "demo")


def store_later(store: MonitoringStore, time: timedelta) -> MonitoringStore:
    return MonitoringStore(store.folder, lambda: datetime.now(UTC) + time)


def process(store: MonitoringStore, script: str, decision: RetrainDecision, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BEGIN + script, str(store.folder), decision.model_dump_json(), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@contextmanager
def killed_after(store: MonitoringStore, script: str, decision: RetrainDecision) -> Iterator[None]:
    """Run a process until it prints its line, and kill it when the block ends."""
    running = process(store, script + "\nprint('done', flush=True)\ntime.sleep(600)", decision)
    assert running.stdout is not None
    assert running.stdout.readline() == "done\n"
    yield
    running.send_signal(signal.SIGKILL)
    running.communicate()


def test_reports_round_trip_oldest_first(store: MonitoringStore) -> None:
    reports = [report(2), report(0, problems=(Problem(kind="volume", reason="few"),)), report(1, findings=())]
    assert [store.add_report(added) for added in reports] == [True, True, True]
    assert store.reports() == tuple(sorted(reports, key=lambda added: added.start))
    assert store.reports(newest=2) == store.reports()[1:]
    assert store.reports(newest=9) == store.reports()


def test_a_reports_file_contains_its_verdict(store: MonitoringStore) -> None:
    store.add_report(report())
    (path,) = (store.folder / "windows").iterdir()
    assert path.name == "20260119T000000Z.json"
    assert json.loads(path.read_text())["verdict"] == "drifted"


def test_a_window_is_reported_once_unless_replaced(store: MonitoringStore) -> None:
    first, second = report(rows=10), report(rows=20)
    assert store.add_report(first)
    assert not store.add_report(second)
    assert store.reports() == (first,)
    assert store.add_report(second, replace=True)
    assert store.reports() == (second,)


def test_reading_an_empty_store_creates_no_files(store: MonitoringStore) -> None:
    assert (store.reports(), store.decisions(), store.retrainings(), store.last_run_time()) == ((), (), (), None)
    assert not store.folder.exists()


@pytest.mark.long
@pytest.mark.parametrize("lost", [False, True], ids=["a new decision", "a decision whose process died"])
def test_one_of_ten_concurrent_processes_claims_a_decision(store: MonitoringStore, tmp_path: Path, lost: bool) -> None:
    if lost:
        with killed_after(store, "assert store.claim(decision)", decision()):
            pass
    go = tmp_path / "go"
    script = """
print("ready", flush=True)
wait_for(sys.argv[3])
print(store.claim(decision) and store.start(decision, "run"))
"""
    claimants = [process(store, script, decision(), str(go)) for _ in range(10)]
    for claimant in claimants:
        assert claimant.stdout is not None
        assert claimant.stdout.readline() == "ready\n"
    go.touch()
    assert sorted(claimant.communicate()[0] for claimant in claimants) == ["False\n"] * 9 + ["True\n"]
    assert [retraining.key for retraining in store.retrainings()] == [decision().key]
    assert [path.suffix for path in (store.folder / "decisions").iterdir()] == [".json"]


def test_each_window_has_its_own_claim(store: MonitoringStore) -> None:
    assert store.claim(decision(0))
    assert not store.claim(decision(0))
    assert store.claim(decision(1))
    assert [claimed.window for claimed in store.decisions()] == [FIRST, FIRST + DAY]


def test_a_repeated_hold_is_replaced_and_a_repeated_retraining_is_not(store: MonitoringStore) -> None:
    for action, reason in (("hold", "second"), ("page", "second"), ("retrain", "first")):
        assert store.claim(decision(action=action, reasons=("first",)))
        assert not store.claim(decision(action=action, reasons=("second",)))
        assert [claimed.reasons for claimed in store.decisions() if claimed.action == action] == [(reason,)]


def test_a_claim_of_a_process_killed_before_the_start_can_be_repeated(store: MonitoringStore) -> None:
    with killed_after(store, "assert store.claim(decision)", decision()):
        assert not store.claim(decision())
        assert store.unfinished() == ()
    assert store.unfinished() == (decision(),)
    assert store.claim(decision())
    assert not store.claim(decision())  # this very process has it now, and lives
    assert store.start(decision(), "run")
    assert store.unfinished() == ()


def test_a_claim_expires_after_ten_minutes_without_a_start(store: MonitoringStore) -> None:
    assert store.claim(decision())
    assert not store_later(store, timedelta(minutes=9)).claim(decision())
    assert store_later(store, timedelta(minutes=11)).unfinished() == (decision(),)
    assert store_later(store, timedelta(minutes=11)).claim(decision())


def test_a_claim_without_an_owner_record_expires(store: MonitoringStore) -> None:
    assert store.claim(decision())
    (store.folder / "owners" / f"{decision().key}.json").unlink()
    assert not store_later(store, timedelta(minutes=9)).claim(decision())
    assert store_later(store, timedelta(minutes=11)).claim(decision())


def test_a_process_whose_claim_was_taken_over_does_not_start(store: MonitoringStore) -> None:
    assert store.claim(decision())
    patient = store_later(store, timedelta(minutes=11))
    assert patient.claim(decision())
    assert patient.start(decision(), "theirs")
    assert not store.start(decision(), "ours")
    assert [retraining.run for retraining in store.retrainings()] == ["theirs"]


def test_an_ended_retraining_cannot_be_claimed(store: MonitoringStore) -> None:
    store.claim(decision())
    store.start(decision(), "run")
    store.finish(decision().key, "failed", reason="the disk is full")
    assert not store_later(store, 9 * DAY).claim(decision())
    assert store.unfinished() == ()


def test_a_lost_claim_is_replaced_by_a_later_windows_decision(store: MonitoringStore) -> None:
    with killed_after(store, "assert store.claim(decision)", decision(0)):
        pass
    store.claim(decision(1, "hold"))
    assert store.unfinished() == ()


def test_a_retraining_runs_and_ends(store: MonitoringStore) -> None:
    store.claim(decision())
    assert store.start(decision(), "runs/20260120-demo")
    assert not store.start(decision(), "runs/other")
    (running,) = store.retrainings()
    assert (running.state, running.run, running.window) == ("running", "runs/20260120-demo", FIRST)
    ended = store.finish(running.key, "promoted", version=5, reason="canary promoted")
    assert store.retrainings() == (ended,)
    assert (ended.state, ended.version, ended.started) == ("promoted", 5, running.started)
    with pytest.raises(AssertionError, match="ended before: promoted"):
        store.finish(running.key, "failed")


def test_a_retraining_of_a_killed_process_fails(store: MonitoringStore) -> None:
    with killed_after(store, "store.claim(decision) and store.start(decision, 'run')", decision()):
        assert store.recover() == ()
    (lost,) = store.recover()
    assert lost.state == "failed"
    assert lost.reason.endswith("ran it and died")
    assert store.retrainings() == (lost,)
    assert store.recover() == ()


def test_a_long_retraining_of_a_live_process_does_not_fail(store: MonitoringStore) -> None:
    store.start(decision(), "run")
    assert store_later(store, 30 * DAY).recover() == ()


def test_a_remote_retraining_fails_after_a_day_and_may_still_finish(
    store: MonitoringStore,
) -> None:
    store.start(decision(), "run")
    owner = store.folder / "owners" / f"{decision().key}.json"
    owner.write_text(owner.read_text().replace('"place": "', '"place": "elsewhere-'))
    assert store_later(store, timedelta(hours=23)).recover() == ()
    (lost,) = store_later(store, timedelta(hours=25)).recover()
    assert lost.reason.endswith("has not reported for 24 h")
    assert store.finish(lost.key, "promoted", version=5).state == "promoted"


def test_a_retraining_without_an_owner_record_fails_after_ten_minutes(store: MonitoringStore) -> None:
    store.start(decision(), "run")
    (store.folder / "owners" / f"{decision().key}.json").unlink()
    assert store_later(store, timedelta(minutes=9)).recover() == ()
    (lost,) = store_later(store, timedelta(minutes=11)).recover()
    assert lost.reason == "the process that ran it died as soon as it began"


def test_a_steps_claim_belongs_to_the_process_that_runs_the_pipeline(
    store: MonitoringStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The step that begins a retraining ends at once; the pipeline goes on.
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as pipeline:
        monkeypatch.setenv(RUN_PROCESS_VARIABLE, str(pipeline.pid))
        assert store.start(decision(), "run")
        monkeypatch.delenv(RUN_PROCESS_VARIABLE)
        assert store.recover() == ()
        pipeline.kill()
    assert [retraining.state for retraining in store.recover()] == ["failed"]


def test_a_run_that_ends_early_fails_only_its_own_retraining(store: MonitoringStore) -> None:
    store.mark_failed(decision().key, "it never began")
    assert store.retrainings() == ()
    store.start(decision(0), "run")
    store.start(decision(1), "run")
    store.finish(decision(0).key, "promoted", version=5)
    store.mark_failed(decision(0).key, "a later step failed")
    store.mark_failed(decision(1).key, "the step train failed")
    assert [(retraining.state, retraining.reason) for retraining in store.retrainings()] == [
        ("promoted", ""),
        ("failed", "the step train failed"),
    ]


def test_the_monitoring_store_lies_beside_the_stores(tmp_path: Path) -> None:
    stores = f"{tmp_path}/runs/stores#8f14e45f"
    assert open_monitoring_store(stores, "demo").folder == tmp_path / "runs" / "monitoring" / "demo"


def test_a_reused_process_id_is_another_process(store: MonitoringStore) -> None:
    store.start(decision(), "run")
    owner = store.folder / "owners" / f"{decision().key}.json"
    values = json.loads(owner.read_text())
    assert values["pid"] == os.getpid()
    owner.write_text(json.dumps({**values, "born": values["born"] + "0"}))
    assert [retraining.state for retraining in store.recover()] == ["failed"]


def test_a_monitoring_run_without_new_windows_records_its_time(store: MonitoringStore) -> None:
    start = datetime.now(UTC) - timedelta(seconds=1)
    store.record_run_time()
    run_time = store.last_run_time()
    assert run_time is not None
    assert start < run_time < datetime.now(UTC) + timedelta(seconds=1)


Damage = Callable[[str], str]


def without_rows(text: str) -> str:
    return json.dumps({name: content for name, content in json.loads(text).items() if name != "rows"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "no JSON"),
        (lambda _: "", "no JSON"),
        (lambda _: "\x00" * 40, "no JSON"),
        (lambda _: "[]", "valid dictionary"),
        (without_rows, "rows: Field required"),
        (lambda text: text.replace('"late"', '"belated"'), "belated: Extra inputs are not permitted"),
        (lambda text: text.replace("1000", '"many"'), "rows: Input should be a valid integer"),
    ],
)
def test_an_invalid_report_is_named_with_the_next_step(store: MonitoringStore, damage: Damage, message: str) -> None:
    store.add_report(report())
    path = store.folder / "windows" / "20260119T000000Z.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ShortlistError, match=message) as caught:
        store.reports()
    assert str(caught.value).startswith(f"{path}: not a window's report (")
    assert str(caught.value).endswith("restore it, or move it away; the next monitoring run goes on.")


@pytest.mark.parametrize("kind", ["decisions", "retrainings"])
def test_invalid_decisions_and_retrainings_are_named(store: MonitoringStore, kind: str) -> None:
    store.claim(decision())
    store.start(decision(), "run")
    path = store.folder / kind / f"{decision().key}.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(RecordError, match=r"move it away(;|, and) the next monitoring run goes on") as caught:
        getattr(store, kind)()
    assert str(path) in str(caught.value)


def test_a_copied_report_is_refused(store: MonitoringStore) -> None:
    store.add_report(report())
    folder = store.folder / "windows"
    (folder / "20260120T000000Z.json").write_bytes((folder / "20260119T000000Z.json").read_bytes())
    with pytest.raises(RecordError, match=r"holds the record 20260119T000000Z\.json"):
        store.reports()


def test_a_key_cannot_be_a_path(store: MonitoringStore) -> None:
    with pytest.raises(AssertionError, match="not a decision's key"):
        store.claim(decision().model_copy(update={"key": "../../elsewhere"}))


def test_a_number_that_is_not_finite_is_refused(store: MonitoringStore) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.add_report(report(coverage=float("nan")))
    assert store.reports() == ()
