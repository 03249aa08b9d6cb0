"""The part of a feature table that a ranker may read: its features, training days and validation days."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Literal, Self

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shortlist.contracts import Columns, DataError, Files, ShortlistError, label_column
from shortlist.ranking.row_weighting import ROW_WEIGHTING, RowWeighting, row_weighting
from shortlist.spec.models import RowWeights
from shortlist.spec.spec import match_features
from shortlist.storage.tables import DayTable

Part = Literal["train", "validation"]


class TableFeature(BaseModel):
    """One feature of a table, as described in the table's notes."""

    model_config = ConfigDict(frozen=True)

    name: str
    kind: Literal["dense", "id", "ids", "vector"]
    size: int | None = Field(default=None, ge=1)
    """Number of ids, 0 included; null for dense and vector."""
    width: int | None = Field(default=None, ge=1)
    """Floats per row of a vector; null for the other kinds."""
    hashed: bool = False
    """Whether ids are hash buckets, which several values may share."""
    admit_after: int = Field(default=1, ge=1)
    """Look-ups on the training days before an id's embedding learns; see `shortlist.features.kinds.hash`."""
    evict_after_days: int | None = Field(default=None, ge=1)
    """Days without a look-up after which an id's embedding is zero again; null: never."""
    events: int | None = Field(default=None, ge=1)
    """Most ids of a list in order of time, the newest first; null for other lists. Vectors of the same feature have
    this width, and float k belongs to id k."""
    served: float | None = None
    """Fixed value of the feature in serving (kind `training_only`); null: the row's value."""
    history: bool = True
    """Whether the feature depends on earlier days, of which there are few on the warm-up days."""

    @model_validator(mode="after")
    def _has_its_measure(self) -> Self:
        if self.kind in ("id", "ids") and self.size is None:
            raise ValueError(f"feature '{self.name}' is of kind {self.kind} and needs a size")
        if self.kind == "vector" and self.width is None:
            raise ValueError(f"feature '{self.name}' is of kind vector and needs a width")
        return self


class TableSplit(BaseModel):
    """The days of a table: warm-up, training, validation and test."""

    model_config = ConfigDict(frozen=True)

    warmup: tuple[date, ...] = ()
    train: tuple[date, ...]
    validation: tuple[date, ...]
    test: tuple[date, ...]

    @model_validator(mode="after")
    def _is_in_time_order(self) -> Self:
        parts = [days for days in (self.warmup, self.train, self.validation, self.test) if days]
        for days, next_days in pairwise(parts):
            if max(days) >= min(next_days):
                raise ValueError(
                    f"day {max(days)} comes before and after {min(next_days)}; wanted whole days in time order"
                )
        return self


def features_of(table: DayTable) -> tuple[TableFeature, ...]:
    """Return every feature of a table, in its order.

    Raises:
        ShortlistError: The notes of the table do not describe them.
    """
    try:
        return tuple(TableFeature.model_validate(column) for column in table.notes["columns"])
    except (KeyError, TypeError, ValidationError) as error:
        raise _not_a_feature_table(table, "columns", error) from None


def split_of(table: DayTable) -> TableSplit:
    """Return the split of a table.

    Raises:
        ShortlistError: The notes hold none, or its days are not in time order.
    """
    try:
        return TableSplit.model_validate(table.notes["split"])
    except (KeyError, ValidationError) as error:
        raise _not_a_feature_table(table, "split", error) from None


def features_matching(table: DayTable, patterns: tuple[str, ...]) -> tuple[TableFeature, ...]:
    """Return the features of a table that a model's patterns match.

    Raises:
        ShortlistError: A pattern matches nothing.
    """
    by_name = {feature.name: feature for feature in features_of(table)}
    try:
        return tuple(by_name[name] for name in match_features(patterns, tuple(by_name)))
    except ValueError as error:
        raise ShortlistError(f"{table.folder / Files.TABLE}: {error}; it has {', '.join(by_name)}") from None


def learning_split(table: DayTable, features: Sequence[TableFeature]) -> TableSplit:
    """Return the split of a table for a ranker that reads some features.

    Where no feature depends on earlier days, warm-up days are training days.

    Args:
        table: A feature table.
        features: The features that the ranker reads.
    """
    split = split_of(table)
    if not features or any(feature.history for feature in features):
        return split
    return split.model_copy(update={"warmup": (), "train": (*split.warmup, *split.train)})


