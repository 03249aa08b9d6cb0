"""What a source is: fitted on days of the log into files, loaded from them, asked for items in batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.contracts import Columns
from shortlist.data.side_tables import side_path
from shortlist.retrieval.catalogue import Catalogue, Rows
from shortlist.spec.data import Data
from shortlist.spec.retrieval import ItemIndex, SourceSection, columns_of, user_tables
from shortlist.storage.tables import DayTable

Scores = NDArray[np.float32]

ROW = "item_row"
"""Int32: an item's place in the catalogue."""


@dataclass(frozen=True)
class Queries:
    """Whom items are wanted for; B queries.

    Attributes:
        users: Ids of the users, shape (B,); null for an anonymous one.
        recent: Their latest positive items, newest first, shape (B, R); -1 where there are no more.
        context: B rows of whatever columns of the request and of the user are known.
    """

    users: pl.Series
    recent: Rows
    context: pl.DataFrame

    @property
    def size(self) -> int:
        """Number of queries, B."""
        return len(self.users)

    def slice(self, first: int, last: int) -> Queries:
        """Return neighbouring queries."""
        return Queries(self.users[first:last], self.recent[first:last], self.context[first:last])


class Ranked(NamedTuple):
    """Items for every query, best first; where there are fewer than N, the last ones are -1."""

    items: Rows
    """Shape (B, N)."""
    scores: Scores
    """Shape (B, N); -inf where there is no item. Scores of two sources cannot be compared."""


@dataclass(frozen=True)
class IndexFacts:
    """How a source searches vectors."""

    index: Literal["exact", "approximate"]
    index_recall: float | None = None
    """Share of the exact answers that an approximate index finds; None: not measured, or not approximate."""


class Source(ABC):
    """A fitted source."""

    has_helpers = False
    """Whether other threads work between `begin` and what finishes it."""

    @abstractmethod
    def retrieve(self, queries: Queries, most: int) -> Ranked:
        """Return at most `most` different items for every query."""

    def begin(self, queries: Queries, most: int) -> Callable[[], Ranked]:
        """Begin to retrieve, as far as another thread does it; return what finishes it."""
        return partial(self.retrieve, queries, most)

    def index_facts(self, queries: Queries, most: int) -> IndexFacts | None:
        """Return how vectors are searched; None: there are none.

        Args:
            queries: Real ones.
            most: Items that a query asks for.
        """
        return None


@dataclass(frozen=True)
class FitData:
    """What a source may learn from."""

    log: DayTable
    """The validated log."""
    data: Data
    """The spec's section."""
    days: frozenset[date]
    """Days of the log that it may see."""
    catalogue: Catalogue
    index: ItemIndex
    most: int
    """Items per query that it will be asked for, at most."""
    seed: int

    def last_days(self, count: int | None) -> frozenset[date]:
        """Return the latest days, by the calendar; all for None."""
        if count is None:
            return self.days
        newest = max(self.days)
        return frozenset(day for day in self.days if (newest - day).days < count)

    def positives(self, days: frozenset[date], *columns: str) -> Iterator[pl.DataFrame]:
        """Give the positive rows of some days, file by file in time order: ROW, the user, the time and some columns.

        Args:
            days: Of `days`.
            columns: Columns of the log or of the users' side tables.
        """
        data = self.data
        assert data.user and data.item
        own = {column.name for column in data.columns}
        wanted = list(dict.fromkeys((data.user, *(name for name in columns if name in own))))
        ids = self.catalogue.ids.to_frame(data.item).with_row_index(ROW).cast({ROW: pl.Int32})
        for path in self.log.paths(days):
            rows = (
                pl.scan_parquet(path, hive_partitioning=False)
                .filter(pl.col(Columns.LABEL) == 1, pl.col(data.user).is_not_null())
                .select(*wanted, *([] if data.item in wanted else [data.item]), Columns.TIME)
                .join(ids.lazy(), on=data.item, how="inner", maintain_order="left")
            )
            if set(columns) - own:
                rows = rows.join(self.users.lazy(), on=data.user, how="left", maintain_order="left")
            yield rows.select(ROW, Columns.TIME, *dict.fromkeys((*wanted, *columns))).collect()

    def item_counts(self, days: frozenset[date]) -> NDArray[np.int64]:
        """Return every item's positive rows on some days, by row number."""
        counts = np.zeros(self.catalogue.size, np.int64)
        for rows in self.positives(days):
            counts += np.bincount(rows[ROW].to_numpy(), minlength=self.catalogue.size)
        return counts

    @cached_property
    def users(self) -> pl.DataFrame:
        """The users' side tables side by side, one row per user, with the id under the log's name."""
        return users_of(self.log.folder, self.data)


