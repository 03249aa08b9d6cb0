import tracemalloc

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from shortlist.features.hashing import codes_of
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.server.columns import Ragged, Tags, TextCodes, as_numbers, mixed, to_codes
from shortlist.serving.server.key_index import KeyIndex

LISTS = st.lists(st.lists(st.integers(-3, 3), max_size=5), max_size=6)


def ragged(lists: list[list[int]]) -> Ragged:
    return Ragged.of(pl.Series(lists, dtype=pl.List(pl.Int64)))


def rows(column: Ragged) -> list[list[int]]:
    pairs = zip(column.starts.tolist(), column.lengths.tolist(), strict=True)
    return [column.values[start : start + length].tolist() for start, length in pairs]


@given(LISTS)
def test_lists_are_kept_and_made_distinct(lists: list[list[int]]) -> None:
    assert rows(ragged(lists)) == lists
    assert [sorted(row) for row in rows(ragged(lists).distinct())] == [sorted(set(each)) for each in lists]


@given(LISTS.filter(bool), st.data())
def test_tags_are_the_distinct_values_of_their_rows(lists: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(-1, len(lists) - 1), max_size=8))
    tags = Tags.of(ragged(lists))
    assert [sorted(row) for row in rows(tags.codes)] == [sorted(set(each)) for each in lists]
    taken = rows(tags.take(np.array(chosen, np.intp)).codes)
    assert [sorted(row) for row in taken] == [sorted(set(lists[row])) for row in chosen]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30, unique=True), st.integers(-(2**63), 2**63 - 1))
def test_a_key_is_found_in_its_row_and_an_unknown_one_in_none(keys: list[int], other: int) -> None:
    index = KeyIndex(np.array(keys, np.int64))
    assert index.is_unique
    asked = np.array([*reversed(keys), other], np.int64)
    wanted = [*range(len(keys) - 1, -1, -1), keys.index(other) if other in keys else -1]
    assert index.rows(asked).tolist() == wanted
    assert KeyIndex(np.array([*keys, other, other], np.int64)).is_unique is False


@given(LISTS.filter(bool), st.data())
def test_rows_may_be_taken_again_and_from_the_end(lists: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(-1, len(lists) - 1), max_size=8))
    assert rows(ragged(lists).take(np.array(chosen, np.intp))) == [lists[row] for row in chosen]


@given(LISTS, st.integers(1, 4))
def test_a_padded_matrix_holds_the_first_values(lists: list[list[int]], longest: int) -> None:
    matrix = ragged(lists).padded(longest)
    assert matrix.shape == (len(lists), max(1, max((min(longest, len(each)) for each in lists), default=0)))
    assert [[code for code in row if code != NO_CODE] for row in matrix.tolist()] == [each[:longest] for each in lists]
    assert rows(Ragged.of_rows(matrix)) == [each[:longest] for each in lists]


@given(LISTS.filter(bool), st.data(), st.integers(1, 6))
def test_lists_follow_each_other_up_to_a_number(lists: list[list[int]], data: st.DataObject, most: int) -> None:
    one = st.lists(st.integers(-3, 3), max_size=4)
    others = data.draw(st.lists(one, min_size=len(lists), max_size=len(lists)))
    expected = [[*first, *second][:most] for first, second in zip(lists, others, strict=True)]
    assert rows(ragged(lists).followed_by(ragged(others), most)) == expected
    for_all = [[*first, *others[0]][:most] for first in lists]
    assert rows(ragged(lists).followed_by(ragged(others[:1]), most)) == for_all
    of_all = [[*lists[0], *second][:most] for second in others]
    assert rows(ragged(lists[:1]).followed_by(ragged(others), most)) == of_all


def test_a_null_list_is_empty() -> None:
    assert rows(Ragged.of(pl.Series([[1], None, []], dtype=pl.List(pl.Int64)))) == [[1], [], []]


def test_keys_of_several_columns_are_told_apart() -> None:
    left, right = (each.ravel() for each in np.meshgrid(np.arange(-500, 500), np.arange(1_000)))
    assert len(np.unique(mixed([left, right]))) == 1_000_000
    assert mixed([np.array([1]), np.array([2])]) != mixed([np.array([2]), np.array([1])])
    assert mixed([np.array([1]), np.array([1])]) != mixed([np.array([2]), np.array([2])])
    np.testing.assert_array_equal(mixed([np.array([7]), right[:5]]), mixed([np.full(5, 7), right[:5]]))
    np.testing.assert_array_equal(mixed([right[:5], np.array([-7])]), mixed([right[:5], np.full(5, -7)]))
    np.testing.assert_array_equal(
        mixed([np.array([-7]), np.array([2**62])]), mixed([np.full(2, -7), np.full(2, 2**62)])[:1]
    )


def test_texts_get_the_fingerprints_of_the_training_table() -> None:
    texts = ["a", None, "Zürich, 漢字", "", "a"]
    known = TextCodes()
    for _ in range(2):  # met for the first time, and again
        assert known.of(texts).tolist() == codes_of(pl.Series(texts)).fill_null(NO_CODE).to_list()
    assert known.of([]).tolist() == []


def test_a_new_text_does_not_copy_those_that_are_known() -> None:
    known = TextCodes()
    known.of([f"item {number}" for number in range(100_000)])
    tracemalloc.start()
    known.of(["another"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000  # a copy would take five times as much


def test_known_texts_are_bounded_in_number_and_length() -> None:
    known = TextCodes(most=10)
    for start in range(0, 100, 7):
        texts = [f"item {number}" for number in range(start, start + 7)]
        assert known.of(texts).tolist() == codes_of(pl.Series(texts)).to_list()
        assert len(known) <= 11  # null among them
    before = len(known)
    long = ["x" * 1_000, None]
    assert known.of(long).tolist() == codes_of(pl.Series(long)).fill_null(NO_CODE).to_list()
    assert len(known) == before
    many = [f"{number}" for number in range(50)]
    assert known.of(many).tolist() == codes_of(pl.Series(many)).to_list()
    assert len(known) <= 11


def test_codes_of_integers_are_numbers_with_nan_for_null() -> None:
    codes = to_codes(pl.Series([3, None]))
    np.testing.assert_array_equal(codes, [3, NO_CODE])
    np.testing.assert_array_equal(as_numbers(codes), [3.0, np.nan])
