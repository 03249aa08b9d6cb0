"""Ids of a row: by vocabulary, by hash, by ordered cross."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import polars as pl

from shortlist.config.features import Cross, Feature, Hash, Vocabulary
from shortlist.features.columns import Declared
from shortlist.features.hashing import codes_of, with_buckets
from shortlist.features.lists import map_values
from shortlist.features.vocabulary import ValueIds
from shortlist.frames import Engine, collect


def id_columns(
    rows: pl.DataFrame, feature: Feature, declared: Declared, vocabularies: Mapping[str, ValueIds], engine: Engine
) -> Iterator[pl.Series]:
    """Give an operation's UInt32 or List(UInt32) columns; none for operations that give numbers or vectors.

    Args:
        rows: Rows with everything looked up.
        feature: The operation.
        declared: The declared columns.
        vocabularies: By column.
        engine: Who executes the hashing.
    """
    match feature:
        case Vocabulary():
            for name, output in zip(feature.each, feature.outputs, strict=True):
                values = rows[declared.place(name)]
                if declared.is_tags(name):
                    values = values.list.head(feature.max_values)
                yield _each(values, vocabularies[name].ids).alias(output)
        case Hash():
            for name, output in zip(feature.each, feature.outputs, strict=True):
                values = rows[declared.place(name)]
                yield _each(values, lambda each: _bucket([each], feature.buckets, engine)).alias(output)
        case Cross():
            columns = [rows[declared.place(name)] for name in feature.columns]
            yield _bucket(columns, feature.buckets, engine).alias(feature.name)
        case _:
            return


def _bucket(columns: Sequence[pl.Series], buckets: int, engine: Engine) -> pl.Series:
    codes = pl.DataFrame([codes_of(column).alias(f"{number}") for number, column in enumerate(columns)])
    return collect(with_buckets(codes.lazy(), "bucket", codes.columns, buckets).select("bucket"), engine).to_series()


def _each(values: pl.Series, function: Callable[[pl.Series], pl.Series]) -> pl.Series:
    return map_values(values, function) if isinstance(values.dtype, pl.List) else function(values)
