from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError
from retrieval_log import FIRST_DAY, Log, Row, declared, fit_data
from scipy.sparse import csr_array

from shortlist.contracts import DataError
from shortlist.slates.retrieval.source import ROW, USER_NUMBER, FitInputs, Queries, RankedItems, SourceKind
from shortlist.slates.retrieval.sources import als
from shortlist.slates.retrieval.sources.als import Als, solve_factors
from shortlist.slates.retrieval.sources.co_visitation import CoVisitation
from shortlist.slates.retrieval.sources.ease import Ease, ease_weights
from shortlist.slates.retrieval.sources.item_vector import ItemVector
from shortlist.slates.retrieval.sources.newest import Newest
from shortlist.slates.retrieval.sources.popular import Popular
from shortlist.slates.retrieval.sources.registry import SOURCE_KINDS


def make_queries(inputs: FitInputs, users: list[int | None], recent: list[list[int]], **context: list[str]) -> Queries:
    width = max((len(line) for line in recent), default=0) or 1
    rows = np.full((len(users), width), -1, np.int32)
    for line, items in enumerate(recent):
        rows[line, : len(items)] = inputs.catalogue.find_rows(pl.Series(items, dtype=pl.Int64))
    return Queries(pl.Series(users, dtype=pl.Int64), rows, pl.DataFrame(context))


def fitted(source: SourceKind, inputs: FitInputs, folder: Path, queries: Queries, max_items: int) -> RankedItems:
    folder.mkdir(exist_ok=True)
    source.fit(inputs, folder)
    return source.load(folder).retrieve(queries, max_items)


def ids(inputs: FitInputs, ranked: RankedItems) -> list[list[int]]:
    return [[inputs.catalogue.ids[int(row)] for row in line if row >= 0] for line in ranked.items]


def click(user: int, item: int, day: int, surface: str = "home", label: int = 1) -> Row:
    return (user, item, day, surface, label)


def test_popular_counts_positives_within_the_window(log: Log, tmp_path: Path) -> None:
    # Item 30 leads on day 0, which a window of one day does not see; the rows of item 40 are no positives.
    rows = [click(user, 30, 0) for user in range(5)]
    rows += [click(1, 20, 1), click(2, 20, 1), click(1, 10, 1), click(3, 40, 1, label=0), click(4, 40, 1, label=0)]
    inputs = fit_data(log.write(rows), declared(), 0, 1)
    ranked = fitted(
        Popular(kind="popular", window_days=1), inputs, tmp_path / "one", make_queries(inputs, [1], [[]]), 4
    )
    assert ids(inputs, ranked) == [[20, 10]]
    assert ranked.scores[0, :2].tolist() == pytest.approx([2 / 3, 1 / 3])
    whole = fitted(
        Popular(kind="popular", window_days=None), inputs, tmp_path / "all", make_queries(inputs, [1], [[]]), 4
    )
    assert ids(inputs, whole) == [[30, 20, 10]]


def test_popular_by_keys_is_filled_with_overall_popularity_and_reads_user_columns(log: Log, tmp_path: Path) -> None:
    rows = [click(1, 10, 0, "home"), click(1, 10, 0, "home"), click(2, 20, 0, "search"), click(2, 20, 0, "search")]
    rows += [click(2, 20, 0, "search"), click(1, 30, 0, "home")]
    users = {"user_id": [1, 2], "country": ["DE", "IN"]}
    inputs = fit_data(log.write(rows, users), declared(), 0)
    by_surface = Popular(kind="popular", keys=("surface",), min_positives=2)
    queries = make_queries(inputs, [1, 2, 3], [[], [], []], surface=["home", "search", "feed"])
    ranked = fitted(by_surface, inputs, tmp_path / "surface", queries, 3)
    assert ids(inputs, ranked) == [[10, 30, 20], [20, 10, 30], [20, 10, 30]]  # "feed" was never seen: everybody's list
    assert (np.diff(ranked.scores, axis=1) <= 0).all()
    by_country = Popular(kind="popular", keys=("country",), min_positives=1)
    queries = make_queries(inputs, [1, 2], [[], []], country=["DE", "IN"])
    assert ids(inputs, fitted(by_country, inputs, tmp_path / "country", queries, 1)) == [[10], [20]]


