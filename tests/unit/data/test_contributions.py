"""What one request, user and sender contribute to rows is at most a share, and others lose nothing."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shortlist.data.rules.contributions import (
    AMOUNT,
    BY_REQUEST,
    BY_SENDER,
    BY_USER,
    CONTRIBUTORS,
    ROW_ID,
    find_excess,
    find_excesses,
)


def rows_of(users: list[Any], **columns: list[Any]) -> pl.DataFrame:
    """Return one row per user, with the contributors that are given."""
    of_row = {BY_USER: users, **columns, ROW_ID: list(range(len(users))), AMOUNT: [1] * len(users)}
    missing = [pl.lit(None, kind).alias(name) for name, kind in CONTRIBUTORS.items() if name not in of_row]
    return pl.DataFrame(of_row, schema_overrides={BY_REQUEST: pl.UInt64()}).with_columns(missing)


def kept_counts(rows: pl.DataFrame, reasons: pl.Series) -> dict[Any, int]:
    return dict(rows.filter(reasons.is_null())[BY_USER].value_counts().iter_rows())


def test_a_user_with_half_of_the_rows_is_cut_to_the_share() -> None:
    rows = rows_of([str(number % 2_000) for number in range(20_000)] + ["greedy"] * 5_000)
    reasons = find_excess(rows, BY_USER, 0.01)
    kept = kept_counts(rows, reasons)
    assert kept.pop("greedy") == 202  # 1 % of the 20 202 rows that are left
    assert set(kept.values()) == {10}
    assert reasons.drop_nulls().unique().to_list() == ["user: 5000 of 25000 rows, wanted at most 202"]


def test_several_large_contributions_are_cut_to_one_size() -> None:
    rows = rows_of([str(number % 970) for number in range(9_700)] + [f"g{number % 30}" for number in range(30_000)])
    kept = kept_counts(rows, find_excess(rows, BY_USER, 0.01))
    sizes = {kept[f"g{number}"] for number in range(30)}
    assert sizes == {138}  # c = 0.01 (30 c + 9 700)
    assert 0.01 * sum(kept.values()) >= 138


def test_among_few_users_each_may_have_ten_times_the_median() -> None:
    rows = rows_of(["a"] * 5 + ["b"] * 10 + ["c"] * 39 + ["d"] * 300)
    assert kept_counts(rows, find_excess(rows, BY_USER, 0.01)) == {"a": 5, "b": 10, "c": 39, "d": 300}
    rows = rows_of(["a"] * 5 + ["b"] * 10 + ["c"] * 300)
    assert kept_counts(rows, find_excess(rows, BY_USER, 0.01)) == {"a": 5, "b": 10, "c": 100}


@pytest.mark.parametrize("hostile", [5_000, 14_000, 60_000])
def test_nobody_else_loses_a_row_where_one_server_vouches_for_its_users(hostile: int) -> None:
    rows = rows_of([None] * (15_000 + hostile), **{BY_SENDER: [None] * 15_000 + ["192.0.2.7"] * hostile})
    reasons = find_excesses(rows, 0.01)
    assert rows.filter(reasons.is_null())[BY_SENDER].null_count() == 15_000
    assert rows.filter(reasons.is_null())[BY_SENDER].count() == 151  # c = 0.01 (15 000 + c)


def test_one_sender_alone_is_not_cut() -> None:
    rows = rows_of([str(number) for number in range(500)], **{BY_SENDER: ["127.0.0.1"] * 500})
    assert find_excesses(rows, 0.01).null_count() == 500


def test_a_request_holds_an_item_as_often_as_other_requests() -> None:
    requests = [*range(146), *[999] * 1_500]
    rows = rows_of([str(request) for request in requests], **{BY_REQUEST: requests, "item": [7] * 1_646})
    reasons = find_excesses(rows, 0.01, "item")
    assert rows.filter(reasons.is_null()).filter(pl.col(BY_REQUEST) == 999).height == 1
    assert set(reasons.drop_nulls()) == {
        "request: 1500 of 1646 rows, wanted at most 10", "request: 10 of 156 rows of one item, wanted at most 1",
    }  # fmt: skip


@pytest.mark.parametrize("by", [BY_USER, BY_SENDER])
def test_a_user_or_sender_has_a_share_of_each_item_or_four_times_that_of_other_users(by: str) -> None:
    for others, most in ((146, 4), (1_000, 10)):  # c = 0.01 (1 000 + c)
        items = [7] * others + [8] * 9_000 + [7] * 1_500
        names = [*map(str, range(others + 9_000)), *["greedy"] * 1_500]
        rows = rows_of([None] * len(items), **{by: names, "item": items})
        kept = rows.filter(find_excesses(rows, 0.01, "item").is_null())
        assert dict(kept["item"].value_counts().iter_rows()) == {7: others + most, 8: 9_000}


def test_heavy_rows_count_by_their_weight() -> None:
    rows = rows_of([str(number) for number in range(1_000)]).with_columns(
        pl.when(pl.col(BY_USER) == "7").then(1_500).otherwise(10).alias(AMOUNT)
    )
    reasons = find_excess(rows, BY_USER, 0.01)
    assert rows.filter(reasons.is_not_null())[BY_USER].to_list() == ["7"]


@given(
    st.lists(st.sampled_from([*"abcdefgh", None]), max_size=60), st.integers(0, 400), st.sampled_from([0.01, 0.1, 0.5])
)
def test_whoever_is_cut_keeps_the_share_and_whoever_is_smaller_keeps_all(
    honest: list[str | None], greedy: int, share: float
) -> None:
    rows = rows_of([*honest, *["greedy"] * greedy])
    kept = kept_counts(rows, find_excess(rows, BY_USER, share))
    before = {name: len([user for user in rows[BY_USER] if user == name]) for name in rows[BY_USER].unique()}
    assert kept.get(None, 0) == rows[BY_USER].null_count()
    cut = {name for name, count in before.items() if name is not None and kept.get(name, 0) < count}
    if cut:
        cap = min(kept[name] for name in cut)
        assert {kept[name] for name in cut} == {cap}
        assert all(before[name] <= cap for name in kept if name is not None and name not in cut)
        counts = sorted(count for name, count in before.items() if name is not None)
        assert cap <= max(share * sum(kept.values()), 10 * counts[len(counts) // 2], 1)
