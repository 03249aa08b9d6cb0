"""AUC of single columns, to find those that leak the label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.contracts import Columns
from shortlist.spec.data import Column, Data, SideTable
from shortlist.storage.row_digest import row_hashes
from shortlist.storage.side_tables import side_path
from shortlist.system.prefetch import parallel_map

_MIN_ROWS_PER_CLASS = 10

Counts = npt.NDArray[np.float64]


def column_aucs(sample: pl.DataFrame, data: Data, folder: Path) -> dict[str, float]:
    """Return the AUC of each single column known before the impression, except vectors.

    Args:
        sample: Rows of the log in random order, with the label.
        data: The spec's data section.
        folder: Folder of the valid or raw log with its side tables.

    Returns:
        AUC in [0.5, 1] by column name; empty when the sample has fewer than ten rows of either label.
    """
    label = sample[Columns.LABEL].to_numpy().astype(bool)
    if not has_both_labels(label):
        return {}
    aucs = single_column_aucs(sample.select(_testable_columns(data.columns, data)), label)
    for table in data.side_tables:
        joined = _join_side_table(sample, table, folder)
        names = [name for name in _testable_columns(table.columns, data) if name != table.key]
        aucs |= single_column_aucs(joined.select(names), label)
    return aucs


def single_column_aucs(
    rows: pl.DataFrame, label: npt.NDArray[np.bool_], is_earlier: npt.NDArray[np.bool_] | None = None
) -> dict[str, float]:
    """Return the AUC of every column by its name; see `column_auc`."""
    aucs = parallel_map(lambda values: column_auc(values, label, is_earlier), rows.get_columns(), pl.thread_pool_size())
    return dict(zip(rows.columns, aucs, strict=True))


def has_both_labels(label: npt.NDArray[np.bool_]) -> bool:
    """Whether there are enough rows of either label, ten, for an AUC."""
    return bool(min(label.sum(), (~label).sum()) >= _MIN_ROWS_PER_CLASS)


def column_auc(
    values: pl.Series, label: npt.NDArray[np.bool_], is_earlier: npt.NDArray[np.bool_] | None = None
) -> float:
    """Return the better of two AUCs of a column: by the order of its values, and by the label rate of each value.

    Args:
        values: Values of any type; null counts as one more value.
        label: Whether each row is positive.
        is_earlier: Whether each row only gives label rates, and is not ranked. Without it, every second row gives the
            rates by which the others are ranked, and all rows are ranked by the order of their values.

    >>> column_auc(pl.Series([1, 2, 3, 4]), np.array([True, True, False, False]))
    1.0
    """
    is_ordered = values.dtype.is_numeric() or values.dtype.is_temporal()
    comparable = values if is_ordered else pl.Series(row_hashes(values.to_frame()))
    # Rows are counted by value and label once for all AUCs below, in half the time of ranking the rows for each.
    codes = comparable.rank("dense").fill_null(0).to_numpy()
    rate_auc = _rate_auc(codes, label, np.arange(label.size) % 2 == 0 if is_earlier is None else is_earlier)
    ranked = slice(None) if is_earlier is None else ~is_earlier
    return max(rate_auc, _order_auc(codes[ranked], label[ranked])) if is_ordered else rate_auc


def _testable_columns(columns: tuple[Column, ...], data: Data) -> list[str]:
    known_before = [column.name for column in columns if column.known == "before" and column.type != "vector"]
    return [name for name in known_before if name not in data.names_of_rows]


def _join_side_table(sample: pl.DataFrame, table: SideTable, folder: Path) -> pl.DataFrame:
    keys = sample.select(table.key)
    side = pl.scan_parquet(side_path(folder, table)).join(keys.lazy().unique(), on=table.key, how="semi").collect()
    return keys.join(side.unique(table.key, keep="any"), on=table.key, how="left", maintain_order="left")


def _order_auc(codes: npt.NDArray[np.uint32], label: npt.NDArray[np.bool_]) -> float:
    """Return the AUC of the values' order or its reverse, with nulls (code 0) at the better end."""
    positives, negatives = _count_by_code(codes, label, int(codes.max()) + 1)
    aucs = [_auc(positives, negatives), _auc(np.roll(positives, -1), np.roll(negatives, -1))]
    return max(max(auc, 1 - auc) for auc in aucs)


def _rate_auc(codes: npt.NDArray[np.uint32], label: npt.NDArray[np.bool_], is_fitted: npt.NDArray[np.bool_]) -> float:
    """Return the AUC, on the other rows, of each value's label rate in the fitted rows."""
    size = int(codes.max()) + 1
    fitted, scored = (_count_by_code(codes[part], label[part], size) for part in (is_fitted, ~is_fitted))
    mean = float(label[is_fitted].mean())
    # A prior of one row of the mean rate, so that of two values with one label only the more frequent is more extreme.
    rates, places = np.unique((fitted[0] + mean) / (fitted[0] + fitted[1] + 1), return_inverse=True)
    positives, negatives = (np.bincount(places, counts, rates.size).astype(np.float64) for counts in scored)
    return _auc(positives, negatives)


def _count_by_code(codes: npt.NDArray[np.uint32], label: npt.NDArray[np.bool_], size: int) -> tuple[Counts, Counts]:
    """Count the positive and the negative rows of every code."""
    rows, positives = (np.bincount(row_codes, minlength=size).astype(np.float64) for row_codes in (codes, codes[label]))
    return positives, rows - positives


def _auc(positives: Counts, negatives: Counts) -> float:
    """Return the area under the ROC curve of rows counted by score, lowest first; ties half (Mann and Whitney)."""
    pairs = positives.sum() * negatives.sum()
    negatives_below = np.cumsum(negatives) - negatives / 2
    return float((positives * negatives_below).sum() / pairs) if pairs else 0.5
