"""Histories of users from before the log: counts and mean vectors of the items in their lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.features.counts.keyed import KeyedView
from shortlist.features.counts.statistics import KeyCount, count
from shortlist.features.declared.static_view_plan import MeanView
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.vectors import Matrix, matrix, vector_series, width_of
from shortlist.spec.data import SideTable
from shortlist.system.query_engine import Engine

_USER = ":user"


@dataclass(frozen=True)
class UserHistories:
    """The lists of items in a user's side table."""

    declared: DeclaredColumns
    side: Path
    """Folder of the side tables."""
    scratch: Path
    rows: int
    """Approximate number of (user, item) pairs held in memory at once."""
    engine: Engine

    def write_count(self, view: KeyedView, history: str, path: Path) -> None:
        """Write how often each value of a key occurs among the (user, item) pairs of a list, as `rows`."""
        counted = KeyedView(view.keys, view.tags)
        total = KeyCount(counted, self.scratch, self.engine)
        for pairs in self._pairs(history, view.keys):
            total.add(*count(pairs, [counted], self.engine))
            if total.held_bytes > self.rows * 64:
                total.spill()
        total.finish(path, self.rows)

    def mean_vectors(self, view: MeanView) -> Iterator[pl.DataFrame]:
        """Yield, per user with a known item in the list, the mean vector of its items as List(Float32)."""
        owner = self.declared.side_table_of(view.vector)
        assert owner is not None
        items = pl.read_parquet(self._file(owner), columns=[owner.key, view.vector]).drop_nulls()
        vectors = matrix(items[view.vector], width_of(items[view.vector]))
        numbers = items.select(pl.col(owner.key).alias(self._item), pl.int_range(pl.len()).alias(":row"))
        for pairs in self._pairs(view.history, (*view.keys, self._item)):
            known_pairs = pairs.join(numbers, on=self._item, how="inner", maintain_order="left")
            starts = (known_pairs[_USER] != known_pairs[_USER].shift(1)).fill_null(value=True).to_numpy().nonzero()[0]
            sums = (
                np.add.reduceat(vectors[known_pairs[":row"].to_numpy()], starts, axis=0) if starts.size else vectors[:0]
            )
            items_per_user = np.diff(np.append(starts, known_pairs.height)).astype(np.float32)
            mean_per_user = cast(Matrix, sums / items_per_user[:, None])
            yield known_pairs[starts].select(
                *view.keys, vector_series(view.features[0], mean_per_user).cast(pl.List(pl.Float32))
            )

    @property
    def _item(self) -> str:
        return str(self.declared.data.item)

    def _file(self, table: SideTable) -> Path:
        return self.side / f"{table.name}.parquet"

    def _pairs(self, history: str, keys: tuple[str, ...]) -> Iterator[pl.DataFrame]:
        """Yield the pairs of some users at a time, with the columns of a key under their names in rows."""
        users = self.declared.side_table_of(history)
        assert users is not None
        table = pl.scan_parquet(self._file(users))
        size = table.select(pl.len(), pl.col(history).list.len().sum().alias("pairs")).collect()
        step = max(1, self.rows * size["len"].item() // max(1, size["pairs"].item()))
        key_columns = [
            pl.col(name).alias(self.declared.row_column(name)) for name in keys if self._is_column_of(name, users)
        ]
        lists = table.select(pl.col(users.key), *key_columns, pl.col(history).alias(self._item)).with_row_index(_USER)
        for first in range(0, max(1, size["len"].item()), step):
            user_lists = lists.slice(first, step).collect()
            pairs = user_lists.explode(self._item, empty_as_null=False, keep_nulls=False)
            yield self._with_side_columns(pairs, users, keys)

    def _with_side_columns(self, pairs: pl.DataFrame, lists: SideTable, keys: tuple[str, ...]) -> pl.DataFrame:
        for table in self.declared.data.side_tables:
            table_columns = [name for name in keys if table is not lists and self._is_column_of(name, table)]
            if table_columns:
                columns = [pl.col(name).alias(self.declared.row_column(name)) for name in table_columns]
                side_values = pl.read_parquet(self._file(table), columns=[table.key, *table_columns]).select(
                    table.key, *columns
                )
                pairs = pairs.join(side_values, on=table.key, how="left", maintain_order="left")
        all_rows_key = pl.lit(0, dtype=pl.Int64).alias(Columns.GLOBAL_KEY)
        return pairs.select(
            _USER,
            all_rows_key,
            *(pl.col(self.declared.row_column(name)).alias(name) for name in keys if name != Columns.GLOBAL_KEY),
        )

    def _is_column_of(self, name: str, table: SideTable) -> bool:
        return name != Columns.GLOBAL_KEY and self.declared.side_table_of(name) is table
