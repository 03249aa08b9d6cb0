from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from shortlist.rollout.evidence.sequential import lower_bound, mixture_interval, share_evidence, split_evidence
from shortlist.rollout.evidence.sequential_difference import UserValues, difference

COUNTS = st.integers(1, 5_000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total)))


def values(stable: list[float], canary: list[float]) -> UserValues:
    """One step; every user was shown ten items."""
    shown_items = np.full((len(stable) + len(canary), 1), 10.0)
    positive = 10 * np.array([*stable, *canary])[:, None]
    return UserValues(
        shown_items, positive, np.array([False] * len(stable) + [True] * len(canary), dtype=bool)[:, None]
    )


def test_a_likelihood_ratio_at_the_bound_is_one_over_alpha() -> None:
    variance, scale, alpha = 0.01**2, 0.05, 0.01
    low = mixture_interval(0.0, variance, alpha, scale).low
    spread = variance + scale**2
    ratio = np.sqrt(variance / spread) * np.exp(low**2 * scale**2 / (2 * variance * spread))
    assert ratio == pytest.approx(1 / alpha)


def test_the_interval_is_wider_than_that_of_one_look_and_narrows_with_evidence() -> None:
    radii = [mixture_interval(0.0, variance, 0.05, 0.05).high for variance in (0.01, 0.001, 0.0001)]
    assert all(radius > 1.96 * variance**0.5 for radius, variance in zip(radii, (0.01, 0.001, 0.0001), strict=True))
    assert radii == sorted(radii, reverse=True)


def test_an_interval_without_data_is_unbounded() -> None:
    interval = mixture_interval(float("nan"), float("inf"), 0.01, 0.05)
    assert (interval.low, interval.high) == (-np.inf, np.inf)


def test_with_one_step_the_difference_equals_that_of_two_averages() -> None:
    generator = np.random.default_rng(1)
    stable, canary = (generator.binomial(10, 0.3, n) / 10 for n in (2_000, 500))
    estimate = difference(values(stable.tolist(), canary.tolist()))
    assert estimate.value == pytest.approx(canary.mean() - stable.mean())
    welch = stable.var() / 2_000 + canary.var() / 500
    assert estimate.variance == pytest.approx(welch, rel=0.1)
    assert (estimate.stable_users, estimate.canary_users) == (2_000, 500)
    assert (estimate.stable_mean, estimate.canary_mean) == pytest.approx((stable.mean(), canary.mean()))


def test_a_track_without_users_gives_no_difference() -> None:
    for estimate in (
        difference(values([0.5] * 10, [])),
        difference(values([], [0.5] * 10)),
        difference(values([], [])),
    ):
        assert estimate.variance == np.inf


def test_equal_values_do_not_give_zero_variance() -> None:
    estimate = difference(values([0.0] * 10, [1.0] * 3))
    assert 0.1 < estimate.variance**0.5 < 1  # two pretended users stand against three equal ones
    many_users = difference(values([0.0] * 1_000, [0.0] * 1_000))
    assert many_users.variance**0.5 < 0.002


def test_a_kpi_that_changes_during_the_day_is_no_difference_of_models() -> None:
    # At 5 % everybody's rate is 0.4, at 50 % it is 0.2; both models are equally good.
    shown_items = np.ones((2_000, 2))
    canary = np.arange(2_000)[:, None] < np.array([100, 1_000])
    positive = np.stack([np.arange(2_000) % 10 < 4, np.arange(2_000) % 10 < 2], axis=1).astype(float)
    estimate = difference(UserValues(shown_items, positive, canary))
    assert estimate.value == pytest.approx(0, abs=1e-12)
    assert estimate.canary_mean - estimate.stable_mean < -0.03  # which a comparison of totals would call a drop


def test_a_user_who_moves_counts_on_both_tracks_and_as_one_person() -> None:
    generator = np.random.default_rng(2)
    taste = generator.random(400)
    positive = np.stack([taste, taste], axis=1) * 10
    canary = np.arange(400)[:, None] < np.array([100, 200])
    estimate = difference(UserValues(np.full((400, 2), 10.0), positive, canary))
    assert (estimate.stable_users, estimate.canary_users) == (300, 200)  # 100 were on both
    # Twice the same users know no more than once; values taken as independent would halve the variance.
    once = difference(UserValues(np.full((400, 1), 10.0), positive[:, 1:], canary[:, 1:]))
    assert estimate.variance > 0.75 * once.variance


