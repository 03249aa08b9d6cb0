"""A bounded sample of groups that does not depend on the pieces of its input."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from monitoring.windows.group_sample import GroupSample


def rows(keys: list[int]) -> pl.DataFrame:
    return pl.DataFrame({"key": keys, "value": range(len(keys))}, schema={"key": pl.UInt64, "value": pl.Int64})


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 40), st.integers(1, 50))
def test_the_groups_with_the_smallest_keys_are_kept_whole(keys: list[int], max_rows: int, piece: int) -> None:
    sample = GroupSample("key", max_rows)
    all_rows = rows(keys)
    sample.add(all_rows.clear())
    for start in range(0, len(keys), piece):
        sample.add(all_rows.slice(start, piece))
    sampled = sample.rows()
    fitting: list[int] = []
    for key in sorted(set(keys)):
        if sum(keys.count(fitting_key) for fitting_key in (*fitting, key)) > max_rows:
            break
        fitting.append(key)
    if keys and not fitting:  # the first group alone is too large
        expected = all_rows.filter(pl.col("key") == min(keys)).head(max_rows)
    else:
        expected = all_rows.filter(pl.col("key").is_in(fitting))
    assert sorted(sampled.rows()) == sorted(expected.rows())


def test_replaced_rows_take_no_room_in_the_sample() -> None:
    sample = GroupSample("key", 3, lambda frame: frame.unique("key", keep="last", maintain_order=True))
    for value in range(100):
        sample.add(rows([7, 5, 9]).with_columns(value=pl.lit(value, pl.Int64)))
    assert sample.rows().rows() == [(5, 99), (7, 99), (9, 99)]
