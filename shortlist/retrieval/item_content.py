"""What a source learnt of items' columns: vectors of their values, by which items that came later get a place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.contracts import DataError
from shortlist.retrieval.vector_content import VectorContent
from shortlist.storage.artefacts import read_json, write_json

Matrix = NDArray[np.float32]

ENTITY, VALUE, SHARE = "entity", "value", "share"
_LENGTH, _VECTOR = "length", "vector"
_FILE: Final = "item_content.json"
_VALUES: Final = "item_values_{number}.parquet"
_WEIGHT: Final = "item_number_weights.npy"


def column_values(entities: pl.Series, column: pl.Series) -> pl.DataFrame:
    """Return every value of a column with its entity and its share: 1, and of a list's values one part each.

    Args:
        entities: Number of every line.
        column: Of the same lines; a null has no value.

    >>> column_values(pl.Series([0, 1]), pl.Series([["x", "y"], None])).rows()
    [(0, 'x', 0.5), (0, 'y', 0.5)]
    """
    frame = pl.DataFrame({ENTITY: entities, VALUE: column})
    if isinstance(column.dtype, pl.List):
        frame = frame.with_columns(pl.col(VALUE).list.len().alias(_LENGTH)).explode(VALUE, empty_as_null=False)
        frame = frame.with_columns((1 / pl.col(_LENGTH)).alias(SHARE)).drop(_LENGTH)
    else:
        frame = frame.with_columns(pl.lit(1.0).alias(SHARE))
    return frame.filter(pl.col(VALUE).is_not_null())


@dataclass(frozen=True)
class NumberScale:
    """Means and deviations with which numeric columns are standardised."""

    columns: tuple[str, ...]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    @classmethod
    def of(cls, table: pl.DataFrame, columns: Sequence[str]) -> Self:
        """Return those of a table's columns."""
        numbers = _numbers(table, columns)
        if not len(columns):
            return cls((), np.zeros(0), np.ones(0))
        mean, deviation = np.nanmean(numbers, axis=0), np.nanstd(numbers, axis=0)
        return cls(tuple(columns), np.nan_to_num(mean), np.nan_to_num(deviation))

    def standardised(self, table: pl.DataFrame) -> Matrix:
        """Return the columns with mean 0 and deviation 1, shape (lines, columns); 0 for a null."""
        scale = np.where(self.deviation > 0, self.deviation, 1)
        found: Matrix = np.nan_to_num((_numbers(table, self.columns) - self.mean) / scale).astype(np.float32)
        return found


@dataclass(frozen=True)
class ItemContent:
    """What is learnt of columns; an item's vector is the sum of those of its values and numbers.

    Attributes:
        width: Numbers of a vector, D.
        values: By column: every value that was learnt (`value`) and its vector, a `List(Float32)`.
        scale: Of the numeric columns.
        weights: Of the standardised numbers, shape (numeric columns, D).
        given: Of vectors that the items have.
    """

    width: int
    values: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    scale: NumberScale = field(default_factory=lambda: NumberScale((), np.zeros(0), np.ones(0)))
    weights: Matrix = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    given: VectorContent = field(default_factory=VectorContent)

    @staticmethod
    def learnt(values: pl.Series, vectors: Matrix) -> pl.DataFrame:
        """Return the values of one column with their vectors, as `values` holds them."""
        return pl.DataFrame({VALUE: values, _VECTOR: pl.Series(list(vectors), dtype=pl.List(pl.Float32))})

    def vectors(self, items: pl.DataFrame) -> Matrix:
        """Return the vectors of items by their columns alone, shape (items, D); zeros where nothing is known of them.

        Values that were not there while the source learnt add nothing.
        """
        found = np.zeros((items.height, self.width), np.float32)
        lines = pl.Series(ENTITY, np.arange(items.height), dtype=pl.Int64)
        for name, learnt in self.values.items():
            known = column_values(lines, items[name].cast(_like(items[name], learnt), strict=False))
            known = known.join(learnt, on=VALUE, how="inner", maintain_order="left")
            if known.height:
                of_values = np.stack(known[_VECTOR].to_list()).astype(np.float32)
                np.add.at(found, known[ENTITY].to_numpy(), known[SHARE].to_numpy()[:, None] * of_values)
        if self.scale.columns:
            found += self.scale.standardised(items) @ self.weights
        return found + self.given.vectors(items)

    def write(self, folder: Path) -> None:
        """Write the files of `read` into a folder."""
        for number, learnt in enumerate(self.values.values()):
            learnt.write_parquet(folder / _VALUES.format(number=number))
        np.save(folder / _WEIGHT, self.weights)
        self.given.write(folder)
        scale = self.scale
        numbers = {"numbers": list(scale.columns), "mean": scale.mean.tolist(), "deviation": scale.deviation.tolist()}
        write_json(folder / _FILE, {"width": self.width, "columns": list(self.values), **numbers})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return what `write` wrote.

        Raises:
            DataError: It is not there.
        """
        if not (folder / _FILE).is_file():
            raise DataError(
                f"{folder / _FILE}: missing; these sources were fitted before vectors of columns were kept. Train again"
            )
        facts = read_json(folder / _FILE)
        tables = (pl.read_parquet(folder / _VALUES.format(number=each)) for each in range(len(facts["columns"])))
        scale = NumberScale(tuple(facts["numbers"]), np.array(facts["mean"]), np.array(facts["deviation"]))
        values, weights = dict(zip(facts["columns"], tables, strict=True)), np.load(folder / _WEIGHT)
        return cls(facts["width"], values, scale, weights, VectorContent.read(folder))


def _like(column: pl.Series, learnt: pl.DataFrame) -> pl.DataType:
    value = learnt.schema[VALUE]
    return pl.List(value) if isinstance(column.dtype, pl.List) else value


def _numbers(table: pl.DataFrame, columns: Sequence[str]) -> NDArray[np.float64]:
    return table.select(pl.col(name).cast(pl.Float64) for name in columns).to_numpy().reshape(table.height, -1)
