"""Starts of trainings by the schedule or a person; each is recorded in the monitoring store, unless one is running."""

from __future__ import annotations

from datetime import datetime

from croniter import croniter

from monitoring.retraining.retrain_blockers import running_retraining
from monitoring.retraining.retrain_policy import decide_manual_retraining, decide_scheduled_retraining, decision_key
from monitoring.store.monitoring_store import MonitoringStore
from monitoring.windows.records import RetrainDecision
from shortlist.spec.monitoring import RetrainPolicy
from shortlist.tracking.pipeline_run import pipeline_name


def newest_scheduled_time(cron: str, now: datetime) -> datetime:
    """Return the newest scheduled time before now.

    Args:
        cron: Cron expression of five fields, UTC.
        now: The present moment.
    """
    moment: datetime = croniter(cron, now).get_prev(datetime)
    return moment


def begin_scheduled_training(
    monitoring_store: MonitoringStore, cron: str, policy: RetrainPolicy, now: datetime
) -> tuple[bool, RetrainDecision]:
    """Record the start of the newest scheduled training; return whether the caller has to train, and the decision.

    The caller does not train when another caller has started the training of this time, while another training is
    running, or while cool-down, weekly cap or a breach of `served_features` block it.

    Args:
        monitoring_store: The spec's monitoring store.
        cron: Cron expression of five fields, UTC.
        policy: The declared policy.
        now: The present moment.
    """
    monitoring_store.recover()
    moment, retrainings = newest_scheduled_time(cron, now), monitoring_store.retrainings()
    key = decision_key(monitoring_store.spec, "retrain", moment, "schedule")
    comparison = monitoring_store.served_features()
    decision = decide_scheduled_retraining(
        monitoring_store.spec, moment, retrainings, policy, now, comparison.blocker if comparison else ""
    )
    has_begun = any(retraining.key == key and retraining.state != "running" for retraining in retrainings)
    if decision.action != "retrain" and not has_begun:
        return False, decision
    if (
        not has_begun
        and monitoring_store.claim(decision)
        and monitoring_store.start(decision, pipeline_name(), alone=True)
    ):
        return True, decision
    reason = f"the training of {key} has begun already, for the schedule's moment {decision.window.isoformat()}"
    return False, decision.model_copy(update={"action": "hold", "reasons": (reason,)})


def begin_manual_training(
    monitoring_store: MonitoringStore, until: datetime | None, now: datetime, run: str
) -> tuple[bool, RetrainDecision | None]:  # fmt: skip
    """Record the start of a person's training; return whether it may run, and the decision.

    Before the first evaluated window and the first retraining, a training always runs and there is no decision.

    Args:
        monitoring_store: The spec's monitoring store.
        until: The training reads only rows before this moment; None: now.
        now: The present moment.
        run: Folder of the run.
    """
    reports = monitoring_store.reports(newest=1)
    if not reports and not monitoring_store.retrainings():
        return True, None
    monitoring_store.recover()
    decision = decide_manual_retraining(monitoring_store.spec, reports, monitoring_store.retrainings(), until, now)
    if decision.action != "retrain":
        return False, decision
    if monitoring_store.claim(decision) and monitoring_store.start(decision, run, alone=True):
        return True, decision
    return False, decide_manual_retraining(
        monitoring_store.spec, reports, monitoring_store.retrainings(), until, now
    )  # another one began meanwhile


def begin_submitted_training(
    monitoring_store: MonitoringStore, key: str, until: datetime | None, now: datetime
) -> tuple[bool, RetrainDecision | None]:
    """Record the start of a training that was submitted to a cluster; see `begin_manual_training`.

    A step that is retried within its run finds its own claim and continues.

    Args:
        monitoring_store: The spec's monitoring store.
        key: Key of the submission: the same for the same declaration, code and data.
        until: The training reads only rows before this moment; None: now.
        now: The present moment.
    """
    reports, retrainings = monitoring_store.reports(newest=1), monitoring_store.retrainings()
    if not reports and not retrainings:
        return True, None
    monitoring_store.recover()
    submitted = next((retraining for retraining in monitoring_store.retrainings() if retraining.key == key), None)
    other_retrainings = [retraining for retraining in monitoring_store.retrainings() if retraining.key != key]
    decision = decide_manual_retraining(monitoring_store.spec, reports, other_retrainings, until, now, key)
    if submitted is not None and submitted.state == "running" and monitoring_store.is_claimed_by_this_run(key):
        return True, decision.model_copy(update={"action": "retrain"})
    if submitted is not None:
        reason = f"the training of {key} has begun before and is {submitted.state}; submit it once more with AGAIN=2"
    elif decision.action != "retrain":
        reason = decision.reasons[0]
    elif (monitoring_store.claim(decision) or monitoring_store.is_claimed_by_this_run(key)) and monitoring_store.start(
        decision, pipeline_name(), alone=True
    ):
        return True, decision
    else:
        claimed_elsewhere = f"another run has claimed {key} and not begun yet; submit it once more in ten minutes"
        reason = running_retraining(monitoring_store.retrainings()) or claimed_elsewhere
    return False, decision.model_copy(update={"action": "hold", "reasons": (reason,)})
