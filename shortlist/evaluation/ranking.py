"""How well scores order the items of one user: AUC per user and nDCG per list, in numpy, without a loop over users."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shortlist.evaluation.metrics import Floats

NDCG_AT: Final = 10
"""Ranks of a list that count for nDCG."""
Groups = npt.NDArray[np.intp]
"""Number of every row's user or list, shape (rows,); negative: of none, so that the row does not count."""


class GroupValues(NamedTuple):
    """A number per group whose rows are of both classes; in other groups every order is as good."""

    groups: Groups
    """Numbers of those groups, rising."""
    rows: Floats
    """Rows of each."""
    values: Floats
    one_class: int
    """Groups that are left out because all their labels are equal."""


def auc_per_group(
    labels: Floats, scores: Floats, groups: Groups, weights: Floats | None = None
) -> GroupValues:  # fmt: skip
    """Return the AUC within every group; ties count half.

    Args:
        labels: 0 or 1, shape (rows,).
        scores: Any finite numbers, same shape.
        groups: Same shape.
        weights: How many impressions each row stands for, same shape; None: all alike. `rows` are then their sums.

    >>> scores = np.array([0.9, 0.1, 0.2, 0.3, 0.5])
    >>> found = auc_per_group(np.array([1.0, 0, 1, 0, 0]), scores, np.array([0, 0, 1, 1, 2]))
    >>> found.values.tolist(), found.one_class
    ([1.0, 0.0], 1)
    """
    if weights is not None:
        return _weighted_auc_per_group(labels, scores, groups, weights)
    runs = _runs(labels, scores, groups)
    # Mean rank of a run of equal scores, counted from the group's lowest score; all ranks of positives, summed, give
    # the number of pairs in the right order (Mann and Whitney, 1947).
    ranks = np.bincount(runs.group, runs.positives * (runs.first + (runs.rows + 1) / 2))
    rows, positives = np.bincount(runs.group, runs.rows), np.bincount(runs.group, runs.positives)
    negatives = rows - positives
    both = (positives > 0) & (negatives > 0)
    right = ranks[both] - positives[both] * (positives[both] + 1) / 2
    values = right / (positives[both] * negatives[both])
    return GroupValues(np.flatnonzero(both), rows[both].astype(np.float64), values, int(((rows > 0) & ~both).sum()))


def _weighted_auc_per_group(labels: Floats, scores: Floats, groups: Groups, weights: Floats) -> GroupValues:
    kept = np.flatnonzero(groups >= 0)
    order = kept[np.lexsort((scores[kept], groups[kept]))]
    if not order.size:
        return GroupValues(order, np.zeros(0), np.zeros(0), 0)
    group, score, weight = groups[order], scores[order], weights[order]
    other_group = np.append(True, group[1:] != group[:-1])
    begins = np.flatnonzero(other_group | np.append(True, score[1:] != score[:-1]))
    positive = np.add.reduceat(weight * labels[order], begins)
    negative = np.add.reduceat(weight * (1 - labels[order]), begins)
    owner = group[begins]
    up_to = np.concatenate(([0.0], np.cumsum(negative)))
    starts = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    below = up_to[:-1] - up_to[starts[np.searchsorted(starts, np.arange(owner.size), side="right") - 1]]
    right = np.bincount(owner, positive * (below + negative / 2))
    positives, negatives = np.bincount(owner, positive), np.bincount(owner, negative)
    both = (positives > 0) & (negatives > 0)
    seen = np.bincount(owner) > 0
    values = right[both] / (positives[both] * negatives[both])
    rows = (positives + negatives)[both].astype(np.float64)
    return GroupValues(np.flatnonzero(both), rows, values, int((seen & ~both).sum()))


def ndcg_per_group(labels: Floats, scores: Floats, groups: Groups, at: int = NDCG_AT) -> GroupValues:
    """Return the normalised discounted cumulative gain of every group's `at` best-scored rows.

    Equal scores share the discounts of their ranks (McSherry and Najork, 2008), so a constant score gives the value of
    a random order on average, whatever the order of the rows.

    Args:
        labels: 0 or 1, shape (rows,): the gains.
        scores: Any finite numbers, same shape.
        groups: Same shape.
        at: Ranks that count.

    >>> found = ndcg_per_group(np.array([0.0, 1, 0]), np.array([0.9, 0.5, 0.1]), np.array([0, 0, 0]))
    >>> found.values.round(4).tolist()  # the positive is second: log(2) / log(3)
    [0.6309]
    """
    runs = _runs(labels, -scores, groups)
    gained = np.concatenate(([0.0], np.cumsum(1 / np.log2(np.arange(at) + 2))))  # by the first so many ranks
    discounts = gained.take(np.minimum(runs.first + runs.rows, at)) - gained.take(np.minimum(runs.first, at))
    reached = np.bincount(runs.group, runs.positives * discounts / runs.rows)
    rows, positives = np.bincount(runs.group, runs.rows), np.bincount(runs.group, runs.positives)
    both = (positives > 0) & (positives < rows)
    values = reached[both] / gained.take(np.minimum(positives[both].astype(np.intp), at))
    return GroupValues(np.flatnonzero(both), rows[both].astype(np.float64), values, int(((rows > 0) & ~both).sum()))


def gauc(labels: Floats, scores: Floats, users: Groups, weights: Floats | None = None) -> float | None:
    """Return the AUC within users, weighted by their rows; None where no user has rows of both classes."""
    found = auc_per_group(labels, scores, users, weights)
    return float(np.average(found.values, weights=found.rows)) if found.groups.size else None


def mean_ndcg(labels: Floats, scores: Floats, lists: Groups, weights: Floats | None = None) -> float | None:
    """Return the mean nDCG of lists; None where no list has rows of both classes.

    Each list counts alike, or, where rows have weights, as the mean weight of its rows.
    """
    found = ndcg_per_group(labels, scores, lists)
    if not found.groups.size:
        return None
    return float(np.average(found.values, weights=None if weights is None else list_weights(lists, weights, found)))


def list_weights(lists: Groups, weights: Floats, found: GroupValues) -> Floats:
    """Return the mean weight of the rows of each list that was found, shape (lists found,)."""
    kept = lists >= 0
    total, rows = (np.bincount(lists[kept], one)[found.groups] for one in (weights[kept], None))
    means: Floats = total / rows
    return means


class _Runs(NamedTuple):
    """Rows of a group that share a score, one entry per run, by group and rising score."""

    group: Groups
    first: Groups
    """Rows of the group before the run."""
    rows: Groups
    positives: Floats


def _runs(labels: Floats, scores: Floats, groups: Groups) -> _Runs:
    kept = np.flatnonzero(groups >= 0)
    order = kept[np.lexsort((scores[kept], groups[kept]))]
    group, score = groups[order], scores[order]
    other_group = np.append(True, group[1:] != group[:-1])[: order.size]
    begins = np.flatnonzero(other_group | np.append(True, score[1:] != score[:-1])[: order.size])
    rows = np.diff(np.append(begins, order.size))
    positives = np.add.reduceat(labels[order], begins) if order.size else np.empty(0)
    starts = np.flatnonzero(other_group)
    first = begins - starts[np.searchsorted(starts, begins, side="right") - 1] if order.size else begins
    return _Runs(group[begins], first, rows, positives)
