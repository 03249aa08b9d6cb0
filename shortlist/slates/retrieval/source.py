"""Interface of sources: fitted on days of the log into files, loaded from them, and queried in batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field

from shortlist.contracts import Columns, DataError
from shortlist.slates.retrieval.catalogue import Catalogue, Rows
from shortlist.spec.data import Data
from shortlist.spec.retrieval import ItemIndex, SourceSection, check_days, columns_of, user_tables
from shortlist.storage.side_tables import side_path
from shortlist.storage.tables import DayTable

Scores = NDArray[np.float32]

ROW = "item_row"
"""Column: row number of an item in the catalogue, int32."""

USER_NUMBER = "user_number"
"""Column: number of a user among those who took something, int64."""


@dataclass(frozen=True)
class Queries:
    """A batch of queries; B queries.

    Attributes:
        users: Ids of the users, shape (B,); null for an anonymous one.
        recent: Their latest positive items, newest first, shape (B, R); -1 where there are no more.
        context: Known columns of the request and of the user, B rows.
    """

    users: pl.Series
    recent: Rows
    context: pl.DataFrame

    @property
    def size(self) -> int:
        """Number of queries, B."""
        return len(self.users)

    def slice(self, first: int, last: int) -> Queries:
        """Return the queries from first to last."""
        return Queries(self.users[first:last], self.recent[first:last], self.context[first:last])


class RankedItems(NamedTuple):
    """Ranked items of every query, best first; where there are fewer than N, the last ones are -1."""

    items: Rows
    """Row numbers of the items, shape (B, N)."""
    scores: Scores
    """Scores, shape (B, N); -inf where there is no item. Scores of two sources are not comparable."""


@dataclass(frozen=True)
class IndexFacts:
    """Kind and recall of a source's vector index."""

    index: Literal["exact", "approximate"]
    index_recall: float | None = None
    """Share of the exact answers that an approximate index finds; None: not measured, or not approximate."""


class Source(ABC):
    """A fitted source."""

    has_helpers = False
    """Whether other threads work after `begin`."""

    @abstractmethod
    def retrieve(self, queries: Queries, max_items: int) -> RankedItems:
        """Return at most `max_items` distinct items for every query."""

    def begin(self, queries: Queries, max_items: int) -> Callable[[], RankedItems]:
        """Start the part of a retrieval that other threads do; return a function that finishes it."""
        return partial(self.retrieve, queries, max_items)

    def index_facts(self, queries: Queries, max_items: int) -> IndexFacts | None:
        """Return kind and recall of the vector index; None: the source has none.

        Args:
            queries: Real queries.
            max_items: Number of items that a query asks for.
        """
        return None


