from __future__ import annotations

import tracemalloc

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from shortlist.evaluation.metrics import pointwise
from shortlist.evaluation.metrics.intervals import (
    FEWEST_CLUSTERS,
    SortedScores,
    bootstrap,
    bootstrap_differences,
    constant_rate_gap,
    resample_with_rate,
)
from shortlist.evaluation.metrics.pointwise import UnmeasurableError
from shortlist.evaluation.metrics.records import ConfidenceInterval
from shortlist.evaluation.metrics.scores import ScoredRows

ROUNDS, SEED, CONFIDENCE = 100, 5, 0.95
OPTIONS = {"confidence": CONFIDENCE, "rounds": ROUNDS, "seed": SEED}


def scored(labels: np.ndarray, scores: np.ndarray, users: np.ndarray | None = None) -> ScoredRows:
    frame = pl.DataFrame({"impression_id": np.arange(labels.size)})
    return ScoredRows(frame, labels.astype(float), scores, np.arange(labels.size) if users is None else users)


def planted(rows: int, users: int | None = None, noise: float = 0.0, seed: int = 0) -> ScoredRows:
    generator = np.random.default_rng(seed)
    probability = generator.beta(1, 3, rows)
    labels = generator.random(rows) < probability
    owners = None if users is None else generator.integers(0, users, rows)
    return scored(labels, np.clip(probability + noise * generator.normal(size=rows), 0, 1), owners)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 5)), min_size=2, max_size=60))
def test_weighted_auc_is_sklearns(rows: list[tuple[bool, int, int]]) -> None:
    labels, levels, users = (np.array(column) for column in zip(*rows, strict=True))
    weights = np.array([0, 1, 2, 3, 1, 0], np.uint8)
    weighted_auc = SortedScores(scored(labels, levels / 4, users)).auc(weights)
    stored_scores = np.where(levels == 0, -0.0, levels / 4).astype(np.float32)  # as files hold them; -0 ties with 0
    assert SortedScores(scored(labels, np.where(users == 0, levels / 4, stored_scores).astype(np.float32), users)).auc(
        weights
    ) == pytest.approx(weighted_auc, nan_ok=True)
    weight = weights[users].astype(float)
    if (weight * labels).sum() == 0 or (weight * ~labels).sum() == 0:
        assert np.isnan(weighted_auc)
    else:
        assert weighted_auc == pytest.approx(roc_auc_score(labels, levels / 4, sample_weight=weight))


def test_interval_width_equals_the_theoretical_width() -> None:
    rows = planted(4_000)
    intervals = bootstrap(rows, confidence=0.95, rounds=300, seed=1)
    aucs, losses = intervals["auc"], intervals["log_loss"]
    area, positives, negatives = aucs.value, rows.positives, rows.rows - rows.positives
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)  # Hanley and McNeil, 1982
    variance = area * (1 - area) + (positives - 1) * (q1 - area**2) + (negatives - 1) * (q2 - area**2)
    width = 2 * 1.96 * (variance / (positives * negatives)) ** 0.5
    assert aucs.high - aucs.low == pytest.approx(width, rel=0.2)
    assert losses.low < losses.value < losses.high


def test_interval_resamples_users_and_not_rows() -> None:
    once = planted(500)
    copies = scored(np.tile(once.labels, 10), np.tile(once.scores, 10), np.tile(np.arange(500), 10))
    as_rows = scored(copies.labels, copies.scores)
    by_user, by_row, single = (bootstrap(rows, **OPTIONS)["auc"] for rows in (copies, as_rows, once))
    assert by_user == single  # nothing was learnt from copies
    assert by_row.high - by_row.low < 0.5 * (by_user.high - by_user.low)


def test_the_seed_decides() -> None:
    rows = planted(500, users=50)
    assert bootstrap(rows, **OPTIONS) == bootstrap(rows, **OPTIONS)
    assert bootstrap(rows, **OPTIONS) != bootstrap(rows, **{**OPTIONS, "seed": 6})


def test_a_model_does_not_differ_from_itself() -> None:
    rows = planted(1_000, users=100)
    difference = bootstrap_differences(rows, rows, **OPTIONS)["auc"]
    assert (difference.value, difference.low, difference.error) == (0, 0, 0)


def test_paired_difference_detects_a_worse_model_with_overlapping_intervals() -> None:
    better, worse = planted(3_000, users=300), planted(3_000, users=300, noise=0.05)
    difference = bootstrap_differences(worse, better, **OPTIONS)["auc"]
    worse_interval, better_interval = (bootstrap(rows, **OPTIONS)["auc"] for rows in (worse, better))
    assert worse_interval.high > better_interval.low
    assert difference.value == pytest.approx(worse_interval.value - better_interval.value)
    assert difference.low < difference.value < -2 * difference.error


