"""Rates of rows with outcomes (hit rate, label rate, mean score, rate error), with intervals over users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import numpy as np
import polars as pl

from monitoring.windows.sampling import Ints, assign_clusters
from shortlist.contracts import Columns
from shortlist.evaluation.metrics.intervals import FEWEST_CLUSTERS
from shortlist.evaluation.metrics.pointwise import Floats, UnmeasurableError
from shortlist.evaluation.metrics.records import ConfidenceInterval
from shortlist.evaluation.metrics.scores import read_weights

Rate = Literal["hit_rate", "label_rate", "mean_score", "rate_error"]
REQUEST: Final = "request_id"
ROW: Final = "row"
SCORE: Final = "score"
ROUNDS: Final = 400
"""Resamples of an interval: enough that each 0.5 % tail of a 99 % interval holds more than one."""


def hit_rate(rows: pl.DataFrame, at: int) -> float:
    """Return the share of positive labels among the items that a model ranks first.

    A request's value is the share of positives among its `at` best-scored rows, or among all of them when it has
    fewer; the hit rate is the mean of the requests' values. The canary analysis reads the same rows of a request, but
    takes the mean within each user first: the two are equal when users make equally many requests. Here every request
    counts the same: a mean over users depends on the length of the window (a longer one has more of the rare users),
    and windows must be comparable with test days of another length.

    Args:
        rows: Rows whose outcome is known, columns request_id, score, label (0 or 1). Of equal scores the earlier row
            comes first: by the column `row` where there is one, else in the order of the frame. With the column
            impression_weight a request counts as often as its first row does.
        at: Rows of a request that count, at least 1.

    Raises:
        UnmeasurableError: There are no rows, or a score is missing.

    >>> rows = pl.DataFrame({"request_id": ["a", "a", "a", "b"], "score": [0.2, 0.9, 0.2, 0.1], "label": [1, 0, 0, 1]})
    >>> hit_rate(rows, at=1)  # a: 0.9 is no hit; b: 0.1 is one
    0.5
    >>> hit_rate(rows, at=2)  # a: 0.9 no, the first 0.2 yes: 1/2; b: 1/1
    0.75
    """
    values = request_hit_shares(rows, at)
    return float(np.average(values["value"].to_numpy(), weights=read_weights(values)))


def measure_rates(
    rows: pl.DataFrame, at: int, confidence: float, seed: int = 0, rounds: int = ROUNDS
) -> Mapping[Rate, ConfidenceInterval]:
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
    clusters = assign_clusters(rows)
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
    hits, labels, scores, error = (ConfidenceInterval(low=low, value=value, high=high) for low, value, high in bounds)
    return {"hit_rate": hits, "label_rate": labels, "mean_score": scores, "rate_error": _absolute_interval(error)}


def request_hit_shares(rows: pl.DataFrame, at: int) -> pl.DataFrame:
    """Return every request's share of positives among its best-scored rows, as `value`, with its first row."""
    assert at >= 1
    if not rows.height:
        raise UnmeasurableError("no rows to measure")
    missing_scores = rows[SCORE].cast(pl.Float64).fill_nan(None).null_count()
    if missing_scores:
        raise UnmeasurableError(f"{missing_scores} of {rows.height} scores are missing (NaN)")
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
    row_weights = _row_weights(rows)
    narrow = rows.select(name for name in (REQUEST, ROW, SCORE, Columns.LABEL) if name in rows.columns)
    values = request_hit_shares(
        narrow.with_columns(pl.Series(Columns.WEIGHT, row_weights), cluster=pl.Series(clusters)), at
    )
    count = int(clusters.max()) + 1
    labels, scores = (rows[name].cast(pl.Float64).to_numpy() for name in (Columns.LABEL, SCORE))
    row_sums = [
        np.bincount(clusters, amounts, count) for amounts in (row_weights, labels * row_weights, scores * row_weights)
    ]
    request_clusters, request_weights = values["cluster"].to_numpy(), values[Columns.WEIGHT].to_numpy()
    request_sums = [
        np.bincount(request_clusters, amounts, count)
        for amounts in (request_weights, values["value"].to_numpy() * request_weights)
    ]
    return np.column_stack([*row_sums, *request_sums])


def _row_weights(rows: pl.DataFrame) -> Floats:
    weights = read_weights(rows)
    return np.ones(rows.height) if weights is None else weights


def _rates(sums: Floats) -> Floats:
    rows, positives, scores, requests, values = sums
    error = scores / positives - 1 if positives else float("nan")
    return np.array([values / requests, positives / rows, scores / rows, error])


def _absolute_interval(signed: ConfidenceInterval) -> ConfidenceInterval:
    ends = sorted((abs(signed.low), abs(signed.high)))
    return ConfidenceInterval(
        low=0.0 if signed.low <= 0 <= signed.high else ends[0], value=abs(signed.value), high=ends[1]
    )
