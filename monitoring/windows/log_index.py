"""What a log is about, quarter hour by quarter hour: each row is looked at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError

from shortlist.contracts import ShortlistError
from shortlist.serving.log.log_follower import LogFollower
from shortlist.serving.log.serving_log import ServingLog
from shortlist.storage.artefacts import read_json, write_json

QUARTER: Final = "quarter"
_TIME: Final = pl.Datetime("us", "UTC")
SUMMARY: Final = pl.Schema({QUARTER: _TIME, "requests": pl.Int64(), "rows": pl.Int64(), "first": _TIME, "last": _TIME})
"""Start of the quarter hour, requests and rows that are about it, first and last time of receipt.

A quarter, because every timezone's midnight is at one."""


class _IndexFile(BaseModel):
    """The index as it is kept between processes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    positions: dict[str, int]
    files: list[str]
    quarters: list[tuple[datetime, int, int, datetime, datetime]]


class LogIndex:
    """The rows of a log's table by the quarter hour that they are about.

    Args:
        log: The log; what is in the streams of this machine is committed first.
        columns: Columns that the summary reads.
        summary: Returns the `SUMMARY` of some rows.
        kept: File in which the index outlives the process; without it, the whole table is read again.
    """

    def __init__(
        self, log: ServingLog, columns: Sequence[str], summary: Callable[[pl.DataFrame], pl.DataFrame], kept: Path
    ) -> None:
        self.log, self._columns, self._summary, self._kept = log, columns, summary, kept
        self.quarters = pl.DataFrame(schema=SUMMARY)
        """`SUMMARY` of all rows, one row per quarter hour."""

    def refresh(self) -> None:
        """Commit what is in the streams of this machine, and look at the rows that are new in the table.

        Raises:
            ShortlistError: The table cannot be read or written.
        """
        self.log.commit()
        table_only = ServingLog.in_table(self.log)
        kept = self._read_kept()
        if kept is None:
            follower = LogFollower(table_only, self._columns)
            self.quarters = pl.DataFrame(schema=SUMMARY)
        else:
            follower = LogFollower(table_only, self._columns, positions=kept.positions, files=kept.files)
            self.quarters = pl.DataFrame(kept.quarters, schema=SUMMARY, orient="row")
        summaries = [self._summary(rows).cast(SUMMARY) for rows in follower.read_new()]
        self.log.unreadable = table_only.unreadable
        if summaries:
            self.quarters = _add_up([self.quarters, *summaries])
        oldest = self.log.oldest_day()
        if oldest is not None:  # older rows were removed, as declared by the retention
            self.quarters = self.quarters.filter(pl.col("last").dt.date() >= oldest)
        if summaries and not self.log.unreadable:  # a file that cannot be read is looked at again
            self._keep(follower)

    def received(self, start: datetime, end: datetime) -> tuple[datetime, datetime] | None:
        """Return when the rows about a span of time were received, first and last; None when there are none."""
        inside = self.quarters.filter(pl.col(QUARTER) >= start, pl.col(QUARTER) < end)
        first, last = inside["first"].min(), inside["last"].max()
        return (first, last) if isinstance(first, datetime) and isinstance(last, datetime) else None

    def _read_kept(self) -> _IndexFile | None:
        try:
            return _IndexFile.model_validate(read_json(self._kept)) if self._kept.exists() else None
        except (ShortlistError, ValidationError):  # incomplete, or of another version: it is made again
            return None

    def _keep(self, follower: LogFollower) -> None:
        kept = _IndexFile(
            positions=dict(follower.positions), files=sorted(follower.files), quarters=self.quarters.rows()
        )
        with suppress(OSError):  # without it, the next process reads the table again
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._kept, kept.model_dump(mode="json"))


def _add_up(summaries: Sequence[pl.DataFrame]) -> pl.DataFrame:
    by_quarter = pl.concat(summaries).filter(pl.col(QUARTER).is_not_null()).group_by(QUARTER)
    added = by_quarter.agg(pl.col("requests", "rows").sum(), pl.col("first").min(), pl.col("last").max())
    return added.select(SUMMARY.names()).sort(QUARTER)
