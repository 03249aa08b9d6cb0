"""Confidence intervals by resampling users: one user's rows hang together, so rows alone would look too certain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from shortlist.evaluation.metrics import Floats, UnmeasurableError, auc, check_classes, log_losses
from shortlist.evaluation.records import Difference, Interval
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

    def auc(self, weights: Floats) -> float:
        """Return the AUC when every row weighs what its user weighs; ties count half.

        Args:
            weights: Weight per user, shape (users,).

        Returns:
            The AUC; NaN when all weight lies on one class.
        """
        positive = weights.take(self._positive_clusters)
        negative_up_to = np.concatenate(([0.0], np.cumsum(weights.take(self._negative_clusters))))
        beaten = (negative_up_to.take(self._below) + negative_up_to.take(self._not_above)) / 2
        pairs = positive.sum() * negative_up_to[-1]
        return _dot(positive, beaten) / pairs if pairs else float("nan")


def bootstrap(rows: ScoredRows, confidence: float, rounds: int, seed: int) -> tuple[Interval, Interval]:
    """Return AUC and log loss with percentile intervals over resampled users (rows when there are no users).

    Raises:
        UnmeasurableError: One class, or so few users of one class that a resample can miss them all.
    """
    check_classes(rows.labels)
    clusters = _count_clusters(rows)
    losses = log_losses(rows.labels, rows.scores)
    cluster_losses = np.bincount(rows.clusters, losses).astype(np.float64)
    cluster_rows = np.bincount(rows.clusters).astype(np.float64)
    by_score = SortedScores(rows)
    aucs, means = np.empty(rounds), np.empty(rounds)
    for number, weights in enumerate(_resamples(clusters, rounds, seed)):
        aucs[number] = by_score.auc(weights)
        means[number] = _dot(weights, cluster_losses) / _dot(weights, cluster_rows)
    _check_resamples(aucs, rows)
    value = auc(rows.labels, rows.scores)
    return _interval(value, aucs, confidence), _interval(float(losses.mean()), means, confidence)


def bootstrap_difference(
    candidate: ScoredRows, reference: ScoredRows, confidence: float, rounds: int, seed: int
) -> Difference:
    """Return the AUC difference of two models on the same rows, both seeing the same resampled users in every round.

    Raises:
        UnmeasurableError: The rows differ, or as for `bootstrap`.
    """
    check_same_rows(candidate, reference)
    check_classes(candidate.labels)
    clusters = _count_clusters(candidate)
    ours = SortedScores(candidate)
    theirs = SortedScores(replace(reference, clusters=candidate.clusters))
    gaps = np.array([ours.auc(weights) - theirs.auc(weights) for weights in _resamples(clusters, rounds, seed)])
    _check_resamples(gaps, candidate)
    ours_auc, theirs_auc = auc(candidate.labels, candidate.scores), auc(reference.labels, reference.scores)
    return Difference(
        candidate_auc=ours_auc,
        reference_auc=theirs_auc,
        value=ours_auc - theirs_auc,
        low=float(np.quantile(gaps, 1 - confidence)),
        error=float(gaps.std(ddof=1)),
        rows=candidate.rows,
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


def _interval(value: float, resampled: Floats, confidence: float) -> Interval:
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(low=min(float(low), value), value=value, high=max(float(high), value))


def _dot(left: Floats, right: Floats) -> float:
    # Not `@`: its threads wait for each other longer than so short a sum takes (10 ms against 0.4 when cores are busy).
    return float((left * right).sum())
