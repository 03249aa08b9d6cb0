"""Edges of XGBoost's bins: quantiles of a sample of the rows, and the extremes of all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from shortlist.ranking.inputs import TableFeature
from shortlist.ranking.matrix import float_matrix, float_names, infinite_values_error, number_of
from shortlist.system.prefetch import prefetch


def sampled_edges(
    read: Callable[[Path], pl.DataFrame],
    rows: Mapping[Path, int],
    features: Sequence[TableFeature],
    sample_rows: int,
    max_bin: int,
    seed: int,
) -> np.ndarray:
    """Return the edges of every feature's bins, as rows for which XGBoost's sketch gives exactly these bins.

    Every file gives its share of the sample, drawn at random without replacement; the next file is read meanwhile.
    The smallest and the largest value of all rows are always edges: otherwise a row beyond the last edge would be in
    the last bin in training, and might be treated as missing in scoring.

    Args:
        read: Returns the rows of a file.
        rows: How many rows each file has.
        features: Features of kind dense, id or vector.
        sample_rows: Rows to draw from all files together.
        max_bin: Most bins per feature.
        seed: Seed of the sample.

    Returns:
        Shape (max_bin + 1, floats), float32; each column rises, and NaN follows where a feature needs fewer edges.

    Raises:
        DataError: A value is infinite.
    """
    random = np.random.default_rng(seed)
    total, rows_read, sampled_rows = sum(rows.values()), 0, 0
    width = len(float_names(features))
    # Two extra places hold the smallest and the largest value of all rows, NaN where there are no values.
    sample = np.full((width, sample_rows + 2), np.nan, np.float32)
    smallest, largest = sample[:, -2], sample[:, -1]
    for file_rows, frame in zip(rows.values(), prefetch(map(read, rows)), strict=True):
        share = sample_rows * (rows_read + file_rows) // total - sample_rows * rows_read // total
        rows_read += file_rows
        low, high = _extremes(frame, features)
        np.fmin(smallest, low, out=smallest)
        np.fmax(largest, high, out=largest)
        row_numbers = np.sort(random.choice(file_rows, share, replace=False))
        sample[:, sampled_rows : sampled_rows + share] = float_matrix(frame[row_numbers], features).T
        sampled_rows += share
    edges = np.full((max_bin + 1, width), np.nan, np.float32)
    for number, values in enumerate(sample):
        feature_edges = quantile_edges(values[~np.isnan(values)], max_bin)
        edges[: len(feature_edges), number] = feature_edges
    return edges


def _extremes(frame: pl.DataFrame, features: Sequence[TableFeature]) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest value of every float, in the order of `float_matrix`; NaN without values."""
    low, high = [], []
    for feature in features:
        if feature.width is None:  # computed on the column, without a matrix of floats
            smallest, largest = frame.select(number_of(feature).min().alias("min"), number_of(feature).max()).row(0)
            low.append(_as_float(smallest, feature.name))
            high.append(_as_float(largest, feature.name))
        else:
            floats = float_matrix(frame, [feature])
            low += np.fmin.reduce(floats, initial=np.nan).tolist()
            high += np.fmax.reduce(floats, initial=np.nan).tolist()
    return np.array(low, np.float32), np.array(high, np.float32)


def _as_float(value: Any, name: str) -> float:
    number = np.nan if value is None else float(value)
    if np.isinf(number):
        raise infinite_values_error(name)
    return number


def quantile_edges(values: np.ndarray, max_bin: int) -> np.ndarray:
    """Return XGBoost's bin edges of some values: every value where they are few, else quantiles.

    As in XGBoost's sketch, quantiles are counted between the rows with the smallest and those with the largest value.
    Sorting takes a sixth of the processor time of XGBoost's matrix of the sample (0.3 against 1.8 seconds for 400 000
    rows of 39 features).

    Args:
        values: Shape (N,), float32, without NaN.
        max_bin: Most bins.

    Returns:
        At most `max_bin + 1` values, the smallest and the largest among them, rising.
    """
    ordered = np.sort(values)
    is_new_value = np.ones(len(ordered), bool)
    is_new_value[1:] = ordered[1:] != ordered[:-1]
    distinct_starts = np.flatnonzero(is_new_value)
    if len(distinct_starts) <= max_bin + 1:
        return ordered[distinct_starts]
    first, last = np.searchsorted(ordered, ordered[0], "right"), distinct_starts[-1]
    ranks = first + np.arange(1, max_bin) * (last - first) // max_bin
    return np.unique(np.concatenate([ordered[:1], ordered[ranks], ordered[-1:]]))
