from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from pydantic import Field, TypeAdapter

from shortlist.contracts import ShortlistError
from shortlist.slates.filters.apply import FilteredCandidates, apply_filters
from shortlist.slates.filters.base import Filter, FilterRequest, UserHistory
from shortlist.slates.filters.rules import FILTERS, AllowFilter, ConditionFilter, DenyFilter, SeenFilter

NOW = datetime(2026, 2, 10, tzinfo=UTC)
CANDIDATES = pl.DataFrame({"item": [1, 2, 3, 4], "stock": [5, 0, None, 1]})
HISTORY = UserHistory(
    items=pl.Series([1, 2, 4]),
    times=pl.Series([datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 2, 9, tzinfo=UTC), NOW]),
    positive=pl.Series([True, False, True]),
)


def apply(
    filters: Sequence[Filter], request: FilterRequest, candidates: pl.DataFrame = CANDIDATES
) -> FilteredCandidates:
    return apply_filters(candidates, filters, [request], [candidates.height])


def test_removed_candidates_are_counted_by_the_first_filter() -> None:
    filters = [
        ConditionFilter(kind="where", name="in_stock", keep="stock > 0"),
        DenyFilter(kind="deny", path="bad.txt"),
    ]
    filtered = apply(filters, FilterRequest(NOW, lists={"deny": pl.Series([2, 4])}))
    assert filtered.rows.tolist() == [0]
    assert filtered.removed_by.tolist() == [-1, 0, 0, 1]
    assert filtered.counts == {"in_stock": 2, "deny": 1}


@pytest.mark.parametrize(
    ("of", "window", "kept_items"),
    [
        ("shown", "30d", [3]),
        ("shown", "2d", [1, 3]),
        ("positive", "30d", [2, 3]),
        ("positive", "1d", [1, 2, 3]),
        ("shown", "1d", [1, 3]),  # the window's first moment belongs to it
    ],
)
def test_seen_items_are_removed_within_the_window(of: str, window: str, kept_items: list[int]) -> None:
    seen_filter = SeenFilter.model_validate({"kind": "seen", "of": of, "window": window})
    filtered = apply([seen_filter], FilterRequest(NOW, HISTORY))
    assert CANDIDATES["item"].gather(filtered.rows).to_list() == kept_items


def test_seen_filter_keeps_all_items_without_a_history() -> None:
    assert len(apply([SeenFilter(kind="seen")], FilterRequest(NOW)).rows) == len(CANDIDATES)


def test_no_candidates_are_filtered_to_none() -> None:
    filters: list[Filter] = [
        ConditionFilter(kind="where", keep="stock > 0"),
        SeenFilter(kind="seen"),
        AllowFilter(kind="allow", path="a"),
    ]
    request = FilterRequest(NOW, HISTORY, {"allow": pl.Series([1])})
    assert apply(filters, request, CANDIDATES.clear()).counts == {"where": 0, "seen": 0, "allow": 0}


def test_a_list_is_read_with_its_items_once(tmp_path: Path) -> None:
    (tmp_path / "allowed.txt").write_text("\ufeff3\n 1 \n\n3\n", encoding="utf-8")
    allow = AllowFilter(kind="allow", path="allowed.txt")
    items = allow.read_list(tmp_path, pl.Int64())
    assert items.to_list() == [1, 3]
    filtered = apply([allow], FilterRequest(NOW, lists={"allow": items}))
    assert CANDIDATES["item"].gather(filtered.rows).to_list() == [1, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1\ntwo\n", "'two' is no Int64, which data.item is"),
        (b" \n", "names no item"),
        (b"\xff\xfe1", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(ShortlistError) as refused:
        DenyFilter(kind="deny", path="list.txt").read_list(tmp_path, pl.Int64())
    assert message in str(refused.value)


def test_a_condition_is_checked_against_the_columns() -> None:
    with pytest.raises(ShortlistError, match=r"reads 'stok'.*did you mean 'stock'"):
        ConditionFilter(kind="where", keep="stok > 0").check(CANDIDATES.schema)


class OddItems(Filter):
    """A custom filter."""

    kind: str = Field(default="odd", pattern="^odd$")
    """Keeps odd numbers."""
    name: str = "odd"

    def keeps(self, candidates: pl.DataFrame, request: FilterRequest) -> np.ndarray:
        return (candidates["item"] % 2 == 1).to_numpy()


def test_a_filter_kind_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILTERS, "odd", OddItems)
    declared = TypeAdapter(FILTERS["odd"]).validate_python({"kind": "odd"})
    assert apply([declared], FilterRequest(NOW)).rows.tolist() == [0, 2]


def test_requests_are_filtered_together_as_alone_unless_a_filter_compares_candidates() -> None:
    filters = [
        SeenFilter(kind="seen", name="seen"),
        ConditionFilter(kind="where", name="in_stock", keep="stock > 0"),
        ConditionFilter(kind="where", name="below_average", keep="stock < AVG(stock)"),
        DenyFilter(kind="deny", path="bad.txt"),
    ]
    lists = {"deny": pl.Series([4])}
    requests = [FilterRequest(NOW, HISTORY, lists), FilterRequest(NOW, None, lists), FilterRequest(NOW, HISTORY, lists)]
    candidates = [CANDIDATES, CANDIDATES[2:], CANDIDATES.clear()]
    counts = [frame.height for frame in candidates]
    together = apply_filters(pl.concat(candidates), filters, requests, counts).split(counts)
    for filtered, request, frame in zip(together, requests, candidates, strict=True):
        alone = apply(filters, request, frame)
        assert (filtered.removed_by.tolist(), filtered.rows.tolist()) == (
            alone.removed_by.tolist(),
            alone.rows.tolist(),
        )
    assert [filtered.removed_by.tolist() for filtered in together] == [[0, 0, 1, 0], [1, 2], []]


def test_history_returns_positive_items_and_events_since_a_moment() -> None:
    times = [NOW - timedelta(days=3), NOW - timedelta(days=2), NOW - timedelta(days=1)]
    moments = pl.Series(times, dtype=pl.Datetime("us", "UTC"))
    past = UserHistory(pl.Series(["a", "b", "c"]), moments, pl.Series([True, False, True]))
    assert past.positive_items.to_list() == ["c", "a"]
    assert past.since(times[1]).items.to_list() == ["b", "c"]
    assert past.since(times[1] + timedelta(microseconds=1)).positive_items.to_list() == ["c"]
    assert past.since(NOW).positive_items.to_list() == []
