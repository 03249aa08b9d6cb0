"""Vectors of a row, and how close its item is to the user's history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from shortlist.config.features import Feature, Similarity, Vector
from shortlist.execution import on_cpu
from shortlist.features.columns import Declared
from shortlist.features.standing import MeanView
from shortlist.features.vectors import as_series, matrix, normalised


def vector_columns(
    rows: pl.DataFrame, feature: Feature, declared: Declared, widths: Mapping[str, int]
) -> Iterator[pl.Series]:
    """Give an operation's vectors or similarities; none for operations that give numbers or ids.

    Args:
        rows: Rows with everything looked up.
        feature: The operation.
        declared: The declared columns.
        widths: Width of every vector column.
    """
    match feature:
        case Vector():
            on_cpu("vectors (numpy)")
            for name, output in zip(feature.each, feature.outputs, strict=True):
                vectors = matrix(rows[declared.place(name)], widths[name])
                yield as_series(output, normalised(vectors) if feature.normalise else vectors)
        case Similarity():
            on_cpu("similarity of vectors (numpy)")
            view = MeanView((), feature.list, feature.vector)
            width = widths[feature.vector]
            item = normalised(matrix(rows[declared.place(feature.vector)], width))
            history = normalised(matrix(rows[f"{view.name}:{view.features[0]}"], width))
            yield pl.Series(feature.name, (item * history).sum(axis=1), dtype=pl.Float32)
        case _:
            return
