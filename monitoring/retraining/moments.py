"""Trainings that the schedule or a person starts: they begin in the monitoring store, unless one is running."""

from __future__ import annotations

from datetime import datetime

from croniter import croniter

from monitoring.retraining.retrain_blockers import running_retraining
from monitoring.retraining.retrain_policy import by_hand, key_of, scheduled
from monitoring.store.monitoring_store import MonitoringStore
from monitoring.windows.records import RetrainDecision
from shortlist.spec.monitoring import RetrainPolicy
from shortlist.tracking.pipeline_run import pipeline_name


def newest_moment(cron: str, now: datetime) -> datetime:
    """Return the newest moment of a schedule.

    Args:
        cron: Five fields, UTC.
        now: The present moment.
    """
    moment: datetime = croniter(cron, now).get_prev(datetime)
    return moment


def begin_moment(
    monitoring_store: MonitoringStore, cron: str, policy: RetrainPolicy, now: datetime
) -> tuple[bool, RetrainDecision]:
    """Note that the training of the newest moment begins; return whether the caller is the one to train, and why.

    Whoever asks second for the same moment, while another training is running, or while the policy's cool-down or
    weekly cap, or a breach of `served_features`, keeps the next one from starting, is not.

    Args:
        monitoring_store: Of the spec.
        cron: Five fields, UTC.
        policy: As declared.
        now: The present moment.
    """
    monitoring_store.recover()
    moment, before = newest_moment(cron, now), monitoring_store.retrainings()
    key = key_of(monitoring_store.spec, "retrain", moment, "schedule")
    served = monitoring_store.served_features()
    decision = scheduled(monitoring_store.spec, moment, before, policy, now, served.blocker if served else "")
    has_begun = any(one.key == key and one.state != "running" for one in before)
    if decision.action != "retrain" and not has_begun:
        return False, decision
    if not has_begun and monitoring_store.claim(decision) and monitoring_store.start(decision, "", alone=True):
        return True, decision
    said = f"the training of {key} has begun already, for the schedule's moment {decision.window.isoformat()}"
    return False, decision.model_copy(update={"action": "hold", "reasons": (said,)})


def begin_by_hand(
    monitoring_store: MonitoringStore, until: datetime | None, now: datetime, run: str
) -> tuple[bool, RetrainDecision | None]:  # fmt: skip
    """Note that a person's training begins; return whether it may run, and the decision.

    Until a spec's live traffic was evaluated, or a retraining began, there is nothing to be counted: such a training
    runs, and there is no decision.

    Args:
        monitoring_store: Of the spec.
        until: The moment from which on it reads no row; None: now.
        now: The present moment.
        run: Its folder.
    """
    reports = monitoring_store.reports(newest=1)
    if not reports and not monitoring_store.retrainings():
        return True, None
    monitoring_store.recover()
    decision = by_hand(monitoring_store.spec, reports, monitoring_store.retrainings(), until, now)
    if decision.action != "retrain":
        return False, decision
    if monitoring_store.claim(decision) and monitoring_store.start(decision, run, alone=True):
        return True, decision
    return False, by_hand(
        monitoring_store.spec, reports, monitoring_store.retrainings(), until, now
    )  # another one began meanwhile


def begin_submitted(
    monitoring_store: MonitoringStore, key: str, until: datetime | None, now: datetime
) -> tuple[bool, RetrainDecision | None]:
    """Note that the training of a cluster's run begins; see `begin_by_hand`.

    A step that is tried again in the same run finds its own claim, and goes on.

    Args:
        monitoring_store: Of the spec.
        key: Of the submission: the same declaration, code and data have the same one.
        until: The moment from which on it reads no row; None: now.
        now: The present moment.
    """
    reports, before = monitoring_store.reports(newest=1), monitoring_store.retrainings()
    if not reports and not before:
        return True, None
    monitoring_store.recover()
    known = next((one for one in monitoring_store.retrainings() if one.key == key), None)
    others = [one for one in monitoring_store.retrainings() if one.key != key]
    decision = by_hand(monitoring_store.spec, reports, others, until, now, key)
    if known is not None and known.state == "running" and monitoring_store.is_own(key):
        return True, decision.model_copy(update={"action": "retrain"})
    if known is not None:
        why = f"the training of {key} has begun before and is {known.state}; submit it once more with AGAIN=2"
    elif decision.action != "retrain":
        why = decision.reasons[0]
    elif (monitoring_store.claim(decision) or monitoring_store.is_own(key)) and monitoring_store.start(
        decision, pipeline_name(), alone=True
    ):
        return True, decision
    else:
        waits = f"another run has claimed {key} and not begun yet; submit it once more in ten minutes"
        why = running_retraining(monitoring_store.retrainings()) or waits
    return False, decision.model_copy(update={"action": "hold", "reasons": (why,)})