def test_a_step_without_stable_users_has_weight_0() -> None:
    one_step = values([0.2, 0.4] * 50, [0.3, 0.5] * 50)
    users = one_step.shown_items.shape[0]
    two_steps = UserValues(
        np.hstack([one_step.shown_items, np.full((users, 1), 10.0)]),
        np.hstack([one_step.positive_items, np.zeros((users, 1))]),
        np.hstack([one_step.canary, np.ones((users, 1), dtype=bool)]),
    )
    assert difference(two_steps) == difference(one_step)


@given(st.data())
def test_swapping_the_tracks_turns_the_sign(data: st.DataObject) -> None:
    rates = st.lists(st.integers(0, 10).map(lambda positives: positives / 10), min_size=1, max_size=30)
    stable_rates, canary_rates = data.draw(rates), data.draw(rates)
    estimate, swapped = difference(values(stable_rates, canary_rates)), difference(values(canary_rates, stable_rates))
    assert estimate.value == pytest.approx(-swapped.value)
    assert estimate.variance == pytest.approx(swapped.variance)
    assert estimate.variance > 0


@given(COUNTS, st.floats(0.001, 0.5))
def test_a_bound_is_where_its_evidence_is_enough(counts: tuple[int, int], limit: float) -> None:
    count, total = counts
    bound = lower_bound(count, total, 0.999)
    assert 0 <= bound <= count / total
    if abs(bound - limit) > 1e-4:
        assert (bound > limit) == (share_evidence(count, total, limit) > 1000)


@given(COUNTS)
def test_the_anytime_bound_is_below_that_for_one_analysis(counts: tuple[int, int]) -> None:
    count, total = counts
    one_look = beta.ppf(0.001, count, total - count + 1) if count else 0.0
    assert lower_bound(count, total, 0.999) <= one_look + 1e-6


@given(COUNTS)
def test_more_failures_raise_the_bound(counts: tuple[int, int]) -> None:
    count, total = counts
    assert lower_bound(count, total + 1, 0.999) <= lower_bound(count + 1, total + 1, 0.999) + 1e-6


def test_the_declared_split_gives_no_evidence_for_another_split() -> None:
    for total in (100, 1_000, 100_000):
        assert split_evidence(total // 20, total, 0.05) < 1
    assert split_evidence(0, 0, 0.05) == pytest.approx(1)
    assert split_evidence(0, 1_000_000, 0.5) > 1e300  # and no overflow


@pytest.mark.parametrize("multiple", [0.7, 1.0, 1.6])
def test_values_of_one_user_on_both_tracks_are_correlated(monkeypatch: pytest.MonkeyPatch, multiple: float) -> None:
    """The variance is that of each user's residuals, summed over steps before they are squared."""
    monkeypatch.setattr("shortlist.rollout.evidence.sequential_difference.PSEUDO_RESIDUALS", 0.0)
    random = np.random.default_rng(5)
    value = (random.random((400, 2)) < 0.1 + 0.8 * random.random((400, 1))).astype(float)  # of the same user alike
    canary = random.random((400, 1)) < np.array([0.2, 0.6])
    compared = difference(UserValues(np.ones_like(value), value, canary))
    assert compared.contrast is not None
    estimate, variance = compared.contrast.difference_at(multiple)

    on = np.stack([canary, ~canary])
    levels = (value * on).sum(axis=1) / on.sum(axis=1)
    residual = on * (value - levels[:, None]) * np.array([1.0, multiple])[:, None, None]
    share = canary.mean(axis=0)
    information = (share * (1 - share) * len(value)).sum()
    robust = (((1 - share) * residual[0] - share * residual[1]).sum(axis=1) ** 2).sum()
    redraws = np.minimum.outer(share, share) * (1 - np.maximum.outer(share, share))
    drawn_again = np.einsum("us,st,ut->", residual.sum(axis=0), redraws, residual.sum(axis=0))
    assert variance == pytest.approx(max(robust, drawn_again) / information**2)
    weights = share * (1 - share)
    assert estimate == pytest.approx((weights * (levels[0] - multiple * levels[1])).sum() / weights.sum())
