"""Confidence intervals by resampling users: one user's rows hang together, so rows alone would look too certain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shortlist.evaluation.metrics import Floats, UnmeasurableError, auc, check_classes, log_losses
from shortlist.evaluation.ranking import auc_per_group, list_weights, ndcg_per_group
from shortlist.evaluation.records import METRICS, Difference, Interval, Metric
from shortlist.evaluation.scores import ScoredRows, check_same_rows

FEWEST_CLUSTERS = 10
"""With fewer users a bootstrap interval is far too narrow; with one it has no width at all."""


class SortedScores:
    """Scores sorted once, so that the AUC under any weights of the users costs one pass and no sort."""

    def __init__(self, rows: ScoredRows) -> None:
        order = np.argsort(rows.scores, kind="stable")
        positive = rows.labels[order] == 1
        scores, clusters = rows.scores[order], rows.clusters[order]
        self._positive_clusters, self._negative_clusters = clusters[positive], clusters[~positive]
        negatives = scores[~positive]
        self._below = np.searchsorted(negatives, scores[positive], side="left")
        self._not_above = np.searchsorted(negatives, scores[positive], side="right")
        own = None if rows.weights is None else rows.weights[order]
        self._own = None if own is None else (own[positive], own[~positive])

    def auc(self, weights: Floats) -> float:
        """Return the AUC when every row weighs what its user weighs, times its own weight; ties count half.

        Args:
            weights: Weight per user, shape (users,).

        Returns:
            The AUC; NaN when all weight lies on one class.
        """
        positive, negative = weights.take(self._positive_clusters), weights.take(self._negative_clusters)
        if self._own is not None:
            positive, negative = positive * self._own[0], negative * self._own[1]
        negative_up_to = np.concatenate(([0.0], np.cumsum(negative)))
        beaten = (negative_up_to.take(self._below) + negative_up_to.take(self._not_above)) / 2
        pairs = positive.sum() * negative_up_to[-1]
        return _dot(positive, beaten) / pairs if pairs else float("nan")


class Resampled(NamedTuple):
    """A metric of all rows, and of every resample of their users."""

    value: float
    values: Floats
    """Shape (rounds,). Models that were scored on the same rows saw the same resamples, so they can be subtracted."""

    def interval(self, confidence: float) -> Interval:
        """Return the value with its percentile interval."""
        low, high = np.quantile(self.values, [(1 - confidence) / 2, (1 + confidence) / 2])
        return Interval(low=min(float(low), self.value), value=self.value, high=max(float(high), self.value))


def resample(rows: ScoredRows, rounds: int, seed: int) -> dict[Metric, Resampled]:
    """Return every metric that can be had, over resampled users (rows when there are no users).

    Args:
        rows: Of one split.
        rounds: Resamples.
        seed: Of the resamples.

    Returns:
        `auc` and `log_loss` always; `gauc` and `ndcg_at_10` where the log names users and enough of them (or of their
        lists) have rows of both classes.

    Raises:
        UnmeasurableError: One class, or so few users of one class that a resample can miss them all.
    """
    check_classes(rows.labels)
    clusters = _count_clusters(rows)
    losses = log_losses(rows.labels, rows.scores)
    own = np.ones(rows.rows) if rows.weights is None else rows.weights
    sums: dict[Metric, _Sums] = {"log_loss": _Sums.of(rows.clusters, losses, own, clusters)}
    sums |= _ranking_sums(rows)
    by_score = SortedScores(rows)
    aucs, values = np.empty(rounds), {name: np.empty(rounds) for name in sums}
    for number, weights in enumerate(_resamples(clusters, rounds, seed)):
        aucs[number] = by_score.auc(weights)
        for name, one in sums.items():
            values[name][number] = one.mean(weights)
    _check_resamples(aucs, rows)
    found: dict[Metric, Resampled] = {"auc": Resampled(auc(rows.labels, rows.scores, rows.weights), aucs)}
    everybody = np.ones(clusters)
    for metric in METRICS:
        # A resample without a user of two classes has no GAUC: they are too few for an interval.
        if metric in sums and not np.isnan(values[metric]).any():
            found[metric] = Resampled(sums[metric].mean(everybody), values[metric])
    return found


def differences(
    candidate: Mapping[Metric, Resampled], reference: Mapping[Metric, Resampled], confidence: float, rows: int
) -> dict[Metric, Difference]:
    """Return by how much a candidate is above a reference, for every metric that both have.

    Args:
        candidate: From `resample`.
        reference: Likewise, on the same rows with the same rounds and seed.
        confidence: Level of the one-sided lower bound, and of the interval.
        rows: How many rows that were.
    """
    return {
        metric: _difference(metric, ours, reference[metric], confidence, rows)
        for metric, ours in candidate.items()
        if metric in reference
    }


def bootstrap(rows: ScoredRows, confidence: float, rounds: int, seed: int) -> dict[Metric, Interval]:
    """Return every metric that can be had with its percentile interval; see `resample`."""
    return {name: one.interval(confidence) for name, one in resample(rows, rounds, seed).items()}


def bootstrap_mean(values: Floats, confidence: float, rounds: int, seed: int) -> Interval:
    """Return the mean of one value per user with its percentile interval over resampled users; values are not NaN."""
    everybody = _Sums(values, np.ones(len(values)))
    means = np.array([everybody.mean(weights) for weights in _resamples(len(values), rounds, seed)])
    return Resampled(float(values.mean()), means).interval(confidence)


def bootstrap_differences(
    candidate: ScoredRows, reference: ScoredRows, confidence: float, rounds: int, seed: int
) -> dict[Metric, Difference]:
    """Return the differences of two models on the same rows, both seeing the same resampled users in every round.

    Raises:
        UnmeasurableError: The rows differ, or as for `resample`.
    """
    check_same_rows(candidate, reference)
    ours, theirs = (resample(rows, rounds, seed) for rows in (candidate, _as_clustered(reference, candidate)))
    return differences(ours, theirs, confidence, candidate.rows)


def _as_clustered(rows: ScoredRows, like: ScoredRows) -> ScoredRows:
    """Return rows whose users are those that another model's scores of the same rows name."""
    same = rows.users is not None and np.array_equal(rows.clusters, like.clusters)
    return rows if same else replace(rows, frame=like.frame, clusters=like.clusters)


