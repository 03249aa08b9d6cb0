"""The AUC of a single column."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from shortlist.data.rules.leakage import column_auc

RANDOM = np.random.default_rng(5)
LABEL = RANDOM.random(4_000) < 0.3
NOISE = RANDOM.normal(size=4_000)


def auc(values: Any, label: Any = LABEL) -> float:
    return column_auc(pl.Series(values), np.asarray(label))


def test_the_order_of_a_number_counts_in_both_directions() -> None:
    score = NOISE + LABEL
    expected_auc = roc_auc_score(LABEL, score)
    assert auc(score) == pytest.approx(expected_auc, abs=1e-12)
    assert auc(-score) == pytest.approx(expected_auc, abs=1e-12)


def test_ties_count_half() -> None:
    # 1 of 2 positives is above both negatives, the other ties with both: (1 + 1 + 0.5 + 0.5) / 4.
    assert auc([1.0, 2.0, 1.0, 1.0], [True, True, False, False]) == 0.75


def test_a_column_that_is_missing_for_one_label_leaks() -> None:
    assert auc([None if positive else value for positive, value in zip(LABEL, NOISE, strict=True)]) == 1.0
    assert auc(["seen" if positive else None for positive in LABEL]) == 1.0


def test_codes_leak_in_any_order() -> None:
    codes = np.where(LABEL, RANDOM.choice([2, 5], 4_000), RANDOM.choice([1, 4, 9], 4_000))
    assert auc(codes) == 1.0
    assert auc(codes.astype(str)) == 1.0
    assert auc([[str(code), "x"] for code in codes]) == 1.0  # tags


@pytest.mark.parametrize(
    "values",
    [
        NOISE,
        RANDOM.integers(0, 10, 4_000),
        RANDOM.integers(0, 3_000, 4_000),
        np.arange(4_000).astype(str),
        np.ones(4_000),
    ],
    ids=["number", "few codes", "many codes", "a code of its own per row", "constant"],
)
def test_a_random_column_has_an_auc_near_one_half(values: Any) -> None:
    # 600 of 2 000 scored rows are positive: the standard error is sqrt(2001 / 12 / 600 / 1400) = 0.014.
    assert auc(values) < 0.5 + 4 * 0.014
