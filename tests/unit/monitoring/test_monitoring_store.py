"""Many processes share one store, die over it, and nothing is done twice or waits for ever."""

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
from monitoring.store.process_identity import RUN_PROCESS_VARIABLE
from monitoring.store.record_files import RecordError
from monitoring.windows.records import Finding, Problem, RetrainDecision, WindowReport
from shortlist.contracts import ShortlistError

FIRST = datetime(2026, 1, 19, tzinfo=UTC)
DAY = timedelta(days=1)

BEGIN = """
import sys, time
from pathlib import Path
from monitoring.store.monitoring_store import MonitoringStore, open_monitoring_store
from monitoring.store.process_identity import RUN_PROCESS_VARIABLE
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
        "findings": (finding,),
    }
    return WindowReport.model_validate({**known, **changes})


def decision(number: int = 0, action: str = "retrain", **changes: object) -> RetrainDecision:
    start = FIRST + number * DAY
    known = {
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
    return RetrainDecision.model_validate({**known, **changes})


@pytest.fixture
def store(tmp_path: Path) -> MonitoringStore:
    return MonitoringStore(tmp_path / "demo")


def later(store: MonitoringStore, time: timedelta) -> MonitoringStore:
    return MonitoringStore(store.folder, lambda: datetime.now(UTC) + time)


def process(store: MonitoringStore, script: str, one: RetrainDecision, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BEGIN + script, str(store.folder), one.model_dump_json(), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@contextmanager
def killed_after(store: MonitoringStore, script: str, one: RetrainDecision) -> Iterator[None]:
    """Run a process until it says so, and kill it when the block ends."""
    running = process(store, script + "\nprint('done', flush=True)\ntime.sleep(600)", one)
    assert running.stdout is not None
    assert running.stdout.readline() == "done\n"
    yield
    running.send_signal(signal.SIGKILL)
    running.communicate()


def test_reports_come_back_as_they_were_oldest_first(store: MonitoringStore) -> None:
    kept = [report(2), report(0, problems=(Problem(kind="volume", reason="few"),)), report(1, findings=())]
    assert [store.add_report(one) for one in kept] == [True, True, True]
    assert store.reports() == tuple(sorted(kept, key=lambda one: one.start))
    assert store.reports(newest=2) == store.reports()[1:]
    assert store.reports(newest=9) == store.reports()


def test_a_report_says_its_verdict_to_whoever_opens_the_file(store: MonitoringStore) -> None:
    store.add_report(report())
    (path,) = (store.folder / "windows").iterdir()
    assert path.name == "20260119T000000Z.json"
    assert json.loads(path.read_text())["verdict"] == "drifted"


def test_a_window_is_reported_once_unless_it_is_looked_at_anew(store: MonitoringStore) -> None:
    first, second = report(rows=10), report(rows=20)
    assert store.add_report(first)
    assert not store.add_report(second)
    assert store.reports() == (first,)
    assert store.add_report(second, replace=True)
    assert store.reports() == (second,)


def test_a_book_that_nobody_wrote_in_is_empty_and_is_not_made_by_reading(store: MonitoringStore) -> None:
    assert (store.reports(), store.decisions(), store.retrainings(), store.last_run_time()) == ((), (), (), None)
    assert not store.folder.exists()


@pytest.mark.long
@pytest.mark.parametrize("lost", [False, True], ids=["a new decision", "a decision whose process died"])
def test_of_ten_processes_that_claim_at_once_one_acts(store: MonitoringStore, tmp_path: Path, lost: bool) -> None:
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
    for one in claimants:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    go.touch()
    assert sorted(one.communicate()[0] for one in claimants) == ["False\n"] * 9 + ["True\n"]
    assert [one.key for one in store.retrainings()] == [decision().key]
    assert [path.suffix for path in (store.folder / "decisions").iterdir()] == [".json"]


def test_a_second_window_is_another_claim(store: MonitoringStore) -> None:
    assert store.claim(decision(0))
    assert not store.claim(decision(0))
    assert store.claim(decision(1))
    assert [one.window for one in store.decisions()] == [FIRST, FIRST + DAY]


def test_the_newest_wording_of_a_hold_is_kept_and_of_a_retraining_the_first(store: MonitoringStore) -> None:
    for action, kept in (("hold", "second"), ("page", "second"), ("retrain", "first")):
        assert store.claim(decision(action=action, reasons=("first",)))
        assert not store.claim(decision(action=action, reasons=("second",)))
        assert [one.reasons for one in store.decisions() if one.action == action] == [(kept,)]


def test_a_claim_whose_process_was_killed_before_it_began_can_be_claimed_again(store: MonitoringStore) -> None:
    with killed_after(store, "assert store.claim(decision)", decision()):
        assert not store.claim(decision())
        assert store.unfinished() == ()
    assert store.unfinished() == (decision(),)
    assert store.claim(decision())
    assert not store.claim(decision())  # this very process has it now, and lives
    assert store.start(decision(), "run")
    assert store.unfinished() == ()


def test_a_claim_that_does_not_begin_within_ten_minutes_can_be_claimed_again(store: MonitoringStore) -> None:
    assert store.claim(decision())
    assert not later(store, timedelta(minutes=9)).claim(decision())
    assert later(store, timedelta(minutes=11)).unfinished() == (decision(),)
    assert later(store, timedelta(minutes=11)).claim(decision())


def test_a_claim_killed_before_it_was_signed_can_be_claimed_again(store: MonitoringStore) -> None:
    assert store.claim(decision())
    (store.folder / "owners" / f"{decision().key}.json").unlink()
    assert not later(store, timedelta(minutes=9)).claim(decision())
    assert later(store, timedelta(minutes=11)).claim(decision())


def test_who_claimed_late_does_not_start_what_another_took_over(store: MonitoringStore) -> None:
    assert store.claim(decision())
    patient = later(store, timedelta(minutes=11))
    assert patient.claim(decision())
    assert patient.start(decision(), "theirs")
    assert not store.start(decision(), "ours")
    assert [one.run for one in store.retrainings()] == ["theirs"]


def test_a_retraining_that_ended_is_not_claimed_again(store: MonitoringStore) -> None:
    store.claim(decision())
    store.start(decision(), "run")
    store.finish(decision().key, "failed", reason="the disk is full")
    assert not later(store, 9 * DAY).claim(decision())
    assert store.unfinished() == ()


def test_a_lost_claim_of_an_older_window_is_replaced_by_the_next_windows_decision(store: MonitoringStore) -> None:
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


def test_a_retraining_whose_process_was_killed_is_failed_and_the_loop_goes_on(store: MonitoringStore) -> None:
    with killed_after(store, "store.claim(decision) and store.start(decision, 'run')", decision()):
        assert store.recover() == ()
    (lost,) = store.recover()
    assert lost.state == "failed"
    assert lost.reason.endswith("ran it and died")
    assert store.retrainings() == (lost,)
    assert store.recover() == ()


def test_a_retraining_of_this_process_is_not_taken_for_dead_however_long_it_takes(store: MonitoringStore) -> None:
    store.start(decision(), "run")
    assert later(store, 30 * DAY).recover() == ()


def test_a_retraining_on_another_machine_is_given_up_after_a_day_and_right_when_it_comes_back(
    store: MonitoringStore,
) -> None:
    store.start(decision(), "run")
    owner = store.folder / "owners" / f"{decision().key}.json"
    owner.write_text(owner.read_text().replace('"place": "', '"place": "elsewhere-'))
    assert later(store, timedelta(hours=23)).recover() == ()
    (lost,) = later(store, timedelta(hours=25)).recover()
    assert lost.reason.endswith("has not reported for 24 h")
    assert store.finish(lost.key, "promoted", version=5).state == "promoted"


def test_a_retraining_killed_before_it_was_signed_is_failed_after_ten_minutes(store: MonitoringStore) -> None:
    store.start(decision(), "run")
    (store.folder / "owners" / f"{decision().key}.json").unlink()
    assert later(store, timedelta(minutes=9)).recover() == ()
    (lost,) = later(store, timedelta(minutes=11)).recover()
    assert lost.reason == "the process that ran it died as soon as it began"


def test_a_step_owns_its_retraining_for_the_process_that_runs_the_pipeline(
    store: MonitoringStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The step that begins a retraining ends at once; the pipeline goes on.
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as pipeline:
        monkeypatch.setenv(RUN_PROCESS_VARIABLE, str(pipeline.pid))
        assert store.start(decision(), "run")
        monkeypatch.delenv(RUN_PROCESS_VARIABLE)
        assert store.recover() == ()
        pipeline.kill()
    assert [one.state for one in store.recover()] == ["failed"]


def test_a_run_that_ends_early_gives_up_its_retraining_and_no_other(store: MonitoringStore) -> None:
    store.mark_failed(decision().key, "it never began")
    assert store.retrainings() == ()
    store.start(decision(0), "run")
    store.start(decision(1), "run")
    store.finish(decision(0).key, "promoted", version=5)
    store.mark_failed(decision(0).key, "a later step failed")
    store.mark_failed(decision(1).key, "the step train failed")
    assert [(one.state, one.reason) for one in store.retrainings()] == [
        ("promoted", ""),
        ("failed", "the step train failed"),
    ]


def test_a_book_lies_beside_the_stores(tmp_path: Path) -> None:
    stores = f"{tmp_path}/runs/stores#8f14e45f"
    assert open_monitoring_store(stores, "demo").folder == tmp_path / "runs" / "monitoring" / "demo"


def test_a_process_of_the_same_number_is_not_the_one_that_died(store: MonitoringStore) -> None:
    store.start(decision(), "run")
    owner = store.folder / "owners" / f"{decision().key}.json"
    values = json.loads(owner.read_text())
    assert values["pid"] == os.getpid()
    owner.write_text(json.dumps({**values, "born": values["born"] + "0"}))
    assert [one.state for one in store.recover()] == ["failed"]


def test_a_look_leaves_a_trace_even_when_there_was_nothing_new(store: MonitoringStore) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    store.record_run_time()
    seen = store.last_run_time()
    assert seen is not None
    assert before < seen < datetime.now(UTC) + timedelta(seconds=1)


Damage = Callable[[str], str]


def without_rows(text: str) -> str:
    return json.dumps({name: one for name, one in json.loads(text).items() if name != "rows"})


@pytest.mark.parametrize(
    ("damage", "why"),
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
def test_a_torn_or_foreign_report_is_named_with_what_to_do(store: MonitoringStore, damage: Damage, why: str) -> None:
    store.add_report(report())
    path = store.folder / "windows" / "20260119T000000Z.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ShortlistError, match=why) as caught:
        store.reports()
    assert str(caught.value).startswith(f"{path}: not a window's report (")
    assert str(caught.value).endswith("restore it, or move it away and run make watch again.")


@pytest.mark.parametrize("kind", ["decisions", "retrainings"])
def test_torn_decisions_and_retrainings_are_named_too(store: MonitoringStore, kind: str) -> None:
    store.claim(decision())
    store.start(decision(), "run")
    path = store.folder / kind / f"{decision().key}.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(RecordError, match=r"move it away and run make watch again") as caught:
        getattr(store, kind)()
    assert str(path) in str(caught.value)


def test_a_copied_file_does_not_count_as_another_window(store: MonitoringStore) -> None:
    store.add_report(report())
    folder = store.folder / "windows"
    (folder / "20260120T000000Z.json").write_bytes((folder / "20260119T000000Z.json").read_bytes())
    with pytest.raises(RecordError, match=r"holds the record 20260119T000000Z\.json"):
        store.reports()


def test_a_key_cannot_lead_out_of_the_book(store: MonitoringStore) -> None:
    with pytest.raises(AssertionError, match="not a decision's key"):
        store.claim(decision().model_copy(update={"key": "../../elsewhere"}))


def test_a_number_that_is_none_is_not_written_down(store: MonitoringStore) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.add_report(report(coverage=float("nan")))
    assert store.reports() == ()
