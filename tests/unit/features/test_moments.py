import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shortlist.features.counts.moments import NumberMoments, sum_moments

NUMBERS = st.lists(st.floats(-1e6, 1e6), max_size=20)


@given(parts=st.lists(NUMBERS, max_size=5))
def test_moments_of_parts_add_up_to_those_of_the_whole(parts: list[list[float]]) -> None:
    merged = sum_moments(NumberMoments.from_values(pl.Series(part, dtype=pl.Float64)) for part in parts)
    whole = np.array([number for part in parts for number in part])
    assert merged.rows == whole.size
    if whole.size:
        assert merged.mean == pytest.approx(whole.mean(), abs=1e-6)
        assert merged.squares == pytest.approx(((whole - whole.mean()) ** 2).sum(), rel=1e-6, abs=1e-3)


def test_nulls_do_not_count() -> None:
    assert NumberMoments.from_values(pl.Series([1.0, None, 3.0])) == NumberMoments(rows=2, mean=2.0, squares=2.0)


def test_small_differences_of_large_numbers_survive() -> None:
    far = 1e12  # a sum of squares about 0 would lose them
    values = NumberMoments.from_values(pl.Series([far, far + 1])) + NumberMoments.from_values(
        pl.Series([far + 2, far + 3])
    )
    assert values.deviation == pytest.approx(np.std([0, 1, 2, 3]))


@pytest.mark.parametrize("values", [[], [5.0], [5.0, 5.0]])
def test_deviation_of_a_constant_is_1(values: list[float]) -> None:
    assert NumberMoments.from_values(pl.Series(values, dtype=pl.Float64)).deviation == 1.0