def test_new_items_are_those_of_the_last_days_and_each_user_begins_elsewhere(log: Log, tmp_path: Path) -> None:
    item_columns = [{"name": "item_id", "type": "integer"}, {"name": "published", "type": "date"}]
    items_table = {"name": "items", "path": "items.parquet", "key": "item_id", "columns": item_columns}
    published = {10: -40, 11: -5, 12: 0, 13: 1, 14: 2, 15: 3, 16: None}  # days from the first one of the log
    dates = [None if day is None else FIRST_DAY + timedelta(days=day) for day in published.values()]
    table = log.write([click(1, 10, 0), click(1, 10, 1)], items={"item_id": list(published), "published": dates})
    inputs = fit_data(table, declared(side_tables=[items_table]), 0, 1)
    source = Newest(kind="newest", column="published", max_age_days=3)
    queries = make_queries(inputs, list(range(30)), [[]] * 30)
    lists = ids(inputs, fitted(source, inputs, tmp_path, queries, 9))
    # The log ends on day 1, so that requests come on day 2: not what is published later, nor what says no day.
    assert {tuple(sorted(line)) for line in lists} == {(12, 13, 14)}
    assert {line[0] for line in lists} == {12, 13, 14}
    # Users without a name begin by what they took.
    anonymous_queries = make_queries(inputs, [None] * 7, [[item] for item in published])
    assert {line[0] for line in ids(inputs, fitted(source, inputs, tmp_path, anonymous_queries, 9))} == {12, 13, 14}
    first_lists = ids(inputs, fitted(source, inputs, tmp_path / "two", queries, 2))
    assert first_lists == [line[:2] for line in lists]
    one_day_source = Newest(kind="newest", column="published", max_age_days=1)
    table = log.write([click(1, 10, 0), click(1, 10, 20)], items={"item_id": list(published), "published": dates})
    inputs = fit_data(table, declared(side_tables=[items_table]), 0, 20)
    ranked = fitted(one_day_source, inputs, tmp_path / "none", make_queries(inputs, [1], [[]]), 4)
    assert ranked.items.tolist() == [[-1] * 4] and np.isneginf(ranked.scores).all()


def test_co_visitation_scores_pairs_by_nearness_and_popularity(log: Log, tmp_path: Path) -> None:
    # User 1 takes 10, 20, 30 in a row; user 2 takes 10, 20. With nearby 2: pair (10, 20) counts 2, (20, 30) 1 and
    # (10, 30), two apart, 1/2. Items are taken 2, 2 and 1 times.
    rows = [click(1, 10, 0), click(1, 20, 0), click(1, 30, 0), click(2, 10, 0), click(2, 20, 0), click(3, 40, 0)]
    inputs = fit_data(log.write(rows), declared(), 0)
    source = CoVisitation(kind="co_visitation", nearby=2, shrinkage=1.0)
    ranked = fitted(source, inputs, tmp_path / "source", make_queries(inputs, [9, 9], [[10], []]), 3)
    assert ids(inputs, ranked) == [[20, 30], []]
    assert ranked.scores[0, :2].tolist() == pytest.approx([2 / (2 + 1), 0.5 / (2**0.5 + 1)])


def test_co_visitation_counts_pairs_across_days_once(log: Log, tmp_path: Path) -> None:
    rows = [click(1, 10, 0), click(1, 20, 0), click(1, 30, 1), click(1, 40, 2)]
    inputs = fit_data(log.write(rows), declared(), 0, 1, 2)
    source = CoVisitation(kind="co_visitation", nearby=2, shrinkage=0.0)
    ranked = fitted(source, inputs, tmp_path / "source", make_queries(inputs, [1], [[30]]), 5)
    # 30 is next to 20 and 40, and two apart from 10; every item is taken once.
    assert ids(inputs, ranked) == [[20, 40, 10]]
    assert ranked.scores[0, :3].tolist() == pytest.approx([1.0, 1.0, 0.5])


