"""Features of which training hardly saw an unknown value, so that a model learns nothing of one."""

from __future__ import annotations

from typing import Final

import polars as pl

from shortlist.ranking.inputs import LearningTable, TableFeature

_KNOWN_SHARE: Final = 0.01
"""Share of training rows from which on a model learns from them what an unknown value means."""


def find_rarely_unknown_features(learning: LearningTable) -> tuple[TableFeature, ...]:
    """Return the numbers and ids that are null, or the unknown id 0, on fewer than 1 % of the training rows.

    Numbers with a fixed value in serving are left out.
    """
    features = [feature for feature in learning.features if feature.kind in ("dense", "id") and feature.served is None]
    is_unknown = {
        feature.name: pl.col(feature.name).is_null() if feature.kind == "dense" else pl.col(feature.name) == 0
        for feature in features
    }
    rows = pl.scan_parquet(learning.paths("train"), hive_partitioning=False)
    query = rows.select(**{name: condition.mean() for name, condition in is_unknown.items()})
    shares = query.collect(engine="streaming")  # otherwise all rows would be in memory at once
    return tuple(feature for feature in features if shares.item(0, feature.name) < _KNOWN_SHARE)
