"""How much features that serving fixes change the scores of a model."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl

from models.inputs import split_of
from models.ranker import Ranker
from shortlist.contracts import Columns
from shortlist.evaluation.metrics import auc
from shortlist.evaluation.records import TrainingOnlyEffect
from shortlist.storage.tables import DayTable

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
