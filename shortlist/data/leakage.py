"""How well a single column tells the label: one that tells it nearly all knows it already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.contracts import Columns
from shortlist.data.side_tables import side_path
from shortlist.spec.data import Column, Data, SideTable
from shortlist.storage.row_digest import row_hashes
from shortlist.system.prefetch import parallel_map

_MIN_ROWS_OF_A_CLASS = 10

Counts = npt.NDArray[np.float64]


def column_aucs(sample: pl.DataFrame, data: Data, folder: Path) -> dict[str, float]:
    """Return for each column known before the impression the AUC it reaches alone; vectors are left out.

    Args:
        sample: Rows of the log in random order, with the label.
        data: The spec's data section.
        folder: Where the side tables lie.

    Returns:
        AUC in [0.5, 1] by column name; empty when the sample has fewer than ten rows of either label.
    """
    label = sample[Columns.LABEL].to_numpy().astype(bool)
    if min(label.sum(), (~label).sum()) < _MIN_ROWS_OF_A_CLASS:
        return {}
    aucs = _side_by_side(sample, label, _judged(data.columns, data))
    for table in data.side_tables:
        joined = _joined(sample, table, folder)
        columns = [column for column in _judged(table.columns, data) if column.name != table.key]
        aucs |= _side_by_side(joined, label, columns)
    return aucs


def _side_by_side(rows: pl.DataFrame, label: npt.NDArray[np.bool_], columns: Sequence[Column]) -> dict[str, float]:
    found = parallel_map(lambda column: column_auc(rows[column.name], label), columns, pl.thread_pool_size())
    return {column.name: auc for column, auc in zip(columns, found, strict=True)}


def column_auc(values: pl.Series, label: npt.NDArray[np.bool_]) -> float:
    """Return the better of two AUCs of a column: by the order of its values, and by the label rate of each value.

    Args:
        values: Any type; nulls are a value of their own.
        label: Which rows are positive.

    >>> column_auc(pl.Series([1, 2, 3, 4]), np.array([True, True, False, False]))
    1.0
    """
    ordered = values.dtype.is_numeric() or values.dtype.is_temporal()
    known = values if ordered else pl.Series(row_hashes(values.to_frame()))
    # Counting each value's rows by label once serves every AUC below: half the time of ranking the rows for each.
    codes = known.rank("dense").fill_null(0).to_numpy()
    by_rate = _rate_auc(codes, label)
    return max(by_rate, _order_auc(codes, label)) if ordered else by_rate


def _judged(columns: tuple[Column, ...], data: Data) -> list[Column]:
    kinds = [column for column in columns if column.known == "before" and column.type != "vector"]
    return [column for column in kinds if column.name not in data.names_of_rows]


def _joined(sample: pl.DataFrame, table: SideTable, folder: Path) -> pl.DataFrame:
    keys = sample.select(table.key)
    side = pl.scan_parquet(side_path(folder, table)).join(keys.lazy().unique(), on=table.key, how="semi").collect()
    return keys.join(side.unique(table.key, keep="any"), on=table.key, how="left", maintain_order="left")


def _order_auc(codes: npt.NDArray[np.uint32], label: npt.NDArray[np.bool_]) -> float:
    """Return the AUC of the values' order or its reverse, with the nulls (code 0) at the end that suits them."""
    positives, negatives = _by_code(codes, label, int(codes.max()) + 1)
    found = [_auc(positives, negatives), _auc(np.roll(positives, -1), np.roll(negatives, -1))]
    return max(max(auc, 1 - auc) for auc in found)


def _rate_auc(codes: npt.NDArray[np.uint32], label: npt.NDArray[np.bool_]) -> float:
    """Return the AUC on every second row of the label rates that the other rows show for each value."""
    size = int(codes.max()) + 1
    fitted, scored = _by_code(codes[::2], label[::2], size), _by_code(codes[1::2], label[1::2], size)
    mean = float(label[::2].mean())
    # One row's worth of the mean: of two values seen with one label only, the one seen more often is surer.
    rates, places = np.unique((fitted[0] + mean) / (fitted[0] + fitted[1] + 1), return_inverse=True)
    positives, negatives = (np.bincount(places, counts, rates.size).astype(np.float64) for counts in scored)
    return _auc(positives, negatives)


def _by_code(codes: npt.NDArray[np.uint32], label: npt.NDArray[np.bool_], size: int) -> tuple[Counts, Counts]:
    """Return the positive and the negative rows of every code."""
    rows, positives = (np.bincount(some, minlength=size).astype(np.float64) for some in (codes, codes[label]))
    return positives, rows - positives


def _auc(positives: Counts, negatives: Counts) -> float:
    """Return the area under the ROC curve of rows counted by score, lowest first; ties half (Mann and Whitney)."""
    pairs = positives.sum() * negatives.sum()
    below = np.cumsum(negatives) - negatives / 2
    return float((positives * below).sum() / pairs) if pairs else 0.5
