"""The fast count of pairs in another order equals the naive count."""

from __future__ import annotations

import numpy as np
import pytest

from shortlist.serving.validation.parity import rank_differences, score_parity


def count_pairs(reference: np.ndarray, scores: np.ndarray, margin: float) -> int:
    return sum(
        1
        for low in range(len(reference))
        for high in range(len(reference))
        if reference[high] > reference[low] + margin and scores[high] <= scores[low]
    )


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 7, 8, 9, 31, 33, 100])
@pytest.mark.parametrize("margin", [0.0, 0.05, 2.0])
def test_pairs_in_another_order_are_counted_exactly(rows: int, margin: float) -> None:
    random = np.random.default_rng(rows)
    for noise in (0.0, 0.02, 1.0):
        reference = random.integers(0, 40, rows) / 40  # with ties
        scores = np.round(reference + random.normal(0, noise, rows), 2)
        assert rank_differences(reference, scores, margin) == count_pairs(reference, scores, margin)


def test_every_pair_of_a_reversed_list_is_in_another_order() -> None:
    reference = np.linspace(0, 1, 20_000)
    assert rank_differences(reference, -reference) == 20_000 * 19_999 // 2


def test_a_constant_score_counts_every_pair() -> None:
    assert rank_differences(np.array([0.1, 0.2, 0.3]), np.full(3, 0.5)) == 3


def test_rows_closer_than_the_margin_may_come_in_any_order() -> None:
    reference = np.array([0.5, 0.5 + 9e-7, 0.5 + 3e-6])
    assert rank_differences(reference, reference[[1, 0, 2]]) == 0
    assert rank_differences(reference, reference[[2, 1, 0]]) == 2  # 0.5 and 0.5 + 9e-7, each against 0.5 + 3e-6


def test_agreement_names_the_worst_row() -> None:
    parity = score_parity(np.array([7, 8, 9]), np.array([0.1, 0.2, 0.3], np.float32), np.array([0.1, 0.25, 0.3]))
    assert parity.worst is not None
    assert (parity.rows, parity.worst.impression, parity.rank_differences) == (3, 8, 0)
    assert parity.max_difference == pytest.approx(0.05, abs=1e-7)


def test_scores_that_are_not_finite_are_counted_and_the_others_compared() -> None:
    scores = np.array([np.nan, 0.4, np.inf, 0.3])
    parity = score_parity(np.arange(4), np.array([0.1, 0.2, 0.3, 0.4]), scores)
    assert (parity.rows, parity.not_finite, parity.rank_differences) == (4, 2, 1)
    assert parity.max_difference == pytest.approx(0.2)
    no_parity = score_parity(np.arange(2), np.array([0.1, 0.2]), np.full(2, np.nan))
    assert (no_parity.rows, no_parity.not_finite, no_parity.max_difference) == (2, 2, None)
