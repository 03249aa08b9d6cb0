"""A feature table as XGBoost's training matrix: binned, in memory or out of core, or exact."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import xgboost as xgb

from models.device_reading import CudfColumns, float_frame, reads_on_device
from models.objectives import ListNumbers, read_sorted_by_list
from models.xgboost.device import xgboost_device
from models.xgboost.edges import sampled_edges
from shortlist.contracts import Columns
from shortlist.ranking.inputs import LearningTable, Part, weights_of
from shortlist.ranking.matrix import float_columns, float_matrix, float_names
from shortlist.ranking.process_group import current_group
from shortlist.ranking.ranker import IncompatibleModelError
from shortlist.spec.runtime import Runtime

Matrix = Callable[[tuple[Part, ...], xgb.DMatrix | None], xgb.DMatrix]
"""matrix(parts, like) -> the rows of some parts, binned as `like` is."""


@contextmanager
def binned_matrices(
    learning: LearningTable, runtime: Runtime, max_bin: int, bin_sample_rows: int | None = None
) -> Iterator[Matrix]:
    """Yield a function that bins parts of the table, in memory, or in files when its floats exceed the budget.

    Args:
        learning: The part of the table that this process reads.
        runtime: The engine, the memory budget, and the seed of the sample.
        max_bin: Most bins per feature.
        bin_sample_rows: Rows of the sample whose quantiles are the bins' edges, where there are more rows. With None,
            a GPU or several processes, XGBoost's sketch of all rows is used.
    """
    size = 4 * len(float_names(learning.features)) * _count_worker_rows(learning, "train", "validation")
    out_of_core = size > runtime.memory_budget_mib * 2**20
    device = xgboost_device(runtime.engine)
    on_device = reads_on_device(runtime.engine, device) and Columns.USER not in learning.columns
    on_device = on_device and not learning.is_weighted and not learning.reads_further_label
    sample_rows = bin_sample_rows if device == "cpu" and current_group() is None else None
    with tempfile.TemporaryDirectory(prefix="shortlist-xgboost-") as scratch:

        def matrix(parts: tuple[Part, ...], like: xgb.DMatrix | None) -> xgb.DMatrix:
            # On a GPU, out-of-core data is in host memory, and partly on the device.
            cache = f"{scratch}/{'-'.join(parts)}" if out_of_core else None
            if like is None and sample_rows is not None and _count_worker_rows(learning, *parts) > sample_rows:
                like = _edges_matrix(learning, parts, sample_rows, max_bin, runtime.seed)
            pieces = (_DeviceFileIterator if on_device else _FileIterator)(learning, parts, cache)
            kind = xgb.ExtMemQuantileDMatrix if out_of_core else xgb.QuantileDMatrix
            return kind(pieces, max_bin=max_bin, ref=like)

        yield matrix


def _edges_matrix(
    learning: LearningTable, parts: tuple[Part, ...], sample_rows: int, max_bin: int, seed: int
) -> xgb.QuantileDMatrix:
    """Return a reference matrix for binning, whose few rows are the edges, all of which XGBoost keeps."""
    rows = {path: pq.read_metadata(path).num_rows for path in learning.paths(*parts)}
    edges = sampled_edges(learning.read, rows, learning.features, sample_rows, max_bin, seed)
    return xgb.QuantileDMatrix(edges, feature_names=float_names(learning.features), max_bin=max_bin)


@contextmanager
def exact_matrices(learning: LearningTable, runtime: Runtime) -> Iterator[Matrix]:
    """Yield a function that loads parts of the table into memory without binning, for continued training.

    Existing trees were grown on other bins: their scores of binned rows, which new trees correct, would be wrong by up
    to some tenths.

    Raises:
        IncompatibleModelError: The rows do not fit the memory budget.
    """
    rows, width = _count_worker_rows(learning, "train", "validation"), len(float_names(learning.features))
    if 4 * width * rows > runtime.memory_budget_mib * 2**20:
        raise IncompatibleModelError(
            f"{rows:,} rows of {width} floats are more than runtime.memory_budget_mib ({runtime.memory_budget_mib})"
            " holds, and trees can only go on from rows in memory. Learn fewer days again, or raise the budget"
        )

    def matrix(parts: tuple[Part, ...], like: xgb.DMatrix | None) -> xgb.DMatrix:
        values, labels = np.empty((_count_worker_rows(learning, *parts), width), np.float32), []
        rows_filled, list_numbers = 0, ListNumbers(learning)
        numbers_by_file, weights_by_file = [], []
        for frame in (read_sorted_by_list(learning, path) for path in learning.paths(*parts)):
            values[rows_filled : rows_filled + frame.height] = float_matrix(frame, learning.features)
            labels.append(frame[Columns.LABEL].to_numpy())
            numbers_by_file.append(list_numbers.number_rows(frame))
            weights_by_file.append(_weights(frame, numbers_by_file[-1]))
            rows_filled += frame.height
        qid = (
            np.concatenate([numbers for numbers in numbers_by_file if numbers is not None])
            if list_numbers.learns_order
            else None
        )
        weight = (
            np.concatenate([weights for weights in weights_by_file if weights is not None])
            if learning.is_weighted
            else None
        )
        names = float_names(learning.features)
        return xgb.DMatrix(values, np.concatenate(labels), feature_names=names, qid=qid, weight=weight)

    yield matrix


def _weights(frame: pl.DataFrame, lists: np.ndarray | None) -> np.ndarray | None:
    """Return the weights of a file's rows; where order is learnt, the mean weight of each list, as XGBoost requires."""
    weights = weights_of(frame)
    if weights is None or lists is None or not len(lists):
        return weights
    starts = np.flatnonzero(np.append(True, lists[1:] != lists[:-1]))
    return np.asarray(np.add.reduceat(weights, starts) / np.diff(np.append(starts, len(lists))), np.float32)


