"""The schedule's trainings: each moment begins one, in the book that all retrainings share, unless one is running."""

from __future__ import annotations

from datetime import datetime

from croniter import croniter

from monitoring.monitoring_store import MonitoringStore
from monitoring.records import RetrainDecision
from monitoring.retraining.retrain_policy import scheduled


def newest_moment(cron: str, now: datetime) -> datetime:
    """Return the newest moment of a schedule.

    Args:
        cron: Five fields, UTC.
        now: The present moment.
    """
    moment: datetime = croniter(cron, now).get_prev(datetime)
    return moment


def begin_moment(book: MonitoringStore, cron: str, now: datetime) -> tuple[bool, RetrainDecision]:
    """Note that the training of the newest moment begins; return whether the caller is the one to train, and why.

    Whoever asks second for the same moment, or while another training is running, is not.

    Args:
        book: Of the spec.
        cron: Five fields, UTC.
        now: The present moment.
    """
    book.recover()
    decision = scheduled(book.spec, newest_moment(cron, now), book.retrainings(), now)
    if decision.action != "retrain":
        return False, decision
    if book.claim(decision) and book.start(decision, ""):
        return True, decision
    said = f"the training of {decision.key} has begun already, for the schedule's moment {decision.window.isoformat()}"
    return False, decision.model_copy(update={"action": "hold", "reasons": (said,)})
