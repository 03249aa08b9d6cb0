"""Groups the log's impressions into sessions: the items that one user may have been shown in one request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from shortlist.contracts import Columns, DataError, Files
from shortlist.serving.log.logs import outcome_columns
from shortlist.serving.traffic.inputs import as_array, sent_columns
from shortlist.serving.traffic.requests import Array
from shortlist.spec.data import Data
from shortlist.spec.retrieval import RECENT_ITEMS, K, Retrieval
from shortlist.storage.tables import DayPart, DayTable

_SLATE_ITEMS: Final = 10


@dataclass(frozen=True)
class Session:
    """Impressions of one user on one day; for a log without users, rows in time order."""

    day: date
    time: datetime
    """Time of its first impression."""
    user: str | None
    inputs: Mapping[str, Array]
    """Inputs of the request; length 1 for values that are equal in every row, such as the user."""
    items: Sequence[int | str | None] | None
    """Item keys; None for a log without items."""
    labels: Array
    """Labels of the impressions, shape (rows,); never sent."""
    after_columns: Sequence[Sequence[Any]] = ()
    """Further outcomes: the values of each of `outcome_columns`, one per impression."""


class SlateRequests(BaseModel):
    """What requests for recommendations say beside their user."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    k: int = Field(ge=1)
    """Number of items."""
    context: tuple[str, ...]
    """Columns that the request determines."""
    recent_items: int = Field(ge=0)
    """Most recent items of a request without a user."""

    @classmethod
    def from_section(cls, section: Retrieval) -> Self:
        """Return the requests that a release of a section answers."""
        return cls(
            k=min(_SLATE_ITEMS, section.candidates), context=tuple(section.context), recent_items=section.recent_items
        )

    def inputs(self, session: Session, user: str | None = None) -> dict[str, Array]:
        """Return the inputs of a request for recommendations at the beginning of a session.

        Args:
            session: The session.
            user: Column with the user; None: a request without one, whose recent items are those of the session.
        """
        context = {name: session.inputs[name][:1] for name in self.context if name in session.inputs}
        slate_inputs = {K: np.array([self.k]), **context}
        if user is not None:
            return slate_inputs | {user: session.inputs[user][:1]}
        recent = [item for item in session.items or () if item is not None][: self.recent_items]
        if not recent:
            return slate_inputs
        return slate_inputs | {RECENT_ITEMS: np.array(recent, object if isinstance(recent[0], str) else np.int64)}


class Sessions:
    """The sessions of a log's newest days; can be iterated repeatedly, and reads file by file."""

    def __init__(
        self, data: Data, log: Path, days: int = 1, rows: int = 20, *, leaves_out_collected: bool = False
    ) -> None:
        """Open the log.

        Args:
            data: Declared columns of the log.
            log: Folder of the valid log.
            days: Number of newest days to read.
            rows: Most impressions of a session; more impressions of a user's day become several sessions.
            leaves_out_collected: Whether to read rows of the declared source alone, and the newest days that have
                some. Requests made from rows that were collected from live traffic would be collected once more.

        Raises:
            DataError: The log holds no rows, or only collected ones where they are left out.
        """
        self._data, self._rows, self._leaves_out_collected = data, rows, leaves_out_collected
        self._table = DayTable.open(log, Files.LOG)
        self.rows_by_day: dict[date, int] = {}
        """Number of rows that are read, by day, newest first."""
        self.collected_rows = 0
        """Number of collected rows that are left out: those of these days and of the days after them."""
        for part in reversed(self._table.days):
            row_count = _count_source_rows(self._table, part) if leaves_out_collected else part.rows
            self.collected_rows += part.rows - row_count
            if row_count:
                self.rows_by_day[part.day] = row_count
            if len(self.rows_by_day) == days:
                break
        if not self.rows_by_day and self.collected_rows:
            raise DataError(
                f"{log}: all {self.collected_rows:,} rows of the log were collected from live traffic; there is nothing"
                " to play, as collected rows would be collected once more. Add rows to the log in data.source"
            )
        if not self.rows_by_day:
            raise DataError(f"{log}: the log holds no rows; there is nothing to play")

    def __iter__(self) -> Iterator[Session]:
        """Yield every session once, ordered by their beginnings."""
        for _, frame in self._table.frames(set(self.rows_by_day)):
            yield from self._cut(_source_rows(frame.lazy()).collect() if self._leaves_out_collected else frame)

    def _cut(self, frame: pl.DataFrame) -> Iterator[Session]:
        user, item = self._data.user, self._data.item
        frame = in_session_order(frame, user)
        arrays = {name: as_array(frame[name], column) for name, column in sent_columns(self._data).items()}
        labels = frame[Columns.LABEL].to_numpy()
        after_columns = [frame[name] for name in outcome_columns(self._data)]
        varying = {Columns.TIME, *([item] if item else [])}  # at least one of them has the number of rows
        for start, stop in session_bounds(frame, user, self._rows):
            rows = slice(start, stop)
            yield Session(
                day=frame[Columns.DAY][start],
                time=frame[Columns.TIME][start],
                user=str(frame[user][start]) if user and frame[user][start] is not None else None,
                inputs={name: _shortest(values[rows], name not in varying) for name, values in arrays.items()},
                items=frame[item][rows].to_list() if item else None,
                labels=labels[rows],
                after_columns=[values[rows].to_list() for values in after_columns],
            )


def _count_source_rows(table: DayTable, part: DayPart) -> int:
    """Return the number of a day's rows that were not collected from live traffic."""
    if not part.rows:
        return 0
    return int(_source_rows(table.scan({part.day})).select(pl.len()).collect().item())


def _source_rows(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return the rows of the declared source; only collected rows were served by a version."""
    has_served = Columns.SERVED_VERSION in rows.collect_schema().names()
    return rows.filter(pl.col(Columns.SERVED_VERSION).is_null()) if has_served else rows


def in_session_order(frame: pl.DataFrame, user: str | None) -> pl.DataFrame:
    """Return the rows of a file of a log sorted by session and time."""
    return frame.sort([*([user] if user else []), Columns.TIME, Columns.IMPRESSION], maintain_order=True)


def session_bounds(frame: pl.DataFrame, user: str | None, rows: int) -> list[tuple[int, int]]:
    """Return the first row of every session and the one after its last, ordered by the sessions' beginnings.

    Args:
        frame: In session order.
        user: Column of the user; None for a log without users.
        rows: Most rows of a session.
    """
    number = pl.int_range(pl.len())
    keys = [user] if user else []
    row_number = number.over(keys) if keys else number
    numbered = frame.select(*keys, Columns.TIME, number.alias(":row"), (row_number // rows).alias(":list"))
    cut = numbered.group_by([*keys, ":list"]).agg(
        pl.col(":row").min().alias("start"), pl.col(":row").max().alias("last"), pl.col(Columns.TIME).min()
    )
    return [(start, last + 1) for start, last in cut.sort(Columns.TIME, "start").select("start", "last").rows()]


def _shortest(values: Array, may_shrink: bool) -> Array:
    return values[:1] if may_shrink and bool(np.all(values == values[:1])) else values
