"""The kinds of filters: a condition, what a user has seen, and lists of items."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

import numpy as np
import polars as pl

from shortlist.contracts import Columns, ShortlistError
from shortlist.filters.base import Filter, FilterRequest
from shortlist.spec.durations import Duration, parse_duration
from shortlist.system.registry import Registry
from shortlist.system.row_expressions import compile_expression, parse_expression


class Where(Filter):
    """Keep the candidates that fulfil a condition."""

    kind: Literal["where"]
    """A condition over columns."""
    name: str = "where"
    """In answers, metrics and messages."""
    keep: str
    """In SQL: `stock > 0 AND (region IS NULL OR region = user_region)`. A candidate for which it is null is removed."""

    def check(self, types: Mapping[str, pl.DataType]) -> None:
        """Check the condition."""
        parse_expression(self.keep, types, "condition")

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns of the condition."""
        return compile_expression(self.keep).columns

    @property
    def asks_request(self) -> bool:
        """No: what it reads of the request is a column."""
        return False

    def keeps(self, candidates: pl.DataFrame, request: FilterRequest) -> np.ndarray:
        """Return where the condition is true."""
        return compile_expression(self.keep).evaluate_condition(candidates)

    def broken(self, shown: pl.DataFrame, request: FilterRequest) -> int:
        """Count by the filter of the table's own library, which leaves out what is null."""
        return shown.height - shown.filter(pl.sql_expr(self.keep)).height


class Seen(Filter):
    """Remove what the user was shown, or took, within a window."""

    kind: Literal["seen"]
    """The user's own past items."""
    name: str = "seen"
    """In answers, metrics and messages."""
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
        """Return where an item is not among the remembered ones; everything, for a user without a history."""
        if request.history is None:
            return np.ones(len(candidates), np.bool_)
        past = request.history.since(request.now - parse_duration(self.window))
        return ~_among(candidates[Columns.ITEM], past.taken if self.of == "positive" else past.items)

    def broken(self, shown: pl.DataFrame, request: FilterRequest) -> int:
        """Count event by event."""
        past = request.history
        if past is None:
            return 0
        first, every = request.now - parse_duration(self.window), self.of == "shown"
        events = zip(past.items, past.times, past.positive, strict=True)
        remembered = {item for item, time, positive in events if time >= first and (every or positive)}
        return sum(item in remembered for item in shown[Columns.ITEM])


class _ItemList(Filter):
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
        """No: the list is the release's."""
        return False

    def read_list(self, files: Path, item_type: pl.DataType) -> pl.Series:
        """Return the file's items, each once; empty lines and spaces around an item do not count."""
        where = files / self.path
        try:
            lines = where.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ShortlistError(f"filter '{self.name}': {where} cannot be read: {error}") from error
        texts = pl.Series(Columns.ITEM, [text for line in lines if (text := line.strip())], pl.String())
        items = texts.cast(item_type, strict=False)
        if items.has_nulls():
            first = texts.filter(items.is_null())[0]
            raise ShortlistError(
                f"filter '{self.name}': {where}: '{first[:80]}' is no {item_type}, which data.item is;"
                " wanted one item a line"
            )
        if not len(items):
            raise ShortlistError(f"filter '{self.name}': {where} names no item; leave the filter out")
        return items.unique().sort()

    def _listed(self, candidates: pl.DataFrame, request: FilterRequest) -> np.ndarray:
        return _among(candidates[Columns.ITEM], request.lists[self.name])


class Allow(_ItemList):
    """Keep the items of a list only."""

    kind: Literal["allow"]
    """Items that may be shown."""
    name: str = "allow"
    """In answers, metrics and messages."""

    def keeps(self, candidates: pl.DataFrame, request: FilterRequest) -> np.ndarray:
        """Return where an item is listed."""
        return self._listed(candidates, request)

    def broken(self, shown: pl.DataFrame, request: FilterRequest) -> int:
        """Count item by item."""
        return len(set(shown[Columns.ITEM]) - set(request.lists[self.name]))


class Deny(_ItemList):
    """Remove the items of a list."""

    kind: Literal["deny"]
    """Items that are never shown."""
    name: str = "deny"
    """In answers, metrics and messages."""

    def keeps(self, candidates: pl.DataFrame, request: FilterRequest) -> np.ndarray:
        """Return where an item is not listed."""
        return ~self._listed(candidates, request)

    def broken(self, shown: pl.DataFrame, request: FilterRequest) -> int:
        """Count item by item."""
        return len(set(shown[Columns.ITEM]) & set(request.lists[self.name]))


def _among(items: pl.Series, wanted: pl.Series) -> np.ndarray:
    """Return bool, shape (n_items,): which of them are wanted."""
    if not len(items) or not len(wanted):
        return np.zeros(len(items), np.bool_)
    if items.dtype.is_integer() and not items.null_count() and not wanted.null_count():
        return np.isin(items.to_numpy(), wanted.to_numpy())  # in numpy, which takes a tenth of the time for a few
    found: np.ndarray = items.is_in(wanted.implode()).to_numpy()
    return found


FILTERS: Final = Registry[type[Filter]](
    "filters",
    {"where": Where, "seen": Seen, "allow": Allow, "deny": Deny},
)
"""By kind; a new kind is a class and a line here."""
