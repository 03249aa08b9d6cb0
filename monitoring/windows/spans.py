"""Stretches of time between round hours on the wall clock of a timezone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo


class Span(NamedTuple):
    """From its start on, up to but without its end; both UTC."""

    start: datetime
    end: datetime


def span_of(moment: datetime, hours: int, zone: ZoneInfo) -> Span:
    """Return the stretch that a moment lies in.

    It begins at a wall-clock hour that `hours` divides, from midnight on; where clocks change, it is as much shorter or
    longer.

    Args:
        moment: With a timezone.
        hours: Its length; a divisor of 24.
        zone: Where a day begins at midnight.

    >>> noon, zone = datetime(2026, 3, 8, 12, tzinfo=UTC), ZoneInfo("America/New_York")  # the clocks go forward
    >>> [f"{each:%d %H:%M}" for each in span_of(noon, 24, zone)]
    ['08 05:00', '09 04:00']
    """
    local = moment.astimezone(zone)
    start = local.replace(hour=local.hour - local.hour % hours, minute=0, second=0, microsecond=0, tzinfo=None, fold=0)
    return Span(*(wall.replace(tzinfo=zone).astimezone(UTC) for wall in (start, start + timedelta(hours=hours))))
