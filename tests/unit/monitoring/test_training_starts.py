"""Starts of scheduled, manual and submitted trainings: one per request, and none while another is running."""

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


def test_a_scheduled_time_starts_one_training(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    is_started, decision = begin_scheduled_training(store, CRON, POLICY, FOUR)
    assert (is_started, decision.trigger, decision.until) == (True, "schedule", MOMENT)
    assert [retraining.key for retraining in store.retrainings()] == [decision.key]
    is_started_again, repeated = begin_scheduled_training(store, CRON, POLICY, FOUR + timedelta(minutes=5))
    assert (is_started_again, repeated.action) == (False, "hold")


def test_concurrent_callers_start_one_training(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        starts = list(
            pool.map(
                lambda _: begin_scheduled_training(MonitoringStore(tmp_path / "demo"), CRON, POLICY, FOUR)[0], range(8)
            )
        )
    assert sum(starts) == 1
    assert len(MonitoringStore(tmp_path / "demo").retrainings()) == 1


def test_a_running_training_blocks_another_with_a_reason(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    begin_scheduled_training(store, CRON, POLICY, FOUR)
    tomorrow = FOUR + timedelta(days=1)
    is_started, decision = begin_scheduled_training(store, CRON, POLICY, tomorrow)
    assert (is_started, decision.action) == (False, "hold")
    assert "running" in decision.reasons[0]


def test_the_next_scheduled_time_starts_another_training(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    _, first = begin_scheduled_training(store, CRON, POLICY, FOUR)
    store.finish(first.key, "held", None, "the gates held it")
    is_started, second = begin_scheduled_training(store, CRON, POLICY, FOUR + timedelta(days=1))
    assert is_started
    assert second.key != first.key
    same, repeated = begin_scheduled_training(store, CRON, POLICY, FOUR + timedelta(minutes=9))
    assert not same
    assert repeated.reasons


def ended(store: MonitoringStore, window: datetime, trigger: Trigger) -> None:
    """Record a retraining that was promoted."""
    decision = RetrainDecision(
        spec="demo", action="retrain", trigger=trigger, key=decision_key("demo", "retrain", window, trigger),
        window=window, until=window, reasons=("a test",), made=window,
    )  # fmt: skip
    assert store.claim(decision)
    assert store.start(decision, "")
    store.finish(decision.key, "promoted", 7)


@pytest.mark.parametrize("trigger", ["drift", "manual", "schedule"])
def test_the_cool_down_blocks_scheduled_trainings(tmp_path: Path, trigger: Trigger) -> None:
    store = MonitoringStore(tmp_path / "demo")
    ended(store, MOMENT - timedelta(hours=23), trigger)
    is_started, decision = begin_scheduled_training(store, CRON, POLICY, FOUR)
    assert (is_started, decision.action) == (False, "hold")
    assert decision.reasons[0].startswith("cool-down of 24 h after the last retraining: the first window, or moment of")
    assert len(store.retrainings()) == 1
    assert begin_scheduled_training(store, CRON, RetrainPolicy(cooldown_hours=23), FOUR)[0]


def test_the_weekly_cap_counts_and_blocks_scheduled_trainings(tmp_path: Path) -> None:
    store, started_days = MonitoringStore(tmp_path / "demo"), []
    for day in range(9):
        began, decision = begin_scheduled_training(
            store, CRON, RetrainPolicy(max_per_week=3), FOUR + timedelta(days=day)
        )
        started_days.append(began)
        if began:
            store.finish(decision.key, "promoted", day)
        else:
            assert "3 retrainings within seven days (max_per_week 3)" in decision.reasons[0]
    assert started_days == [True, True, True, False, False, False, False, True, True]


def test_a_second_run_of_a_scheduled_time_is_blocked_as_repeated(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    _, first = begin_scheduled_training(store, CRON, POLICY, FOUR)
    key = decision_key("demo", "retrain", MOMENT, "schedule")
    is_started, repeated = begin_scheduled_training(store, CRON, POLICY, FOUR + timedelta(minutes=1))
    assert (is_started, repeated.action) == (False, "hold")
    assert "is running since" in repeated.reasons[0]
    store.finish(first.key, "promoted", 3)
    is_started, repeated = begin_scheduled_training(store, CRON, POLICY, FOUR + timedelta(minutes=2))
    assert (is_started, repeated.action) == (False, "hold")
    assert repeated.reasons == (
        f"the training of {key} has begun already, for the schedule's moment {MOMENT.isoformat()}",
    )


def test_the_newest_scheduled_time_is_the_last_before_now() -> None:
    assert newest_scheduled_time(CRON, FOUR) == MOMENT
    assert newest_scheduled_time(CRON, MOMENT) == MOMENT - timedelta(
        days=1
    )  # a moment itself belongs to what comes after it


def test_a_manual_training_counts_and_blocks_concurrent_trainings(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    _, scheduled = begin_scheduled_training(store, CRON, POLICY, FOUR)
    may_run, refused = begin_manual_training(store, None, FOUR + timedelta(minutes=1), "runs/a")
    assert refused is not None and (may_run, refused.action) == (False, "hold")
    assert "there is one at a time" in refused.reasons[0]
    store.finish(scheduled.key, "held", None, "the gates held it")
    may_run, decision = begin_manual_training(store, None, FOUR + timedelta(hours=1), "runs/a")
    assert decision is not None and (may_run, decision.trigger) == (True, "manual")
    running = [retraining for retraining in store.retrainings() if retraining.state == "running"]
    assert [(retraining.key, retraining.trigger) for retraining in running] == [(decision.key, "manual")]
    # And the schedule's next moment is told of it.
    is_started, next_decision = begin_scheduled_training(store, CRON, POLICY, FOUR + timedelta(days=1))
    assert (is_started, next_decision.action) == (False, "hold")
    assert "there is one at a time" in next_decision.reasons[0]


def test_manual_trainings_are_unlimited_before_the_first_window(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    assert begin_manual_training(store, None, FOUR, "runs/a") == (True, None)
    assert store.retrainings() == ()


def test_one_of_two_concurrent_manual_trainings_starts(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    _, scheduled = begin_scheduled_training(store, CRON, POLICY, FOUR)
    store.finish(scheduled.key, "promoted", 2)
    with ThreadPoolExecutor(8) as pool:
        moments = [FOUR + timedelta(seconds=number) for number in range(8)]
        starts = list(
            pool.map(lambda now: begin_manual_training(MonitoringStore(tmp_path / "demo"), None, now, "")[0], moments)
        )
    assert sum(starts) == 1


KEY = "0123456789abcdef"


def as_run(monkeypatch: pytest.MonkeyPatch, run: str) -> None:
    """Set the environment of a step of a Kubeflow run."""
    monkeypatch.setenv(RUN_ID_VARIABLE, run)


def test_a_submitted_training_is_recorded_and_blocks_overlapping_trainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MonitoringStore(tmp_path / "demo")
    ended(store, MOMENT - timedelta(days=9), "drift")
    as_run(monkeypatch, "run-1")
    is_started, decision = begin_submitted_training(store, KEY, None, FOUR)
    assert is_started
    assert decision is not None
    assert (decision.key, decision.trigger, decision.until) == (KEY, "manual", FOUR)
    assert [(retraining.key, retraining.state, retraining.run) for retraining in store.retrainings()][-1] == (
        KEY,
        "running",
        "run-1",
    )
    as_run(monkeypatch, "run-2")
    second, overlapping = begin_submitted_training(store, "f" * 16, None, FOUR)
    assert not second
    assert overlapping is not None
    assert overlapping.reasons[0].startswith("the retraining of 2026-11-21 04:00")
    assert "there is one at a time" in overlapping.reasons[0]
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
    is_started, decision = begin_scheduled_training(store, CRON, POLICY, FOUR)
    assert not is_started
    assert decision.reasons[0].startswith("cool-down of 24 h after the last retraining")


def test_a_retried_step_continues_and_a_cloned_run_is_blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MonitoringStore(tmp_path / "demo")
    ended(store, MOMENT - timedelta(days=9), "drift")
    as_run(monkeypatch, "run-1")
    for _ in range(2):
        is_started, decision = begin_submitted_training(store, KEY, None, FOUR)
        assert is_started
        assert decision is not None
        assert decision.key == KEY
    as_run(monkeypatch, "run-2")
    is_started, cloned = begin_submitted_training(store, KEY, None, FOUR)
    assert not is_started
    assert cloned is not None
    assert cloned.reasons == (
        f"the training of {KEY} has begun before and is running; submit it once more with AGAIN=2",
    )
    store.finish(KEY, "failed", None, "a test")
    assert not begin_submitted_training(store, KEY, None, FOUR)[0]
    assert len(store.retrainings()) == 2


def test_a_step_that_died_between_claim_and_start_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MonitoringStore(tmp_path / "demo")
    ended(store, MOMENT - timedelta(days=9), "drift")
    as_run(monkeypatch, "run-1")
    monkeypatch.setattr(store, "start", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        begin_submitted_training(store, KEY, None, FOUR)
    as_run(monkeypatch, "run-2")
    reopened = MonitoringStore(tmp_path / "demo")
    is_started, retried = begin_submitted_training(reopened, KEY, None, FOUR)
    assert not is_started
    assert retried is not None
    assert "another run has claimed" in retried.reasons[0]
    as_run(monkeypatch, "run-1")
    assert begin_submitted_training(reopened, KEY, None, FOUR)[0]


def test_submitted_trainings_are_not_recorded_before_the_first_window(tmp_path: Path) -> None:
    store = MonitoringStore(tmp_path / "demo")
    assert begin_submitted_training(store, KEY, None, FOUR) == (True, None)
    assert store.retrainings() == ()
