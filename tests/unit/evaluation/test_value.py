"""Estimates of value: arithmetic of the estimators, what makes a value unknown, and coverage in small worlds."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.special import expit

from benchmarks.value import Corner, build_small_world, collect_evidence, draw_candidate, draw_log, run_world
from shortlist.evaluation.value.base import Contributions
from shortlist.evaluation.value.estimate import LogExtent, estimate_difference, estimate_value
from shortlist.evaluation.value.estimators import DEFAULT_ESTIMATOR, ESTIMATORS
from shortlist.evaluation.value.evidence import ValueEvidence, exposure_weights
from shortlist.evaluation.value.reward_model import RewardModel
from shortlist.evaluation.value.support import Support, measure_support
from shortlist.system.place_probabilities import plackett_luce_places

EXTENT = LogExtent(days=2, explored=0.1)
ENOUGH = Support(effective_samples=1_000, unsupported=0, evident_unsupported=0)


def _evidence(**changes: object) -> ValueEvidence:
    """Return evidence of four requests that show one place each; the log shows item a and b with 1/2, the list a."""
    columns: dict[str, object] = {
        "request": np.arange(4),
        "reward": np.array([1.0, 0.0, 1.0, 1.0]),  # rows of a, a, b, b
        "expected": np.array([0.4, 0.4, 0.7, 0.7]),
        "examination": np.ones(4),
        "weight": np.array([2.0, 2.0, 0.0, 0.0]),
        "list_expected": np.full(4, 0.4),
        "list_exposure": np.ones(4),
        "user": np.arange(4),
    }
    return ValueEvidence(**{**columns, **changes})  # type: ignore[arg-type]


def test_the_direct_estimate_is_what_the_model_expects() -> None:
    assert ESTIMATORS["direct"]().contributions(_evidence()).value == pytest.approx(0.4)


def test_inverse_propensity_is_the_weighted_mean_of_rewards() -> None:
    contributions = ESTIMATORS["inverse_propensity"]().contributions(_evidence())
    assert contributions.value == pytest.approx((2 * 1 + 2 * 0) / (2 + 2))
    assert contributions.support.unsupported == 0.0
    assert contributions.support.effective_samples == pytest.approx(4**2 / (2**2 + 2**2))


def test_doubly_robust_adds_the_weighted_errors_of_the_model() -> None:
    contributions = ESTIMATORS["doubly_robust"]().contributions(_evidence())
    mean_error = (2 * (1 - 0.4) + 2 * (0 - 0.4)) / (2 + 2)
    assert contributions.by_request.mean() == pytest.approx(0.4 + mean_error)
    # The error is less than its own deviation, so that the estimate stays with the model.
    assert contributions.value == pytest.approx(0.4)


def test_a_list_whose_items_were_half_not_supported_has_a_bias() -> None:
    evidence = _evidence(list_exposure=np.full(4, 2.0), list_expected=np.full(4, 0.9))
    contributions = ESTIMATORS["doubly_robust"]().contributions(evidence)
    assert contributions.support.unsupported == pytest.approx(0.5)
    assert contributions.bias > 0
    assert ESTIMATORS["doubly_robust"]().contributions(_evidence()).bias == 0


@pytest.mark.parametrize(("rare_share", "is_cut"), [(0.05, True), (0.5, False)])
def test_weights_are_cut_where_few_rows_would_decide_and_little_support_is_lost(
    rare_share: float, is_cut: bool
) -> None:
    """A row in 400 weighs 400 times `rare_share`; the others have the rest of the list's exposure."""
    random, requests = np.random.default_rng(2), 8_000
    is_rare = np.arange(requests) % 8_000 < 8_000 * rare_share / 400
    weight = np.where(is_rare, 400.0, (1 - rare_share) / (1 - rare_share / 400))
    evidence = ValueEvidence(
        request=np.arange(requests), reward=(random.random(requests) < 0.3).astype(float),
        expected=np.full(requests, 0.3), examination=np.ones(requests), weight=weight,
        list_expected=np.full(requests, 0.3), list_exposure=np.ones(requests), user=np.arange(requests),
    )  # fmt: skip
    support = ESTIMATORS["doubly_robust"]().contributions(evidence).support
    assert support.unsupported == pytest.approx(rare_share * (1 - 125 / 400) if is_cut else 0.0, abs=1e-3)


