from typing import Any

import polars as pl
import pytest


def test_vocabulary_gives_0_to_rare_unknown_and_null(world: Any) -> None:
    pages = [(0, "often"), (0, "often"), (0, "rare"), (1, "often"), (1, "late"), (1, "late"), (2, None), (2, "often")]
    rows = [world.row(day, page=page) for day, page in pages]
    table = world.features(rows, {"kind": "vocabulary", "each": "page", "min_rows": 2})
    # `late` is frequent, but only on validation days
    assert table["page_id"].to_list() == [1, 1, 0, 1, 0, 0, 0, 1]


def test_vocabulary_distinguishes_null_from_an_empty_text_and_from_0(world: Any) -> None:
    rows = [world.row(0, page="", user_id=0), world.row(0, page=None, user_id=None), world.row(1), world.row(2)]
    table = world.features(rows, {"kind": "vocabulary", "each": ["page", "user_id"]})
    assert table.select("page_id", "user_id_id").rows()[:2] == [(1, 1), (0, 0)]


def test_vocabulary_orders_ids_by_day_then_rows_then_value(world: Any) -> None:
    pages = [
        (0, "b"),
        (0, "b"),
        (0, "c"),
        (0, "c"),
        (0, "a"),
        (0, "d"),
        (0, "d"),
        (0, "d"),
        (1, "a"),
        (2, "a"),
        (3, "a"),
    ]
    log = world.log([world.row(day, page=page) for day, page in pages])
    fitted = world.fit(log, [{"kind": "vocabulary", "each": "page", "min_rows": 2}])
    ids = dict(pl.read_parquet(fitted / "vocabularies" / "page.parquet").iter_rows())
    # day 0: d has three rows, b and c two each; a reaches two on day 1; days 2 and 3 do not train
    assert ids == {"d": 1, "b": 2, "c": 3, "a": 4}


def test_vocabulary_is_limited_to_its_largest_size(world: Any) -> None:
    rows = [world.row(0, item_id=item) for item in (10, 10, 20, 30)] + [world.row(1), world.row(2)]
    table = world.features(rows, {"kind": "vocabulary", "each": "item_id", "max_size": 3})
    assert table["item_id_id"].to_list() == [1, 1, 2, 0, 1, 1]  # ids 0, 1, 2


def test_vocabulary_of_tags_counts_a_value_once_per_row_and_keeps_the_first_values(world: Any) -> None:
    tag_lists = [(0, ["x", "x"]), (0, ["y", "z", "y"]), (0, ["y"]), (1, None), (1, []), (2, ["new", "y", "y", "x"])]
    rows = [world.row(day, words=row) for day, row in tag_lists]
    table = world.features(rows, {"kind": "vocabulary", "each": "words", "min_rows": 2, "max_values": 3})
    # x twice, but in one row only
    assert table["words_id"].to_list() == [[0, 0], [1, 0, 1], [1], [], [], [0, 1, 1]]


def test_hash_gives_equal_ids_to_equal_values_of_scalars_and_tags(world: Any) -> None:
    rows = [world.row(0, page="a", words=["a", "b"]), world.row(1, page="b", words=None), world.row(2, page=None)]
    scalar, tags = (
        {"kind": "hash", "each": "page", "buckets": 1_000},
        {"kind": "hash", "each": "words", "buckets": 1_000},
    )
    table = world.features(rows, scalar, tags)
    a, b = table["page_hash"][0], table["page_hash"][1]
    assert table["page_hash"].to_list() == [a, b, 0]
    assert table["words_hash"].to_list() == [[a, b], [], []]
    assert 0 < a != b > 0


def test_cross_is_a_bucket_of_the_pair(world: Any) -> None:
    pairs = [(0, "a", 1), (0, "a", 2), (1, "b", 1), (1, "a", 1), (2, None, 1)]
    rows = [world.row(day, page=page, user_id=user) for day, page, user in pairs]
    cross = {"kind": "cross", "columns": ["page", "user_id"], "name": "pair", "buckets": 10_000}
    ids = world.features(rows, cross)["pair"].to_list()
    assert ids[0] == ids[3]
    assert len({*ids[:3]}) == 3
    assert ids[4] == 0


@pytest.mark.parametrize("column", ["maker", "topics"])
def test_columns_of_side_tables_have_vocabularies(world: Any, column: str) -> None:
    rows = [world.row(day, item_id=item) for day, item in ((0, 10), (0, 30), (1, 10), (2, 99))]
    ids = world.features(rows, {"kind": "vocabulary", "each": column})[f"{column}_id"].to_list()
    assert ids[0] == ids[2] != ids[1]
    assert ids[3] == (0 if column == "maker" else [])
