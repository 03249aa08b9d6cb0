from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitoring.windows.kpi import hit_rate, measure_rates
from shortlist.evaluation.metrics.pointwise import UnmeasurableError
from shortlist.rollout.evidence.outcomes import OUTCOMES, REQUESTS, OutcomeJoin


def rows_of(*requests: tuple[str, list[float], list[int]]) -> pl.DataFrame:
    """Return the rows of requests, each given as id, scores and labels."""
    return pl.DataFrame(
        [
            {"request_id": name, "row": row, "score": score, "label": label}
            for name, scores, labels in requests
            for row, (score, label) in enumerate(zip(scores, labels, strict=True))
        ],
        schema_overrides={"score": pl.Float32, "label": pl.Int8},
    )


def planted(users: int, of_each: int = 5, seed: int = 0, rate: float = 0.3) -> pl.DataFrame:
    """Return one request per user with calibrated scores."""
    generator = np.random.default_rng(seed)
    scores = generator.beta(3 * rate, 3 * (1 - rate), users * of_each)
    number = np.arange(users * of_each) // of_each
    return pl.DataFrame(
        {
            "request_id": [f"r{user}" for user in number],
            "user": [f"u{user}" for user in number],
            "score": scores,
            "label": (generator.random(scores.size) < scores).astype(np.int8),
        }
    )


def test_a_request_counts_once_with_any_number_of_rows() -> None:
    rows = rows_of(("a", [0.9, 0.1], [1, 0]), ("b", [0.9, 0.8, 0.7, 0.6], [0, 0, 1, 1]))
    assert hit_rate(rows, at=1) == (1 + 0) / 2
    assert hit_rate(rows, at=3) == (1 / 2 + 1 / 3) / 2  # a has only two


def test_the_earlier_row_comes_first_among_equal_scores() -> None:
    rows = rows_of(("a", [0.5, 0.5, 0.5], [1, 0, 0]))
    assert hit_rate(rows, at=1) == 1
    assert hit_rate(rows.reverse(), at=1) == 1  # by `row`, not by place
    assert hit_rate(rows.reverse().drop("row"), at=1) == 0


@pytest.mark.parametrize("bad", [float("nan"), None])
def test_a_missing_score_is_an_error(bad: float | None) -> None:
    rows = pl.DataFrame({"request_id": ["a", "a"], "score": [bad, 0.5], "label": [0, 1]})
    with pytest.raises(UnmeasurableError, match="1 of 2 scores are missing"):
        hit_rate(rows, at=1)


def test_the_hit_rate_of_no_rows_is_an_error() -> None:
    with pytest.raises(UnmeasurableError, match="no rows"):
        hit_rate(rows_of(("a", [0.5], [1])).clear(), at=1)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=5), min_size=1, max_size=8),
    st.integers(1, 3),
)
def test_the_hit_rate_equals_the_canarys_kpi_with_one_request_per_user(
    requests: list[list[tuple[int, bool]]], at: int
) -> None:
    scores = [[level / 4 for level, _ in rows] for rows in requests]
    labels = [[int(label) for _, label in rows] for rows in requests]
    rows = rows_of(*((str(name), *pair) for name, pair in enumerate(zip(scores, labels, strict=True))))
    request_frame = pl.DataFrame(
        [
            {"request": name, "user": name, "step": 0, "canary": False, "scores": request_scores, "slate": False}
            for name, request_scores in enumerate(scores)
        ],
        schema=REQUESTS,
    )
    outcomes = rows.select(pl.col("request_id").alias("request"), "row", "label").cast(OUTCOMES)  # type: ignore[arg-type]
    joined = OutcomeJoin(at).add(request_frame, outcomes)
    assert hit_rate(rows, at) == pytest.approx((joined["positive"] / joined["shown"]).mean())


def test_rates_of_rows_by_hand() -> None:
    # Ten users with the same two rows: 0.75 is a hit, 0.25 is not.
    rows = rows_of(*((str(name), [0.25, 0.75], [0, 1]) for name in range(10)))
    rates = measure_rates(rows, at=1, confidence=0.9)
    assert {name: interval.value for name, interval in rates.items()} == {
        "hit_rate": 1.0, "label_rate": 0.5, "mean_score": 0.5, "rate_error": 0.0,
    }  # fmt: skip
    assert all(interval.low == interval.value == interval.high for interval in rates.values())  # users are alike


