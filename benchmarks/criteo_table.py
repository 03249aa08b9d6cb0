"""The generated Criteo log as a feature table, ready for training: what loader and trainer are measured on."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from benchmarks.criteo import CARDINALITIES, COUNTS, columns
from shortlist.contracts import Columns, Files
from shortlist.storage.tables import DayTable, DayTableWriter

CHUNK_ROWS: Final = 250_000
PAST: Final = "past"
"""A sequence of past ids, where one is asked for."""
_FIRST: Final = date(2026, 1, 5)


def write_table(
    folder: Path, train_rows: int, validation_rows: int, chunk_rows: int = CHUNK_ROWS, last: int = 0
) -> DayTable:
    """Write four training days, one to validate and one to test; every category is an id, 0 is missing.

    Args:
        folder: To write.
        train_rows: Rows of all training days.
        validation_rows: Rows of the validation day, and of the test day.
        chunk_rows: Rows per file.
        last: Most ids of a sequence `past` of C3's values; 0: there is none.
    """
    writer = DayTableWriter(folder, Files.TABLE, chunk_rows, "uncompressed")
    days = [_FIRST + timedelta(days=number) for number in range(6)]
    for number, day in enumerate(days):
        rows, seed = (
            (train_rows // 4, 10_000 * (number + 1)) if number < 4 else (validation_rows, 10_000 * (number + 1))
        )
        for piece, start in enumerate(range(0, rows, chunk_rows)):
            frame = _frame(day, min(chunk_rows, rows - start), seed + piece)
            writer.append(frame.with_columns(_past(frame.height, last, seed + piece)) if last else frame)
    named = [str(day) for day in days]
    split = {"train": named[:4], "validation": named[4:5], "test": named[5:]}
    past = [{"name": PAST, "kind": "ids", "size": CARDINALITIES[2] + 1, "events": last}] if last else []
    return writer.close({"columns": [*_notes(), *past], "split": split})


def _frame(day: date, rows: int, seed: int) -> pl.DataFrame:
    labels, counts, categories = columns(rows, seed)
    logs = np.log1p(np.maximum(counts, 0)).astype(np.float32)
    logs[counts < 0] = np.nan
    dense = {f"I{number + 1}_log": pl.Series(logs[:, number]).fill_nan(None) for number in range(COUNTS)}
    ids = {f"C{number + 1}_id": (categories[:, number] + 1).astype(np.uint32) for number in range(len(CARDINALITIES))}
    return pl.DataFrame({Columns.LABEL: labels, Columns.DAY: [day] * rows, **dense, **ids})


def _past(rows: int, last: int, seed: int) -> pl.Series:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, last + 1, rows)
    ids = pl.Series(random.integers(1, CARDINALITIES[2] + 1, int(lengths.sum())), dtype=pl.UInt32)
    of_row = pl.Series(np.repeat(np.arange(rows), lengths))
    lists = pl.DataFrame({"row": of_row, PAST: ids}).group_by("row", maintain_order=True).agg(PAST)
    return pl.DataFrame({"row": np.arange(rows)}).join(lists, "row", "left", maintain_order="left")[PAST].fill_null([])


def _notes() -> list[dict[str, object]]:
    dense = [{"name": f"I{number + 1}_log", "kind": "dense"} for number in range(COUNTS)]
    ids = [{"name": f"C{number + 1}_id", "kind": "id", "size": size + 1} for number, size in enumerate(CARDINALITIES)]
    return [*dense, *ids]
