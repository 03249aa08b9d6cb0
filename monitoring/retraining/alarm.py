"""The alarm: what the windows that were judged say together, with hysteresis and without any state of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from monitoring.windows.records import Retraining, Verdict, WindowReport
from shortlist.spec.monitoring import RetrainPolicy

JUDGED: Final[frozenset[Verdict]] = frozenset({"healthy", "drifted", "degraded"})
WEEK: Final = timedelta(days=7)


@dataclass(frozen=True)
class Alarm:
    """Whether it is raised, and by what."""

    since: datetime | None
    """Start of the window that raised it; None while it is not."""
    seen: tuple[WindowReport, ...]
    """The windows that count, oldest first: the judged ones since the last alarm's end."""
    newest: tuple[WindowReport, ...]
    """The newest `of_windows` of them."""

    @property
    def raised(self) -> bool:
        """Whether it is raised."""
        return self.since is not None

    @property
    def bad(self) -> tuple[WindowReport, ...]:
        """The bad ones among the newest; of a raised alarm that has none there, the last bad one."""
        found = tuple(filter(is_bad, self.newest))
        return found or (tuple(filter(is_bad, self.seen))[-1:] if self.raised else ())

    @property
    def columns(self) -> tuple[str, ...]:
        """What is wrong, the newest first."""
        return tuple(dict.fromkeys(name for report in reversed(self.bad) for name in report.columns))

    def says(self, policy: RetrainPolicy) -> str:
        """Return it as a sentence."""
        bad = sum(map(is_bad, self.newest))
        count = f"{bad} of {len(self.newest)} windows {'is' if bad == 1 else 'are'} bad"
        if self.since is None:
            return f"{count}; {policy.bad_windows} raise the alarm"
        return (
            f"the alarm is raised since the window of {text_of(self.since)}: {count}; it ends after"
            f" {policy.clear_windows} good in a row"
        )


def evaluate_alarm(windows: Sequence[WindowReport], policy: RetrainPolicy) -> Alarm:
    """Return what windows say, played from the oldest; broken and unjudged ones neither raise nor end an alarm."""
    since: datetime | None = None
    seen: list[WindowReport] = []
    for report in windows:
        if report.verdict not in JUDGED:
            continue
        seen.append(report)
        if since is None and sum(map(is_bad, seen[-policy.of_windows :])) >= policy.bad_windows:
            since = report.start
        elif since is not None and not any(map(is_bad, seen[-policy.clear_windows :])):
            # What raised the last alarm must not raise the next one.
            since, seen = None, []
    return Alarm(since, tuple(seen), tuple(seen[-policy.of_windows :]))


def reports_of_current_model(
    reports: Sequence[WindowReport], retrainings: Sequence[Retraining]
) -> tuple[WindowReport, ...]:
    """Return the windows that say something about what serves now: those since the newest promoted model began to.

    Args:
        reports: Every window, oldest first.
        retrainings: Every retraining, oldest first.
    """
    promoted = [one for one in retrainings if one.state == "promoted" and one.version is not None]
    if not promoted:
        return tuple(reports)
    newest = promoted[-1]
    served = [number for number, report in enumerate(reports) if report.champion == newest.version]
    if served:
        return tuple(reports[served[0] :])
    # A promoted model that has shown up in no window for a week was taken back by hand; then its predecessor's windows
    # count again, or nobody would ever hear of them.
    return tuple(report for report in reports if report.start > newest.window + WEEK)


def is_bad(report: WindowReport) -> bool:
    """Whether a judged window is a reason for the alarm."""
    return report.verdict in JUDGED and report.verdict != "healthy"


def text_of(moment: datetime) -> str:
    """Return a window's moment as people read it, in UTC.

    >>> text_of(datetime(2026, 1, 19, 6, tzinfo=UTC))
    '2026-01-19 06:00'
    """
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"