@dataclass(frozen=True)
class FitInputs:
    """Inputs of a source's fit."""

    log: DayTable
    """The validated log."""
    data: Data
    """The spec's section."""
    days: frozenset[date]
    """Days of the log that may be learnt from."""
    catalogue: Catalogue
    index: ItemIndex
    max_items: int
    """Largest number of items that a query will ask for."""
    seed: int

    def last_days(self, count: int | None) -> frozenset[date]:
        """Return the latest days by the calendar; None: all days."""
        if count is None:
            return self.days
        newest = max(self.days)
        return frozenset(day for day in self.days if (newest - day).days < count)

    def positives(self, days: frozenset[date], *columns: str) -> Iterator[pl.DataFrame]:
        """Yield the positive rows of some days, file by file in time order: ROW, the user, the time and some columns.

        Args:
            days: Days among `days`.
            columns: Columns of the log or of the users' side tables.
        """
        data = self.data
        assert data.user and data.item
        log_columns = {column.name for column in data.columns}
        selected = list(dict.fromkeys((data.user, *(name for name in columns if name in log_columns))))
        ids = self.catalogue.ids.to_frame(data.item).with_row_index(ROW).cast({ROW: pl.Int32})
        for path in self.log.paths(days):
            rows = (
                pl.scan_parquet(path, hive_partitioning=False)
                .filter(pl.col(Columns.LABEL) == 1, pl.col(data.user).is_not_null())
                .select(*selected, *([] if data.item in selected else [data.item]), Columns.TIME)
                .join(ids.lazy(), on=data.item, how="inner", maintain_order="left")
            )
            if set(columns) - log_columns:
                rows = rows.join(self.users.lazy(), on=data.user, how="left", maintain_order="left")
            yield rows.select(ROW, Columns.TIME, *dict.fromkeys((*selected, *columns))).collect()

    def item_counts(self, days: frozenset[date]) -> NDArray[np.int64]:
        """Return the number of positive rows of every item on some days, by row number."""
        counts = np.zeros(self.catalogue.size, np.int64)
        for rows in self.positives(days):
            counts += np.bincount(rows[ROW].to_numpy(), minlength=self.catalogue.size)
        return counts

    def taken_items(self, days: frozenset[date], histories: Sequence[str] = ()) -> pl.DataFrame:
        """Return which user took which items on some days: USER_NUMBER from 0, and ROW, by both; each pair once.

        Args:
            days: Days among `days`.
            histories: Columns of the users' side tables with further items; see `history_items`.

        Raises:
            DataError: There is no positive row, and no item of a history.
        """
        user = self.data.user
        assert user
        pairs = self.history_items(histories).explode(ROW, empty_as_null=False) if histories else None
        for rows in self.positives(days):
            new_pairs = rows.select(user, ROW).unique()
            pairs = new_pairs if pairs is None else pl.concat([pairs, new_pairs]).unique()
        if pairs is None or not pairs.height:
            raise DataError("no positive row of a user on these days; declare a longer window or another kind")
        numbered = pairs.select((pl.col(user).rank("dense") - 1).cast(pl.Int64).alias(USER_NUMBER), ROW)
        return numbered.sort(USER_NUMBER, ROW)

    def history_items(self, histories: Sequence[str]) -> pl.DataFrame:
        """Return the items in some columns of the users' side tables: the user, and ROW with a list, no empty one.

        Args:
            histories: Columns with lists of ids; what the catalogue does not have is left out.
        """
        user, item = self.data.user, self.data.item
        assert user and item
        known_users = self.users.filter(pl.col(user).is_not_null())
        ids = pl.concat(
            known_users.select(user, pl.col(name).cast(pl.List(self.catalogue.ids.dtype)).alias(item))
            .explode(item).drop_nulls()
            for name in histories
        )  # fmt: skip
        item_rows = ids.with_columns(pl.Series(ROW, self.catalogue.find_rows(ids[item])))
        return (
            item_rows.filter(pl.col(ROW) >= 0)
            .group_by(user, maintain_order=True)
            .agg(pl.col(ROW).unique(maintain_order=True))
        )

    @cached_property
    def users(self) -> pl.DataFrame:
        """The users' side tables side by side, one row per user, with the id under the log's name."""
        return read_user_tables(self.log.folder, self.data)


class SourceKind(SourceSection):
    """A kind of source: its section of a spec, its fit, and the loading of its files."""

    @property
    def reads_context(self) -> tuple[str, ...]:
        """Columns of the request or of the user that the source reads."""
        return ()

    @property
    def reads_recent(self) -> bool:
        """Whether it reads the recent items of a query."""
        return True

    def fit(self, inputs: FitInputs, folder: Path) -> None:
        """Fit the source, and write files that carry no code into an empty folder.

        Raises:
            DataError: There is nothing to learn from.
        """
        raise NotImplementedError

    def refresh(self, inputs: FitInputs, fitted_folder: Path, fitted_ids: pl.Series, folder: Path) -> None:
        """Update a fitted source to newer days and another catalogue, without training.

        Sources of counts are fitted again; kinds that are trained override this method and keep their weights.

        Args:
            inputs: Inputs with the newer days.
            fitted_folder: Folder of the fitted source.
            fitted_ids: Ids of its items, by row number.
            folder: Empty folder to write.

        Raises:
            DataError: There is nothing to count.
        """
        self.fit(inputs, folder)

    def load(self, folder: Path) -> Source:
        """Return the source in a folder; large files are mapped into memory."""
        raise NotImplementedError


