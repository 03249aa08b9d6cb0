"""What a monitoring run leads to: a pure function of what was seen, what was done and what the policy allows.

The rules, in this order; the first that applies decides:

1. The newest window's data are broken: page. No model is trained on such data, whatever came before.
2. The newest window could not be judged, or is from before the newest model began to serve: hold.
3. The alarm is not raised: hold.
4. Feature values that scored differ from those of the feature table by more than the declared limit: hold.
5. A retraining is running: hold.
6. The newest window, or a later one, led to a retraining already: hold.
7. The cool-down after the last retraining is not over: hold.
8. The weekly cap is reached: page.
9. Too many retrainings in a row led to no new champion: page.
10. Otherwise: retrain.

The alarm follows from the judged windows (healthy, drifted, degraded) alone, played from the oldest: `bad_windows` bad
ones among the newest `of_windows` raise it, `clear_windows` good ones in a row end it, and then counting starts anew.
Broken and unjudged windows neither raise nor end it. Nor do windows from before the newest promoted model began to
serve: what they say of its predecessor is answered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from monitoring.retraining.alarm import JUDGED, evaluate_alarm, reports_of_current_model, text_of
from monitoring.retraining.retrain_blockers import retrain_blocker, running_retraining, schedule_blocker
from monitoring.windows.records import RetrainAction, RetrainDecision, Retraining, Trigger, WindowReport
from shortlist.spec.monitoring import RetrainPolicy


def decide(
    spec: str,
    reports: Sequence[WindowReport],
    retrainings: Sequence[Retraining],
    policy: RetrainPolicy,
    made: datetime,
    held: str = "",
) -> RetrainDecision:
    """Return what the newest window leads to.

    Args:
        spec: Name of the spec.
        reports: Every window that was evaluated, oldest first; at least one.
        retrainings: Every retraining of the spec, in any order, those that died marked as failed.
        policy: As declared.
        made: When this is decided; it changes nothing else in the decision.
        held: Why live feature values keep every training from starting; empty when they do not.

    Returns:
        The decision; the same arguments give the same one, and the same window and action the same key.
    """
    assert reports, "there is no decision without a window"
    assert all(one.start < other.start for one, other in pairwise(reports)), "windows come oldest first"
    case = _Case(reports, retrainings, policy)
    newest = case.newest
    action, reasons = _answer(case, held)
    return RetrainDecision(
        spec=spec,
        action=action,
        trigger="drift",
        key=key_of(spec, action, newest.start, "drift"),
        window=newest.start,
        until=newest.end,
        reasons=reasons,
        columns=case.alarm.columns if newest.verdict in JUDGED else newest.columns,
        alarm=case.alarm.raised,
        made=made,
    )


def scheduled(
    spec: str,
    moment: datetime,
    retrainings: Sequence[Retraining],
    policy: RetrainPolicy,
    made: datetime,
    held: str = "",
) -> RetrainDecision:
    """Return what a moment of the schedule leads to: a retraining, unless one is running or came too short before.

    Args:
        spec: Name of the spec.
        moment: The schedule's moment; the training reads no row from it on.
        retrainings: Every retraining of the spec, those that died marked as failed.
        policy: As declared; its cool-down and its weekly cap count.
        made: When this is decided.
        held: As for `decide`.
    """
    why_not = held or schedule_blocker(moment, sorted(retrainings, key=lambda one: one.started), policy)
    action: RetrainAction = "hold" if why_not else "retrain"
    return RetrainDecision(
        spec=spec,
        action=action,
        trigger="schedule",
        key=key_of(spec, action, moment, "schedule"),
        window=moment,
        until=moment,
        reasons=(why_not or f"the schedule's moment {text_of(moment)} has come",),
        made=made,
    )


def by_hand(
    spec: str,
    reports: Sequence[WindowReport],
    retrainings: Sequence[Retraining],
    until: datetime | None,
    made: datetime,
    key: str = "",
) -> RetrainDecision:
    """Return what a person's wish to train leads to: a retraining, unless one is running.

    It answers the newest window, so that cool-down, weekly cap and failures count it like any other.

    Args:
        spec: Name of the spec.
        reports: Every window that was evaluated, oldest first.
        retrainings: Every retraining of the spec, those that died marked as failed.
        until: The moment from which on it reads no row; None: now.
        made: When this is decided.
        key: Of a training that is to be done once however often it is asked for; empty: each is another one.
    """
    why_not = running_retraining(retrainings)
    action: RetrainAction = "hold" if why_not else "retrain"
    return RetrainDecision(
        spec=spec,
        action=action,
        trigger="manual",
        key=key or key_of(spec, action, made, "manual"),
        window=reports[-1].start if reports else made,
        until=until or made,
        reasons=(why_not or f"a person started it at {text_of(made)}",),
        made=made,
    )


def key_of(spec: str, action: RetrainAction, window: datetime, trigger: Trigger) -> str:
    """Return the key of a decision, the same for everybody who decides the same: 16 hexadecimal digits.

    >>> key_of("demo", "retrain", datetime(2026, 1, 19, tzinfo=UTC), "drift")
    'f82c081052c7c5c2'
    """
    assert window.tzinfo is not None, "a moment without a timezone is another one on every machine"
    said = f"{spec}|{action}|{window.astimezone(UTC).isoformat()}|{trigger}"
    return hashlib.sha256(said.encode()).hexdigest()[:16]


class _Case:
    """What the rules read."""

    def __init__(
        self, reports: Sequence[WindowReport], retrainings: Sequence[Retraining], policy: RetrainPolicy
    ) -> None:
        self.newest = reports[-1]
        self.retrainings = sorted(retrainings, key=lambda one: one.started)
        self.policy = policy
        counted = reports_of_current_model(reports, self.retrainings)
        self.is_of_todays_model = bool(counted) and counted[-1] is self.newest
        self.alarm = evaluate_alarm(counted, policy)


def _answer(case: _Case, held: str) -> tuple[RetrainAction, tuple[str, ...]]:
    if case.newest.verdict == "broken":
        return "page", tuple(problem.reason for problem in case.newest.problems)
    if why := _says_nothing(case):
        return "hold", (why,)
    said = (case.alarm.says(case.policy), *(_what(case.alarm.bad[-1]) if case.alarm.bad else ()))
    if not case.alarm.raised:
        return "hold", said
    if held:
        return "hold", (held, *said)
    if blocker := retrain_blocker(case.newest, case.retrainings, case.policy):
        return blocker.action, (blocker.reason, *said)
    return "retrain", said


def _says_nothing(case: _Case) -> str:
    newest = case.newest
    if newest.verdict == "unjudged":
        return (
            f"the window of {text_of(newest.start)} cannot be judged ({newest.rows} rows with an outcome): missing data"
            " are never a success, and no reason to train"
        )
    if not case.is_of_todays_model:
        return (
            f"the window of {text_of(newest.start)} was served by version {newest.champion}; the model that was"
            " promoted since has not served a whole window yet"
        )
    return ""


def _what(report: WindowReport) -> Iterator[str]:
    for finding in report.drifted:
        yield f"{text_of(report.start)}: {finding.reason}"
    for quality, measure in report.breaches:
        limit = "" if measure.limit is None else f", limit {measure.limit:.4g}"
        yield (
            f"{text_of(report.start)}: {measure.name} of version {quality.version} is {measure.value:.4g}"
            f" ({measure.low:.4g} to {measure.high:.4g}{limit})"
        )
