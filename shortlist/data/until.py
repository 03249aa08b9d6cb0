"""The time until which a run may read rows."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from zoneinfo import ZoneInfo

from shortlist.contracts import DataError
from shortlist.spec.data import Data, EventClock


def parse_until(text: str) -> datetime | None:
    """Parse a pipeline's parameter `until`; None for an empty one.

    Raises:
        DataError: It is no ISO 8601 time, or has no offset from UTC.

    >>> parse_until("2026-01-15T00:00:00+00:00")
    datetime.datetime(2026, 1, 15, 0, 0, tzinfo=datetime.timezone.utc)
    """
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise DataError(
            f"until: got '{text}', wanted a moment as ISO 8601 with its offset from UTC, e.g. 2026-01-15T00:00:00+00:00"
        )
    return moment


def freshness_moment(data: Data, now: datetime) -> str:
    """Return the time (ISO 8601) against which the log's freshness is checked; empty where no rule needs it."""
    return now.isoformat(timespec="seconds") if data.rules.max_age_hours is not None else ""


def find_cut_day(until: datetime | None, data: Data) -> date | None:
    """Return the day of the log that `until` cuts short; None when it is at midnight, or not given."""
    if until is None:
        return None
    zone = ZoneInfo(data.clock.timezone) if isinstance(data.clock, EventClock) else UTC
    local = until.astimezone(zone)
    return None if local.time() == time() else local.date()
