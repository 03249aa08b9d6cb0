"""Every validation and test row's score, in one Parquet file beside what gates need to judge it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from models.inputs import split_of
from models.ranker import Ranker
from shortlist.contracts import Columns, DataError, Files
from shortlist.evaluation.scores import LEARNT
from shortlist.storage.artefacts import atomic_folder
from shortlist.storage.tables import DayTable
from shortlist.system.progress import progress

SPLIT: Final = "split"
SCORE: Final = "score"
_SLICE = "slice_"
_COPIED = (
    Columns.DAY, Columns.IMPRESSION, Columns.LABEL, Columns.USER, Columns.ITEM, "cold_user", "cold_item", Columns.BEST,
    Columns.WEIGHT, Columns.SLATE,
)  # fmt: skip


def score(ranker: Ranker[Any], table: DayTable, out: Path) -> Path:
    """Write `scores.parquet` into a folder: the rows of validation and test days in time order, part by part.

    Args:
        ranker: A fitted model.
        table: The feature table.
        out: Folder to write; appears whole or not at all.

    Returns:
        Path of the file: day, impression_id, label, user, item, slate_number, cold_user, cold_item, true_probability,
        impression_weight and slice_* (those the table has), split ("validation" or "test"), learnt (whether the model
        that gave the score has learnt the row), score (Float32). Validation rows of a model that was refitted on them
        have the scores that it gave before, where it kept them.

    Raises:
        DataError: There are no such rows, or the table lacks a feature of the model.
    """
    parts = _scored(ranker, table)
    first = next(parts, None)
    if first is None:
        raise DataError(f"{table.folder}: no rows on the validation and test days; there is nothing to score")
    with (
        atomic_folder(out) as staging,
        pq.ParquetWriter(staging / Files.SCORES, first.schema, compression="zstd") as file,
    ):
        for part in chain([first], parts):
            file.write_table(part)
    return out / Files.SCORES


def _scored(ranker: Ranker[Any], table: DayTable) -> Iterator[pa.Table]:
    split = split_of(table)
    part_of = dict.fromkeys(split.validation, "validation") | dict.fromkeys(split.test, "test")
    first = 0  # of the kept scores
    total = sum(part.rows for part in table.days if part.day in part_of)
    with progress(f"scoring {ranker.kind}", total=total) as advance:
        for day, frame in table.frames(set(part_of)):
            if part_of[day] == "validation" and ranker.held_out is not None:
                scores, learnt = ranker.held_out[first : first + frame.height].astype(np.float32), False
                first += frame.height
            else:
                scores, learnt = ranker.predict(frame), ranker.record.has_learnt(day)
            named = pl.lit(part_of[day]).alias(SPLIT), pl.lit(learnt).alias(LEARNT), pl.Series(SCORE, scores)
            copied = [name for name in frame.columns if name in _COPIED or name.startswith(_SLICE)]
            yield frame.select(*copied, *named).to_arrow(compat_level=pl.CompatLevel.oldest())
            advance(frame.height, "")
