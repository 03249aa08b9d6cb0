"""The moment until which a run may read."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from zoneinfo import ZoneInfo

from shortlist.contracts import DataError
from shortlist.spec.data import Data, EventClock


def until_of(text: str) -> datetime | None:
    """Return the moment that a pipeline's parameter `until` names; None for an empty one.

    Raises:
        DataError: It is no moment, or says nothing of its offset from UTC.

    >>> until_of("2026-01-15T00:00:00+00:00")
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
    """Return the moment (ISO 8601) against which the log's freshness is judged; empty where no rule asks for it."""
    return now.isoformat(timespec="seconds") if data.rules.max_age_hours is not None else ""


def cut_day(until: datetime | None, data: Data) -> date | None:
    """Return the day of the log that `until` cuts in two; None when it lies at a midnight, or there is none."""
    if until is None:
        return None
    zone = ZoneInfo(data.clock.timezone) if isinstance(data.clock, EventClock) else UTC
    local = until.astimezone(zone)
    return None if local.time() == time() else local.date()
