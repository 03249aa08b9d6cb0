"""How well a single column tells the label: one that tells it nearly all knows it already."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.config.data import Column, Data, SideTable
from shortlist.contracts import Columns
from shortlist.data.keys import hashes
from shortlist.data.side_tables import side_path

_MIN_ROWS_OF_A_CLASS = 10
_RATE = "rate"


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
    aucs = {column.name: column_auc(sample[column.name], label) for column in _judged(data.columns, data)}
    for table in data.side_tables:
        joined = _joined(sample, table, folder)
        columns = [column for column in _judged(table.columns, data) if column.name != table.key]
        aucs |= {column.name: column_auc(joined[column.name], label) for column in columns}
    return aucs


def column_auc(values: pl.Series, label: npt.NDArray[np.bool_]) -> float:
    """Return the better of two AUCs of a column: by the order of its values, and by the label rate of each value.

    Args:
        values: Any type; nulls are a value of their own.
        label: Which rows are positive.

    >>> column_auc(pl.Series([1, 2, 3, 4]), np.array([True, True, False, False]))
    1.0
    """
    by_rate = _rate_auc(hashes(values.to_frame()), label)
    return (
        max(by_rate, _order_auc(values, label)) if values.dtype.is_numeric() or values.dtype.is_temporal() else by_rate
    )


def _judged(columns: tuple[Column, ...], data: Data) -> list[Column]:
    skipped = (data.label, data.impression)
    return [c for c in columns if c.known == "before" and c.type != "vector" and c.name not in skipped]


def _joined(sample: pl.DataFrame, table: SideTable, folder: Path) -> pl.DataFrame:
    keys = sample.select(table.key)
    side = pl.scan_parquet(side_path(folder, table)).join(keys.lazy().unique(), on=table.key, how="semi").collect()
    return keys.join(side.unique(table.key, keep="any"), on=table.key, how="left", maintain_order="left")


def _order_auc(values: pl.Series, label: npt.NDArray[np.bool_]) -> float:
    """Return the AUC of the values' order or its reverse, with the nulls at whichever end they serve better."""
    nulls = values.null_count()
    ranks = values.rank("average").cast(pl.Float64)
    lowest = (ranks + nulls).fill_null((nulls + 1) / 2)
    highest = ranks.fill_null(len(values) - nulls + (nulls + 1) / 2)
    found = [_auc(ends.to_numpy(), label) for ends in (lowest, highest)]
    return max(max(auc, 1 - auc) for auc in found)


def _rate_auc(values: npt.NDArray[np.uint64], label: npt.NDArray[np.bool_]) -> float:
    """Return the AUC on every second row of the label rates that the other rows show for each value."""
    rows = pl.DataFrame({"value": values, "label": label})
    fitted, scored = rows.gather_every(2), rows.gather_every(2, offset=1)
    mean = float(label[::2].mean())
    # One row's worth of the mean: of two values seen with one label only, the one seen more often is surer.
    rate = ((pl.col("label").sum() + mean) / (pl.len() + 1)).alias(_RATE)
    scores = scored.join(fitted.group_by("value").agg(rate), on="value", how="left", maintain_order="left")[_RATE]
    return _auc(scores.fill_null(mean).rank("average").to_numpy(), label[1::2])


def _auc(ranks: npt.NDArray[np.float64], label: npt.NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve from ranks, ties averaged (Mann and Whitney, 1947)."""
    positives = int(label.sum())
    pairs = positives * (label.size - positives)
    return float((ranks[label].sum() - positives * (positives + 1) / 2) / pairs) if pairs else 0.5
