"""A key set finds repeated keys."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from shortlist.data.rules.keys import KeySet
from shortlist.storage.row_digest import row_hashes


@given(st.lists(st.lists(st.integers(0, 30), max_size=20), max_size=12))
def test_a_key_is_new_exactly_once(batches: list[list[int]]) -> None:
    keys, earlier_keys = KeySet(), set[int]()
    for batch in batches:
        expected = [key not in earlier_keys and key not in batch[:place] for place, key in enumerate(batch)]
        assert keys.add(np.array(batch, np.uint64)).tolist() == expected
        earlier_keys |= set(batch)
    assert keys.contains(np.arange(31, dtype=np.uint64)).tolist() == [key in earlier_keys for key in range(31)]


def test_repeated_keys_are_found_across_many_batches() -> None:
    keys = np.random.default_rng(1).permutation(np.arange(200_000, dtype=np.uint64) << np.uint64(40))
    key_set = KeySet()
    for number, batch in enumerate(np.split(keys, 20)):
        repeated_keys = keys[:3] if number % 4 == 3 else keys[:0]
        assert (
            key_set.add(np.concatenate([batch, repeated_keys])).tolist()
            == [True] * batch.size + [False] * repeated_keys.size
        )
    assert key_set.contains(keys).all()
    assert not key_set.contains(keys + np.uint64(1)).any()


def test_rows_with_equal_values_have_equal_hashes() -> None:
    rows = pl.DataFrame(
        {
            "a": [1, 1, 1, None, None],
            "tags": [["x"], ["x"], ["x", "y"], None, None],
            "place": pl.Series([[1.0], [1.0], [1.0], None, None], dtype=pl.Array(pl.Float32, 1)),
        }
    )
    first, second, third, fourth, fifth = row_hashes(rows).tolist()
    assert first == second
    assert fourth == fifth
    assert len({first, third, fourth}) == 3
