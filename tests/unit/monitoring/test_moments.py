"""A moment of the schedule begins one training, in the store of all retrainings, and none while another is running."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from monitoring.retraining.retrain_policy import decision_key
from monitoring.retraining.training_starts import (
    begin_manual_training,
    begin_scheduled_training,
    begin_submitted_training,
    newest_scheduled_time,
)
from monitoring.store.monitoring_store import MonitoringStore
from monitoring.windows.records import RetrainDecision, Trigger
from shortlist.spec.monitoring import RetrainPolicy
from shortlist.tracking.pipeline_run import RUN_ID_VARIABLE

CRON = "0 3 * * *"
FOUR = datetime(2026, 11, 21, 4, tzinfo=UTC)
POLICY = RetrainPolicy()
MOMENT = datetime(2026, 11, 21, 3, tzinfo=UTC)


def test_a_moment_begins_one_training(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    begun, decision = begin_scheduled_training(store, CRON, POLICY, FOUR)
    assert (begun, decision.trigger, decision.until) == (True, "schedule", MOMENT)
    assert [one.key for one in store.retrainings()] == [decision.key]
    again, why = begin_scheduled_training(store, CRON, POLICY, FOUR + timedelta(minutes=5))
    assert (again, why.action) == (False, "hold")


def test_many_who_ask_at_once_begin_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        said = list(
            pool.map(
                lambda _: begin_scheduled_training(MonitoringStore(tmp_path / "demo"), CRON, POLICY, FOUR)[0], range(8)
            )
        )
    assert sum(said) == 1
    assert len(MonitoringStore(tmp_path / "demo").retrainings()) == 1


def test_while_one_is_running_nothing_begins_and_that_is_said(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    begin_scheduled_training(store, CRON, POLICY, FOUR)
    tomorrow = FOUR + timedelta(days=1)
    begun, decision = begin_scheduled_training(store, CRON, POLICY, tomorrow)
    assert (begun, decision.action) == (False, "hold")
    assert "running" in decision.reasons[0]


def test_after_it_ended_the_next_moment_begins_another(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    _, first = begin_scheduled_training(store, CRON, POLICY, FOUR)
    store.finish(first.key, "held", None, "the gates held it")
    begun, second = begin_scheduled_training(store, CRON, POLICY, FOUR + timedelta(days=1))
    assert begun
    assert second.key != first.key
    same, why = begin_scheduled_training(store, CRON, POLICY, FOUR + timedelta(minutes=9))
    assert not same
    assert why.reasons


def ended(store: MonitoringStore, window: datetime, trigger: Trigger) -> None:
    """Note a retraining that has come to its end."""
    decision = RetrainDecision(
        spec="demo", action="retrain", trigger=trigger, key=decision_key("demo", "retrain", window, trigger), window=window,
        until=window, reasons=("a test",), made=window,
    )  # fmt: skip
    assert store.claim(decision)
    assert store.start(decision, "")
    store.finish(decision.key, "promoted", 7)


@pytest.mark.parametrize("trigger", ["drift", "manual", "schedule"])
def test_the_cool_down_after_any_retraining_holds_the_schedules(tmp_path: Path, trigger: Trigger) -> None:
    store = MonitoringStore(tmp_path / "demo")
    ended(store, MOMENT - timedelta(hours=23), trigger)
    begun, decision = begin_scheduled_training(store, CRON, POLICY, FOUR)
    assert (begun, decision.action) == (False, "hold")
    assert decision.reasons[0].startswith("cool-down of 24 h after the last retraining: the first window, or moment of")
    assert len(store.retrainings()) == 1
    assert begin_scheduled_training(store, CRON, RetrainPolicy(cooldown_hours=23), FOUR)[0]


def test_the_weekly_cap_counts_the_retrainings_of_the_schedule_and_holds_them(tmp_path: Path) -> None:
    store, begun = MonitoringStore(tmp_path / "demo"), []
    for day in range(9):
        began, decision = begin_scheduled_training(
            store, CRON, RetrainPolicy(max_per_week=3), FOUR + timedelta(days=day)
        )
        begun.append(began)
        if began:
            store.finish(decision.key, "promoted", day)
        else:
            assert "3 retrainings within seven days (max_per_week 3)" in decision.reasons[0]
    assert begun == [True, True, True, False, False, False, False, True, True]


def test_a_second_run_of_the_same_moment_ends_with_that_reason_and_not_with_the_cool_down(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    _, first = begin_scheduled_training(store, CRON, POLICY, FOUR)
    key = decision_key("demo", "retrain", MOMENT, "schedule")
    begun, why = begin_scheduled_training(store, CRON, POLICY, FOUR + timedelta(minutes=1))
    assert (begun, why.action) == (False, "hold")
    assert "is running since" in why.reasons[0]
    store.finish(first.key, "promoted", 3)
    begun, why = begin_scheduled_training(store, CRON, POLICY, FOUR + timedelta(minutes=2))
    assert (begun, why.action) == (False, "hold")
    assert why.reasons == (f"the training of {key} has begun already, for the schedule's moment {MOMENT.isoformat()}",)


def test_the_newest_moment_is_the_last_that_has_come() -> None:
    assert newest_scheduled_time(CRON, FOUR) == MOMENT
    assert newest_scheduled_time(CRON, MOMENT) == MOMENT - timedelta(
        days=1
    )  # a moment itself belongs to what comes after it


def test_a_persons_training_is_counted_and_one_beside_it_is_told_why_not(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    _, scheduled = begin_scheduled_training(store, CRON, POLICY, FOUR)
    may_run, refused = begin_manual_training(store, None, FOUR + timedelta(minutes=1), "runs/a")
    assert refused is not None and (may_run, refused.action) == (False, "hold")
    assert "there is one at a time" in refused.reasons[0]
    store.finish(scheduled.key, "held", None, "the gates held it")
    may_run, own = begin_manual_training(store, None, FOUR + timedelta(hours=1), "runs/a")
    assert own is not None and (may_run, own.trigger) == (True, "manual")
    assert [one.key for one in store.retrainings() if one.state == "running"] == [own.key]
    # And the schedule's next moment is told of it.
    begun, why = begin_scheduled_training(store, CRON, POLICY, FOUR + timedelta(days=1))
    assert (begun, why.action) == (False, "hold")
    assert "there is one at a time" in why.reasons[0]


def test_before_live_traffic_was_looked_at_a_person_trains_as_often_as_they_like(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    assert begin_manual_training(store, None, FOUR, "runs/a") == (True, None)
    assert store.retrainings() == ()


def test_of_two_people_who_start_at_once_one_trains(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    _, earlier = begin_scheduled_training(store, CRON, POLICY, FOUR)
    store.finish(earlier.key, "promoted", 2)
    with ThreadPoolExecutor(8) as pool:
        moments = [FOUR + timedelta(seconds=number) for number in range(8)]
        said = list(
            pool.map(lambda now: begin_manual_training(MonitoringStore(tmp_path / "demo"), None, now, "")[0], moments)
        )
    assert sum(said) == 1


KEY = "0123456789abcdef"


def as_run(monkeypatch: pytest.MonkeyPatch, run: str) -> None:
    """Be a step of a Kubeflow run."""
    monkeypatch.setenv(RUN_ID_VARIABLE, run)


def test_a_submitted_training_is_recorded_and_an_overlapping_one_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MonitoringStore(tmp_path / "demo")
    ended(store, MOMENT - timedelta(days=9), "drift")
    as_run(monkeypatch, "run-1")
    begun, decision = begin_submitted_training(store, KEY, None, FOUR)
    assert begun
    assert decision is not None
    assert (decision.key, decision.trigger, decision.until) == (KEY, "manual", FOUR)
    assert [(one.key, one.state, one.run) for one in store.retrainings()][-1] == (KEY, "running", "run-1")
    as_run(monkeypatch, "run-2")
    second, why = begin_submitted_training(store, "f" * 16, None, FOUR)
    assert not second
    assert why is not None
    assert why.reasons[0].startswith("the retraining of 2026-11-21 04:00")
    assert "there is one at a time" in why.reasons[0]
    assert len(store.retrainings()) == 2


@pytest.mark.parametrize("trigger", ["schedule", "drift"])
def test_the_policy_counts_a_submitted_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trigger: Trigger
) -> None:
    store = MonitoringStore(tmp_path / "demo")
    ended(store, MOMENT - timedelta(days=9), trigger)
    as_run(monkeypatch, "run-1")
    assert begin_submitted_training(store, KEY, None, MOMENT - timedelta(hours=3))[0]
    assert "there is one at a time" in begin_scheduled_training(store, CRON, POLICY, FOUR)[1].reasons[0]
    store.finish(KEY, "promoted", 8)
    begun, decision = begin_scheduled_training(store, CRON, POLICY, FOUR)
    assert not begun
    assert decision.reasons[0].startswith("cool-down of 24 h after the last retraining")


def test_a_step_that_is_tried_again_goes_on_and_a_clone_of_its_run_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MonitoringStore(tmp_path / "demo")
    ended(store, MOMENT - timedelta(days=9), "drift")
    as_run(monkeypatch, "run-1")
    for _ in range(2):
        begun, decision = begin_submitted_training(store, KEY, None, FOUR)
        assert begun
        assert decision is not None
        assert decision.key == KEY
    as_run(monkeypatch, "run-2")
    begun, why = begin_submitted_training(store, KEY, None, FOUR)
    assert not begun
    assert why is not None
    assert why.reasons == (f"the training of {KEY} has begun before and is running; submit it once more with AGAIN=2",)
    store.finish(KEY, "failed", None, "a test")
    assert not begin_submitted_training(store, KEY, None, FOUR)[0]
    assert len(store.retrainings()) == 2


def test_a_step_that_died_between_its_claim_and_its_begin_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MonitoringStore(tmp_path / "demo")
    ended(store, MOMENT - timedelta(days=9), "drift")
    as_run(monkeypatch, "run-1")
    monkeypatch.setattr(store, "start", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        begin_submitted_training(store, KEY, None, FOUR)
    as_run(monkeypatch, "run-2")
    again = MonitoringStore(tmp_path / "demo")
    begun, why = begin_submitted_training(again, KEY, None, FOUR)
    assert not begun
    assert why is not None
    assert "another run has claimed" in why.reasons[0]
    as_run(monkeypatch, "run-1")
    assert begin_submitted_training(again, KEY, None, FOUR)[0]


def test_before_live_traffic_was_looked_at_nothing_is_recorded_of_a_submitted_training(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    assert begin_submitted_training(store, KEY, None, FOUR) == (True, None)
    assert store.retrainings() == ()
