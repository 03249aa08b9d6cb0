"""Confidence intervals by resampling users: a user's rows are correlated, so resampling rows would be too certain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shortlist.evaluation.metrics.pointwise import Floats, UnmeasurableError, check_classes, log_losses, row_pieces
from shortlist.evaluation.metrics.ranking import auc_per_group, list_weights, ndcg_per_group
from shortlist.evaluation.metrics.records import METRICS, ConfidenceInterval, Metric, MetricDifference
from shortlist.evaluation.metrics.scores import ScoredRows, check_same_rows
from shortlist.evaluation.metrics.sorted_scores import SortedScores, weighted_sum

FEWEST_CLUSTERS = 10
"""Fewest users for an interval: with fewer a bootstrap interval is far too narrow; with one it has no width."""


class Resampled(NamedTuple):
    """Value of a metric on all rows, and on every resample of their users."""

    value: float
    values: Floats
    """Values on the resamples, shape (rounds,). Models that were scored on the same rows share the resamples, so that
    their values can be subtracted."""

    def interval(self, confidence: float) -> ConfidenceInterval:
        """Return the value with its percentile interval."""
        low, high = np.quantile(self.values, [(1 - confidence) / 2, (1 + confidence) / 2])
        return ConfidenceInterval(low=min(float(low), self.value), value=self.value, high=max(float(high), self.value))


def resample(rows: ScoredRows, rounds: int, seed: int) -> dict[Metric, Resampled]:
    """Return every measurable metric, over resampled users (rows when there are no users); see `resample_with_rate`."""
    return resample_with_rate(rows, rounds, seed)[0]


def resample_with_rate(rows: ScoredRows, rounds: int, seed: int) -> tuple[dict[Metric, Resampled], Resampled]:
    """Return every measurable metric, and the label rate, over the same resampled users (rows without users).

    Args:
        rows: Scored rows of one split.
        rounds: Number of resamples.
        seed: Seed of the resamples.

    Returns:
        The label rate, and before it the metrics:
        `auc` and `log_loss` always; `gauc` and `ndcg_at_10` where the log names users and enough of them (or of their
        lists) have rows of both classes.

    Raises:
        UnmeasurableError: There is one class, or so few users of one class that a resample can miss them all.
    """
    check_classes(rows.stored_labels)
    clusters = _count_clusters(rows)
    sorted_scores = SortedScores(rows)
    sums: dict[Metric, _Sums] = {"log_loss": _Sums.of_log_loss(rows, clusters)}
    sums |= _sum_ranking_metrics(rows)
    aucs, rates, values = np.empty(rounds), np.empty(rounds), {name: np.empty(rounds) for name in sums}
    for round_number, weights in enumerate(_iter_resample_weights(clusters, rounds, seed)):
        aucs[round_number], rates[round_number] = sorted_scores.auc_and_rate(weights)
        for name, metric_sums in sums.items():
            values[name][round_number] = metric_sums.mean(weights)
    _check_resamples(aucs, rows)
    equal_weights = np.ones(clusters, np.uint8)
    auc, rate = sorted_scores.auc_and_rate(equal_weights)
    resampled: dict[Metric, Resampled] = {"auc": Resampled(auc, aucs)}
    for metric in METRICS:
        # A resample without a user of two classes has no GAUC: they are too few for an interval.
        if metric in sums and not np.isnan(values[metric]).any():
            resampled[metric] = Resampled(sums[metric].mean(equal_weights), values[metric])
    return resampled, Resampled(rate, rates)


def constant_rate_gap(log_loss: Resampled, label_rate: Resampled, confidence: float) -> ConfidenceInterval:
    """Return the log loss minus that of a constant score, the label rate of all rows, over the same resampled users.

    A user with very many rows moves both together, and not their difference.
    """
    positive_loss, negative_loss = log_losses(np.array([1, 0]), np.full(2, label_rate.value))

    def gap(loss: Any, rate: Any) -> Any:
        return loss - (rate * positive_loss + (1 - rate) * negative_loss)

    gaps = Resampled(gap(log_loss.value, label_rate.value), gap(log_loss.values, label_rate.values))
    return gaps.interval(confidence)


def paired_differences(
    candidate: Mapping[Metric, Resampled], reference: Mapping[Metric, Resampled], confidence: float, rows: int
) -> dict[Metric, MetricDifference]:
    """Return the difference of a candidate and a reference in every metric that both have.

    Args:
        candidate: Metrics of the candidate, from `resample`.
        reference: Metrics of the reference, on the same rows with the same rounds and seed.
        confidence: Level of the one-sided lower bound, and of the interval.
        rows: Number of those rows.
    """
    return {
        metric: _subtract_metric(metric, candidate_metric, reference[metric], confidence, rows)
        for metric, candidate_metric in candidate.items()
        if metric in reference
    }


def bootstrap(rows: ScoredRows, confidence: float, rounds: int, seed: int) -> dict[Metric, ConfidenceInterval]:
    """Return every measurable metric with its percentile interval; see `resample`."""
    return {name: resampled.interval(confidence) for name, resampled in resample(rows, rounds, seed).items()}


def bootstrap_mean(values: Floats, confidence: float, rounds: int, seed: int) -> ConfidenceInterval:
    """Return the mean of one value per user with its percentile interval over resampled users; values are not NaN."""
    user_sums = _Sums(values, np.ones(len(values)))
    resampled_means = np.array(
        [user_sums.mean(weights) for weights in _iter_resample_weights(len(values), rounds, seed)]
    )
    return Resampled(float(values.mean()), resampled_means).interval(confidence)


def bootstrap_differences(
    candidate: ScoredRows, reference: ScoredRows, confidence: float, rounds: int, seed: int
) -> dict[Metric, MetricDifference]:
    """Return the differences of two models on the same rows, with the same resampled users in every round.

    Raises:
        UnmeasurableError: The rows differ, or as for `resample`.
    """
    check_same_rows(candidate, reference)
    candidate_metrics, reference_metrics = (
        resample(rows, rounds, seed) for rows in (candidate, _as_clustered(reference, candidate))
    )
    return paired_differences(candidate_metrics, reference_metrics, confidence, candidate.rows)


def _as_clustered(rows: ScoredRows, model_rows: ScoredRows) -> ScoredRows:
    """Return rows with the users that another model's scores of the same rows name."""
    has_same_users = rows.users is not None and np.array_equal(rows.clusters, model_rows.clusters)
    return rows if has_same_users else replace(rows, frame=model_rows.frame, clusters=model_rows.clusters)


