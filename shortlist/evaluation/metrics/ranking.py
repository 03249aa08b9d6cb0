"""Ranking metrics: AUC per user and nDCG per list, in numpy, without a loop over users."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shortlist.evaluation.metrics.pointwise import Floats

NDCG_AT: Final = 10
"""Ranks of a list that count for nDCG."""
Groups = npt.NDArray[np.intp]
"""Number of every row's user or list, shape (rows,); negative: the row has none and is not counted."""


class GroupValues(NamedTuple):
    """A metric of every group whose rows are of both classes; in other groups every order is equally good."""

    groups: Groups
    """Numbers of those groups, ascending."""
    rows: Floats
    """Number of rows, or sum of their weights, per group."""
    values: Floats
    one_class: int
    """Number of groups that are left out because all their labels are equal."""


def auc_per_group(
    labels: Floats, scores: Floats, groups: Groups, weights: Floats | None = None
) -> GroupValues:  # fmt: skip
    """Return the AUC within every group; ties count half.

    Args:
        labels: 0 or 1, shape (rows,).
        scores: Any finite numbers, same shape.
        groups: Group of each row, same shape.
        weights: Number of impressions that each row stands for, same shape; None: equal weights.

    >>> scores = np.array([0.9, 0.1, 0.2, 0.3, 0.5])
    >>> auc_by_user = auc_per_group(np.array([1.0, 0, 1, 0, 0]), scores, np.array([0, 0, 1, 1, 2]))
    >>> auc_by_user.values.tolist(), auc_by_user.one_class
    ([1.0, 0.0], 1)
    """
    if weights is not None:
        return _weighted_auc_per_group(labels, scores, groups, weights)
    runs = _runs(labels, scores, groups)
    # Mean rank of a run of equal scores, counted from the group's lowest score; the sum of the positives' ranks gives
    # the number of pairs in the right order (Mann and Whitney, 1947).
    ranks = np.bincount(runs.group, runs.positives * (runs.first + (runs.rows + 1) / 2))
    rows, positives = np.bincount(runs.group, runs.rows), np.bincount(runs.group, runs.positives)
    negatives = rows - positives
    has_both_classes = (positives > 0) & (negatives > 0)
    correct_pairs = ranks[has_both_classes] - positives[has_both_classes] * (positives[has_both_classes] + 1) / 2
    values = correct_pairs / (positives[has_both_classes] * negatives[has_both_classes])
    return GroupValues(
        np.flatnonzero(has_both_classes),
        rows[has_both_classes].astype(np.float64),
        values,
        int(((rows > 0) & ~has_both_classes).sum()),
    )


def _weighted_auc_per_group(labels: Floats, scores: Floats, groups: Groups, weights: Floats) -> GroupValues:
    grouped_rows = np.flatnonzero(groups >= 0)
    order = grouped_rows[np.lexsort((scores[grouped_rows], groups[grouped_rows]))]
    if not order.size:
        return GroupValues(order, np.zeros(0), np.zeros(0), 0)
    group, score, weight = groups[order], scores[order], weights[order]
    starts_group = np.append(True, group[1:] != group[:-1])
    run_starts = np.flatnonzero(starts_group | np.append(True, score[1:] != score[:-1]))
    positive = np.add.reduceat(weight * labels[order], run_starts)
    negative = np.add.reduceat(weight * (1 - labels[order]), run_starts)
    owner = group[run_starts]
    cumulative_negatives = np.concatenate(([0.0], np.cumsum(negative)))
    starts = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    negatives_below = (
        cumulative_negatives[:-1]
        - cumulative_negatives[starts[np.searchsorted(starts, np.arange(owner.size), side="right") - 1]]
    )
    correct_pairs = np.bincount(owner, positive * (negatives_below + negative / 2))
    positives, negatives = np.bincount(owner, positive), np.bincount(owner, negative)
    has_both_classes = (positives > 0) & (negatives > 0)
    has_rows = np.bincount(owner) > 0
    values = correct_pairs[has_both_classes] / (positives[has_both_classes] * negatives[has_both_classes])
    rows = (positives + negatives)[has_both_classes].astype(np.float64)
    return GroupValues(np.flatnonzero(has_both_classes), rows, values, int((has_rows & ~has_both_classes).sum()))