def _count_worker_rows(learning: LearningTable, *parts: Part) -> int:
    """Return the number of rows that this process reads."""
    return sum(pq.read_metadata(path).num_rows for path in learning.paths(*parts))


class _FileIterator(xgb.DataIter):  # type: ignore[misc] # untyped
    """Passes a table to XGBoost file by file, so that its floats are never in memory as a whole."""

    def __init__(self, learning: LearningTable, parts: tuple[Part, ...], cache: str | None) -> None:
        self._learning = learning
        self._paths = learning.paths(*parts)
        self._names = float_names(learning.features)
        self._next = 0
        self._list_numbers = ListNumbers(learning)
        super().__init__(cache_prefix=cache, release_data=True)

    def next(self, input_data: Callable[..., None]) -> bool:
        if self._next == len(self._paths):
            return False
        floats, label, lists, weight = self._rows(self._paths[self._next])
        self._next += 1
        input_data(data=floats, label=label, qid=lists, weight=weight, feature_names=self._names)
        return True

    def reset(self) -> None:
        self._next = 0
        self._list_numbers = ListNumbers(self._learning)

    def _rows(self, path: Path) -> tuple[Any, Any, Any, Any]:
        """Return the floats of a file, its labels, the number of every row's list where order is learnt, and weights.

        Columns are passed without conversion: XGBoost sketches and bins 39 of them in two thirds of the time of a
        row-major matrix (3.3 against 4.9 seconds of processor time for 750 000 rows).
        """
        frame, features = read_sorted_by_list(self._learning, path), self._learning.features
        columns = float_columns(frame, features)
        floats = float_matrix(frame, features) if columns is None else columns
        lists = self._list_numbers.number_rows(frame)
        return floats, frame[Columns.LABEL].to_numpy(), lists, _weights(frame, lists)


class _DeviceFileIterator(_FileIterator):
    """Passes a table as cuDF frames, so that rows are on the device from decoding to binning."""

    def _rows(self, path: Path) -> tuple[Any, Any, Any, Any]:
        columns = CudfColumns.read(path, self._learning.columns)
        return float_frame(columns, self._learning.features), columns.column(Columns.LABEL), None, None
