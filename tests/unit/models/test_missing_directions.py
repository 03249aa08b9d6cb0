"""Where trees send rows without a value that training never missed."""

from __future__ import annotations

import numpy as np
import pytest
import xgboost as xgb

from models.missing_directions import TreeNodes, choose_directions

STUMP = TreeNodes([1, -1, -1], [2, -1, -1], [0, 0, 0], [0.0, -1.0, 1.0], [0.0, 30.0, 10.0])
"""Three in four rows go left, to -1: the mean is -0.5, so left is off by -0.5 and right by 1.5."""


def test_directions_change_so_that_the_mean_stays() -> None:
    chosen = choose_directions([STUMP] * 4, frozenset({0}))
    assert chosen == [{0: True}, {0: True}, {0: False}, {0: True}]  # -0.5, -1.0, 0.5, 0.0


def test_other_floats_keep_what_was_learnt() -> None:
    assert choose_directions([STUMP], frozenset({1})) == [{}]


def test_more_trees_keep_the_directions_of_earlier_trees() -> None:
    assert choose_directions([STUMP] * 9, frozenset({0}))[:4] == choose_directions([STUMP] * 4, frozenset({0}))


def test_nodes_below_a_node_of_the_same_float_count_their_rows() -> None:
    # Node 0 compares float 0; on its left (rows 20 of 40), node 1 does too: leaves -2 and 0; on the right the leaf 1.
    tree = TreeNodes([1, 3, -1, -1, -1], [2, 4, -1, -1, -1], [0] * 5, [0.0, 0.0, 1.0, -2.0, 0.0], [0, 0, 20, 10, 10])
    # The mean is 0: left is off by -1, right by 1, and left is taken. All rows are there: -2 would be off by one more
    # (-1 - 1), 0 takes the first one back (-1 + 1).
    assert choose_directions([tree], frozenset({0})) == [{0: True, 1: False}]


def test_a_tree_without_splits_has_no_directions() -> None:
    assert choose_directions([TreeNodes([-1], [-1], [0], [0.3], [5.0])], frozenset({0})) == [{}]


@pytest.mark.parametrize("rate", [0.03, 0.4])
def test_the_mean_score_stays_where_the_value_matters(rate: float) -> None:
    from models.xgboost.ranker import _with_missing_directions

    draw = np.random.default_rng(1)
    rows = np.column_stack([draw.integers(1, 4, 8_000), draw.normal(size=(8_000, 2))]).astype(np.float32)
    log_odds = np.log(rate / (1 - rate)) + np.array([-0.9, 0, 0.9])[rows[:, 0].astype(int) - 1] + 0.7 * rows[:, 1]
    labels = draw.random(8_000) < 1 / (1 + np.exp(-log_odds))
    params = {"objective": "binary:logistic", "eta": 0.1, "max_depth": 4}
    trained = xgb.train(params, xgb.DMatrix(rows, labels), 100)
    booster = _with_missing_directions(trained, frozenset({0, 1}))
    np.testing.assert_array_equal(booster.inplace_predict(rows), trained.inplace_predict(rows))  # of whole rows
    mean = np.mean(booster.inplace_predict(rows))
    for number in (0, 1):
        missing = rows.copy()
        missing[:, number] = np.nan
        shifted = np.mean(booster.inplace_predict(missing))
        assert abs(np.log(shifted / (1 - shifted)) - np.log(mean / (1 - mean))) < 0.1