def test_older_recent_items_count_less(log: Log, tmp_path: Path) -> None:
    rows = [click(1, 10, 0), click(1, 11, 0), click(2, 20, 0), click(2, 21, 0)]
    inputs = fit_data(log.write(rows), declared(), 0)
    source = CoVisitation(kind="co_visitation", decay=0.5, shrinkage=0.0)
    ranked = fitted(source, inputs, tmp_path / "source", make_queries(inputs, [9], [[20, 10]]), 5)
    assert ids(inputs, ranked) == [[21, 11]]
    assert ranked.scores[0, :2].tolist() == pytest.approx([1.0, 0.5])


def planted_groups(users: int = 40) -> list[Row]:
    """Two groups of users, each of which takes five of eight items of its own."""
    random = np.random.default_rng(5)
    return [
        click(user, int(item) + (10 if user % 2 else 50), 0)
        for user in range(users)
        for item in random.choice(8, 5, replace=False)
    ]


def test_ease_weights_are_those_of_a_ridge_regression_of_every_item_on_all_other_items() -> None:
    random = np.random.default_rng(1)
    user_items = (random.random((60, 7)) < 0.4).astype(float)
    weights = ease_weights(csr_array(user_items), 3.0)
    for item in range(7):
        others = [other for other in range(7) if other != item]
        x, y = user_items[:, others], user_items[:, item]
        expected = np.linalg.solve(x.T @ x + 3.0 * np.eye(6), x.T @ y)
        np.testing.assert_allclose(weights[others, item], expected, atol=1e-10)
    assert (np.diag(weights) == 0).all()


def test_ease_sums_the_largest_weights_of_the_most_taken_items(log: Log, tmp_path: Path) -> None:
    rows = [*planted_groups(), click(99, 77, 0)]  # item 77 is taken by one user alone
    inputs = fit_data(log.write(rows), declared(), 0)
    queries = make_queries(inputs, [1, 2, 3, 4], [[10, 11], [50], [], [77]])
    ranked = fitted(Ease(kind="ease", regularization=2, fitted_items=16), inputs, tmp_path / "all", queries, 20)
    # No user took items of both groups: their weights are 0, and are not kept.
    assert [{*line} for line in ids(inputs, ranked)] == [{*range(10, 18)}, {*range(51, 58)}, set(), set()]
    taken = inputs.taken_items(inputs.days)
    weights = ease_weights(
        csr_array((np.ones(taken.height), (taken[USER_NUMBER].to_numpy(), taken[ROW].to_numpy()))), 2.0
    )
    rows = inputs.catalogue.find_rows(pl.Series([10, 11]))
    np.testing.assert_allclose(ranked.scores[0, :8], np.sort(weights[rows].sum(axis=0)[:8])[::-1], rtol=1e-3)
    few = Ease(kind="ease", regularization=2, fitted_items=16, neighbours=3)
    kept = fitted(few, inputs, tmp_path / "few", queries, 20)
    largest = sorted(ranked.scores[1, :7].tolist(), key=abs, reverse=True)[:3]
    assert sorted(kept.scores[1, :3].tolist(), reverse=True) == sorted(largest, reverse=True)
    assert kept.items[1, 3] == -1