class WindowedSourceKind(SourceKind):
    """A kind of source that learns from the newest days."""

    window_days: int | None = Field(default=None, ge=1, le=3_650)
    """Number of newest days whose positives count; null: all."""

    def check(self, data: Data) -> None:
        """Check the clock; see `SourceSection.check`."""
        if self.window_days is not None:
            check_days(data, "window_days")


def read_user_tables(log: Path, data: Data) -> pl.DataFrame:
    """Return the users' side tables of a validated log, one row per user."""
    assert data.user
    users: pl.DataFrame | None = None
    for table in user_tables(data):
        columns = [data.user, *columns_of([table])]
        rows = pl.read_parquet(side_path(log, table), columns=columns).unique(data.user, keep="first")
        users = rows if users is None else users.join(rows, on=data.user, how="full", coalesce=True)
    return pl.DataFrame(schema={data.user: pl.Int64}) if users is None else users


class RowGroups(NamedTuple):
    """Groups of equal items in a list."""

    items: Rows
    """Distinct items, by row number."""
    positions: NDArray[np.int64]
    """Positions in the list, by item and then in their order."""
    groups: NDArray[np.int64]
    """Index into `items` of the item at each of these positions."""


def group_rows(items: Rows) -> RowGroups:
    """Return the positions of each item in a list.

    >>> [part.tolist() for part in group_rows(np.array([7, 2, 7], np.int32))]
    [[2, 7], [1, 0, 2], [0, 1, 1]]
    """
    # One number per position, by item and then by position: sorting these is faster than `np.unique`.
    ordered = np.sort(items.astype(np.int64) << 32 | np.arange(len(items)))
    sorted_items = ordered >> 32
    is_first = np.ones(len(items), np.bool_)
    is_first[1:] = sorted_items[1:] != sorted_items[:-1]
    return RowGroups(sorted_items[is_first].astype(np.int32), ordered & 0xFFFFFFFF, np.cumsum(is_first) - 1)


def rank_items(items: NDArray[np.integer[Any]], scores: Scores, max_items: int) -> RankedItems:
    """Return the items of one query with the highest scores, best first; equal scores by row number.

    Args:
        items: Row numbers, shape (M,).
        scores: Same shape.
        max_items: Number of items.

    >>> rank_items(np.array([4, 7, 9], np.int32), np.array([0.1, 0.9, 0.9], np.float32), 2).items.tolist()
    [[7, 9]]
    """
    # One number per item, by score and then by row: sorting these is faster than sorting two columns.
    falling = _to_descending_bits((scores + np.float32(0)).view(np.uint32)).astype(np.uint64)  # -0.0 is 0.0
    keys = np.sort(falling << np.uint64(32) | items.astype(np.uint64))[:max_items]
    best_scores = _to_descending_bits((keys >> np.uint64(32)).astype(np.uint32)).view(np.float32)
    return pad_lists((keys & np.uint64(0xFFFFFFFF)).astype(np.int32)[None], best_scores[None], max_items)


def _to_descending_bits(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return float32 bits mapped to integers in descending order of the numbers; the mapping is its own inverse."""
    return np.where(bits >> 31, bits, np.uint32(0x7FFFFFFF) - bits)


def top_positions(scores: NDArray[Any], max_items: int) -> NDArray[np.intp]:
    """Return the positions of the highest scores, best first; equal scores by position.

    >>> top_positions(np.array([0.1, 0.9, 0.5, 0.9]), 3).tolist()
    [1, 3, 2]
    """
    positions = np.arange(len(scores))
    if len(scores) > max_items:
        positions = np.flatnonzero(scores >= np.partition(scores, -max_items)[-max_items])
    # Stable: equal scores stay ordered by position.
    return positions[np.argsort(-scores[positions], kind="stable")[:max_items]]


def pad_lists(items: Rows, scores: Scores, max_items: int) -> RankedItems:
    """Return lists cut or padded to a width; padding is -1 and -inf."""
    missing_columns = max_items - items.shape[1]
    if missing_columns <= 0:
        return RankedItems(items[:, :max_items], scores[:, :max_items])
    width = ((0, 0), (0, missing_columns))
    return RankedItems(np.pad(items, width, constant_values=-1), np.pad(scores, width, constant_values=-np.inf))
