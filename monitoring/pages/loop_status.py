"""The state of the loop in one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from monitoring.pages.status_page_data import StatusPageData
from monitoring.windows.records import Retraining, WindowReport
from shortlist.rollout.page import words

StatusLevel = Literal["good", "warn", "bad", "plain"]

SIGNS: Final[dict[StatusLevel, str]] = {"good": "✓", "warn": "!", "bad": "✕", "plain": "…"}
_NAMES: Final = 4


@dataclass(frozen=True)
class LoopStatus:
    """How the loop is."""

    level: StatusLevel
    word: str
    rest: str
    """What the word means here; with the word before it, a sentence."""

    @property
    def sentence(self) -> str:
        """All of it."""
        return f"{self.word}{' ' if self.rest.startswith('since ') else ': '}{self.rest}"


def loop_state(loop: StatusPageData) -> LoopStatus:
    """Return how the loop is: what is worst comes first, and nothing that is not known is called healthy."""
    newest, decision = loop.newest, loop.decision
    if newest is None:
        return LoopStatus("plain", "Nothing watched yet", f"{_served(loop)}; no window is ready")
    if loop.broken_since is not None:
        return _broken(loop, newest, loop.broken_since)
    if loop.alarm.since is not None:
        return _alarm(loop, loop.alarm.since)
    if decision is not None and decision.action == "page":
        return LoopStatus(
            "bad", "A person is needed", decision.reasons[0] if decision.reasons else join_names(decision.columns)
        )
    return _quiet(loop, newest)


def join_names(names: Iterable[str]) -> str:
    """Return names as they are said, the first few of many.

    >>> join_names(("a", "b", "c", "d", "e", "f"))
    'a, b, c, d and 2 more'
    """
    every = tuple(names)
    more = len(every) - _NAMES
    return ", ".join(every[:_NAMES]) + (f" and {more} more" if more > 0 else "")


def format_duration(time: timedelta) -> str:
    """Return a time in the largest unit that fits it.

    >>> [format_duration(one) for one in (timedelta(days=4, hours=3), timedelta(minutes=1), timedelta(seconds=9))]
    ['4 days', '1 minute', 'less than a minute']
    """
    minutes = int(time.total_seconds() // 60)
    for unit, length in (("day", 1440), ("hour", 60), ("minute", 1)):
        if minutes >= length:
            number = minutes // length
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return "less than a minute"


def moment(time: datetime) -> str:
    """Return a moment of a window: the day alone when that is enough.

    >>> moment(datetime(2026, 1, 21)), moment(datetime(2026, 1, 21, 6))
    ('2026-01-21', '2026-01-21 06:00')
    """
    return f"{time:%Y-%m-%d}" if (time.hour, time.minute) == (0, 0) else f"{time:%Y-%m-%d %H:%M}"


def _served(loop: StatusPageData) -> str:
    if loop.champion is None:
        return "no version serves everybody"
    if loop.serving_since is None:
        return f"version {loop.champion} serves"
    return f"version {loop.champion} has served for {format_duration(loop.made - loop.serving_since)}"


def _broken(loop: StatusPageData, newest: WindowReport, since: datetime) -> LoopStatus:
    what = (f"column {one.column}" if one.column else words(one.kind) for one in newest.problems)
    running = loop.running
    then = f"retraining {_short(running)}, begun before, is running" if running else "training is held"
    alarm = f"; the alarm of {moment(loop.alarm.since)} stays" if loop.alarm.since else ""
    return LoopStatus(
        "bad", "Data are broken", f"since {moment(since)}: {join_names(dict.fromkeys(what))}; {then}{alarm}"
    )


def _alarm(loop: StatusPageData, since: datetime) -> LoopStatus:
    return LoopStatus(
        "bad", "Alarm", f"since {moment(since)}: {join_names(loop.alarm.columns)}; {_answer(loop, since)}"
    )


def _answer(loop: StatusPageData, since: datetime) -> str:
    """Return what is being done about an alarm."""
    if loop.running is not None:
        return f"retraining {_short(loop.running)} is running"
    action = loop.decision.action if loop.decision else "hold"
    if action == "page":
        return "a person is needed"
    last = next((one for one in loop.newest_retrainings if one.window >= since), None)
    if last is not None:
        return f"retraining {_short(last)} {ended(last.state)}"
    return "training is about to begin" if action == "retrain" else "training is held"


def ended(state: str) -> str:
    """Return how a retraining ended, as the end of a sentence."""
    return {
        "failed": "failed",
        "held": "brought no model that the gates let pass",
        "not_promoted": "brought a model that was not promoted",
        "promoted": "was promoted",
        "running": "is running",
    }[state]


def _quiet(loop: StatusPageData, newest: WindowReport) -> LoopStatus:
    """Return the state without an alarm."""
    running = f"; retraining {_short(loop.running)} is running" if loop.running else ""
    rest = f"{_served(loop)}; no alarm{running}"
    if newest not in loop.counted[-1:]:
        return LoopStatus("warn", "Too early to tell", f"{_served(loop)}, but no whole window yet; no alarm{running}")
    if newest.verdict == "unjudged":
        return LoopStatus("warn", "Not judged", f"too little is known of the window of {moment(newest.start)}; {rest}")
    if newest.verdict in {"drifted", "degraded"}:
        return LoopStatus(
            "warn", "No alarm yet", f"{newest.verdict} on {moment(newest.start)}: {join_names(newest.columns)}"
        )
    if loop.champion is None:
        return LoopStatus("warn", "No champion", f"the newest window is good, but {rest}")
    return LoopStatus("good", "Healthy", rest)


def _short(retraining: Retraining) -> str:
    return retraining.key[:8]
