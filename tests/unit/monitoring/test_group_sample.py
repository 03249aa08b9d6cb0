"""A bounded sample that does not depend on how its rows come."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from monitoring.windows.group_sample import GroupSample


def rows(keys: list[int]) -> pl.DataFrame:
    return pl.DataFrame({"key": keys, "value": range(len(keys))}, schema={"key": pl.UInt64, "value": pl.Int64})


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 40), st.integers(1, 50))
def test_the_groups_with_the_smallest_keys_are_kept_whole(keys: list[int], most: int, piece: int) -> None:
    sample = GroupSample("key", most)
    every = rows(keys)
    sample.add(every.clear())
    for start in range(0, len(keys), piece):
        sample.add(every.slice(start, piece))
    kept = sample.rows()
    fitting: list[int] = []
    for key in sorted(set(keys)):
        if sum(keys.count(one) for one in (*fitting, key)) > most:
            break
        fitting.append(key)
    if keys and not fitting:  # the first group alone is too large
        wanted = every.filter(pl.col("key") == min(keys)).head(most)
    else:
        wanted = every.filter(pl.col("key").is_in(fitting))
    assert sorted(kept.rows()) == sorted(wanted.rows())


def test_rows_that_do_not_count_take_no_room() -> None:
    sample = GroupSample("key", 3, lambda held: held.unique("key", keep="last", maintain_order=True))
    for value in range(100):
        sample.add(rows([7, 5, 9]).with_columns(value=pl.lit(value, pl.Int64)))
    assert sample.rows().rows() == [(5, 99), (7, 99), (9, 99)]
