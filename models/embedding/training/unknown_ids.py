"""The embedding of an id that training did not see: the mean of those that it saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import polars as pl
import torch

from models.embedding.network.embedding_model import EmbeddingModel
from models.embedding.reading.layout import Layout
from models.embedding.table.cached_embeddings import CachedTable
from models.embedding.table.sharded import ShardedTable
from models.unknown_values import find_rarely_unknown_features
from shortlist.ranking.inputs import LearningTable

_ROWS: Final = 100_000
"""Most training rows that the means are taken of, at equal distances."""


@torch.no_grad()
def average_unknown_ids(
    model: EmbeddingModel, layout: Layout, learning: LearningTable, predict: Callable[[pl.DataFrame], np.ndarray]
) -> None:
    """Set the row of the unknown id to the mean of the rows' ids, where hardly a training row has it.

    It would stay at zero, where it began, while the others moved away together: a row with an unknown value would not
    be scored like the average. So that the mean score stays, rows count by the slope of their score over the log-odds,
    halfway to that of the average row, which scores move to.

    Args:
        model: A trained network.
        layout: Its features.
        learning: The rows it was trained on.
        predict: Returns the network's scores of rows.
    """
    rare_features = find_rarely_unknown_features(learning)
    rare = [
        (feature, start)
        for feature, start in zip(layout.singles, layout.starts, strict=False)
        if feature in rare_features
    ]
    if isinstance(model.table, ShardedTable) or not rare:
        return  # a worker that writes no model, or nothing to set
    step = -(-learning.rows("train") // _ROWS)
    rows = pl.concat([frame.gather_every(step) for frame in learning.frames("train")])
    scores = predict(rows).astype(np.float64)
    slopes = scores * (1 - scores)
    slopes += slopes.mean()
    table = model.table.whole if isinstance(model.table, CachedTable) else model.table
    for feature, start in rare:
        ids = rows[feature.name].cast(pl.Int64).to_numpy()
        weights_N = torch.from_numpy(np.where(ids > 0, slopes, 0.0))
        rows_ND = table.weight_RD[torch.from_numpy(ids + start).to(table.weight_RD.device)]
        table.weight_RD[start] = (weights_N / weights_N.sum()).to(rows_ND) @ rows_ND
