import tracemalloc

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from shortlist.features.values.hashing import codes_of
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.server.features.columns import Ragged, Tags, TextCodes, as_numbers, combine_keys, to_codes
from shortlist.serving.server.features.key_index import KeyIndex

LISTS = st.lists(st.lists(st.integers(-3, 3), max_size=5), max_size=6)


def ragged(lists: list[list[int]]) -> Ragged:
    return Ragged.from_series(pl.Series(lists, dtype=pl.List(pl.Int64)))


def rows(column: Ragged) -> list[list[int]]:
    pairs = zip(column.starts.tolist(), column.lengths.tolist(), strict=True)
    return [column.values[start : start + length].tolist() for start, length in pairs]


@given(LISTS)
def test_lists_are_kept_and_made_distinct(lists: list[list[int]]) -> None:
    assert rows(ragged(lists)) == lists
    assert [sorted(row) for row in rows(ragged(lists).distinct())] == [sorted(set(values)) for values in lists]


@given(LISTS.filter(bool), st.data())
def test_tags_are_the_distinct_values_of_their_rows(lists: list[list[int]], data: st.DataObject) -> None:
    chosen_rows = data.draw(st.lists(st.integers(-1, len(lists) - 1), max_size=8))
    tags = Tags.from_ragged(ragged(lists))
    assert [sorted(row) for row in rows(tags.codes)] == [sorted(set(values)) for values in lists]
    taken_rows = rows(tags.take(np.array(chosen_rows, np.intp)).codes)
    assert [sorted(row) for row in taken_rows] == [sorted(set(lists[row])) for row in chosen_rows]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30, unique=True), st.integers(-(2**63), 2**63 - 1))
def test_a_key_is_found_in_its_row_and_an_unknown_one_in_none(keys: list[int], unknown_key: int) -> None:
    index = KeyIndex(np.array(keys, np.int64))
    assert index.is_unique
    requested_keys = np.array([*reversed(keys), unknown_key], np.int64)
    expected = [*range(len(keys) - 1, -1, -1), keys.index(unknown_key) if unknown_key in keys else -1]
    assert index.rows(requested_keys).tolist() == expected
    assert KeyIndex(np.array([*keys, unknown_key, unknown_key], np.int64)).is_unique is False


@given(LISTS.filter(bool), st.data())
def test_rows_may_be_taken_again_and_from_the_end(lists: list[list[int]], data: st.DataObject) -> None:
    chosen_rows = data.draw(st.lists(st.integers(-1, len(lists) - 1), max_size=8))
    assert rows(ragged(lists).take(np.array(chosen_rows, np.intp))) == [lists[row] for row in chosen_rows]


@given(LISTS, st.integers(1, 4))
def test_a_padded_matrix_holds_the_first_values(lists: list[list[int]], longest: int) -> None:
    matrix = ragged(lists).padded(longest)
    assert matrix.shape == (len(lists), max(1, max((min(longest, len(values)) for values in lists), default=0)))
    assert [[code for code in row if code != NO_CODE] for row in matrix.tolist()] == [
        values[:longest] for values in lists
    ]
    assert rows(Ragged.from_matrix(matrix)) == [values[:longest] for values in lists]


@given(LISTS.filter(bool), st.data(), st.integers(1, 6))
def test_lists_follow_each_other_up_to_a_number(lists: list[list[int]], data: st.DataObject, max_length: int) -> None:
    short_list = st.lists(st.integers(-3, 3), max_size=4)
    following = data.draw(st.lists(short_list, min_size=len(lists), max_size=len(lists)))
    expected = [[*first, *second][:max_length] for first, second in zip(lists, following, strict=True)]
    assert rows(ragged(lists).followed_by(ragged(following), max_length)) == expected
    for_all = [[*first, *following[0]][:max_length] for first in lists]
    assert rows(ragged(lists).followed_by(ragged(following[:1]), max_length)) == for_all
    of_all = [[*lists[0], *second][:max_length] for second in following]
    assert rows(ragged(lists[:1]).followed_by(ragged(following), max_length)) == of_all


def test_a_null_list_is_empty() -> None:
    assert rows(Ragged.from_series(pl.Series([[1], None, []], dtype=pl.List(pl.Int64)))) == [[1], [], []]


def test_keys_of_several_columns_do_not_collide() -> None:
    left_codes, right = (codes.ravel() for codes in np.meshgrid(np.arange(-500, 500), np.arange(1_000)))
    assert len(np.unique(combine_keys([left_codes, right]))) == 1_000_000
    assert combine_keys([np.array([1]), np.array([2])]) != combine_keys([np.array([2]), np.array([1])])
    assert combine_keys([np.array([1]), np.array([1])]) != combine_keys([np.array([2]), np.array([2])])
    np.testing.assert_array_equal(combine_keys([np.array([7]), right[:5]]), combine_keys([np.full(5, 7), right[:5]]))
    np.testing.assert_array_equal(combine_keys([right[:5], np.array([-7])]), combine_keys([right[:5], np.full(5, -7)]))
    np.testing.assert_array_equal(
        combine_keys([np.array([-7]), np.array([2**62])]), combine_keys([np.full(2, -7), np.full(2, 2**62)])[:1]
    )


def test_texts_get_the_fingerprints_of_the_training_table() -> None:
    texts = ["a", None, "Zürich, 漢字", "", "a"]
    text_codes = TextCodes()
    for _ in range(2):  # met for the first time, and again
        assert text_codes.encode(texts).tolist() == codes_of(pl.Series(texts)).fill_null(NO_CODE).to_list()
    assert text_codes.encode([]).tolist() == []


def test_a_new_text_does_not_copy_the_cache() -> None:
    text_codes = TextCodes()
    text_codes.encode([f"item {number}" for number in range(100_000)])
    tracemalloc.start()
    text_codes.encode(["another"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000  # a copy would take five times as much


def test_known_texts_are_bounded_in_number_and_length() -> None:
    text_codes = TextCodes(max_texts=10)
    for start in range(0, 100, 7):
        texts = [f"item {number}" for number in range(start, start + 7)]
        assert text_codes.encode(texts).tolist() == codes_of(pl.Series(texts)).to_list()
        assert len(text_codes) <= 11  # null among them
    old_length = len(text_codes)
    long = ["x" * 1_000, None]
    assert text_codes.encode(long).tolist() == codes_of(pl.Series(long)).fill_null(NO_CODE).to_list()
    assert len(text_codes) == old_length
    many_texts = [f"{number}" for number in range(50)]
    assert text_codes.encode(many_texts).tolist() == codes_of(pl.Series(many_texts)).to_list()
    assert len(text_codes) <= 11


def test_codes_of_integers_are_numbers_with_nan_for_null() -> None:
    codes = to_codes(pl.Series([3, None]))
    np.testing.assert_array_equal(codes, [3, NO_CODE])
    np.testing.assert_array_equal(as_numbers(codes), [3.0, np.nan])
