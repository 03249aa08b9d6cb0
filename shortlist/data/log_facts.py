"""What the rules of the whole log judge, and how they write numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime

from shortlist.data.profile import DayProfile, Profile
from shortlist.data.rules import FUTURE
from shortlist.data.side_rules import SideFacts

Problems = Iterator[str]
"""What is wrong, one sentence each, with the number and the limit."""


@dataclass(frozen=True)
class LogFacts:
    """What is known of a log after its rows were judged."""

    raw_rows: int
    by_rule: dict[str, int]
    """Quarantined rows of the log by the rule they broke."""
    profile: Profile
    """The valid rows."""
    side: dict[str, SideFacts]
    column_aucs: dict[str, float]
    now: datetime
    until: datetime | None = None
    """Rows from this moment on were not read."""
    cut_day: date | None = None
    """The day that `until` cuts in two; what is left of it has fewer rows than a day."""

    @property
    def future_rows(self) -> int:
        """Rows of the log that came too late to be read."""
        return self.by_rule.get(FUTURE, 0)

    @property
    def read_rows(self) -> int:
        """Rows of the log that could be read, good and bad."""
        return self.raw_rows - self.future_rows

    @property
    def days(self) -> list[tuple[date, DayProfile]]:
        """The days in time order."""
        return sorted(self.profile.days.items())


def grouped(number: float) -> str:
    """Return a count with its digits in groups of three.

    >>> grouped(1204511)
    '1 204 511'
    """
    return f"{number:,.0f}".replace(",", " ")


def share(part: int, whole: int) -> str:
    """Return a count of a whole, with its share.

    >>> share(3, 1204)
    '3 of 1 204 (0.25%)'
    """
    return f"{grouped(part)} of {grouped(whole)} ({part / max(whole, 1):.2%})"
