"""A moment of the schedule begins one training, in the book of all retrainings, and none while another is running."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

from monitoring.monitoring_store import MonitoringStore
from monitoring.retraining.moments import begin_by_hand, begin_moment, newest_moment

CRON = "0 3 * * *"
FOUR = datetime(2026, 11, 21, 4, tzinfo=UTC)
MOMENT = datetime(2026, 11, 21, 3, tzinfo=UTC)


def test_a_moment_begins_one_training(tmp_path: Path) -> None:
    book = MonitoringStore(tmp_path / "demo")
    begun, decision = begin_moment(book, CRON, FOUR)
    assert (begun, decision.trigger, decision.until) == (True, "schedule", MOMENT)
    assert [one.key for one in book.retrainings()] == [decision.key]
    again, why = begin_moment(book, CRON, FOUR + timedelta(minutes=5))
    assert (again, why.action) == (False, "hold")


def test_many_who_ask_at_once_begin_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda _: begin_moment(MonitoringStore(tmp_path / "demo"), CRON, FOUR)[0], range(8)))
    assert sum(said) == 1
    assert len(MonitoringStore(tmp_path / "demo").retrainings()) == 1


def test_while_one_is_running_nothing_begins_and_that_is_said(tmp_path: Path) -> None:
    book = MonitoringStore(tmp_path / "demo")
    begin_moment(book, CRON, FOUR)
    tomorrow = FOUR + timedelta(days=1)
    begun, decision = begin_moment(book, CRON, tomorrow)
    assert (begun, decision.action) == (False, "hold")
    assert "running" in decision.reasons[0]


def test_after_it_ended_the_next_moment_begins_another(tmp_path: Path) -> None:
    book = MonitoringStore(tmp_path / "demo")
    _, first = begin_moment(book, CRON, FOUR)
    book.finish(first.key, "held", None, "the gates held it")
    begun, second = begin_moment(book, CRON, FOUR + timedelta(days=1))
    assert begun
    assert second.key != first.key
    same, why = begin_moment(book, CRON, FOUR + timedelta(minutes=9))
    assert not same
    assert why.reasons


def test_the_newest_moment_is_the_last_that_has_come() -> None:
    assert newest_moment(CRON, FOUR) == MOMENT
    assert newest_moment(CRON, MOMENT) == MOMENT - timedelta(days=1)  # a moment itself belongs to what comes after it


def test_a_persons_training_is_counted_and_one_beside_it_is_told_why_not(tmp_path: Path) -> None:
    book = MonitoringStore(tmp_path / "demo")
    _, scheduled = begin_moment(book, CRON, FOUR)
    may_run, refused = begin_by_hand(book, None, FOUR + timedelta(minutes=1), "runs/a")
    assert refused is not None and (may_run, refused.action) == (False, "hold")
    assert "there is one at a time" in refused.reasons[0]
    book.finish(scheduled.key, "held", None, "the gates held it")
    may_run, own = begin_by_hand(book, None, FOUR + timedelta(hours=1), "runs/a")
    assert own is not None and (may_run, own.trigger) == (True, "manual")
    assert [one.key for one in book.retrainings() if one.state == "running"] == [own.key]
    # And the schedule's next moment is told of it.
    begun, why = begin_moment(book, CRON, FOUR + timedelta(days=1))
    assert (begun, why.action) == (False, "hold")
    assert "there is one at a time" in why.reasons[0]


def test_before_live_traffic_was_looked_at_a_person_trains_as_often_as_they_like(tmp_path: Path) -> None:
    book = MonitoringStore(tmp_path / "demo")
    assert begin_by_hand(book, None, FOUR, "runs/a") == (True, None)
    assert book.retrainings() == ()


def test_of_two_people_who_start_at_once_one_trains(tmp_path: Path) -> None:
    book = MonitoringStore(tmp_path / "demo")
    _, earlier = begin_moment(book, CRON, FOUR)
    book.finish(earlier.key, "promoted", 2)
    with ThreadPoolExecutor(8) as pool:
        moments = [FOUR + timedelta(seconds=number) for number in range(8)]
        said = list(pool.map(lambda now: begin_by_hand(MonitoringStore(tmp_path / "demo"), None, now, "")[0], moments))
    assert sum(said) == 1
