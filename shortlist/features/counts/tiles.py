"""Tiles: the periods by which statistics are counted, and the moment from which each is known."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, Self
from zoneinfo import ZoneInfo

import polars as pl

from shortlist.contracts import Columns
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.text.durations import parse_duration

TILE: Final = ":tile"
"""Moment at which a row's tile ends, in microseconds since 1970-01-01 UTC."""

DAY_LENGTH: Final = timedelta(days=1)
_NONE: Final = timedelta()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)


def start_of(day: date, timezone: str) -> datetime:
    """Return the moment, in UTC, at which a day begins in a timezone."""
    return datetime.combine(day, time(), ZoneInfo(timezone)).astimezone(UTC)


def microseconds(moment: datetime) -> int:
    """Return a moment in microseconds since 1970-01-01 UTC."""
    return (moment - _EPOCH) // _MICROSECOND


def moment_of(time: int) -> datetime:
    """Return the moment that is so many microseconds after 1970-01-01 UTC."""
    return _EPOCH + timedelta(microseconds=int(time))


@dataclass(frozen=True)
class Tiles:
    """The tiles into which a log's time is cut.

    The first tile of a day begins at midnight; where a clock change makes a day longer or shorter, its last tile ends
    at the next midnight all the same. The counts of a tile are known from its end plus the outcome delay on, so that
    the values of a key change only at these moments.
    """

    length: timedelta = DAY_LENGTH
    delay: timedelta = _NONE
    """Time after an impression until its outcome is known; whole seconds, as Feast keeps times."""
    timezone: str = "UTC"

    @classmethod
    def from_declaration(cls, data: Data, features: Features, timezone: str) -> Self:
        """Return the tiles of a declaration."""
        delay = parse_duration(data.outcome_delay) if data.outcome_delay is not None else _NONE
        return cls(parse_duration(features.tile), -(-delay // _SECOND) * _SECOND, timezone)

    @property
    def within_days(self) -> bool:
        """Whether values change within a day, so that each row is answered as of its own time."""
        return self.length < DAY_LENGTH or self.delay > _NONE

    def ends(self, day: date) -> pl.Expr:
        """Return the column `TILE` for rows of a day, from their time."""
        start, next_midnight = (
            microseconds(start_of(midnight_day, self.timezone)) for midnight_day in (day, day + DAY_LENGTH)
        )
        length = self.length // _MICROSECOND
        passed = pl.col(Columns.TIME).dt.epoch("us") - start
        return pl.min_horizontal(start + (passed // length + 1) * length, pl.lit(next_midnight, pl.Int64)).alias(TILE)

    def known_from(self, day: date) -> datetime:
        """Return the moment from which all events of a day are known."""
        return start_of(day + DAY_LENGTH, self.timezone) + self.delay

    def known_at(self, moment: datetime) -> datetime:
        """Return the newest moment, not after the given one, at which values could change.

        >>> hourly = Tiles(timedelta(hours=1), timedelta(minutes=30))
        >>> hourly.known_at(datetime(2026, 1, 5, 9, 20, tzinfo=UTC)).isoformat()
        '2026-01-05T08:30:00+00:00'
        """
        day = (moment - self.delay).astimezone(ZoneInfo(self.timezone)).date()
        start = start_of(day, self.timezone)
        return start + (moment - self.delay - start) // self.length * self.length + self.delay

    def counted_until(self, known_moment: datetime) -> datetime:
        """Return the moment up to which impressions are counted in values that became known at a moment."""
        return known_moment - self.delay

    def tile_bounds(self, time: int) -> tuple[int, int]:
        """Return the start and the end of the tile that contains a time; all in microseconds since 1970-01-01 UTC.

        >>> Tiles(timedelta(hours=1)).tile_bounds(5_400_000_000)
        (3600000000, 7200000000)
        """
        day = moment_of(time).astimezone(ZoneInfo(self.timezone)).date()
        start, next_midnight = (
            microseconds(start_of(midnight_day, self.timezone)) for midnight_day in (day, day + DAY_LENGTH)
        )
        length = self.length // _MICROSECOND
        begins = start + (time - start) // length * length
        return begins, min(begins + length, next_midnight)


WHOLE_DAYS: Final = Tiles()
"""Days of UTC, their outcomes known when they end."""
