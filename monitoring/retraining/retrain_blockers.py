"""What keeps a raised alarm from starting a training: one in flight, a cool-down, a cap, failures in a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final, NamedTuple

from monitoring.retraining.alarm import WEEK, text_of
from monitoring.windows.records import RetrainAction, Retraining, WindowReport
from shortlist.spec.monitoring import RetrainPolicy

UNSUCCESSFUL_STATES: Final = frozenset({"failed", "held", "not_promoted"})
"""States of a retraining that led to no new champion."""


class RetrainBlocker(NamedTuple):
    """What to do instead of a training, and why."""

    action: RetrainAction
    reason: str


def retrain_blocker(
    newest: WindowReport, retrainings: Sequence[Retraining], policy: RetrainPolicy
) -> RetrainBlocker | None:
    """Return the first thing that holds a training for the newest window; None when it may start.

    Args:
        newest: The newest window.
        retrainings: Every retraining, oldest first.
        policy: As declared.
    """
    for action, rule in _RULES:
        if why := rule(newest.start, retrainings, policy):
            return RetrainBlocker(action, why)
    return None


def schedule_blocker(moment: datetime, retrainings: Sequence[Retraining], policy: RetrainPolicy) -> str:
    """Return why a moment of the schedule starts no training; empty when it may.

    Failures in a row do not count: the schedule is how a model gets newer data, which may be what mends it.

    Args:
        moment: Of the schedule.
        retrainings: Every retraining, oldest first, whoever started it.
        policy: As declared.
    """
    rules = (_cool_down, _weekly_cap)
    return running_retraining(retrainings) or next(filter(None, (r(moment, retrainings, policy) for r in rules)), "")


def running_retraining(retrainings: Sequence[Retraining]) -> str:
    """Return which retraining is running, as a reason to start no other; empty when none is."""
    for one in retrainings:
        if one.state == "running":
            since = text_of(one.started)
            return f"the retraining of {text_of(one.window)} is running since {since}; there is one at a time"
    return ""


def _one_in_flight(_start: datetime, retrainings: Sequence[Retraining], _policy: RetrainPolicy) -> str:
    return running_retraining(retrainings)


def _window_is_answered(start: datetime, retrainings: Sequence[Retraining], _policy: RetrainPolicy) -> str:
    for one in reversed(retrainings):
        if one.window >= start:
            return f"the retraining of {text_of(one.window)} ({one.state}) answered this window; a later one decides"
    return ""


def _cool_down(start: datetime, retrainings: Sequence[Retraining], policy: RetrainPolicy) -> str:
    if not retrainings:
        return ""
    over = retrainings[-1].window + timedelta(hours=policy.cooldown_hours)
    if start >= over:
        return ""
    return (
        f"cool-down of {policy.cooldown_hours:g} h after the last retraining: the first window, or moment of the"
        f" schedule, that may start another one is that of {text_of(over)}"
    )


def _weekly_cap(start: datetime, retrainings: Sequence[Retraining], policy: RetrainPolicy) -> str:
    within = [one for one in retrainings if start - one.window < WEEK]
    if len(within) < policy.max_per_week:
        return ""
    return (
        f"{len(within)} {_retrainings(within)} within seven days (max_per_week {policy.max_per_week}). Check what"
        " they learned from, then train by hand"
    )


def _repeated_failures(_start: datetime, retrainings: Sequence[Retraining], policy: RetrainPolicy) -> str:
    failed = list(takewhile(lambda one: one.state in UNSUCCESSFUL_STATES, reversed(retrainings)))
    if len(failed) < policy.max_failures:
        return ""
    last = failed[0]
    return (
        f"{len(failed)} {_retrainings(failed)} in a row led to no new champion (max_failures {policy.max_failures});"
        f" the last one: {last.state}{f', {last.reason}' if last.reason else ''}. Fix the cause, then train by hand"
    )


def _retrainings(some: Sequence[Retraining]) -> str:
    return "retraining" if len(some) == 1 else "retrainings"


_RULES: Final[tuple[tuple[RetrainAction, Callable[[datetime, Sequence[Retraining], RetrainPolicy], str]], ...]] = (
    ("hold", _one_in_flight),
    ("hold", _window_is_answered),
    ("hold", _cool_down),
    ("page", _weekly_cap),
    ("page", _repeated_failures),
)
"""In the order in which they are asked."""
