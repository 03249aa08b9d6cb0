"""Where trees send rows that miss a number or an id that no training row misses: the mean score stays as it is.

A split that saw no missing value would send all of them to one side, as if they had its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from models.unknown_values import find_rarely_unknown_features
from shortlist.ranking.inputs import LearningTable

_LEAF: Final = -1


class TreeNodes(NamedTuple):
    """A tree; node 0 is its root."""

    left: Sequence[int]
    """Left child of each node; -1 at a leaf."""
    right: Sequence[int]
    feature: Sequence[int]
    """Number of the float that a node compares."""
    values: Sequence[float]
    """Log-odds that a leaf adds."""
    weights: Sequence[float]
    """Sum of the training rows' second derivatives of the loss in each leaf; other nodes' are not read."""


def rarely_missing(learning: LearningTable) -> frozenset[int]:
    """Return the numbers of the floats of rarely unknown features, in the order of `float_matrix`."""
    rare, numbers, first = find_rarely_unknown_features(learning), set(), 0
    for feature in learning.features:
        numbers |= {first} if feature in rare else set()
        first += feature.width or 1
    return frozenset(numbers)


def choose_directions(trees: Iterable[TreeNodes], floats: frozenset[int]) -> list[dict[int, bool]]:
    """Return for each tree the nodes that compare some floats, and whether rows without the value go left there.

    Of both sides, each node takes the one with which the mean of the log-odds is nearer to that of all rows, over this
    and all earlier trees: trees go on from earlier ones with the same directions. Rows count by the second derivative
    of their loss, as they do in the change of the mean score.
    """
    shifts = dict.fromkeys(floats, 0.0)
    return [_choose(tree, shifts) for tree in trees]


def _choose(tree: TreeNodes, shifts: dict[int, float]) -> dict[int, bool]:
    order, parents = _order(tree)
    weights, mean_values = _sum_leaves(tree, order)
    goes_left: dict[int, bool] = {}
    for node in order:
        if tree.left[node] == _LEAF or tree.feature[node] not in shifts:
            continue
        sides, number = (tree.left[node], tree.right[node]), tree.feature[node]
        share = _share_of_rows(node, tree, parents, weights, goes_left)
        to_left, to_right = (shifts[number] + share * (mean_values[side] - mean_values[node]) for side in sides)
        goes_left[node] = abs(to_left) <= abs(to_right) if share else weights[sides[0]] >= weights[sides[1]]
        shifts[number] = to_left if goes_left[node] else to_right
    return goes_left


def _share_of_rows(
    node: int, tree: TreeNodes, parents: dict[int, int], weights: dict[int, float], goes_left: dict[int, bool]
) -> float:
    """Return the share of all rows that would reach a node, if all missed the float that it compares."""
    share, child = weights[node] / weights[0], node
    while child in parents:
        parent = parents[child]
        if tree.feature[parent] == tree.feature[node]:
            if goes_left[parent] != (child == tree.left[parent]):
                return 0.0
            share *= weights[parent] / weights[child]
        child = parent
    return share


def _order(tree: TreeNodes) -> tuple[list[int], dict[int, int]]:
    """Return the nodes, each after its parent, and the parent of each but the root."""
    order = [0]
    parents: dict[int, int] = {}
    for node in order:  # the list grows in the loop
        if tree.left[node] != _LEAF:
            children = (tree.left[node], tree.right[node])
            order += children
            parents |= dict.fromkeys(children, node)
    return order, parents


def _sum_leaves(tree: TreeNodes, order: list[int]) -> tuple[dict[int, float], dict[int, float]]:
    """Return the weight of the leaves below each node, and their mean log-odds."""
    weights: dict[int, float] = {}
    mean_values: dict[int, float] = {}
    for node in reversed(order):
        if tree.left[node] == _LEAF:
            weights[node], mean_values[node] = max(tree.weights[node], 1e-12), tree.values[node]
            continue
        left, right = tree.left[node], tree.right[node]
        weights[node] = weights[left] + weights[right]
        mean_values[node] = (weights[left] * mean_values[left] + weights[right] * mean_values[right]) / weights[node]
    return weights, mean_values
