"""Spans of time between whole hours on the wall clock of a timezone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo


class Span(NamedTuple):
    """A half-open span of time, from start to before end; both UTC."""

    start: datetime
    end: datetime


def window_span(moment: datetime, hours: int, zone: ZoneInfo) -> Span:
    """Return the window's span that a moment lies in.

    It starts at a wall-clock hour that `hours` divides, counted from midnight; where clocks change, it is shorter or
    longer by that change.

    Args:
        moment: The moment, with a timezone.
        hours: Length of a window; a divisor of 24.
        zone: The timezone whose midnight starts a day.

    >>> noon, zone = datetime(2026, 3, 8, 12, tzinfo=UTC), ZoneInfo("America/New_York")  # the clocks go forward
    >>> [f"{end:%d %H:%M}" for end in window_span(noon, 24, zone)]
    ['08 05:00', '09 04:00']
    """
    local = moment.astimezone(zone)
    start = local.replace(hour=local.hour - local.hour % hours, minute=0, second=0, microsecond=0, tzinfo=None, fold=0)
    return Span(
        *(local_time.replace(tzinfo=zone).astimezone(UTC) for local_time in (start, start + timedelta(hours=hours)))
    )
