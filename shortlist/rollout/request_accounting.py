"""Which answers are in the prediction log, and which are in it twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from shortlist.rollout.evidence import RequestAccounting

KEPT: Final = 1_000_000
"""Request ids remembered; the oldest that are balanced are forgotten first, and cannot be found doubled any more."""
_NOTHING: Final = pl.Schema({"request": pl.UInt64(), "answered": pl.UInt32(), "logged": pl.UInt32()})


class RequestAccountant:
    """Counts per request id, as Envoy saw it and as the servers logged it."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._open = pl.DataFrame(schema=_NOTHING)
        self._closed = RequestAccounting()

    def add(self, answered: pl.Series, logged: pl.Series) -> None:
        """Count ids.

        Args:
            answered: Hashed ids of requests that Envoy answered with scores and that the log should hold.
            logged: Hashed ids of rows of the prediction log with status 200.
        """
        if not answered.len() + logged.len():
            return
        new = pl.concat([_counted(answered, 1, 0), _counted(logged, 0, 1)])
        both = pl.concat([self._open, new]).group_by("request", maintain_order=True)
        self._open = both.agg(pl.col("answered", "logged").sum())
        if self._open.height > self._kept:
            self._forget()

    def books(self, unreadable: int = 0) -> RequestAccounting:
        """Return the totals."""
        return replace(_plus(_totals(self._open), self._closed), unreadable=unreadable)

    def _forget(self) -> None:
        # The older half: those that are balanced, which nothing more is expected of, before those that are not.
        balanced = pl.col("answered") == pl.col("logged")
        rows = self._open.with_row_index("age").sort(~balanced, "age", maintain_order=True)
        old, young = rows.head(self._kept // 2), rows.slice(self._kept // 2).sort("age")
        self._closed = _plus(self._closed, _totals(old))
        self._open = young.drop("age")


def _plus(one: RequestAccounting, other: RequestAccounting) -> RequestAccounting:
    return RequestAccounting(
        **{name: getattr(one, name) + getattr(other, name) for name in RequestAccounting.__annotations__}
    )


def _counted(ids: pl.Series, answered: int, logged: int) -> pl.DataFrame:
    frame = pl.DataFrame({"request": ids.cast(pl.UInt64)})
    counts = pl.lit(answered, pl.UInt32).alias("answered"), pl.lit(logged, pl.UInt32).alias("logged")
    return frame.with_columns(*counts)


def _totals(rows: pl.DataFrame) -> RequestAccounting:
    # A client may use an id again: then as many rows as answers are right. One row without an answer is not doubled.
    answered, logged = pl.col("answered").cast(pl.Int64), pl.col("logged").cast(pl.Int64)
    expected = pl.max_horizontal(answered, pl.lit(1))
    totals = rows.select(
        answered=answered.sum(),
        logged=logged.sum(),
        lost=(answered - logged).clip(lower_bound=0).sum(),
        doubled=(logged - expected).clip(lower_bound=0).sum(),
        unanswered=((answered == 0) & (logged > 0)).sum(),
    )
    return RequestAccounting(**{name: int(value or 0) for name, value in totals.row(0, named=True).items()})
