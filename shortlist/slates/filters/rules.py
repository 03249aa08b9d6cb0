"""The kinds of filters: conditions, items that a user has seen, and lists of items."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

import numpy as np
import polars as pl

from shortlist.contracts import Columns, ShortlistError
from shortlist.slates.filters.base import Filter, FilterRequest
from shortlist.spec.text.durations import Duration, parse_duration
from shortlist.system.registry import Registry
from shortlist.system.row_expressions import compile_expression, parse_expression


class ConditionFilter(Filter):
    """Keep the candidates that fulfil a condition."""

    kind: Literal["where"]
    """A condition over columns."""
    name: str = "where"
    """Name in answers, metrics and messages."""
    keep: str
    """SQL condition: `stock > 0 AND (region IS NULL OR region = user_region)`. A candidate for which it is null is
    removed."""

    def check(self, types: Mapping[str, pl.DataType]) -> None:
        """Check the condition."""
        parse_expression(self.keep, types, "condition")

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns of the condition."""
        return compile_expression(self.keep).columns

    @property
    def asks_request(self) -> bool:
        """False: it reads columns only."""
        return False

    @property
    def is_row_wise(self) -> bool:
        """Whether the condition is."""
        return compile_expression(self.keep).is_row_wise

    def keeps(self, candidates: pl.DataFrame, request: FilterRequest) -> np.ndarray:
        """Return where the condition is true."""
        return compile_expression(self.keep).evaluate_condition(candidates)

    def count_violations(self, shown_items: pl.DataFrame, request: FilterRequest) -> int:
        """Count by Polars' SQL filter, which removes rows with null."""
        return shown_items.height - shown_items.filter(pl.sql_expr(self.keep)).height


class SeenFilter(Filter):
    """Remove items that the user was shown, or took, within a window."""

    kind: Literal["seen"]
    """The user's past items."""
    name: str = "seen"
    """Name in answers, metrics and messages."""
    of: Literal["shown", "positive"] = "shown"
    """`shown`: every impression. `positive`: those with a positive outcome."""
    window: Duration = "30d"
    """How long an item is remembered."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The item."""
        return (Columns.ITEM,)

    @property
    def remembers(self) -> timedelta:
        """The window."""
        return parse_duration(self.window)

    def keeps(self, candidates: pl.DataFrame, request: FilterRequest) -> np.ndarray:
        """Return True for items that are not in the window of the history; for all items without a history."""
        if request.history is None:
            return np.ones(len(candidates), np.bool_)
        past = request.history.since(request.now - parse_duration(self.window))
        return ~_is_in(candidates[Columns.ITEM], past.positive_items if self.of == "positive" else past.items)

    def count_violations(self, shown_items: pl.DataFrame, request: FilterRequest) -> int:
        """Count event by event."""
        past = request.history
        if past is None:
            return 0
        window_start, counts_impressions = request.now - parse_duration(self.window), self.of == "shown"
        events = zip(past.items, past.times, past.positive, strict=True)
        remembered = {
            item for item, time, positive in events if time >= window_start and (counts_impressions or positive)
        }
        return sum(item in remembered for item in shown_items[Columns.ITEM])


class _ItemListFilter(Filter):
    path: str
    """Text file with one item a line, relative to the folder of the log; part of the release."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The item."""
        return (Columns.ITEM,)

    @property
    def file(self) -> str:
        """The list."""
        return self.path

    @property
    def asks_request(self) -> bool:
        """False: the list is part of the release."""
        return False

    @property
    def is_row_wise(self) -> bool:
        """True: it looks up each item."""
        return True

    def read_list(self, files: Path, item_type: pl.DataType) -> pl.Series:
        """Return the file's items, each once; empty lines and spaces around an item are ignored."""
        path = files / self.path
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ShortlistError(f"filter '{self.name}': {path} cannot be read: {error}") from error
        texts = pl.Series(Columns.ITEM, [text for line in lines if (text := line.strip())], pl.String())
        items = texts.cast(item_type, strict=False)
        if items.has_nulls():
            first = texts.filter(items.is_null())[0]
            raise ShortlistError(
                f"filter '{self.name}': {path}: '{first[:80]}' is no {item_type}, which data.item is;"
                " wanted one item a line"
            )
        if not len(items):
            raise ShortlistError(f"filter '{self.name}': {path} names no item; leave the filter out")
        return items.unique().sort()

    def _in_list(self, candidates: pl.DataFrame, request: FilterRequest) -> np.ndarray:
        return _is_in(candidates[Columns.ITEM], request.lists[self.name])


class AllowFilter(_ItemListFilter):
    """Keep only the items of a list."""

    kind: Literal["allow"]
    """Items that may be shown."""
    name: str = "allow"
    """Name in answers, metrics and messages."""

    def keeps(self, candidates: pl.DataFrame, request: FilterRequest) -> np.ndarray:
        """Return True for items of the list."""
        return self._in_list(candidates, request)

    def count_violations(self, shown_items: pl.DataFrame, request: FilterRequest) -> int:
        """Count item by item."""
        return len(set(shown_items[Columns.ITEM]) - set(request.lists[self.name]))


class DenyFilter(_ItemListFilter):
    """Remove the items of a list."""

    kind: Literal["deny"]
    """Items that are never shown."""
    name: str = "deny"
    """Name in answers, metrics and messages."""

    def keeps(self, candidates: pl.DataFrame, request: FilterRequest) -> np.ndarray:
        """Return True for items that are not on the list."""
        return ~self._in_list(candidates, request)

    def count_violations(self, shown_items: pl.DataFrame, request: FilterRequest) -> int:
        """Count item by item."""
        return len(set(shown_items[Columns.ITEM]) & set(request.lists[self.name]))


def _is_in(items: pl.Series, listed_items: pl.Series) -> np.ndarray:
    """Return whether each item is on a list: bool, shape (n_items,)."""
    if not len(items) or not len(listed_items):
        return np.zeros(len(items), np.bool_)
    if items.dtype.is_integer() and not items.null_count() and not listed_items.null_count():
        return np.isin(items.to_numpy(), listed_items.to_numpy())  # in numpy, which takes a tenth of the time for a few
    is_listed: np.ndarray = items.is_in(listed_items.implode()).to_numpy()
    return is_listed


FILTERS: Final = Registry[type[Filter]](
    "filters",
    {"where": ConditionFilter, "seen": SeenFilter, "allow": AllowFilter, "deny": DenyFilter},
)
"""Filter classes by kind; a new kind is a class and a line here."""
