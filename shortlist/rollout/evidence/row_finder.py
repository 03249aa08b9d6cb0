"""Finds the rows of outcomes that name an item alone, among requests that arrive before or after them."""

from __future__ import annotations

import polars as pl

from shortlist.rollout.evidence.outcomes import MAX_WAITING_OUTCOMES, MAX_WAITING_SCORES
from shortlist.serving.log.outcome_rows import find_rows, names_item_alone

_ITEMS = pl.Schema({"request": pl.UInt64(), "items": pl.List(pl.UInt32())})


class RowFinder:
    """Finds the rows of outcomes that reached a server of the other track, which did not know the answer.

    Args:
        max_items: Most items of requests that are remembered, four bytes each; beyond it the oldest are forgotten.
        max_outcomes: Most outcomes that wait for their request.
    """

    def __init__(self, max_items: int = MAX_WAITING_SCORES, max_outcomes: int = MAX_WAITING_OUTCOMES) -> None:
        self._limits = max_items, max_outcomes
        self._requests = pl.DataFrame(schema=_ITEMS)
        self._waiting: pl.DataFrame | None = None

    def add_requests(self, requests: pl.DataFrame) -> pl.DataFrame | None:
        """Remember the items of new requests; return waiting outcomes of them with their rows, None where none waits.

        Args:
            requests: Columns request, items.
        """
        codes = pl.col("items").cast(pl.List(pl.String)).list.eval(_item_code(pl.element()))
        new_requests = (
            requests.select("request", codes).cast(_ITEMS).unique("request", keep="first", maintain_order=True)
        )
        self._requests = pl.concat([self._requests, new_requests.join(self._requests, on="request", how="anti")])
        lengths = self._requests["items"].list.len()
        if (lengths.sum() or 0) > self._limits[0]:
            is_recent = lengths.reverse().cum_sum().reverse() <= self._limits[0] // 2  # half at once, so seldom
            self._requests = self._requests.filter(is_recent).rechunk()
        waiting, self._waiting = self._waiting, None
        return None if waiting is None else self._place(waiting)

    def add_outcomes(self, outcomes: pl.DataFrame) -> pl.DataFrame:
        """Return outcomes with their rows, without those that wait for their request or name an item it lacks.

        Args:
            outcomes: New outcomes; columns request, row, item, and others.
        """
        nameless = outcomes.filter(names_item_alone())
        with_rows = outcomes.filter(pl.col("row").is_not_null())
        if nameless.is_empty():
            return with_rows
        coded = nameless.with_columns(_item_code(pl.col("item").cast(pl.String)).alias("item"))
        return pl.concat([with_rows.drop("item"), self._place(coded).drop("item")])

    def _place(self, nameless: pl.DataFrame) -> pl.DataFrame:
        is_known = nameless["request"].is_in(self._requests["request"].implode())
        waiting = nameless.filter(~is_known)
        if not waiting.is_empty():
            waiting_before = [] if self._waiting is None else [self._waiting]
            self._waiting = pl.concat([*waiting_before, waiting]).tail(self._limits[1])
        return find_rows(nameless.filter(is_known), self._requests).filter(pl.col("row").is_not_null())


def _item_code(item: pl.Expr) -> pl.Expr:
    """Return the lower half of an item's hash; two of the items of one answer hardly share it."""
    return (item.hash(seed=0) & 0xFFFFFFFF).cast(pl.UInt32)
