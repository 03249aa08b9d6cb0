from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shortlist.features.values.hashing import with_buckets
from shortlist.ranking.hash_collisions import HashCollisions, distinct_values


@settings(max_examples=40, deadline=None)
@given(st.integers(1_000, 100_000), st.floats(0.02, 3), st.integers(0, 2**40))
def test_the_estimate_is_off_by_what_the_theory_allows(buckets: int, load: float, first: int) -> None:
    values = max(20, int(load * buckets))
    codes = np.random.default_rng(first).choice(2**50, values, replace=False) + first
    ids = with_buckets(pl.LazyFrame({"code": codes}), "id", ["code"], buckets + 1).collect()["id"]
    occupied = ids.n_unique()
    estimated = distinct_values(buckets, occupied)
    assert estimated is not None
    load = values / buckets
    deviation = math.sqrt(buckets * (math.exp(load) - load - 1))  # Whang et al. (1990), equation 5
    assert abs(estimated - values) <= 5 * deviation + 1
    collisions = HashCollisions.from_counts(buckets, occupied, occupied)
    assert collisions.collision_rate == pytest.approx(1 - occupied / values, abs=(5 * deviation + 1) / values)


@given(st.integers(1, 10**6), st.data())
def test_there_are_at_least_as_many_values_as_occupied_buckets(buckets: int, draw: st.DataObject) -> None:
    occupied = draw.draw(st.integers(0, buckets))
    collisions = HashCollisions.from_counts(buckets, occupied, occupied)
    if occupied == buckets:
        assert (collisions.values, collisions.collision_rate) == (None, None)
    else:
        assert collisions.values is not None
        assert collisions.values >= occupied * (1 - 1e-9)
        assert collisions.collision_rate is not None
        assert 0 <= collisions.collision_rate < 1


def test_no_values_and_one_value_have_no_collisions() -> None:
    assert (HashCollisions.from_counts(10, 0, 0).values, HashCollisions.from_counts(10, 0, 0).collision_rate) == (0, 0)
    assert HashCollisions.from_counts(10, 1, 1).values == pytest.approx(1)
    assert HashCollisions.from_counts(10, 1, 1).collision_rate == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("occupied", "expected"),
    [
        (949, None),
        # ln(1 - 0.95) / ln(1 - 1/1000) = 2 994 values in 950 buckets: 68 % have none of their own
        (950, "user_hash: its table is full: 950 of 1,000 buckets are occupied, about 68% of its values share one."),
        (1_000, "user_hash: its table is full: 1,000 of 1,000 buckets are occupied."),
    ],
)
def test_a_full_table_is_warned_of(occupied: int, expected: str | None) -> None:
    warning = HashCollisions.from_counts(1_000, occupied, occupied).warning("user_hash")
    assert warning == (expected and f"{expected} Declare more buckets, or a vocabulary with min_rows.")
