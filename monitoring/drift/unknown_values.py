"""Values that a model does not know: how many more there are than when it was trained."""

from __future__ import annotations

import numpy as np
import polars as pl
from scipy.special import stdtr

from monitoring.drift.distributions import known_values
from monitoring.drift.number_format import percent, with_limit
from monitoring.drift.sampling import Ints
from monitoring.records import Finding
from shortlist.features.vocabulary import ValueIds


def unknown_finding(
    values: pl.Series, clusters: Ints, vocabulary: ValueIds, reference: float, max_increase: float
) -> Finding | None:
    """Return how much the share of values with id 0 grew; None when the window has no values.

    Args:
        values: The column; of tags, every value counts.
        clusters: Cluster of every row.
        vocabulary: The ids.
        reference: Share of values with id 0 in the reference.
        max_increase: The effect from which on it counts.
    """
    rows, known = known_values(values, "tags")
    if known.is_empty():
        return None
    unknown = vocabulary.ids(known).to_numpy() == 0
    share = float(unknown.mean())
    increase = share - reference
    return Finding(
        column=values.name,
        kind="unknown",
        effect=increase,
        critical=max_increase,
        p_value=_chance(unknown, clusters[rows], reference),
        drifted=False,
        reason=f"{values.name}: {percent(share)} of the values have no id of their own, {percent(reference)} in the"
        f" reference; an increase of {with_limit(100 * increase, 100 * max_increase)} points",
    )


def _chance(unknown: np.ndarray, clusters: Ints, reference: float) -> float:
    """Return the chance of as large a share in users drawn anew, by their own spread (one-sided t test)."""
    place = np.unique(clusters, return_inverse=True)[1]
    rows, share = unknown.size, float(unknown.mean())
    residuals = np.bincount(place, unknown - share)
    users = residuals.size
    if users < 2:
        return 1.0
    between = users / (users - 1) * float(residuals @ residuals) / rows**2
    # Not less than independent rows of either share would have: all known, or all unknown, is no certainty.
    apart = max(share * (1 - share), reference * (1 - reference), 1 / rows) / rows
    return float(stdtr(users - 1, (reference - share) / max(between, apart) ** 0.5))