def sampled_requests() -> pl.DataFrame:
    """Return ten users with two requests each; one of four requests, logged as one of four, has a hit."""
    requests = [(f"{name}-{weight}", weight) for name in range(10) for weight in (1, 3)]
    rows = rows_of(*((request, [0.25, 0.75], [0, int(weight == 1)]) for request, weight in requests))
    weights = pl.Series("impression_weight", [weight for _, weight in requests for _ in range(2)], dtype=pl.Float32)
    return rows.with_columns(weights, user=pl.col("request_id").str.split("-").list.first())


def test_weighted_rates_of_rows_by_hand() -> None:
    rows = sampled_requests()
    assert hit_rate(rows, at=1) == (1 * 1 + 3 * 0) / (1 + 3)
    assert hit_rate(rows.drop("impression_weight"), at=1) == (1 + 0) / 2
    rates = measure_rates(rows, at=1, confidence=0.9)
    assert {name: interval.value for name, interval in rates.items()} == {
        "hit_rate": 1 / 4, "label_rate": 1 / (2 * 1 + 2 * 3), "mean_score": 0.5, "rate_error": 0.5 / (1 / 8) - 1,
    }  # fmt: skip
    assert all(interval.low == interval.value == interval.high for interval in rates.values())  # users are alike


def test_equal_weights_change_no_rate() -> None:
    rows = planted(users=60)
    assert measure_rates(rows.with_columns(impression_weight=pl.lit(4.0)), 2, 0.9) == measure_rates(rows, 2, 0.9)


def test_the_intervals_width_matches_theory() -> None:
    rows = planted(users=2_000, of_each=1)
    label = measure_rates(rows, at=1, confidence=0.95)["label_rate"]
    width = 2 * 1.96 * (label.value * (1 - label.value) / 2_000) ** 0.5
    assert label.high - label.low == pytest.approx(width, rel=0.15)


def test_rows_of_one_user_are_one_cluster() -> None:
    once = planted(users=300)
    copies = pl.concat([once.with_columns(request_id=pl.format("{}-{}", "request_id", pl.lit(n))) for n in range(9)])
    alone, together = measure_rates(once, 1, 0.95), measure_rates(copies, 1, 0.95)
    requests = measure_rates(copies.drop("user"), 1, 0.95)
    for name, interval in alone.items():
        assert together[name].value == pytest.approx(interval.value)
        assert together[name].high - together[name].low == pytest.approx(interval.high - interval.low, rel=0.1)
    assert requests["hit_rate"].high - requests["hit_rate"].low < 0.5 * (alone["hit_rate"].high - alone["hit_rate"].low)


@pytest.mark.parametrize(("factor", "error"), [(1.5, 0.5), (0.5, 0.5)])
def test_too_high_and_too_low_scores_have_the_same_rate_error(factor: float, error: float) -> None:
    rows = planted(users=3_000).with_columns(score=pl.col("score") * factor)
    rate_error = measure_rates(rows, 1, 0.99)["rate_error"]
    assert rate_error.value == pytest.approx(error, abs=0.05)
    assert 0.3 < rate_error.low < rate_error.value < rate_error.high < 0.7


def test_calibrated_scores_have_an_interval_from_zero() -> None:
    assert measure_rates(planted(users=3_000), 1, 0.99)["rate_error"].low == 0


def test_too_few_users_have_no_interval() -> None:
    with pytest.raises(UnmeasurableError, match="45 rows of only 9 users; an interval needs 10"):
        measure_rates(planted(users=9), 1, 0.95)


def test_positives_of_one_user_have_no_interval() -> None:
    rows = planted(users=50).with_columns(label=(pl.col("user") == "u7").cast(pl.Int8))
    with pytest.raises(UnmeasurableError, match="too few positives for an interval: 5 in 250 rows"):
        measure_rates(rows, 1, 0.95)


def test_equal_seeds_give_equal_results() -> None:
    rows = planted(users=60)
    assert measure_rates(rows, 1, 0.9, seed=1) == measure_rates(rows, 1, 0.9, seed=1)
    assert measure_rates(rows, 1, 0.9, seed=1) != measure_rates(rows, 1, 0.9, seed=2)
