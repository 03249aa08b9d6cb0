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
from shortlist.contracts import Columns, DataError, Files, best_column, label_column, score_column
from shortlist.evaluation.metrics import auc
from shortlist.evaluation.records import TrainingOnlyEffect
from shortlist.evaluation.scores import LEARNT
from shortlist.storage.artefacts import atomic_folder, write_json
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
        impression_weight, slice_* (those the table has), label_*, score_* and true_probability_* of the model's further
        labels, split
        ("validation" or "test"), learnt (whether the model
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
        if effects := training_only_effects(ranker, table):
            write_json(staging / Files.TRAINING_ONLY, {"effects": [one.model_dump() for one in effects]})
    return out / Files.SCORES


def _scored(ranker: Ranker[Any], table: DayTable) -> Iterator[pa.Table]:
    split = split_of(table)
    part_of = dict.fromkeys(split.validation, "validation") | dict.fromkeys(split.test, "test")
    first = 0  # of the kept scores
    total = sum(part.rows for part in table.days if part.day in part_of)
    with progress(f"scoring {ranker.kind}", total=total) as advance:
        for day, frame in table.frames(set(part_of)):
            held_out = part_of[day] == "validation" and ranker.held_out is not None
            place = slice(first, first + frame.height) if held_out else None
            first += frame.height if held_out else 0
            scores = _scores_of(ranker, frame, place)
            learnt = not held_out and ranker.record.has_learnt(day)
            named = pl.lit(part_of[day]).alias(SPLIT), pl.lit(learnt).alias(LEARNT)
            labels = {column(name) for name in ranker.record.labels for column in (label_column, best_column)}
            copied = [name for name in frame.columns if name in labels or name in _COPIED or name.startswith(_SLICE)]
            yield frame.select(*copied, *named).hstack(scores).to_arrow(compat_level=pl.CompatLevel.oldest())
            advance(frame.height, "")


def _scores_of(ranker: Ranker[Any], frame: pl.DataFrame, held_out: slice | None) -> list[pl.Series]:
    """Return the score of every row, and those of the further labels.

    Args:
        ranker: The model.
        frame: The rows.
        held_out: Where they stand among those that were scored before they were learnt; None: score them now.
    """
    if held_out is None:
        further = ranker.predict_further(frame)
        return [pl.Series(SCORE, ranker.predict(frame)), *(pl.Series(score_column(n), s) for n, s in further.items())]
    models = {SCORE: ranker, **{score_column(name): head for name, head in ranker.heads.items()}}
    kept = {name: model.predict(frame) if model.held_out is None else model.held_out[held_out]
            for name, model in models.items()}  # fmt: skip
    kept |= {score_column(name): scores[held_out] for name, scores in ranker.held_out_further.items()}
    return [pl.Series(name, one.astype(np.float32)) for name, one in kept.items()]


_ROWS: Final = 20_000
"""Test rows that are scored again, once for each value: the first ones."""
_VALUES: Final = 10


def training_only_effects(ranker: Ranker[Any], table: DayTable) -> list[TrainingOnlyEffect]:
    """Return an effect for each feature of kind `training_only` that a model reads itself; a blend reads none."""
    fixed = {one.name: one.served for one in ranker.record.features if one.served is not None}
    if not fixed or ranker.section.members:
        return []
    rows = _test_rows(table)
    labels = rows[Columns.LABEL].to_numpy().astype(np.float64)
    as_served, as_shown = _auc(labels, ranker.predict(rows)), _auc(labels, ranker.predict_as_shown(rows))
    served = {name: float(value) for name, value in fixed.items() if value is not None}
    effects = []
    for name, value in served.items():
        others = {other: fixed_value for other, fixed_value in served.items() if other != name}
        tried = sorted({*_values(rows[name]), value})
        means = ((one, float(ranker.predict_as_shown(rows, **{**others, name: one}).mean())) for one in tried)
        effects.append(
            TrainingOnlyEffect(
                feature=name, served=value, rows=rows.height, mean_scores=tuple(means), auc_as_served=as_served,
                auc_as_shown=as_shown,
            )
        )  # fmt: skip
    return effects


def _test_rows(table: DayTable) -> pl.DataFrame:
    taken, height = [], 0
    for _, frame in table.frames(set(split_of(table).test)):
        taken.append(frame.head(_ROWS - height))
        height += taken[-1].height
        if height == _ROWS:
            break
    return pl.concat(taken)


def _values(column: pl.Series) -> list[float]:
    """Return all values of a column, or where there are many, those at equal distances in their order."""
    known = column.drop_nulls().unique().sort().cast(pl.Float64)
    places = np.unique(np.linspace(0, len(known) - 1, min(_VALUES, len(known))).round().astype(int))
    return known.gather(places).to_list() if len(known) else []


def _auc(labels: np.ndarray, scores: np.ndarray) -> float | None:
    return auc(labels, scores.astype(np.float64)) if 0 < labels.sum() < len(labels) else None