def test_propensities_of_random_slates_give_the_ratio_of_exposures() -> None:
    # Three places that are examined with 1, 1/2, 1/4; the log shows ten items at random, the list this one second.
    place_exposure = np.array([1.0, 0.5, 0.25])
    (weight,) = exposure_weights(np.array([0.5]), np.array([0.1]), place_exposure)
    assert weight == pytest.approx(0.5 / (0.1 * 1 + 0.1 * 0.5 + 0.1 * 0.25))


def test_the_click_model_finds_examination_and_attraction() -> None:
    random = np.random.default_rng(1)
    item, place = random.integers(0, 2, 40_000), random.integers(0, 3, 40_000)
    probability = np.array([0.2, 0.6])[item] * np.array([1.0, 0.5, 0.25])[place]
    reward = (random.random(40_000) < probability).astype(float)
    user = np.arange(40_000)
    model = RewardModel.fit(item[:, None].astype(float), place, reward, user, 3)
    assert model.place_log_odds_FK is None
    assert model.examination_K == pytest.approx([1, 0.5, 0.25], abs=0.02)
    items, users = np.array([[0.0], [1.0]]), np.array([0, 1])
    assert model.expected(items, users, np.array([0, 0])) == pytest.approx([0.2, 0.6], abs=0.02)
    assert model.expected(items, users, np.array([2, 2])) == pytest.approx([0.05, 0.15], abs=0.02)


def test_places_may_matter_less_for_attractive_items() -> None:
    random = np.random.default_rng(1)
    item, place = random.integers(0, 2, 40_000), random.integers(0, 3, 40_000)
    probability = expit(np.array([-1.5, 2.0])[item] + np.array([0.0, -0.7, -1.4])[place])
    reward = (random.random(40_000) < probability).astype(float)
    model = RewardModel.fit(item[:, None].astype(float), place, reward, np.arange(40_000), 3)
    items, users = np.array([[0.0], [1.0]]), np.array([0, 1])
    last = expit(np.array([-2.9, 0.6]))
    assert model.expected(items, users, np.array([2, 2])) == pytest.approx(last, abs=0.02)
    assert model.expected(items, users, np.array([9, 9])) == pytest.approx(last, abs=0.02)  # a place beyond the log's


def test_places_are_not_taken_for_the_users_who_have_many_attractive_items() -> None:
    """In a log of a ranker the item of a score at a lower place is of a user with more items of higher scores."""
    corner, errors, examined = Corner(0.05, "strong", 20_000), [], []
    for number in range(6):
        random = np.random.default_rng([number, 50, 6, corner.slates])
        world = build_small_world(corner, random)
        log, scores = draw_log(world, corner, random), draw_candidate(world, 1.0, random)
        lists = {"candidate": scores, "champion": world.ranker_UC}
        evidence = collect_evidence(world, log, lists)
        expected = [float(evidence[name].list_expected.mean()) / world.value(lists[name]) - 1 for name in lists]
        errors.append(expected)
        examined.append(evidence["champion"].examination[: world.examination.size] / world.examination)
    mean_error, largest_error = np.abs(np.mean(errors, axis=0)), np.abs(errors).max(axis=0)
    assert mean_error[0] < 0.012 and largest_error[1] < 0.02, errors  # of the candidate; each fold's fit is the best
    assert np.mean(examined, axis=0) == pytest.approx(1.0, abs=0.05)


def test_a_user_is_predicted_by_other_users() -> None:
    user = np.array([0, 2, 4, 1, 3, 5])
    reward = np.where(user % 2 == 0, 1.0, 0.0)  # users of one fold always click
    model = RewardModel.fit(np.zeros((6, 1)), np.zeros(6, int), reward, user, 1)
    assert model.expected(np.zeros((2, 1)), np.array([0, 1]), np.array([0, 0])) == pytest.approx([0.0, 1.0], abs=0.15)