class SourceKind(SourceSection):
    """A kind of source: its section of a spec, how it is fitted, and how its files are loaded."""

    @property
    def reads_context(self) -> tuple[str, ...]:
        """Columns of the request or of the user that a query should tell it."""
        return ()

    @property
    def reads_recent(self) -> bool:
        """Whether it reads the recent items of a query."""
        return True

    def fit(self, given: FitData, folder: Path) -> None:
        """Learn, and write files that carry no code into an empty folder.

        Raises:
            DataError: There is nothing to learn from.
        """
        raise NotImplementedError

    def refresh(self, given: FitData, before: Path, known: pl.Series, folder: Path) -> None:
        """Bring what was fitted up to newer days and another catalogue, without a training.

        What is counted is fitted again; a kind that is trained overrides this, and keeps what it learnt.

        Args:
            given: The newer days.
            before: Folder of what was fitted.
            known: Ids of its items, by row number.
            folder: Empty; where to write.

        Raises:
            DataError: There is nothing to count.
        """
        self.fit(given, folder)

    def load(self, folder: Path) -> Source:
        """Return the source in a folder, large files mapped into memory and not read."""
        raise NotImplementedError


def users_of(log: Path, data: Data) -> pl.DataFrame:
    """Return the users' side tables of a validated log, one row per user."""
    assert data.user
    found: pl.DataFrame | None = None
    for table in user_tables(data):
        wanted = [data.user, *columns_of([table])]
        rows = pl.read_parquet(side_path(log, table), columns=wanted).unique(data.user, keep="first")
        found = rows if found is None else found.join(rows, on=data.user, how="full", coalesce=True)
    return pl.DataFrame(schema={data.user: pl.Int64}) if found is None else found


class Grouped(NamedTuple):
    """The entries of a list with repeated items."""

    items: Rows
    """Each once, by row number."""
    entries: NDArray[np.int64]
    """Places in the list, by item and then in their order."""
    groups: NDArray[np.int64]
    """Of these entries, the place of the item in `items`."""


def grouped(items: Rows) -> Grouped:
    """Return which entries of a list are of the same item.

    >>> [part.tolist() for part in grouped(np.array([7, 2, 7], np.int32))]
    [[2, 7], [1, 0, 2], [0, 1, 1]]
    """
    # One number for each, by item and then by place: these are sorted faster than `np.unique` finds what is the same.
    ordered = np.sort(items.astype(np.int64) << 32 | np.arange(len(items)))
    of_entry = ordered >> 32
    is_first = np.ones(len(items), np.bool_)
    is_first[1:] = of_entry[1:] != of_entry[:-1]
    return Grouped(of_entry[is_first].astype(np.int32), ordered & 0xFFFFFFFF, np.cumsum(is_first) - 1)


def best(items: NDArray[np.integer[Any]], scores: Scores, most: int) -> Ranked:
    """Return the items of one query with the highest scores, best first; equal scores by row number.

    Args:
        items: Row numbers, shape (M,).
        scores: Same shape.
        most: Wanted items.

    >>> best(np.array([4, 7, 9], np.int32), np.array([0.1, 0.9, 0.9], np.float32), 2).items.tolist()
    [[7, 9]]
    """
    # One number for each, by score and then by row: sorted faster than two columns are.
    falling = _falling((scores + np.float32(0)).view(np.uint32)).astype(np.uint64)  # -0.0 is 0.0
    keys = np.sort(falling << np.uint64(32) | items.astype(np.uint64))[:most]
    found = _falling((keys >> np.uint64(32)).astype(np.uint32)).view(np.float32)
    return padded((keys & np.uint64(0xFFFFFFFF)).astype(np.int32)[None], found[None], most)


def _falling(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the bits of float32 numbers as whole numbers that rise as those fall, and these as bits again."""
    return np.where(bits >> 31, bits, np.uint32(0x7FFFFFFF) - bits)


def highest(scores: NDArray[Any], most: int) -> NDArray[np.intp]:
    """Return the places of the highest scores, best first; equal scores by place.

    >>> highest(np.array([0.1, 0.9, 0.5, 0.9]), 3).tolist()
    [1, 3, 2]
    """
    kept = np.arange(len(scores))
    if len(scores) > most:
        kept = np.flatnonzero(scores >= np.partition(scores, -most)[-most])
    # Stable: equal ones stay by place.
    return kept[np.argsort(-scores[kept], kind="stable")[:most]]


def padded(items: Rows, scores: Scores, most: int) -> Ranked:
    """Return lists of a width; what is missing is -1 and -inf."""
    missing = most - items.shape[1]
    if missing <= 0:
        return Ranked(items[:, :most], scores[:, :most])
    width = ((0, 0), (0, missing))
    return Ranked(np.pad(items, width, constant_values=-1), np.pad(scores, width, constant_values=-np.inf))