class _Sums(NamedTuple):
    """A metric that is a ratio of sums over users."""

    numerators: Floats
    denominators: Floats

    @classmethod
    def of(cls, clusters: npt.NDArray[np.intp], values: Floats, weights: Floats, size: int) -> _Sums:
        """Return the sums of weighted values and of weights, by cluster."""
        sums = (np.bincount(clusters, one, size).astype(np.float64) for one in (values * weights, weights))
        return cls(*sums)

    def mean(self, weights: Floats) -> float:
        weight = _dot(weights, self.denominators)
        return _dot(weights, self.numerators) / weight if weight else float("nan")


def _ranking_sums(rows: ScoredRows) -> dict[Metric, _Sums]:
    """Return the sums of GAUC (users weighted by their rows) and of nDCG (the mean of lists), summed by user.

    Where rows have weights, a user has the sum and a list the mean of them.
    """
    users, lists = rows.users, rows.lists
    if users is None or lists is None:
        return {}
    size = int(rows.clusters.max()) + 1
    found: dict[Metric, _Sums] = {}
    by_user = auc_per_group(rows.labels, rows.scores, users, rows.weights)
    if by_user.groups.size >= FEWEST_CLUSTERS:
        found["gauc"] = _Sums.of(by_user.groups, by_user.values, by_user.rows, size)
    by_list = ndcg_per_group(rows.labels, rows.scores, lists)
    owners = np.zeros(int(lists.max(initial=-1)) + 1, np.intp)
    owners[lists[lists >= 0]] = rows.clusters[lists >= 0]
    owners = owners[by_list.groups]
    if np.unique(owners).size >= FEWEST_CLUSTERS:
        own = np.ones(owners.size) if rows.weights is None else list_weights(lists, rows.weights, by_list)
        found["ndcg_at_10"] = _Sums.of(owners, by_list.values, own, size)
    return found


def _difference(metric: Metric, ours: Resampled, theirs: Resampled, confidence: float, rows: int) -> Difference:
    gaps = ours.values - theirs.values
    value = ours.value - theirs.value
    ends = np.quantile(gaps, [(1 - confidence) / 2, 1 - confidence, (1 + confidence) / 2])
    return Difference(
        metric=metric,
        candidate=ours.value,
        reference=theirs.value,
        value=value,
        low=float(ends[1]),
        interval=(min(float(ends[0]), value), max(float(ends[2]), value)),
        error=float(gaps.std(ddof=1)),
        rows=rows,
    )


def _resamples(clusters: int, rounds: int, seed: int) -> Iterator[Floats]:
    """Give, round by round, how often each user was drawn, with replacement, as many draws as users."""
    generator = np.random.default_rng(seed)
    for _ in range(rounds):
        draws = generator.integers(0, clusters, clusters)
        yield np.bincount(draws, minlength=clusters).astype(np.float64)


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


def _dot(left: Floats, right: Floats) -> float:
    # Not `@`: its threads wait for each other longer than so short a sum takes (10 ms against 0.4 when cores are busy).
    return float((left * right).sum())