def test_a_user_without_rows_is_like_the_mean_of_users() -> None:
    random = np.random.default_rng(1)
    user = np.repeat(np.array([0, 1, 3, 4]), 2_000)
    feature = random.normal(user, 1.0)
    reward = (random.random(user.size) < expit(feature - 3)).astype(float)
    model = RewardModel.fit(feature[:, None], np.zeros(user.size, int), reward, user, 1)
    absent_user, later_user = model.expected(np.full((2, 1), 2.0), np.array([2, 4 + 2]), np.zeros(2, int))
    assert absent_user == later_user == pytest.approx(expit(-1.0), abs=0.05)


def test_the_interval_is_wider_by_the_bias() -> None:
    by_request, user = np.tile([0.0, 1.0], 50), np.arange(100)
    narrow = estimate_value(Contributions(by_request, 0.0, ENOUGH), user, 0.95, EXTENT)
    wide = estimate_value(Contributions(by_request, 0.1, ENOUGH), user, 0.95, EXTENT)
    assert narrow.high is not None and wide.high is not None
    assert wide.high - narrow.high == pytest.approx(0.1)
    assert narrow.high - 0.5 == pytest.approx(1.98 * 0.5 / np.sqrt(100), rel=0.01)


def test_requests_of_one_user_are_not_independent() -> None:
    by_request = np.repeat([0.0, 1.0], 200)
    contributions = Contributions(by_request, 0.0, ENOUGH)
    alone = estimate_value(contributions, np.arange(400), 0.95, EXTENT)
    together = estimate_value(contributions, np.repeat(np.arange(40), 10), 0.95, EXTENT)
    assert alone.high is not None and together.high is not None
    assert together.high - 0.5 > 3 * (alone.high - 0.5)


@pytest.mark.parametrize(
    ("support", "explored", "problem"),
    [
        (ENOUGH, 0.0, "the log shows the same slate to every request of a kind"),
        (Support(10, 0, 0), 0.1, "10 effective samples (at least 50); about 10% of requests explored for 10 days"),
        (Support(1_000, 0.5, 0.45), 0.1, "45% of its places have no support in the log (at most 15%); about 30%"),
    ],
)
def test_a_value_without_support_is_unknown_with_the_exploration_that_would_settle_the_question(
    support: Support, explored: float, problem: str
) -> None:
    contributions, user = Contributions(np.ones(100), 0.0, support), np.arange(100)
    extent = LogExtent(days=2, explored=explored)
    estimate = estimate_value(contributions, user, 0.95, extent)
    assert (estimate.low, estimate.high) == (None, None)
    assert problem in estimate.problem
    assert problem in estimate_difference(contributions, contributions, user, extent).problem


def test_a_difference_is_paired() -> None:
    noise = np.random.default_rng(1).normal(0, 10, 100)
    better, worse = Contributions(noise + 0.5, 0.0, ENOUGH), Contributions(noise, 0.0, ENOUGH)
    difference = estimate_difference(better, worse, np.arange(100), EXTENT)
    assert difference.low == pytest.approx(0.5)


def test_a_log_without_rows_of_the_list_gives_no_estimate() -> None:
    support = measure_support(_evidence(), np.zeros(4))
    assert (support.effective_samples, support.unsupported) == (0.0, 1.0)


def test_places_of_drawn_slates_sum_over_all_orders() -> None:
    weights = np.array([5.0, 1.0, 0.2, 3.0])
    expected = np.zeros((4, 3))
    for order in permutations(range(4), 3):
        remaining, probability = weights.sum(), 1.0
        for item in order:
            probability *= weights[item] / remaining
            remaining -= weights[item]
        for place, item in enumerate(order):
            expected[item, place] += probability
    assert plackett_luce_places(weights, np.arange(4), 3) == pytest.approx(expected, abs=1e-5)


@pytest.mark.long
def test_intervals_hold_the_truth_in_small_worlds() -> None:
    trials = [trial for number in range(10) for trial in run_world(number, Corner(0.2, "strong", 20_000))]
    default = [trial for trial in trials if trial.estimator == DEFAULT_ESTIMATOR]
    assert np.mean([trial.is_known for trial in default]) >= 0.9
    assert np.mean([trial.covers for trial in default]) >= 0.87
    assert np.mean([trial.is_held for trial in default if trial.kind == "12 % worse"]) >= 0.9
    assert np.mean([trial.is_held for trial in default if trial.kind == "equal"]) <= 0.1
