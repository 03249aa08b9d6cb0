"""The facts of a log that its table rules check, and number formats for their messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime

from shortlist.data.rules.profile import DayProfile, LogProfile
from shortlist.data.rules.row_rules import FUTURE
from shortlist.data.rules.side_rules import SideFacts

Problems = Iterator[str]
"""Problems of a log, one sentence each, with the number and the limit."""


@dataclass(frozen=True)
class LogFacts:
    """Counts and profile of a log after its rows were validated."""

    raw_rows: int
    by_rule: Mapping[str, int]
    """Quarantined rows of the log by the rule they broke."""
    profile: LogProfile
    """Profile of the valid rows."""
    side: dict[str, SideFacts]
    column_aucs: dict[str, float]
    now: datetime
    until: datetime | None = None
    """Time from which rows were not read."""
    cut_day: date | None = None
    """The day in which `until` lies; only part of its rows were read."""

    @property
    def future_rows(self) -> int:
        """Rows of the log at or after `until`."""
        return self.by_rule.get(FUTURE, 0)

    @property
    def read_rows(self) -> int:
        """Rows of the log before `until`, valid and quarantined."""
        return self.raw_rows - self.future_rows

    @property
    def days(self) -> list[tuple[date, DayProfile]]:
        """The days in time order."""
        return sorted(self.profile.days.items())


def format_count(number: float) -> str:
    """Return a count with its digits in groups of three.

    >>> format_count(1204511)
    '1 204 511'
    """
    return f"{number:,.0f}".replace(",", " ")


def format_share(part: int, total: int) -> str:
    """Return a part of a total, with its share.

    >>> format_share(3, 1204)
    '3 of 1 204 (0.25%)'
    """
    return f"{format_count(part)} of {format_count(total)} ({part / max(total, 1):.2%})"
