"""Scores of all validation and test rows, in one Parquet file with the columns that gates need."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from shortlist.contracts import Columns, DataError, Files, best_column, label_column, score_column
from shortlist.evaluation.metrics.pointwise import auc
from shortlist.evaluation.metrics.records import TrainingOnlyEffect
from shortlist.evaluation.metrics.scores import LEARNT
from shortlist.ranking.inputs import split_of
from shortlist.ranking.ranker import Ranker
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
        have the scores from before the refit, where the model kept them.

    Raises:
        DataError: There are no validation and test rows, or the table lacks a feature of the model.
    """
    parts = _score_days(ranker, table)
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
            write_json(staging / Files.TRAINING_ONLY, {"effects": [effect.model_dump() for effect in effects]})
    return out / Files.SCORES


def _score_days(ranker: Ranker[Any], table: DayTable) -> Iterator[pa.Table]:
    split = split_of(table)
    part_of = dict.fromkeys(split.validation, "validation") | dict.fromkeys(split.test, "test")
    first = 0  # position in the held-out scores
    total = sum(part.rows for part in table.days if part.day in part_of)
    with progress(f"scoring {ranker.kind}", total=total) as advance:
        for day, _, frame in table.pieces(set(part_of)):
            held_out = part_of[day] == "validation" and ranker.held_out is not None
            held_out_rows = slice(first, first + frame.height) if held_out else None
            first += frame.height if held_out else 0
            scores = _score_frame(ranker, frame, held_out_rows)
            learnt = not held_out and ranker.record.has_learnt(day)
            named = pl.lit(part_of[day]).alias(SPLIT), pl.lit(learnt).alias(LEARNT)
            labels = {column(name) for name in ranker.record.labels for column in (label_column, best_column)}
            copied = [name for name in frame.columns if name in labels or name in _COPIED or name.startswith(_SLICE)]
            yield frame.select(*copied, *named).hstack(scores).to_arrow(compat_level=pl.CompatLevel.oldest())
            advance(frame.height, "")


def _score_frame(ranker: Ranker[Any], frame: pl.DataFrame, held_out: slice | None) -> list[pl.Series]:
    """Return the score of every row, and those of the further labels.

    Args:
        ranker: The model.
        frame: The rows.
        held_out: Range of the rows in the held-out scores; None: score them now.
    """
    if held_out is None:
        further = ranker.predict_further(frame)
        return [pl.Series(SCORE, ranker.predict(frame)), *(pl.Series(score_column(n), s) for n, s in further.items())]
    models = {SCORE: ranker, **{score_column(name): head for name, head in ranker.heads.items()}}
    scores_by_column = {name: model.predict(frame) if model.held_out is None else model.held_out[held_out]
            for name, model in models.items()}  # fmt: skip
    scores_by_column |= {score_column(name): scores[held_out] for name, scores in ranker.held_out_further.items()}
    return [pl.Series(name, scores.astype(np.float32)) for name, scores in scores_by_column.items()]


_ROWS: Final = 20_000
"""Test rows, the first ones, that are scored again with each value."""
_VALUES: Final = 10


def training_only_effects(ranker: Ranker[Any], table: DayTable) -> list[TrainingOnlyEffect]:
    """Return an effect for each feature of kind `training_only` that a model reads; a blend reads none."""
    served_by_feature = {
        feature.name: feature.served for feature in ranker.record.features if feature.served is not None
    }
    if not served_by_feature or ranker.section.members:
        return []
    rows = _test_rows(table)
    labels = rows[Columns.LABEL].to_numpy().astype(np.float64)
    auc_with_served_values, auc_with_logged_values = (
        _auc(labels, ranker.predict(rows)),
        _auc(labels, ranker.predict_with_logged_values(rows)),
    )
    served = {name: float(value) for name, value in served_by_feature.items() if value is not None}
    effects = []
    for name, value in served.items():
        other_features = {other_name: fixed_value for other_name, fixed_value in served.items() if other_name != name}
        tried_values = sorted({*_sample_values(rows[name]), value})
        mean_scores = (
            (
                tried_value,
                float(ranker.predict_with_logged_values(rows, **{**other_features, name: tried_value}).mean()),
            )
            for tried_value in tried_values
        )
        effects.append(
            TrainingOnlyEffect(
                feature=name, served=value, rows=rows.height, mean_scores=tuple(mean_scores),
                auc_as_served=auc_with_served_values, auc_as_shown=auc_with_logged_values,
            )
        )  # fmt: skip
    return effects


def _test_rows(table: DayTable) -> pl.DataFrame:
    frames, height = [], 0
    for _, frame in table.frames(set(split_of(table).test)):
        frames.append(frame.head(_ROWS - height))
        height += frames[-1].height
        if height == _ROWS:
            break
    return pl.concat(frames)


def _sample_values(column: pl.Series) -> list[float]:
    """Return the distinct values of a column; of many, a sample at equal distances in their order."""
    distinct = column.drop_nulls().unique().sort().cast(pl.Float64)
    places = np.unique(np.linspace(0, len(distinct) - 1, min(_VALUES, len(distinct))).round().astype(int))
    return distinct.gather(places).to_list() if len(distinct) else []


def _auc(labels: np.ndarray, scores: np.ndarray) -> float | None:
    return auc(labels, scores.astype(np.float64)) if 0 < labels.sum() < len(labels) else None
