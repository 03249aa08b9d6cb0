"""Transforming rows of the log into features: look up, then compute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Self

import polars as pl

from shortlist.contracts import Columns, ShortlistError, did_you_mean
from shortlist.features.counts.tiles import WHOLE_DAYS, Tiles
from shortlist.features.declared.feature_kind import NumberQuery, computed_column
from shortlist.features.declared.joined_lists import with_joined_lists
from shortlist.features.declared.plan import Plan, PlannedView
from shortlist.features.declared.slates import with_slates
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.features.stored_views.lookup import ViewAnswers, ViewFile, gather_answers, lookup_keys
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.features.values.derived_columns import with_derived_columns
from shortlist.features.values.lookup_table import LookupTable
from shortlist.system.query_engine import Engine, collect


@dataclass(frozen=True)
class Transformer:
    """Computes fitted features; the same for a table, for Feast's answers and for a single row."""

    preprocessing: Preprocessing
    files: Mapping[str, ViewAnswers]
    engine: Engine
    tables: dict[str, LookupTable] = field(default_factory=dict)
    """Look-up tables of integers, by output, built when first needed."""
    tiles: Tiles = WHOLE_DAYS
    """Tiles of the views."""

    @classmethod
    def load(cls, fitted: Path, engine: Engine = "auto", preprocessing: Path | None = None) -> Self:
        """Return the transformer that `fit` wrote into a folder.

        Args:
            fitted: The folder.
            engine: Executor of the queries.
            preprocessing: `features.json` and vocabularies to use instead of the folder's, of the same declaration:
                a model keeps the ids and moments it was trained with, while statistics move on.
        """
        loaded = Preprocessing.load(preprocessing or fitted)
        planned = loaded.plan
        timezone = planned.declared.timezone
        index = ViewIndex.read(fitted / "views")
        return cls(
            preprocessing=loaded,
            files={
                view.name: ViewFile(index.path(indexed), view, indexed.newest_keys, timezone, engine)
                for view, indexed in ((view, index.view(view.name)) for view in planned.views)
            },
            engine=engine,
            tiles=index.tiles,
        )

    @property
    def plan(self) -> Plan:
        """The plan of the declared features."""
        return self.preprocessing.plan

    def with_searched_views(self, files: Sequence[Path], day: date) -> Self:
        """Return the transformer for some files of a day, for all of which it has searched the large views once.

        Views whose keys are in other views, and those that change within a day, are searched for each part.
        """
        declared = self.plan.declared
        names = set(pl.read_parquet_schema(files[0]))
        views = {
            view: file
            for view in self.plan.views
            if isinstance(file := self.files[view.name], ViewFile) and file.is_searched
            and names.issuperset(map(declared.row_column, view.keys))
        }  # fmt: skip
        if self.tiles.within_days or not views:
            return self
        columns = sorted({declared.row_column(key) for view in views for key in view.keys})
        keys: dict[str, list[pl.DataFrame]] = {view.name: [] for view in views}
        for path in files:
            rows = pl.read_parquet(path, columns=columns, hive_partitioning=False)
            for view in views:
                keys[view.name].append(self.lookup_keys(view, rows).select(view.keys).unique())
        searched = {view.name: file.search(pl.concat(keys[view.name]), day) for view, file in views.items()}
        return replace(self, files={**self.files, **searched})

    def columns(self) -> list[dict[str, Any]]:
        """Return name, kind, size (ids, 0 among them) and width of every feature, in order."""
        return self.preprocessing.columns()

    def look_up(self, rows: pl.DataFrame, day: date) -> pl.DataFrame:
        """Return rows of one day with every view's features, named `<view>:<feature>`.

        They are as of that day's start or, where tiles are shorter or outcomes known later, as of each row's time.
        `shortlist.features.rows.table_rows.read_day` returns the rows: with the counts of the open tiles, and whole
        slates.
        """
        for view in self.plan.views:
            keys = self.lookup_keys(view, rows)
            rows = self.gather(view, rows, keys, self.files[view.name].answer(keys, day))
        rows = with_derived_columns(rows, self.plan.derived_columns, self.plan.declared)
        rows = with_joined_lists(rows, self.plan.joined_lists, lambda view, keys: self.answer(view, keys, day))
        return with_slates(rows, self.plan.slates)

    def answer(self, view: str, keys: pl.DataFrame, day: date) -> pl.DataFrame:
        """Return one view's features for each row of keys, in order; null where unknown.

        They are as of a day's start or, for keys with an `event_time`, as of that.

        Raises:
            ShortlistError: There is no such view.
        """
        if view not in self.files:
            raise ShortlistError(f"no view '{view}'{did_you_mean(view, self.files)}")
        return self.files[view].answer(keys, day)

    def keys_of(self, rows: pl.DataFrame, day: date) -> pl.DataFrame:
        """Return `event_time`, `day` and every key of every view, by its own name, side tables' columns included."""
        for view in self.plan.static_views:
            keys_to_look_up = self.lookup_keys(view, rows)
            rows = self.gather(view, rows, keys_to_look_up, self.files[view.name].answer(keys_to_look_up, day))
        keys = dict.fromkeys(key for view in self.plan.views for key in view.keys if key != Columns.GLOBAL_KEY)
        return rows.select(
            Columns.TIME, Columns.DAY, *(pl.col(self.plan.declared.row_column(key)).alias(key) for key in keys)
        )

    def lookup_keys(self, view: PlannedView, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the keys that rows look up in a view: `:row` and its key columns, one row per distinct tag.

        The views before it in `plan.views` must have been gathered, because keys may come from side tables.
        """
        return lookup_keys(rows, view, self.plan.declared, timed=self.tiles.within_days)

    def gather(self, view: PlannedView, rows: pl.DataFrame, keys: pl.DataFrame, answers: pl.DataFrame) -> pl.DataFrame:
        """Return rows with a view's features added, given the answers, from any source, for their keys."""
        assert answers.height == keys.height, f"{keys.height} keys asked, {answers.height} answered"
        return rows.hstack(gather_answers(view, keys, answers, rows.height))

    def compute(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the feature columns, in declared order, of rows that were looked up.

        Numbers are Float32 (null: missing), ids UInt32, ids of tags List(UInt32), vectors Array(Float32, width).
        """
        columns: dict[str, pl.Series] = {}
        queries: list[pl.Expr] = []
        fitted = self.preprocessing.fitted
        for feature in self.plan.features:
            for number in feature.numbers(fitted, self.engine):
                value = number.value.cast(pl.Float32).alias(number.output)
                table = self._table(number, rows, value)
                if table is None:
                    queries.append(value)
                else:
                    columns[number.output] = table.look_up(rows[number.column]).alias(number.output)
            columns.update(_named(feature.compute(rows, fitted, self.engine)))
        if queries:
            computed = {name for query in queries for name in query.meta.root_names()} - {*rows.columns}
            rows = rows.with_columns(
                column.alias(computed_column(name))
                for name, column in columns.items()
                if computed_column(name) in computed
            )
            columns.update(_named(collect(rows.lazy().select(queries), self.engine)))
        return pl.DataFrame([columns[output.name] for output in self.plan.outputs])

    def _table(self, number: NumberQuery, rows: pl.DataFrame, value: pl.Expr) -> LookupTable | None:
        """Return the table in which a number is looked up; None where it is computed row by row."""
        if not number.column:
            return None
        if number.output not in self.tables and LookupTable.suits(rows[number.column], self.engine):
            self.tables.setdefault(number.output, LookupTable(number.column, value))
        return self.tables.get(number.output)


def _named(columns: Iterable[pl.Series]) -> dict[str, pl.Series]:
    return {column.name: column for column in columns}
