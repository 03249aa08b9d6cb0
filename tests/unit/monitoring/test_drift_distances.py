from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitoring.drift.drift_statistics import Distance, measure_distance, population_stability_index
from monitoring.windows.sampling import ClusteredCounts


def compared(live: list[int], *days: list[int], named: int | None = None, alike: int = 1) -> Distance:
    """Return the distance of a window's counts from those of days; each user has `alike` equal rows."""
    bins = np.repeat(np.arange(len(live)), live)
    counts = ClusteredCounts.of(np.arange(bins.size) // alike, bins, len(live))
    distance = measure_distance(counts, days, len(live) if named is None else named, alpha=0.001)
    assert distance is not None
    return distance


def test_the_index_is_the_jeffreys_divergence() -> None:
    reference, live = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
    exact = -0.1 * math.log(0.4 / 0.5) + 0.1 * math.log(0.4 / 0.3)
    assert population_stability_index(reference, live) == pytest.approx(exact, rel=0.03)


def test_the_contribution_of_an_empty_bin_is_bounded() -> None:
    index = population_stability_index(np.array([0.9, 0.1]), np.array([1.0, 0.0]))
    assert 0.4 < index < 0.1 * math.log(2 / 0.01) + 0.1
    assert population_stability_index(np.array([1.0, 0.0]), np.array([0.0, 1.0])) < 2 * math.log(2 / 0.01)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=9).filter(any), st.integers(1, 1_000))
def test_equal_shares_have_index_zero_for_any_numbers_of_rows(counts: list[int], times: int) -> None:
    distance = compared(counts, [times * count for count in counts])
    assert distance.index == pytest.approx(0, abs=1e-12)
    assert distance.p_value > 0.99


def test_values_on_no_side_are_not_compared() -> None:
    empty_counts = ClusteredCounts.of(np.array([], dtype=int), np.array([], dtype=int), 2)
    assert measure_distance(empty_counts, [[5, 5]], 2, alpha=0.001) is None
    assert measure_distance(ClusteredCounts.of(np.array([0, 1]), np.array([0, 1]), 2), [[0, 0]], 2, alpha=0.001) is None


def test_the_natural_index_is_the_largest_between_a_day_and_the_remaining_days() -> None:
    days = [[500_000, 500_000], [500_000, 500_000], [800_000, 200_000]]
    distance = compared([1_100, 900], *days)
    expected = population_stability_index(np.array([0.5, 0.5]), np.array([0.8, 0.2]))
    assert distance.natural_index == pytest.approx(expected, abs=1e-3)


def test_the_natural_index_is_reduced_by_its_expectation() -> None:
    days = np.random.default_rng(0).multinomial(300, np.full(20, 0.05), 10)
    other_days = days.sum(axis=0) - days
    largest = max(population_stability_index(*pair) for pair in zip(other_days / 2_700, days / 300, strict=True))
    distance = compared([150] * 20, *days.tolist())
    assert distance.natural_index == pytest.approx(largest - 19 * (1 / 300 + 1 / 2_700), abs=1e-3)


def test_days_without_rows_and_single_days_have_no_natural_index() -> None:
    assert compared([50, 50], [500, 500]).natural_index == 0
    assert compared([50, 50], [0, 0], [500, 500], [0, 0]).natural_index == 0


def test_a_day_without_values_does_not_change_the_natural_index() -> None:
    days = [[500, 500], [600, 400], [550, 450]]
    whole, broken = compared([1_100, 900], *days), compared([1_100, 900], *days, [0, 0])
    assert broken.natural_index == pytest.approx(whole.natural_index, abs=1e-12)
    assert whole.natural_index > 0


def test_small_bins_are_merged() -> None:
    reference = [90_000, *[100] * 100]  # a hundred values with a tenth of the rows
    distance = compared([900, *[1] * 100], reference)
    assert distance.index < 0.001  # the live shares of the hundred are equal
    assert distance.chance_index < 0.03  # and there are two bins to differ by, not 101


def test_dependent_rows_raise_the_chance_index_and_the_p_value() -> None:
    independent, alike = (compared([560, 440], [50_000, 50_000], alike=alike) for alike in (1, 20))
    assert alike.index == independent.index
    assert alike.independent_rows == pytest.approx(independent.independent_rows / 20, rel=0.05)
    assert alike.chance_index > 15 * independent.chance_index
    assert independent.p_value < 0.001
    assert alike.p_value > 0.1


def test_many_rows_of_a_new_value_are_significant_and_one_row_is_not() -> None:
    reference = [600_000, 400_000, 0]
    single_row, many_rows = (
        compared([1_200, 799, 1], reference, named=2),
        compared([1_080, 720, 200], reference, named=2),
    )
    assert single_row.p_value > 0.05
    assert many_rows.p_value < 1e-20
    assert many_rows.index > 0.4
    assert (many_rows.changed_bin, many_rows.reference_share, many_rows.live_share) == (2, 0.0, 0.1)


def test_the_bin_with_the_largest_change_has_its_shares() -> None:
    distance = compared([300, 400, 300], [5_500, 3_500, 1_000])
    assert (distance.changed_bin, distance.reference_share, distance.live_share) == (2, 0.1, 0.3)


@pytest.mark.parametrize(("items", "alike"), [(6, 1), (6, 20), (50_000, 1), (50_000, 20)])
def test_p_values_are_calibrated(items: int, alike: int) -> None:
    random = np.random.default_rng([items, alike])
    shares = 1 / np.arange(1, items + 1)
    top = np.append(shares[:64], shares[64:].sum()) / shares.sum()
    chances = []
    for _ in range(300):
        reference = random.multinomial(20_000 // alike, top, 10) * alike
        live = np.repeat(random.choice(top.size, 4_000 // alike, p=top), alike)
        counts = ClusteredCounts.of(np.arange(live.size) // alike, live, top.size)
        distance = measure_distance(counts, reference.tolist(), 64, alpha=0.001)
        assert distance is not None
        chances.append(distance.p_value)
    assert np.mean(np.array(chances) < 0.05) < 0.09  # 0.05 and three standard errors
    assert np.mean(np.array(chances) < 0.5) > 0.35