def test_als_factors_minimise_the_weighted_squared_error() -> None:
    random = np.random.default_rng(2)
    items = random.normal(size=(9, 3)).astype(np.float32)
    lists = np.array([[0, 4, 7], [2, -1, -1], [-1, -1, -1]], np.int32)
    solved = solve_factors(lists, items, items.T @ items, 0.2, 0.05)

    def loss(user: int, factors: np.ndarray) -> float:
        taken = items[lists[user][lists[user] >= 0]]
        weights = len(taken) + 0.2 * len(items)
        fit = ((taken @ factors - 1) ** 2).sum() + 0.2 * ((items @ factors) ** 2).sum()
        return float(fit + 0.05 * weights * (factors**2).sum())

    for user in range(2):
        best = loss(user, solved[user].astype(float))
        for number in range(3):
            for step in (-0.01, 0.01):
                assert loss(user, solved[user] + step * np.eye(3)[number]) > best
    assert (solved[2] == 0).all()


def test_als_finds_the_items_of_the_group_whatever_the_size_of_a_block(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = fit_data(log.write(planted_groups()), declared(), 0)
    queries = make_queries(inputs, [1, 2, 3], [[10, 11], [50], []])
    source = Als(kind="als", factors=2, passes=8)
    ranked = fitted(source, inputs, tmp_path / "whole", queries, 8)
    assert [{*line} for line in ids(inputs, ranked)] == [{*range(10, 18)}, {*range(50, 58)}, set()]
    monkeypatch.setattr(als, "_BLOCK_NUMBERS", 8)  # a list at a time, and of it two members
    in_pieces = fitted(source, inputs, tmp_path / "pieces", queries, 8)
    np.testing.assert_allclose(in_pieces.scores[:2], ranked.scores[:2], rtol=1e-3)


WITH_HISTORIES = declared(
    side_tables=[
        {
            "name": "users",
            "path": "users.parquet",
            "key": "user_id",
            "columns": [
                {"name": "user_id", "type": "integer"},
                {"name": "watched", "type": "tags", "tag_type": "integer"},
                {"name": "liked", "type": "tags", "tag_type": "integer"},
                {"name": "words", "type": "tags"},
            ],
        }
    ]
)


@pytest.mark.parametrize(
    "kind", [{"kind": "ease", "regularization": 2}, {"kind": "als", "factors": 2}], ids=lambda kind: kind["kind"]
)
def test_histories_are_learnt_like_positives_and_asked_for_behind_recent_items(
    kind: dict[str, Any], log: Log, tmp_path: Path
) -> None:
    """Half of the users took what they took before the log begins: the same lists as if it stood in the log."""
    rows = planted_groups()
    earlier = [row for row in rows if row[0] < 20]
    columns = {
        "user_id": list(range(21)),
        "watched": [[row[1] for row in earlier if row[0] == user][:3] for user in range(20)] + [[999, 10]],
        "liked": [[row[1] for row in earlier if row[0] == user][2:] for user in range(20)] + [None],
        "words": [None] * 21,
    }
    source = SOURCE_KINDS[kind["kind"]].model_validate({**kind, "histories": ["watched", "liked"]})
    source.check(WITH_HISTORIES)
    later = [row for row in rows if row[0] >= 20]
    inputs = fit_data(log.write([*later, click(20, 10, 0)], columns), WITH_HISTORIES, 0)
    # User 20 took 10 by table and log, and 999, which is no item of the catalogue; user 300 is not in the table.
    queries = make_queries(inputs, [20, 1, 20, 300, None], [[], [10], [10], [], [50]])
    ranked = fitted(source, inputs, tmp_path / "histories", queries, 8)
    whole = fit_data(Log(tmp_path / "whole_log").write([*rows, click(20, 10, 0)]), declared(), 0)
    taken = sorted({row[1] for row in earlier if row[0] == 1})
    recent = [[10], [10, *(item for item in taken if item != 10)], [10], [], [50]]
    expected = fitted(
        SOURCE_KINDS[kind["kind"]].model_validate(kind),
        whole,
        tmp_path / "whole",
        make_queries(whole, [1] * 5, recent),
        8,
    )
    assert [{*line} for line in ids(inputs, ranked)] == [{*line} for line in ids(whole, expected)]
    assert len(ids(inputs, ranked)[0]) > 5 and ids(inputs, ranked)[3] == []
    np.testing.assert_allclose(ranked.scores, expected.scores, rtol=1e-3)


ITEMS = {
    "item_id": [10, 20, 30, 40],
    "topic": ["a", "a", "b", "b"],
    "tags": [["x"], ["x", "y"], [], None],
    "price": [1.0, 2.0, None, 4.0],
    "content": [[1.0, 0.0], [0.8, 0.6], [0.0, 2.0], None],
}


def test_item_vector_returns_nearest_items_with_a_vector(log: Log, tmp_path: Path) -> None:
    inputs = fit_data(log.write([click(1, 10, 0)], items=ITEMS), declared(), 0)
    source = ItemVector(kind="item_vector", column="content")
    queries = make_queries(inputs, [1, 2, 3], [[10], [40], []])  # the second one's recent item has no vector
    ranked = fitted(source, inputs, tmp_path / "source", queries, 4)
    assert ids(inputs, ranked) == [[10, 20, 30], [], []]
    assert ranked.scores[0, :3].tolist() == pytest.approx([1.0, 0.8, 0.0])


def test_item_vector_without_vectors_is_an_error(log: Log, tmp_path: Path) -> None:
    inputs = fit_data(log.write([click(1, 10, 0)]), declared(), 0)
    with pytest.raises(DataError, match="no item of the catalogue has a vector in column 'content'"):
        ItemVector(kind="item_vector", column="content").fit(inputs, tmp_path)


@pytest.mark.parametrize(
    "source",
    [Popular(kind="popular"), CoVisitation(kind="co_visitation"), Ease(kind="ease"), Als(kind="als")],
    ids=lambda source: source.kind,
)
def test_a_log_without_positives_is_refused(source: SourceKind, log: Log, tmp_path: Path) -> None:
    inputs = fit_data(log.write([click(1, 10, 0, label=0)]), declared(), 0)
    with pytest.raises(DataError, match=r"no positive row|no user has two positive items"):
        source.fit(inputs, tmp_path)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"kind": "popular", "keys": ["surfce"]}, r"'surfce' is no column of the log .*did you mean 'surface'"),
        ({"kind": "popular", "keys": ["topic"]}, "'topic' is no column of the log that is known before, or of a user"),
        ({"kind": "item_vector", "column": "price"}, "'price' is of type number; wanted vector"),
        ({"kind": "newest", "column": "price"}, "'price' is of type number; wanted date"),
        ({"kind": "two_tower", "user_columns": ["topic"]}, "'topic' is no column of a side table of the users"),
        ({"kind": "ease", "histories": ["country"]}, "'country' is of type string; wanted tags"),
        ({"kind": "two_tower", "item_numbers": ["topic"]}, "'topic' is of type string; wanted integer or number"),
    ],
)
def test_a_source_without_its_columns_is_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SOURCE_KINDS[section["kind"]].model_validate(section).check(declared())


def test_histories_of_another_type_than_the_items_are_refused() -> None:
    source = Ease(kind="ease", histories=("words",))
    with pytest.raises(
        ValueError, match=r"'words' has values of tag_type string, which are no ids of data\.item 'item_id'"
    ):
        source.check(WITH_HISTORIES)


def test_a_window_of_days_needs_a_clock() -> None:
    data = declared(clock={"kind": "row_order", "days": 4})
    with pytest.raises(ValueError, match=r"window_days counts days, and data\.clock is of kind row_order"):
        Popular(kind="popular").check(data)
    with pytest.raises(ValueError, match="max_age_days counts days"):
        Newest(kind="newest").check(data)
    Popular(kind="popular", window_days=None).check(data)


def test_an_unknown_key_of_a_source_is_refused() -> None:
    with pytest.raises(ValidationError, match="windowdays"):
        Popular.model_validate({"kind": "popular", "windowdays": 3})
