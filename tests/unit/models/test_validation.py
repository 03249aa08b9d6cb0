from __future__ import annotations

import math

import numpy as np
import pytest

from models.moments import standardisation
from shortlist.ranking.validation import validation_metrics


def test_log_loss_is_the_mean_surprise_and_auc_the_share_of_ordered_pairs() -> None:
    measured = validation_metrics(np.array([1, 0, 1, 0]), np.array([0.8, 0.4, 0.3, 0.1]))
    assert measured["validation_log_loss"] == pytest.approx(-sum(map(math.log, (0.8, 0.6, 0.3, 0.9))) / 4)
    assert measured["validation_auc"] == pytest.approx(3 / 4)  # of the four pairs only (0.3, 0.4) is in the wrong order


def test_a_single_class_has_a_log_loss_but_no_auc() -> None:
    measured = validation_metrics(np.zeros(2), np.array([0.5, 0.5]))
    assert measured == {"validation_log_loss": pytest.approx(math.log(2)), "validation_auc": None}


def test_standardisation_does_not_depend_on_the_chunks() -> None:
    values = np.random.default_rng(0).normal([100, -3], [0.5, 20], (1_000, 2)).astype(np.float32)
    values[::7, 1] = np.nan
    whole = standardisation([values])
    in_pieces = standardisation(np.array_split(values, 9))
    np.testing.assert_allclose(in_pieces, whole, rtol=1e-6)
    np.testing.assert_allclose(whole[0], np.nanmean(values, axis=0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(1 / whole[1], np.nanstd(values, axis=0, dtype=np.float64), rtol=1e-6)


def test_a_column_that_never_varies_is_not_scaled() -> None:
    mean, scale = standardisation([np.array([[7.0, np.nan], [7.0, np.nan]], np.float32)])
    assert mean.tolist() == [7.0, 0.0]
    assert scale.tolist() == [1.0, 1.0]