class _Sums(NamedTuple):
    """A metric that is a ratio of sums over users."""

    numerators: Floats
    denominators: Floats

    @classmethod
    def by_cluster(cls, clusters: npt.NDArray[np.intp], values: Floats, weights: Floats, size: int) -> _Sums:
        """Return the sums of weighted values and of weights, by cluster."""
        sums = (np.bincount(clusters, addends, size).astype(np.float64) for addends in (values * weights, weights))
        return cls(*sums)

    @classmethod
    def of_log_loss(cls, rows: ScoredRows, size: int) -> _Sums:
        """Return the sums of the log loss and of the weights of rows, by cluster."""
        numerators, weights = np.zeros(size), rows.weights
        # Where every row is a cluster of its own, each counts once.
        has_users = weights is not None or size < rows.rows
        denominators = np.zeros(size) if has_users else np.broadcast_to(np.float64(1), size)
        for piece in row_pieces(rows.rows):
            losses = log_losses(rows.stored_labels[piece], rows.stored_scores[piece])
            weight = np.ones(losses.size) if weights is None else weights[piece]
            np.add.at(numerators, rows.clusters[piece], losses * weight)
            if has_users:
                np.add.at(denominators, rows.clusters[piece], weight)
        return cls(numerators, denominators)

    def mean(self, weights: npt.NDArray[Any]) -> float:
        """Return the metric with a weight per cluster; NaN where all weights are 0."""
        pieces = row_pieces(weights.size)
        weight = sum(weighted_sum(weights[piece], self.denominators[piece]) for piece in pieces)
        total = sum(weighted_sum(weights[piece], self.numerators[piece]) for piece in pieces)
        return total / weight if weight else float("nan")


def _sum_ranking_metrics(rows: ScoredRows) -> dict[Metric, _Sums]:
    """Return the sums of GAUC (users weighted by their rows) and of nDCG (the mean of lists), summed by user.

    Where rows have weights, a user has their sum and a list their mean.
    """
    users, lists = rows.users, rows.lists
    if users is None or lists is None:
        return {}
    size = int(rows.clusters.max()) + 1
    sums: dict[Metric, _Sums] = {}
    by_user = auc_per_group(rows.labels, rows.scores, users, rows.weights)
    if by_user.groups.size >= FEWEST_CLUSTERS:
        sums["gauc"] = _Sums.by_cluster(by_user.groups, by_user.values, by_user.rows, size)
    by_list = ndcg_per_group(rows.labels, rows.scores, lists)
    owners = np.zeros(int(lists.max(initial=-1)) + 1, np.intp)
    owners[lists[lists >= 0]] = rows.clusters[lists >= 0]
    owners = owners[by_list.groups]
    if np.unique(owners).size >= FEWEST_CLUSTERS:
        weights_per_list = np.ones(owners.size) if rows.weights is None else list_weights(lists, rows.weights, by_list)
        sums["ndcg_at_10"] = _Sums.by_cluster(owners, by_list.values, weights_per_list, size)
    return sums


def _subtract_metric(
    metric: Metric, candidate: Resampled, reference: Resampled, confidence: float, rows: int
) -> MetricDifference:
    gaps = candidate.values - reference.values
    value = candidate.value - reference.value
    quantiles = np.quantile(gaps, [(1 - confidence) / 2, 1 - confidence, (1 + confidence) / 2])
    return MetricDifference(
        metric=metric,
        candidate=candidate.value,
        reference=reference.value,
        value=value,
        low=float(quantiles[1]),
        interval=(min(float(quantiles[0]), value), max(float(quantiles[2]), value)),
        error=float(gaps.std(ddof=1)),
        rows=rows,
    )


def _iter_resample_weights(clusters: int, rounds: int, seed: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield for each round how often each user was drawn: with replacement, as many draws as users.

    A byte per user suffices: no user is drawn 256 times, which has a probability below 1e-500. It stays in a cache
    where eight bytes would not.
    """
    from shortlist.evaluation.metrics.bootstrap_kernels import count_draws

    generator = np.random.default_rng(seed)
    for _ in range(rounds):
        counts = np.zeros(clusters, np.uint8)
        for piece in row_pieces(clusters):
            count_draws(generator.integers(0, clusters, piece.stop - piece.start, np.uint32), counts)
        yield counts


def _count_clusters(rows: ScoredRows) -> int:
    clusters = int(rows.clusters.max()) + 1
    if clusters < FEWEST_CLUSTERS:
        raise UnmeasurableError(
            f"{rows.rows} rows of only {clusters} users; an interval needs {FEWEST_CLUSTERS} or more"
        )
    return clusters


def _check_resamples(values: Floats, rows: ScoredRows) -> None:
    missing = int(np.isnan(values).sum())
    if missing:
        raise UnmeasurableError(
            f"{missing} of {values.size} resamples hold one class; {rows.positives} positives in {rows.rows} rows come"
            " from too few users for an interval"
        )
