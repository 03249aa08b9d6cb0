"""Rules that block a retraining: a running one, the cool-down, the weekly cap, repeated failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final, NamedTuple

from monitoring.retraining.alarm import WEEK, format_utc
from monitoring.windows.records import RetrainAction, Retraining, WindowReport
from shortlist.spec.monitoring import RetrainPolicy

UNSUCCESSFUL_STATES: Final = frozenset({"failed", "held", "not_promoted"})
"""States of a retraining that led to no new champion."""


class RetrainBlocker(NamedTuple):
    """The action that replaces a retraining, and the reason."""

    action: RetrainAction
    reason: str


def retrain_blocker(
    newest: WindowReport, retrainings: Sequence[Retraining], policy: RetrainPolicy
) -> RetrainBlocker | None:
    """Return the first rule that blocks a retraining for the newest window; None when it may start.

    Args:
        newest: The newest window.
        retrainings: Every retraining, oldest first.
        policy: The declared policy.
    """
    for action, rule in _RULES:
        if reason := rule(newest.start, retrainings, policy):
            return RetrainBlocker(action, reason)
    return None


def schedule_blocker(moment: datetime, retrainings: Sequence[Retraining], policy: RetrainPolicy) -> str:
    """Return the reason why a scheduled training does not start; empty when it may.

    Repeated failures do not count: a scheduled training brings newer data, which may fix the failures.

    Args:
        moment: The scheduled time.
        retrainings: Every retraining, oldest first, whatever started it.
        policy: The declared policy.
    """
    rules = (_cooldown_blocker, _weekly_cap_blocker)
    return running_retraining(retrainings) or next(
        filter(None, (rule(moment, retrainings, policy) for rule in rules)), ""
    )


def describe_retraining(retraining: Retraining) -> str:
    """Return what a retraining is called in sentences: by its window, or by its start where a person started it."""
    # The window of a person's training is that of the newest report, and so often that of an earlier retraining.
    if retraining.trigger == "manual":
        return f"the training that a person started at {format_utc(retraining.started)}"
    return f"the retraining of {format_utc(retraining.window)}"


def running_retraining(retrainings: Sequence[Retraining]) -> str:
    """Return a message about the running retraining, which blocks another one; empty when none is running."""
    for retraining in retrainings:
        if retraining.state == "running":
            since = format_utc(retraining.started)
            return f"the retraining of {format_utc(retraining.window)} is running since {since}; there is one at a time"
    return ""


def _running_blocker(_start: datetime, retrainings: Sequence[Retraining], _policy: RetrainPolicy) -> str:
    return running_retraining(retrainings)


def _answered_window_blocker(start: datetime, retrainings: Sequence[Retraining], _policy: RetrainPolicy) -> str:
    for retraining in reversed(retrainings):
        if retraining.window >= start:
            return f"{describe_retraining(retraining)} ({retraining.state}) answered this window; a later one decides"
    return ""


def _cooldown_blocker(start: datetime, retrainings: Sequence[Retraining], policy: RetrainPolicy) -> str:
    if not retrainings:
        return ""
    cooldown_end = retrainings[-1].window + timedelta(hours=policy.cooldown_hours)
    if start >= cooldown_end:
        return ""
    return (
        f"cool-down of {policy.cooldown_hours:g} h after the last retraining: the first window, or moment of the"
        f" schedule, that may start another one is that of {format_utc(cooldown_end)}"
    )


def _weekly_cap_blocker(start: datetime, retrainings: Sequence[Retraining], policy: RetrainPolicy) -> str:
    recent = [retraining for retraining in retrainings if start - retraining.window < WEEK]
    if len(recent) < policy.max_per_week:
        return ""
    return (
        f"{len(recent)} {_singular_or_plural(recent)} within seven days (max_per_week {policy.max_per_week})."
        " Check what they learned from, then train by hand"
    )


def _repeated_failures_blocker(_start: datetime, retrainings: Sequence[Retraining], policy: RetrainPolicy) -> str:
    failures = list(takewhile(lambda retraining: retraining.state in UNSUCCESSFUL_STATES, reversed(retrainings)))
    if len(failures) < policy.max_failures:
        return ""
    newest_failure = failures[0]
    cause = f", {newest_failure.reason}" if newest_failure.reason else ""
    return (
        f"{len(failures)} {_singular_or_plural(failures)} in a row led to no new champion"
        f" (max_failures {policy.max_failures}); the last one: {newest_failure.state}{cause}. Fix the cause, then train"
        " by hand"
    )


def _singular_or_plural(retrainings: Sequence[Retraining]) -> str:
    return "retraining" if len(retrainings) == 1 else "retrainings"


_RULES: Final[tuple[tuple[RetrainAction, Callable[[datetime, Sequence[Retraining], RetrainPolicy], str]], ...]] = (
    ("hold", _running_blocker),
    ("hold", _answered_window_blocker),
    ("hold", _cooldown_blocker),
    ("page", _weekly_cap_blocker),
    ("page", _repeated_failures_blocker),
)
"""The rules in the order in which they are evaluated, each with the action of its blocker."""
