"""Source `popular`: the items with the most positives in the last days, by declared keys."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import numpy as np
import polars as pl
from pydantic import Field

from shortlist.contracts import DataError
from shortlist.slates.retrieval.catalogue import Rows, open_mapped_array
from shortlist.slates.retrieval.source import (
    ROW,
    FitInputs,
    Queries,
    RankedItems,
    Scores,
    Source,
    SourceKind,
    pad_lists,
)
from shortlist.spec.base import Names
from shortlist.spec.data import Data
from shortlist.spec.retrieval import check_columns, check_days, columns_of, user_tables

_COUNT, _GROUP, _RANK = "positives", "group", "rank"
_GROUPS, _ITEMS, _SCORES = "groups.parquet", "items.npy", "scores.npy"

_DEPTH: Final = 4
"""Multiple of the items of a request that a list holds."""


class Popular(SourceKind):
    """The items with the most positives of the last days; a large share of the next positives of any user."""

    kind: Literal["popular"]
    """Recent popularity."""
    keys: Names = ()
    """Columns of the log or of a user's side table, such as a surface or a country: the items are counted for each of
    their values; items of the overall list fill the rest."""
    window_days: int | None = Field(default=7, ge=1, le=3_650)
    """Number of newest days that are counted; null: all."""
    min_positives: int = Field(default=100, ge=1)
    """Least number of positives of values with a list of their own; others get the overall list."""

    def check(self, data: Data) -> None:
        """Check the keys and the clock; see `SourceSection.check`."""
        key_columns = {column.name: column for column in data.columns if column.known == "before"}
        key_columns |= columns_of(user_tables(data))
        check_columns(
            self.keys, key_columns, ("integer", "string", "hex"), "the log that is known before, or of a user"
        )
        if self.window_days is not None:
            check_days(data, "window_days")

    @property
    def reads_context(self) -> tuple[str, ...]:
        """The keys."""
        return self.keys

    @property
    def reads_recent(self) -> bool:
        """False: lists do not depend on recent items."""
        return False

    def fit(self, inputs: FitInputs, folder: Path) -> None:
        """Count positives, and write the lists of every value of the keys; line 0 is the overall list."""
        counts = self._count_positives(inputs)
        overall = counts.group_by(ROW).agg(pl.col(_COUNT).sum()).sort([_COUNT, ROW], descending=[True, False])
        # Longer than a request: where filters leave few items, a request asks again for more.
        list_length = min(_DEPTH * inputs.max_items, inputs.catalogue.size)
        overall = overall.head(list_length)
        groups = self._groups(counts)
        by_group = (
            counts.join(groups, on=list(self.keys), nulls_equal=True)
            .sort([_GROUP, _COUNT, ROW], descending=[False, True, False])
            .group_by(_GROUP, maintain_order=True)
            .head(list_length)
            if self.keys
            else pl.DataFrame(schema={_GROUP: pl.UInt32, ROW: pl.Int32, _COUNT: pl.UInt32})
        )
        items = np.full((groups.height + 1, list_length), -1, np.int32)
        scores = np.full(items.shape, -np.inf, np.float32)
        shares = overall[_COUNT].to_numpy() / overall[_COUNT].sum()
        _fill(items[0], scores[0], overall[ROW].to_numpy(), shares, overall[ROW].to_numpy(), shares)
        for (group,), rows in by_group.group_by([_GROUP], maintain_order=True):
            line = int(str(group))
            group_shares = rows[_COUNT].to_numpy() / rows[_COUNT].sum()
            _fill(items[line], scores[line], rows[ROW].to_numpy(), group_shares, overall[ROW].to_numpy(), shares)
        groups.write_parquet(folder / _GROUPS)
        np.save(folder / _ITEMS, items)
        np.save(folder / _SCORES, scores)

    def load(self, folder: Path) -> PopularItems:
        """Return the lists in a folder."""
        items, scores = (open_mapped_array(folder / name) for name in (_ITEMS, _SCORES))
        return PopularItems(pl.read_parquet(folder / _GROUPS), items, scores)

    def _count_positives(self, inputs: FitInputs) -> pl.DataFrame:
        """Return the number of positives of every item for every value of the keys."""
        group_columns = [*self.keys, ROW]
        total: pl.DataFrame | None = None
        for rows in inputs.positives(inputs.last_days(self.window_days), *self.keys):
            file_counts = rows.group_by(group_columns).agg(pl.len().alias(_COUNT))
            all_counts = file_counts if total is None else pl.concat([total, file_counts])
            total = all_counts.group_by(group_columns).agg(pl.col(_COUNT).sum())
        if total is None or not total.height:
            raise DataError(f"there is no positive row in the last {self.window_days} days; declare a longer window")
        return total

    def _groups(self, counts: pl.DataFrame) -> pl.DataFrame:
        """Return the values of the keys with a list of their own, and its line."""
        keys = list(self.keys)
        if not keys:
            return pl.DataFrame(schema={_GROUP: pl.UInt32})
        enough = counts.group_by(keys).agg(pl.col(_COUNT).sum()).filter(pl.col(_COUNT) >= self.min_positives)
        return enough.select(keys).sort(keys).with_row_index(_GROUP, offset=1)


class PopularItems(Source):
    """Lists by the values of keys."""

    def __init__(self, groups: pl.DataFrame, items: Rows, scores: Scores) -> None:
        self._groups, self._items, self._scores = groups, items, scores
        self._keys = [name for name in groups.columns if name != _GROUP]

    def retrieve(self, queries: Queries, max_items: int) -> RankedItems:
        """Return the list of every query's key values; the overall list where they are unknown or missing."""
        lines = np.zeros(queries.size, np.int64)
        if self._keys and set(self._keys) <= set(queries.context.columns):
            query_keys = queries.context.select(pl.col(name).cast(self._groups.schema[name]) for name in self._keys)
            query_groups = query_keys.join(
                self._groups, on=self._keys, how="left", nulls_equal=True, maintain_order="left"
            )
            lines = query_groups[_GROUP].fill_null(0).to_numpy().astype(np.int64)
        return pad_lists(self._items[lines, :max_items], self._scores[lines, :max_items], max_items)


def _fill(
    items: Rows, scores: Scores, group_items: Rows, shares: np.ndarray, overall_items: Rows, overall_shares: np.ndarray
) -> None:
    """Write a list: its own items, then the missing items of the overall list, scored below."""
    count = min(len(group_items), len(items))
    items[:count], scores[:count] = group_items[:count], shares[:count]
    is_missing = ~np.isin(overall_items, group_items)
    missing_items, missing_shares = (
        overall_items[is_missing][: len(items) - count],
        overall_shares[is_missing][: len(items) - count],
    )
    items[count : count + len(missing_items)] = missing_items
    scores[count : count + len(missing_items)] = missing_shares * (shares[count - 1] if count else 1.0)