class LearningTable:
    """The training and validation days of a feature table; test and warm-up days cannot be reached through it.

    Where no feature depends on earlier days, warm-up days are training days.

    Attributes:
        features: The features that the ranker reads.
        split: The days.
        base_rate: Share of positives on the training days.
        weighting: How rows are weighted; None: all weigh the same.
    """

    def __init__(
        self, table: DayTable, features: tuple[TableFeature, ...], extra_columns: tuple[str, ...] = ()
    ) -> None:
        """Check that both parts have rows and the label varies.

        Args:
            table: The feature table.
            features: The features that the ranker reads.
            extra_columns: Further columns to read.

        Raises:
            DataError: A part has no rows, or the label never varies on the training days.
        """
        self._table = table
        self._columns = [Columns.LABEL, *extra_columns, *(feature.name for feature in features)]
        self.features = features
        self.split = learning_split(table, features)
        for part in ("train", "validation"):
            if not self.rows(part):
                raise DataError(
                    f"{table.folder}: no rows on the {part} days {self._day_list(part)};"
                    " give more data or another split"
                )
        positives, rows = self._total("train", "positives"), self.rows("train")
        if positives in (0, rows):
            raise DataError(
                f"{table.folder}: the label is {int(positives > 0)} on all {rows} rows of the training days"
                f" {self._day_list('train')}; nothing can be learnt from a label that never varies"
            )
        self.base_rate = positives / rows
        self._worker_files: frozenset[Path] | None = None
        self._label = ""
        # A worker lacks other workers' files, so the weighting by all rows is passed in the notes.
        if ROW_WEIGHTING in table.notes:
            note = table.notes[ROW_WEIGHTING]
            self.weighting = None if note is None else RowWeighting.model_validate(note)
        else:
            self.weighting = row_weighting(table, self.split.train, self.split.validation, None)

    @property
    def is_weighted(self) -> bool:
        """Whether rows have different weights: some impressions were logged as a sample, or weights are declared."""
        return self.weighting is not None

    @property
    def reads_further_label(self) -> bool:
        """Whether a further label takes the place of the label in the rows that this table reads."""
        return bool(self._label)

    def weighted(self, weights: RowWeights) -> Self:
        """Return the same table with rows weighted by how they were shown.

        Raises:
            DataError: No training row says how it was shown.
        """
        weighted_table = copy(self)
        if ROW_WEIGHTING not in self._table.notes:  # else it was computed with these weights
            days = self.split.train, self.split.validation
            weighted_table.weighting = row_weighting(self._table, *days, weights)
        return weighted_table

    def for_label(self, label: str) -> Self:
        """Return the same table with a further label in place of the label.

        Raises:
            DataError: The table has none of this name, or it never varies on the training days.
        """
        relabelled = copy(self)
        relabelled._label = label_column(label)
        relabelled._columns = [relabelled._label, *self._columns[1:]]
        relabelled.base_rate = self.base_rates((label,))[0]
        return relabelled

    def base_rates(self, labels: Sequence[str]) -> tuple[float, ...]:
        """Return the share of positives of further labels on the training days.

        Raises:
            DataError: The table has no such label, or one never varies on the training days.
        """
        if not labels:
            return ()
        names = [label_column(label) for label in labels]
        paths = self._table.paths(set(self._days("train")))
        if missing := [name for name in names if name not in pl.read_parquet_schema(paths[0])]:
            raise DataError(f"{self._table.folder}: has no column '{missing[0]}'; write the feature table again")
        positive_sums = (pl.col(name).cast(pl.Int64).sum() for name in names)
        sums = pl.scan_parquet(paths, hive_partitioning=False).select(positive_sums)
        rows, positive_counts = self.rows("train"), sums.collect().row(0)
        for label, positive_count in zip(labels, positive_counts, strict=True):
            if positive_count in (0, rows):
                raise DataError(
                    f"{self._table.folder}: label '{label}' is {int(positive_count > 0)} on all {rows} rows of the"
                    f" training days {self._day_list('train')}; nothing can be learnt from a label that never varies."
                    f" Declare data.labels.{label} otherwise, give more days, or leave it out of the models' labels"
                )
        return tuple(positive_count / rows for positive_count in positive_counts)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns that are read, the label first."""
        weights = () if self.weighting is None else self.weighting.columns
        return (*self._columns, *weights)

    def for_worker(self, files: frozenset[Path]) -> Self:
        """Return the same table for one of several workers, which reads only some of its files.

        `rows` and `base_rate` stay those of all workers together.
        """
        worker_table = copy(self)
        worker_table._worker_files = files
        return worker_table

    def for_refit(self) -> Self:
        """Return the same table with the validation days among the training days."""
        refit_table = copy(self)
        refit_table.split = self.split.model_copy(update={"train": (*self.split.train, *self.split.validation)})
        refit_table.base_rate = refit_table._total("train", "positives") / refit_table.rows("train")
        if self._label:
            refit_table.base_rate = self.base_rate  # only the initial bias
        return refit_table

    def rows(self, *parts: Part) -> int:
        """Return the number of rows of some parts."""
        return sum(self._total(part, "rows") for part in parts)

    def paths(self, *parts: Part) -> list[Path]:
        """Return the files of some parts, in time order; for a worker, only its files."""
        paths = self._table.paths({day for part in parts for day in self._days(part)})
        return paths if self._worker_files is None else [path for path in paths if path in self._worker_files]

    def frames(self, *parts: Part) -> Iterator[pl.DataFrame]:
        """Yield the label and the features file by file, in time order."""
        yield from (self.read(path) for path in self.paths(*parts))

    def read(self, path: Path) -> pl.DataFrame:
        """Return the label and the features of a file, with the weights where rows are weighted.

        Weights are scaled to mean 1 on the training rows, so that settings in rows, such as the least weight of a
        tree's leaf, keep their meaning.
        """
        frame = pl.read_parquet(path, columns=list(self.columns), hive_partitioning=False)
        if self._label:
            frame = frame.rename({self._label: Columns.LABEL})
        return frame if self.weighting is None else self.weighting.weigh(frame)

    def _days(self, part: str) -> tuple[date, ...]:
        if part not in ("train", "validation"):
            raise ShortlistError(f"a ranker learns from train and validation days; it may not read '{part}'")
        return self.split.train if part == "train" else self.split.validation

    def _total(self, part: str, count: Literal["rows", "positives"]) -> int:
        days = self._days(part)
        return sum(getattr(of_day, count) for of_day in self._table.days if of_day.day in days)

    def _day_list(self, part: str) -> str:
        return ", ".join(str(day) for day in self._days(part)) or "(none declared)"


def weights_of(frame: pl.DataFrame) -> np.ndarray | None:
    """Return the weight of each row, float32, relative to the mean; None where rows are not weighted."""
    return frame[Columns.WEIGHT].to_numpy() if Columns.WEIGHT in frame.columns else None


def _not_a_feature_table(table: DayTable, key: str, error: Exception) -> ShortlistError:
    reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else f"no usable '{key}'"
    return ShortlistError(f"{table.folder / Files.TABLE}: notes.{key}: {reason}. Write the feature table again.")
