"""Learnt vectors of the values of items' columns, from which items that came later get a vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.contracts import DataError
from shortlist.slates.retrieval.vector_content import VectorContent
from shortlist.storage.artefacts import read_json, write_json

Matrix = NDArray[np.float32]

ENTITY, VALUE, SHARE = "entity", "value", "share"
_LENGTH, _VECTOR = "length", "vector"
_FILE: Final = "item_content.json"
_VALUES: Final = "item_values_{number}.parquet"
_WEIGHT: Final = "item_number_weights.npy"


def column_values(entities: pl.Series, column: pl.Series) -> pl.DataFrame:
    """Return every value of a column with its entity and its share: 1, or 1 / n for each of the n values of a list.

    Args:
        entities: Number of every line's entity.
        column: Values of the same lines; a null has no value.

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
    def from_table(cls, table: pl.DataFrame, columns: Sequence[str]) -> Self:
        """Return the means and deviations of a table's columns."""
        numbers = _read_numbers(table, columns)
        if not len(columns):
            return cls((), np.zeros(0), np.ones(0))
        mean, deviation = np.nanmean(numbers, axis=0), np.nanstd(numbers, axis=0)
        return cls(tuple(columns), np.nan_to_num(mean), np.nan_to_num(deviation))

    def standardise(self, table: pl.DataFrame) -> Matrix:
        """Return the columns with mean 0 and deviation 1, shape (lines, columns); 0 for a null."""
        scale = np.where(self.deviation > 0, self.deviation, 1)
        standardised_numbers: Matrix = np.nan_to_num((_read_numbers(table, self.columns) - self.mean) / scale).astype(
            np.float32
        )
        return standardised_numbers


@dataclass(frozen=True)
class ItemContent:
    """Learnt vectors of column values; an item's vector is the sum over its values and numbers.

    Attributes:
        width: Width of a vector, D.
        values: Every learnt value (`value`) and its vector, a `List(Float32)`, by column.
        scale: Means and deviations of the numeric columns.
        weights: Weights of the standardised numbers, shape (numeric columns, D).
        vector_content: Projections of items' vector columns.
    """

    width: int
    values: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    scale: NumberScale = field(default_factory=lambda: NumberScale((), np.zeros(0), np.ones(0)))
    weights: Matrix = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    vector_content: VectorContent = field(default_factory=VectorContent)

    @staticmethod
    def value_table(values: pl.Series, vectors: Matrix) -> pl.DataFrame:
        """Return the values of one column with their vectors, as `values` holds them."""
        return pl.DataFrame({VALUE: values, _VECTOR: pl.Series(list(vectors), dtype=pl.List(pl.Float32))})

    def vectors(self, items: pl.DataFrame) -> Matrix:
        """Return the vectors of items by their columns alone, shape (items, D); zeros where no value is known.

        Values that did not occur in training add nothing.
        """
        vectors = np.zeros((items.height, self.width), np.float32)
        lines = pl.Series(ENTITY, np.arange(items.height), dtype=pl.Int64)
        for name, value_vectors in self.values.items():
            column_rows = column_values(lines, items[name].cast(_value_type(items[name], value_vectors), strict=False))
            column_rows = column_rows.join(value_vectors, on=VALUE, how="inner", maintain_order="left")
            if column_rows.height:
                vectors_of_values = np.stack(column_rows[_VECTOR].to_list()).astype(np.float32)
                np.add.at(
                    vectors, column_rows[ENTITY].to_numpy(), column_rows[SHARE].to_numpy()[:, None] * vectors_of_values
                )
        if self.scale.columns:
            vectors += self.scale.standardise(items) @ self.weights
        return vectors + self.vector_content.vectors(items)

    def write(self, folder: Path) -> None:
        """Write the files of `read` into a folder."""
        for number, value_vectors in enumerate(self.values.values()):
            value_vectors.write_parquet(folder / _VALUES.format(number=number))
        np.save(folder / _WEIGHT, self.weights)
        self.vector_content.write(folder)
        scale = self.scale
        numbers = {"numbers": list(scale.columns), "mean": scale.mean.tolist(), "deviation": scale.deviation.tolist()}
        write_json(folder / _FILE, {"width": self.width, "columns": list(self.values), **numbers})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the content that `write` wrote.

        Raises:
            DataError: The file is missing.
        """
        if not (folder / _FILE).is_file():
            raise DataError(
                f"{folder / _FILE}: missing; these sources were fitted before vectors of columns were kept. Train again"
            )
        facts = read_json(folder / _FILE)
        tables = (pl.read_parquet(folder / _VALUES.format(number=number)) for number in range(len(facts["columns"])))
        scale = NumberScale(tuple(facts["numbers"]), np.array(facts["mean"]), np.array(facts["deviation"]))
        values, weights = dict(zip(facts["columns"], tables, strict=True)), np.load(folder / _WEIGHT)
        return cls(facts["width"], values, scale, weights, VectorContent.read(folder))


def _value_type(column: pl.Series, value_vectors: pl.DataFrame) -> pl.DataType:
    value = value_vectors.schema[VALUE]
    return pl.List(value) if isinstance(column.dtype, pl.List) else value


def _read_numbers(table: pl.DataFrame, columns: Sequence[str]) -> NDArray[np.float64]:
    return table.select(pl.col(name).cast(pl.Float64) for name in columns).to_numpy().reshape(table.height, -1)
