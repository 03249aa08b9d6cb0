"""Items that users took before the log begins, by a side table: more to fit on, and more recent items of a query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from shortlist.slates.retrieval.catalogue import Rows
from shortlist.slates.retrieval.source import (
    FitInputs,
    IndexFacts,
    Queries,
    RankedItems,
    Source,
    WindowedSourceKind,
)
from shortlist.slates.retrieval.user_item_lists import USER, UserItemLists, write_user_item_lists
from shortlist.spec.base import Names
from shortlist.spec.data import Data
from shortlist.spec.retrieval import check_columns, columns_of, user_tables

_HISTORIES: Final = "histories.arrow"


class HistorySourceKind(WindowedSourceKind):
    """A kind of source that learns which user took what, whatever the order."""

    histories: Names = ()
    """Columns of a side table of the users with lists of items that they took, such as before the log begins: they are
    learnt like positive rows, and join the recent items of a query."""

    def check(self, data: Data) -> None:
        """Check the clock and the columns; see `SourceSection.check`."""
        super().check(data)
        user_columns = columns_of(user_tables(data))
        check_columns(self.histories, user_columns, ("tags",), "a side table of the users")
        item = next(column for column in data.columns if column.name == data.item)
        for name in self.histories:
            if user_columns[name].polars_type != pl.List(item.polars_type):
                raise ValueError(
                    f"'{name}' has values of tag_type {user_columns[name].tag_type}, which are no ids of data.item"
                    f" '{item.name}' of type {item.type}; declare the tag_type of the item"
                )

    def write_histories(self, inputs: FitInputs, folder: Path) -> None:
        """Write the items of the declared columns, if there are any."""
        if self.histories:
            user = inputs.data.user or ""
            write_user_item_lists(inputs.history_items(self.histories).rename({user: USER}), folder / _HISTORIES)

    def add_histories(self, source: Source, folder: Path) -> Source:
        """Return a source whose queries have the items in a folder too."""
        return HistorySource(source, UserItemLists.open(folder / _HISTORIES)) if self.histories else source


class HistorySource(Source):
    """A source whose queries get the users' histories after their recent items.

    Args:
        source: The source.
        histories: Items of the users.
    """

    def __init__(self, source: Source, histories: UserItemLists) -> None:
        self._source, self._histories = source, histories
        self.has_helpers = source.has_helpers

    def retrieve(self, queries: Queries, max_items: int) -> RankedItems:
        """See `Source.retrieve`."""
        return self._source.retrieve(self._with_histories(queries), max_items)

    def begin(self, queries: Queries, max_items: int) -> Callable[[], RankedItems]:
        """See `Source.begin`."""
        return self._source.begin(self._with_histories(queries), max_items)

    def index_facts(self, queries: Queries, max_items: int) -> IndexFacts | None:
        """See `Source.index_facts`."""
        return self._source.index_facts(self._with_histories(queries), max_items)

    def _with_histories(self, queries: Queries) -> Queries:
        return replace(queries, recent=join_lists(queries.recent, self._histories.find(queries.users)))


def join_lists(first: Rows, second: Rows) -> Rows:
    """Return the rows of two matrices one behind the other; an item that a row has already is -1.

    >>> join_lists(np.array([[4, 7, -1]], np.int32), np.array([[7, 9]], np.int32)).tolist()
    [[4, 7, -1, -1, 9]]
    """
    joined = np.concatenate([first, second], axis=1)
    order = np.argsort(joined, axis=1, kind="stable")
    ordered = np.take_along_axis(joined, order, 1)
    is_repeated = np.zeros(joined.shape, np.bool_)
    np.put_along_axis(is_repeated, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], 1)
    joined[is_repeated] = -1
    return joined
