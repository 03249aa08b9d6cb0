"""The log's impressions as the requests that may have led to them: what one user was shown at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from shortlist.contracts import Columns, DataError, Files
from shortlist.serving.log.logs import outcome_columns
from shortlist.serving.traffic.inputs import as_array, sent_columns
from shortlist.serving.traffic.requests import Array
from shortlist.spec.data import Data
from shortlist.storage.tables import DayTable


@dataclass(frozen=True)
class Session:
    """A list of impressions of one user on one day; of rows in time order for a log without users."""

    user: str | None
    inputs: Mapping[str, Array]
    """Length 1 for what is the same in every row, the user first of all."""
    items: Sequence[int | str | None] | None
    """Item keys; None for a log without items."""
    labels: Array
    """Shape (rows,); what became of each impression. Never sent."""
    after: Sequence[Sequence[Any]] = ()
    """What else is known of the outcomes: the values of each of `outcome_columns`, one per impression."""


class Sessions:
    """The sessions of a log's newest days, again and again readable, file by file."""

    def __init__(self, data: Data, log: Path, days: int = 1, rows: int = 20) -> None:
        """Open the log.

        Args:
            data: The log's declaration.
            log: Folder of the valid log.
            days: Newest days that are read.
            rows: Most impressions of a session; more of a user's day become several.

        Raises:
            DataError: The log holds no rows.
        """
        self._data, self._rows = data, rows
        self._table = DayTable.open(log, Files.LOG)
        self._days = {part.day for part in self._table.days if part.rows}
        self._days = set(sorted(self._days)[-days:])
        if not self._days:
            raise DataError(f"{log}: the log holds no rows; there is nothing to play")

    def __iter__(self) -> Iterator[Session]:
        """Give every session once, in the order in which they began."""
        for _, frame in self._table.frames(self._days):
            yield from self._cut(frame)

    def _cut(self, frame: pl.DataFrame) -> Iterator[Session]:
        user, item = self._data.user, self._data.item
        frame = in_session_order(frame, user)
        arrays = {name: as_array(frame[name], column) for name, column in sent_columns(self._data).items()}
        labels = frame[Columns.LABEL].to_numpy()
        after = [frame[name] for name in outcome_columns(self._data)]
        varying = {Columns.TIME, *([item] if item else [])}  # one of them at least tells how many rows there are
        for start, stop in session_bounds(frame, user, self._rows):
            rows = slice(start, stop)
            yield Session(
                user=str(frame[user][start]) if user and frame[user][start] is not None else None,
                inputs={name: _shortest(each[rows], name not in varying) for name, each in arrays.items()},
                items=frame[item][rows].to_list() if item else None,
                labels=labels[rows],
                after=[each[rows].to_list() for each in after],
            )


def in_session_order(frame: pl.DataFrame, user: str | None) -> pl.DataFrame:
    """Return the rows of a file of a log so that each session's lie together, in the order of time."""
    return frame.sort([*([user] if user else []), Columns.TIME, Columns.IMPRESSION], maintain_order=True)


def session_bounds(frame: pl.DataFrame, user: str | None, rows: int) -> list[tuple[int, int]]:
    """Return first row and the one after the last of every session, in the order in which sessions began.

    Args:
        frame: In session order.
        user: Column of the user; None for a log without users.
        rows: Most rows of a session.
    """
    number = pl.int_range(pl.len())
    keys = [user] if user else []
    within = number.over(keys) if keys else number
    numbered = frame.select(*keys, Columns.TIME, number.alias(":row"), (within // rows).alias(":list"))
    cut = numbered.group_by([*keys, ":list"]).agg(
        pl.col(":row").min().alias("start"), pl.col(":row").max().alias("last"), pl.col(Columns.TIME).min()
    )
    return [(start, last + 1) for start, last in cut.sort(Columns.TIME, "start").select("start", "last").rows()]


def _shortest(values: Array, may_shrink: bool) -> Array:
    return values[:1] if may_shrink and bool(np.all(values == values[:1])) else values
