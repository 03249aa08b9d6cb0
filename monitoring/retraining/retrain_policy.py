"""The retrain policy: a pure function from windows, retrainings and the declared policy to a decision.

The rules, in this order; the first that applies decides:

1. The newest window's data are broken: page. No model is trained on such data.
2. The newest window could not be judged, or is from before the newest model began to serve: hold.
3. The alarm is not raised: hold.
4. Served feature values differ from those of the feature table by more than the declared limit: hold.
5. A retraining is running: hold.
6. The newest window, or a later one, already led to a retraining: hold.
7. The cool-down after the last retraining is not over: hold.
8. The weekly cap is reached: page.
9. Too many retrainings in a row led to no new champion: page.
10. Otherwise: retrain.

Where these rules say hold, and exploration of the current model is shown to cost more than `ordering.explore.max_cost`:
page, since no training changes what the spec declares.

The alarm depends on the judged windows (healthy, drifted, degraded) alone, evaluated from the oldest: `bad_windows` bad
ones among the newest `of_windows` raise it, `clear_windows` good ones in a row clear it, and counting starts again.
Broken and unjudged windows neither raise nor clear it. Nor do windows from before the newest promoted model began to
serve: they are about its predecessor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from monitoring.retraining.alarm import JUDGED, evaluate_alarm, format_utc, reports_of_current_model
from monitoring.retraining.retrain_blockers import retrain_blocker, running_retraining, schedule_blocker
from monitoring.windows.records import RetrainAction, RetrainDecision, Retraining, Trigger, WindowReport
from shortlist.spec.monitoring import RetrainPolicy
from shortlist.tracking.lineage import log_digest


def decide_retraining(
    spec: str,
    reports: Sequence[WindowReport],
    retrainings: Sequence[Retraining],
    policy: RetrainPolicy,
    decided_at: datetime,
    served_features_blocker: str = "",
) -> RetrainDecision:
    """Return the decision about the newest window.

    Args:
        spec: Name of the spec.
        reports: The report of every evaluated window, oldest first; at least one.
        retrainings: Every retraining of the spec, in any order; those whose process died are marked as failed.
        policy: The declared policy.
        decided_at: Time of the decision; it changes nothing else in it.
        served_features_blocker: Reason why served feature values block every training; empty when they do not.

    Returns:
        The decision: the same for the same arguments, with the same key for the same window and action.
    """
    assert reports, "there is no decision without a window"
    assert all(report.start < next_report.start for report, next_report in pairwise(reports)), (
        "windows come oldest first"
    )
    inputs = _PolicyInputs(reports, retrainings, policy)
    newest = inputs.newest
    action, reasons = _decide_action(inputs, served_features_blocker)
    if inputs.is_of_current_model and newest.exploration_excesses:
        excesses = [f"{format_utc(newest.start)}: {excess}" for excess in newest.exploration_excesses]
        action, reasons = ("page", (*excesses, *reasons)) if action == "hold" else (action, (*reasons, *excesses))
    return RetrainDecision(
        spec=spec,
        action=action,
        trigger="drift",
        key=decision_key(spec, action, newest.start, "drift"),
        window=newest.start,
        until=newest.end,
        reasons=reasons,
        columns=tuple(dict.fromkeys((*(inputs.alarm.columns if newest.verdict in JUDGED else ()), *newest.columns))),
        alarm=inputs.alarm.is_raised,
        made=decided_at,
    )


def same_log_reason(until: datetime, version: int, tags: Mapping[str, str], digest: str) -> str:
    """Return why a training on the log learns nothing of live traffic; empty where it reads other rows or is unknown.

    Args:
        until: The training reads only rows before this moment.
        version: The version that serves.
        tags: Tags of the version: the log that it was trained on, and until when.
        digest: Digest of the log that the training reads; empty where it is unknown, or live rows are added.
    """
    version_until = tags.get("until", "")
    if not digest or log_digest(tags) != digest or (version_until and datetime.fromisoformat(version_until) < until):
        return ""
    return (
        f"the training reads the log that version {version} was trained on, which has no newer row: nothing of the"
        " traffic that changed. Add its days to the log, or declare data.live.collect"
    )


def decide_scheduled_retraining(
    spec: str,
    moment: datetime,
    retrainings: Sequence[Retraining],
    policy: RetrainPolicy,
    decided_at: datetime,
    served_features_blocker: str = "",
) -> RetrainDecision:
    """Return the decision about a scheduled time: retrain, unless a retraining is running or was too recent.

    Args:
        spec: Name of the spec.
        moment: The scheduled time; the training reads only rows before it.
        retrainings: Every retraining of the spec; those whose process died are marked as failed.
        policy: The declared policy; its cool-down and its weekly cap apply.
        decided_at: Time of the decision.
        served_features_blocker: As for `decide_retraining`.
    """
    blocker = served_features_blocker or schedule_blocker(
        moment, sorted(retrainings, key=lambda retraining: retraining.started), policy
    )
    action: RetrainAction = "hold" if blocker else "retrain"
    return RetrainDecision(
        spec=spec,
        action=action,
        trigger="schedule",
        key=decision_key(spec, action, moment, "schedule"),
        window=moment,
        until=moment,
        reasons=(blocker or f"the schedule's moment {format_utc(moment)} has come",),
        made=decided_at,
    )


def decide_manual_retraining(
    spec: str,
    reports: Sequence[WindowReport],
    retrainings: Sequence[Retraining],
    until: datetime | None,
    decided_at: datetime,
    key: str = "",
) -> RetrainDecision:
    """Return the decision about a person's request to train: retrain, unless a retraining is running.

    Its window is the newest one, so that cool-down, weekly cap and failures count this retraining like any other.

    Args:
        spec: Name of the spec.
        reports: The report of every evaluated window, oldest first.
        retrainings: Every retraining of the spec; those whose process died are marked as failed.
        until: The training reads only rows before this moment; None: now.
        decided_at: Time of the decision.
        key: Key of a training that runs once, however often it is requested; empty: each request is another training.
    """
    blocker = running_retraining(retrainings)
    action: RetrainAction = "hold" if blocker else "retrain"
    return RetrainDecision(
        spec=spec,
        action=action,
        trigger="manual",
        key=key or decision_key(spec, action, decided_at, "manual"),
        window=reports[-1].start if reports else decided_at,
        until=until or decided_at,
        reasons=(blocker or f"a person started it at {format_utc(decided_at)}",),
        made=decided_at,
    )


def decision_key(spec: str, action: RetrainAction, window: datetime, trigger: Trigger) -> str:
    """Return the key of a decision, the same in every process that makes it: 16 hexadecimal digits.

    >>> decision_key("demo", "retrain", datetime(2026, 1, 19, tzinfo=UTC), "drift")
    'f82c081052c7c5c2'
    """
    assert window.tzinfo is not None, "a moment without a timezone is another one on every machine"
    identity = f"{spec}|{action}|{window.astimezone(UTC).isoformat()}|{trigger}"
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


class _PolicyInputs:
    """Inputs of the rules, derived from the windows and retrainings."""

    def __init__(
        self, reports: Sequence[WindowReport], retrainings: Sequence[Retraining], policy: RetrainPolicy
    ) -> None:
        self.newest = reports[-1]
        self.retrainings = sorted(retrainings, key=lambda retraining: retraining.started)
        self.policy = policy
        model_reports = reports_of_current_model(reports, self.retrainings)
        self.is_of_current_model = bool(model_reports) and model_reports[-1] is self.newest
        self.alarm = evaluate_alarm(model_reports, policy)


def _decide_action(inputs: _PolicyInputs, served_features_blocker: str) -> tuple[RetrainAction, tuple[str, ...]]:
    if inputs.newest.verdict == "broken":
        return "page", tuple(problem.reason for problem in inputs.newest.problems)
    if reason := _unjudgeable_reason(inputs):
        return "hold", (reason,)
    reasons = (
        inputs.alarm.describe(inputs.policy),
        *(_bad_window_reasons(inputs.alarm.bad_reports[-1]) if inputs.alarm.bad_reports else ()),
    )
    if not inputs.alarm.is_raised:
        return "hold", reasons
    if served_features_blocker:
        return "hold", (served_features_blocker, *reasons)
    if blocker := retrain_blocker(inputs.newest, inputs.retrainings, inputs.policy):
        return blocker.action, (blocker.reason, *reasons)
    return "retrain", reasons


def _unjudgeable_reason(inputs: _PolicyInputs) -> str:
    newest = inputs.newest
    if newest.verdict == "unjudged":
        return (
            f"the window of {format_utc(newest.start)} cannot be judged: {newest.unjudged_reason}. Missing data"
            " are never a success, and no reason to train"
        )
    if not inputs.is_of_current_model:
        return (
            f"the window of {format_utc(newest.start)} was served by version {newest.champion}; the model that was"
            " promoted since has not served a whole window yet"
        )
    return ""


def _bad_window_reasons(report: WindowReport) -> Iterator[str]:
    for finding in report.drifted:
        yield f"{format_utc(report.start)}: {finding.reason}"
    for quality, measure in report.breaches:
        limit = "" if measure.limit is None else f", limit {measure.limit:.4g}"
        yield (
            f"{format_utc(report.start)}: {measure.name} of version {quality.version} is {measure.value:.4g}"
            f" ({measure.low:.4g} to {measure.high:.4g}{limit})"
        )