def ndcg_per_group(labels: Floats, scores: Floats, groups: Groups, at: int = NDCG_AT) -> GroupValues:
    """Return the normalised discounted cumulative gain of every group's `at` best-scored rows.

    Equal scores share the discounts of their ranks (McSherry and Najork, 2008), so a constant score gives the value of
    a random order on average, whatever the order of the rows.

    Args:
        labels: 0 or 1, shape (rows,): the gains.
        scores: Any finite numbers, same shape.
        groups: Group of each row, same shape.
        at: Number of ranks that count.

    >>> ndcg_by_list = ndcg_per_group(np.array([0.0, 1, 0]), np.array([0.9, 0.5, 0.1]), np.array([0, 0, 0]))
    >>> ndcg_by_list.values.round(4).tolist()  # the positive is second: log(2) / log(3)
    [0.6309]
    """
    runs = _runs(labels, -scores, groups)
    cumulative_discounts = np.concatenate(
        ([0.0], np.cumsum(1 / np.log2(np.arange(at) + 2)))
    )  # by the first so many ranks
    discounts = cumulative_discounts.take(np.minimum(runs.first + runs.rows, at)) - cumulative_discounts.take(
        np.minimum(runs.first, at)
    )
    gains = np.bincount(runs.group, runs.positives * discounts / runs.rows)
    rows, positives = np.bincount(runs.group, runs.rows), np.bincount(runs.group, runs.positives)
    has_both_classes = (positives > 0) & (positives < rows)
    values = gains[has_both_classes] / cumulative_discounts.take(
        np.minimum(positives[has_both_classes].astype(np.intp), at)
    )
    return GroupValues(
        np.flatnonzero(has_both_classes),
        rows[has_both_classes].astype(np.float64),
        values,
        int(((rows > 0) & ~has_both_classes).sum()),
    )


def gauc(labels: Floats, scores: Floats, users: Groups, weights: Floats | None = None) -> float | None:
    """Return the AUC within users, weighted by their rows; None where no user has rows of both classes."""
    auc_by_user = auc_per_group(labels, scores, users, weights)
    return float(np.average(auc_by_user.values, weights=auc_by_user.rows)) if auc_by_user.groups.size else None


def mean_ndcg(labels: Floats, scores: Floats, lists: Groups, weights: Floats | None = None) -> float | None:
    """Return the mean nDCG of lists; None where no list has rows of both classes.

    Lists have equal weights or, where rows have weights, the mean weight of their rows.
    """
    ndcg_by_list = ndcg_per_group(labels, scores, lists)
    if not ndcg_by_list.groups.size:
        return None
    return float(
        np.average(ndcg_by_list.values, weights=None if weights is None else list_weights(lists, weights, ndcg_by_list))
    )


def list_weights(lists: Groups, weights: Floats, ndcg_by_list: GroupValues) -> Floats:
    """Return the mean weight of the rows of each measured list, shape (lists,)."""
    is_listed = lists >= 0
    total, rows = (
        np.bincount(lists[is_listed], addends)[ndcg_by_list.groups] for addends in (weights[is_listed], None)
    )
    mean_weights: Floats = total / rows
    return mean_weights


class _Runs(NamedTuple):
    """Runs of rows of a group that share a score, by group and ascending score."""

    group: Groups
    first: Groups
    """Number of rows of the group before the run."""
    rows: Groups
    positives: Floats


def _runs(labels: Floats, scores: Floats, groups: Groups) -> _Runs:
    grouped_rows = np.flatnonzero(groups >= 0)
    order = grouped_rows[np.lexsort((scores[grouped_rows], groups[grouped_rows]))]
    group, score = groups[order], scores[order]
    starts_group = np.append(True, group[1:] != group[:-1])[: order.size]
    run_starts = np.flatnonzero(starts_group | np.append(True, score[1:] != score[:-1])[: order.size])
    rows = np.diff(np.append(run_starts, order.size))
    positives = np.add.reduceat(labels[order], run_starts) if order.size else np.empty(0)
    starts = np.flatnonzero(starts_group)
    first = run_starts - starts[np.searchsorted(starts, run_starts, side="right") - 1] if order.size else run_starts
    return _Runs(group[run_starts], first, rows, positives)
