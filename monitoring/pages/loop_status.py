"""The state of the monitoring loop as a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from monitoring.pages.status_page_data import StatusPageData
from monitoring.windows.records import Retraining, WindowReport
from shortlist.rollout.page import format_name

StatusLevel = Literal["good", "warn", "bad", "plain"]

SIGNS: Final[dict[StatusLevel, str]] = {"good": "✓", "warn": "!", "bad": "✕", "plain": "…"}
_MAX_NAMES: Final = 4


@dataclass(frozen=True)
class LoopStatus:
    """State of the loop, with its details."""

    level: StatusLevel
    state: str
    detail: str
    """Details of the state; state and details together make a sentence."""

    @property
    def sentence(self) -> str:
        """State and details as one sentence."""
        return f"{self.state}{' ' if self.detail.startswith('since ') else ': '}{self.detail}"


def loop_status(page_data: StatusPageData) -> LoopStatus:
    """Return the worst state that applies; the loop is healthy only when its newest window was judged healthy."""
    newest, decision = page_data.newest, page_data.decision
    if newest is None:
        return LoopStatus("plain", "Nothing watched yet", f"{_serving_text(page_data)}; no window is ready")
    if page_data.broken_since is not None:
        return _broken_status(page_data, newest, page_data.broken_since)
    if page_data.alarm.since is not None:
        return _alarm_status(page_data, page_data.alarm.since)
    if decision is not None and decision.action == "page":
        return LoopStatus(
            "bad", "A person is needed", decision.reasons[0] if decision.reasons else join_names(decision.columns)
        )
    return _status_without_alarm(page_data, newest)


def join_names(names: Iterable[str]) -> str:
    """Return names joined by commas; after the first four only their number.

    >>> join_names(("a", "b", "c", "d", "e", "f"))
    'a, b, c, d and 2 more'
    """
    all_names = tuple(names)
    hidden_count = len(all_names) - _MAX_NAMES
    return ", ".join(all_names[:_MAX_NAMES]) + (f" and {hidden_count} more" if hidden_count > 0 else "")


def format_duration(time: timedelta) -> str:
    """Return a duration in its largest whole unit.

    >>> durations = (timedelta(days=4, hours=3), timedelta(minutes=1), timedelta(seconds=9))
    >>> [format_duration(duration) for duration in durations]
    ['4 days', '1 minute', 'less than a minute']
    """
    minutes = int(time.total_seconds() // 60)
    for unit, length in (("day", 1440), ("hour", 60), ("minute", 1)):
        if minutes >= length:
            number = minutes // length
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return "less than a minute"


def format_moment(time: datetime) -> str:
    """Return a moment as text: the date alone at midnight, else with hours and minutes.

    >>> format_moment(datetime(2026, 1, 21)), format_moment(datetime(2026, 1, 21, 6))
    ('2026-01-21', '2026-01-21 06:00')
    """
    return f"{time:%Y-%m-%d}" if (time.hour, time.minute) == (0, 0) else f"{time:%Y-%m-%d %H:%M}"


def _serving_text(loop: StatusPageData) -> str:
    if loop.champion is None:
        return "no version serves everybody"
    if loop.serving_since is None:
        return f"version {loop.champion} serves"
    return f"version {loop.champion} has served for {format_duration(loop.created_at - loop.serving_since)}"


def _broken_status(loop: StatusPageData, newest: WindowReport, since: datetime) -> LoopStatus:
    problem_names = (
        f"column {problem.column}" if problem.column else format_name(problem.kind) for problem in newest.problems
    )
    running = loop.running
    training_text = f"retraining {_short_key(running)}, begun before, is running" if running else "training is held"
    alarm_text = f"; the alarm of {format_moment(loop.alarm.since)} stays" if loop.alarm.since else ""
    return LoopStatus(
        "bad",
        "Data are broken",
        f"since {format_moment(since)}: {join_names(dict.fromkeys(problem_names))}; {training_text}{alarm_text}",
    )


def _alarm_status(loop: StatusPageData, since: datetime) -> LoopStatus:
    return LoopStatus(
        "bad",
        "Alarm",
        f"since {format_moment(since)}: {join_names(loop.alarm.columns)}; {_alarm_response(loop, since)}",
    )


def _alarm_response(loop: StatusPageData, since: datetime) -> str:
    """Return the response to an alarm, as the end of a sentence."""
    if loop.running is not None:
        return f"retraining {_short_key(loop.running)} is running"
    action = loop.decision.action if loop.decision else "hold"
    if action == "page":
        return "a person is needed"
    newest_retraining = next((retraining for retraining in loop.newest_retrainings if retraining.window >= since), None)
    if newest_retraining is not None:
        return f"retraining {_short_key(newest_retraining)} {retraining_end_text(newest_retraining.state)}"
    return "training is about to begin" if action == "retrain" else "training is held"


def retraining_end_text(state: str) -> str:
    """Return the state of a retraining, as the end of a sentence."""
    return {
        "failed": "failed",
        "held": "brought no model that the gates let pass",
        "not_promoted": "brought a model that was not promoted",
        "promoted": "was promoted",
        "running": "is running",
    }[state]


def _status_without_alarm(loop: StatusPageData, newest: WindowReport) -> LoopStatus:
    """Return the state while no alarm is raised."""
    running = f"; retraining {_short_key(loop.running)} is running" if loop.running else ""
    detail = f"{_serving_text(loop)}; no alarm{running}"
    if newest not in loop.counted_windows[-1:]:
        return LoopStatus(
            "warn", "Too early to tell", f"{_serving_text(loop)}, but no whole window yet; no alarm{running}"
        )
    if newest.verdict == "unjudged":
        return LoopStatus(
            "warn",
            "Not judged",
            f"too little is known of the window of {format_moment(newest.start)}: {newest.unjudged_reason}; {detail}",
        )
    if newest.verdict in {"drifted", "degraded"}:
        return LoopStatus(
            "warn", "No alarm yet", f"{newest.verdict} on {format_moment(newest.start)}: {join_names(newest.columns)}"
        )
    if loop.champion is None:
        return LoopStatus("warn", "No champion", f"the newest window is good, but {detail}")
    return LoopStatus("good", "Healthy", detail)


def _short_key(retraining: Retraining) -> str:
    return retraining.key[:8]