def test_other_rows_are_not_compared() -> None:
    with pytest.raises(UnmeasurableError, match="not scored on the same rows: 500 and 400"):
        bootstrap_differences(planted(500), planted(400), **OPTIONS)


def test_no_interval_with_too_few_users() -> None:
    rows = planted(1_000, users=FEWEST_CLUSTERS - 1)
    with pytest.raises(UnmeasurableError, match="1000 rows of only 9 users; an interval needs 10 or more"):
        bootstrap(rows, **OPTIONS)
    with pytest.raises(UnmeasurableError, match="only 9 users"):
        bootstrap_differences(rows, rows, **OPTIONS)


def test_no_interval_if_all_positives_are_of_one_user() -> None:
    labels = np.array([1.0, 1.0] + [0.0] * 98)
    rows = scored(labels, np.linspace(0, 1, 100), np.array([0, *range(99)]))
    with pytest.raises(UnmeasurableError, match="2 positives in 100 rows come from too few users"):
        bootstrap(rows, **OPTIONS)


def test_one_class_has_no_interval() -> None:
    with pytest.raises(UnmeasurableError, match="only one class"):
        bootstrap(scored(np.zeros(100), np.linspace(0, 1, 100)), **OPTIONS)


def _constant_rate_gap(rows: ScoredRows) -> ConfidenceInterval:
    resampled, label_rate = resample_with_rate(rows, ROUNDS, SEED)
    return constant_rate_gap(resampled["log_loss"], label_rate, CONFIDENCE)


@pytest.mark.parametrize("users", [None, 60])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_constant_rate_gap_is_that_of_each_resample(users: int | None, is_weighted: bool) -> None:
    rows = planted(300, users)
    weights = np.random.default_rng(1).integers(1, 4, 300) if is_weighted else np.ones(300)
    rows = ScoredRows(pl.DataFrame({"impression_weight": weights}), rows.labels, rows.scores, rows.clusters)
    rate = np.average(rows.labels, weights=weights)
    row_gaps = pointwise.log_losses(rows.labels, rows.scores) - pointwise.log_losses(rows.labels, np.full(300, rate))
    generator, users_drawn = np.random.default_rng(SEED), int(rows.clusters.max()) + 1
    gaps = []
    for _ in range(ROUNDS):
        draws = np.bincount(generator.integers(0, users_drawn, users_drawn), minlength=users_drawn)
        gaps.append(np.average(row_gaps, weights=weights * draws[rows.clusters]))
    low, high = np.quantile(gaps, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    gap = _constant_rate_gap(rows)
    expected = low, np.average(row_gaps, weights=weights), high
    assert (gap.low, gap.value, gap.high) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("users", [None, 60])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_pieces_change_no_metric(monkeypatch: pytest.MonkeyPatch, users: int | None, is_weighted: bool) -> None:
    rows = planted(500, users)
    labels, scores = rows.labels, rows.scores.round(1)  # ties
    weights = np.random.default_rng(1).integers(1, 4, 500)
    frame = pl.DataFrame({"impression_id": np.arange(500)} | ({"impression_weight": weights} if is_weighted else {}))
    rows = ScoredRows(frame, labels, scores, rows.clusters)
    whole = bootstrap(rows, **OPTIONS), _constant_rate_gap(rows)
    curve = pointwise.roc_points(labels, scores), pointwise.log_loss(labels, scores, rows.weights)
    monkeypatch.setattr(pointwise, "PIECE_ROWS", 7)
    in_pieces = bootstrap(rows, **OPTIONS), _constant_rate_gap(rows)
    assert in_pieces[0].keys() == whole[0].keys() == {"auc", "log_loss"}
    for metric, interval in (*whole[0].items(), ("gap", whole[1])):
        interval_in_pieces = {**in_pieces[0], "gap": in_pieces[1]}[metric]
        assert (interval_in_pieces.low, interval_in_pieces.value, interval_in_pieces.high) == pytest.approx(
            (interval.low, interval.value, interval.high), abs=1e-12
        )
    assert pointwise.roc_points(labels, scores) == curve[0]
    assert pointwise.log_loss(labels, scores, rows.weights) == pytest.approx(curve[1], abs=1e-14)


def test_an_interval_takes_a_few_bytes_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointwise, "PIECE_ROWS", 2_000)
    rows = planted(100_000)
    stored = ScoredRows(
        rows.frame, rows.labels.astype(np.int8), rows.scores.astype(np.float32), np.arange(rows.rows, dtype=np.uint32)
    )
    bootstrap(planted(100), confidence=0.95, rounds=2, seed=1)  # loads the compiled loops
    tracemalloc.start()
    bootstrap(stored, confidence=0.95, rounds=2, seed=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak / rows.rows < 20
