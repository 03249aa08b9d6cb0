"""Rates of rows with outcomes: hit rate, label rate and what the scores say of it, with intervals over users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import numpy as np
import polars as pl

from monitoring.windows.sampling import Ints, clusters_of
from shortlist.contracts import Columns
from shortlist.evaluation.intervals import FEWEST_CLUSTERS
from shortlist.evaluation.metrics import Floats, UnmeasurableError
from shortlist.evaluation.records import Interval
from shortlist.evaluation.scores import weights_of

Rate = Literal["hit_rate", "label_rate", "mean_score", "rate_error"]
REQUEST: Final = "request_id"
ROW: Final = "row"
SCORE: Final = "score"
ROUNDS: Final = 400
"""Resamples of an interval: enough that the 0.5 % tails of a 99 % one are not single draws."""


def hit_rate(rows: pl.DataFrame, at: int) -> float:
    """Return how often the items that a model puts first end with a positive label.

    A request's value is the share of positives among its `at` best-scored rows, or among all of them when it has
    fewer; the hit rate is the mean of the requests' values. The canary analysis reads the same rows of a request, but
    takes the mean within each user first: the two are equal when users make equally many requests. Here every request
    counts the same: the mean over users depends on how long one looks (a longer window has more of the rare ones), and
    windows must compare with test days of another length.

    Args:
        rows: Rows whose outcome is known, columns request_id, score, label (0 or 1). Of equal scores the earlier row
            comes first: by the column `row` where there is one, else in the order of the frame. With the column
            impression_weight a request counts as often as its first row does.
        at: Rows of a request that count, at least 1.

    Raises:
        UnmeasurableError: No rows, or a score that is no number.

    >>> rows = pl.DataFrame({"request_id": ["a", "a", "a", "b"], "score": [0.2, 0.9, 0.2, 0.1], "label": [1, 0, 0, 1]})
    >>> hit_rate(rows, at=1)  # a: 0.9 is no hit; b: 0.1 is one
    0.5
    >>> hit_rate(rows, at=2)  # a: 0.9 no, the first 0.2 yes: 1/2; b: 1/1
    0.75
    """
    values = _request_values(rows, at)
    return float(np.average(values["value"].to_numpy(), weights=weights_of(values)))


def measure_rates(
    rows: pl.DataFrame, at: int, confidence: float, seed: int = 0, rounds: int = ROUNDS
) -> Mapping[Rate, Interval]:
    """Return the rates of rows with percentile intervals over resampled users.

    `rate_error` is the distance of mean score and label rate as a share of the label rate; its interval starts at 0
    when resamples lie on both sides.

    Args:
        rows: As for `hit_rate`, with the column user, if there is one: rows without a user count by request. Every row
            counts as often as its impression_weight says, if there is one.
        at: As for `hit_rate`.
        confidence: Level of the intervals.
        seed: Of the resamples.
        rounds: Resamples.

    Raises:
        UnmeasurableError: As for `hit_rate`; fewer than 10 users, or so few positives that a resample has none.
    """
    clusters = clusters_of(rows)
    count = int(clusters.max(initial=-1)) + 1
    if count < FEWEST_CLUSTERS:
        raise UnmeasurableError(f"{rows.height} rows of only {count} users; an interval needs {FEWEST_CLUSTERS}")
    sums = _cluster_sums(rows, clusters, at)
    generator = np.random.default_rng(seed)
    resampled = np.array([_rates(sums[generator.integers(0, count, count)].sum(axis=0)) for _ in range(rounds)])
    values = _rates(sums.sum(axis=0))
    if not np.isfinite(resampled).all() or not np.isfinite(values).all():
        raise UnmeasurableError(f"too few positives for an interval: {rows[Columns.LABEL].sum()} in {rows.height} rows")
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    bounds = zip(np.minimum(low, values).tolist(), values.tolist(), np.maximum(high, values).tolist(), strict=True)
    hits, labels, scores, error = (Interval(low=low, value=value, high=high) for low, value, high in bounds)
    return {"hit_rate": hits, "label_rate": labels, "mean_score": scores, "rate_error": _distance(error)}


def _request_values(rows: pl.DataFrame, at: int) -> pl.DataFrame:
    """Return every request's share of positives among its best-scored rows: request_id, value and other's first."""
    assert at >= 1
    if not rows.height:
        raise UnmeasurableError("no rows to measure")
    missing = rows[SCORE].cast(pl.Float64).fill_nan(None).null_count()
    if missing:
        raise UnmeasurableError(f"{missing} of {rows.height} scores are missing (NaN)")
    order = [SCORE, ROW] if ROW in rows.columns else [SCORE]
    return (
        rows.sort(order, descending=[name == SCORE for name in order], maintain_order=True)
        .group_by(REQUEST, maintain_order=True)
        .agg(pl.exclude(Columns.LABEL).first(), value=pl.col(Columns.LABEL).head(at).cast(pl.Float64).mean())
    )


def _cluster_sums(rows: pl.DataFrame, clusters: Ints, at: int) -> Floats:
    """Return rows, positives, scores, requests and their values, weighted and summed by cluster.

    Returns:
        Shape (clusters, 5).
    """
    own = _ones_or_weights(rows)
    narrow = rows.select(name for name in (REQUEST, ROW, SCORE, Columns.LABEL) if name in rows.columns)
    values = _request_values(narrow.with_columns(pl.Series(Columns.WEIGHT, own), cluster=pl.Series(clusters)), at)
    count = int(clusters.max()) + 1
    labels, scores = (rows[name].cast(pl.Float64).to_numpy() for name in (Columns.LABEL, SCORE))
    by_row = [np.bincount(clusters, one, count) for one in (own, labels * own, scores * own)]
    of_request, weight = values["cluster"].to_numpy(), values[Columns.WEIGHT].to_numpy()
    by_request = [np.bincount(of_request, one, count) for one in (weight, values["value"].to_numpy() * weight)]
    return np.column_stack([*by_row, *by_request])


def _ones_or_weights(rows: pl.DataFrame) -> Floats:
    weights = weights_of(rows)
    return np.ones(rows.height) if weights is None else weights


def _rates(sums: Floats) -> Floats:
    rows, positives, scores, requests, values = sums
    error = scores / positives - 1 if positives else float("nan")
    return np.array([values / requests, positives / rows, scores / rows, error])


def _distance(signed: Interval) -> Interval:
    ends = sorted((abs(signed.low), abs(signed.high)))
    return Interval(low=0.0 if signed.low <= 0 <= signed.high else ends[0], value=abs(signed.value), high=ends[1])
