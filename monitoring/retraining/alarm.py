"""The alarm over the judged windows: it has hysteresis, and is computed without stored state."""

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
    """The state of the alarm, and the windows that it depends on."""

    since: datetime | None
    """Start of the window that raised it; None while it is not raised."""
    judged_reports: tuple[WindowReport, ...]
    """The judged windows since the last alarm was cleared, oldest first."""
    newest_reports: tuple[WindowReport, ...]
    """The newest `of_windows` of `judged_reports`."""

    @property
    def is_raised(self) -> bool:
        """Whether the alarm is raised."""
        return self.since is not None

    @property
    def bad_reports(self) -> tuple[WindowReport, ...]:
        """The bad windows among the newest; of a raised alarm without any, the last bad window."""
        bad_reports = tuple(filter(is_bad, self.newest_reports))
        return bad_reports or (tuple(filter(is_bad, self.judged_reports))[-1:] if self.is_raised else ())

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of everything that is wrong, the newest first."""
        return tuple(dict.fromkeys(name for report in reversed(self.bad_reports) for name in report.columns))

    def describe(self, policy: RetrainPolicy) -> str:
        """Return the state of the alarm as a sentence."""
        bad_count = sum(map(is_bad, self.newest_reports))
        count = f"{bad_count} of {len(self.newest_reports)} windows {'is' if bad_count == 1 else 'are'} bad"
        if self.since is None:
            return f"{count}; {policy.bad_windows} raise the alarm"
        return (
            f"the alarm is raised since the window of {format_utc(self.since)}: {count}; it ends after"
            f" {policy.clear_windows} good in a row"
        )


def evaluate_alarm(windows: Sequence[WindowReport], policy: RetrainPolicy) -> Alarm:
    """Return the alarm after all windows, oldest first; broken and unjudged ones neither raise nor clear it."""
    since: datetime | None = None
    judged_reports: list[WindowReport] = []
    for report in windows:
        if report.verdict not in JUDGED:
            continue
        judged_reports.append(report)
        if since is None and sum(map(is_bad, judged_reports[-policy.of_windows :])) >= policy.bad_windows:
            since = report.start
        elif since is not None and not any(map(is_bad, judged_reports[-policy.clear_windows :])):
            # Windows that raised the last alarm must not raise the next one.
            since, judged_reports = None, []
    return Alarm(since, tuple(judged_reports), tuple(judged_reports[-policy.of_windows :]))


def reports_of_current_model(
    reports: Sequence[WindowReport], retrainings: Sequence[Retraining]
) -> tuple[WindowReport, ...]:
    """Return the reports of windows since the newest promoted model began to serve.

    Args:
        reports: The report of every window, oldest first.
        retrainings: Every retraining, oldest first.
    """
    promoted = [
        retraining for retraining in retrainings if retraining.state == "promoted" and retraining.version is not None
    ]
    if not promoted:
        return tuple(reports)
    newest = promoted[-1]
    positions = [position for position, report in enumerate(reports) if report.champion == newest.version]
    if positions:
        return tuple(reports[positions[0] :])
    # A promoted model that served in no window for a week was rolled back by hand: its predecessor's windows count
    # again, since otherwise no window would.
    return tuple(report for report in reports if report.start > newest.window + WEEK)


def is_bad(report: WindowReport) -> bool:
    """Return whether a window was judged and is not healthy."""
    return report.verdict in JUDGED and report.verdict != "healthy"


def format_utc(moment: datetime) -> str:
    """Return a moment as a readable text in UTC, to the minute.

    >>> format_utc(datetime(2026, 1, 19, 6, tzinfo=UTC))
    '2026-01-19 06:00'
    """
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"
