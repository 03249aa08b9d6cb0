from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import DataError
from shortlist.ranking.inputs import TableFeature
from shortlist.ranking.matrix import check_columns, float_columns, float_matrix, fused_lists, fused_rows

AGE = TableFeature(name="age", kind="dense")
TEXT = TableFeature(name="text", kind="vector", width=2)
ITEM = TableFeature(name="item", kind="id", size=4)
TAGS = TableFeature(name="tags", kind="ids", size=4)
FRAME = pl.DataFrame(
    {
        "age": pl.Series([1.5, None], dtype=pl.Float32),
        "text": pl.Series([[5, 6], [7, 8]], dtype=pl.Array(pl.Float32, 2)),
        "item": pl.Series([3, 0], dtype=pl.UInt32),
        "tags": pl.Series([[1, 2], []], dtype=pl.List(pl.UInt32)),
    }
)


def test_floats_stand_in_feature_order_with_nan_for_null_and_the_unknown_id() -> None:
    matrix = float_matrix(FRAME, [ITEM, TEXT, AGE])
    np.testing.assert_array_equal(matrix, np.array([[3, 5, 6, 1.5], [np.nan, 7, 8, np.nan]], np.float32))
    assert matrix.dtype == np.float32
    assert matrix.flags.c_contiguous


def test_an_infinite_value_is_refused_by_name() -> None:
    frame = FRAME.with_columns(text=pl.Series([[0, np.inf], [0, 0]], dtype=pl.Array(pl.Float32, 2)))
    with pytest.raises(DataError, match=r"feature 'text\.1' holds infinite values; clip or fill"):
        float_matrix(frame, [AGE, TEXT])


def test_a_vector_of_another_width_is_refused() -> None:
    with pytest.raises(DataError, match=r"feature 'text' is of type Array.*; wanted Array\(Float32, 3\)"):
        float_matrix(FRAME, [TEXT.model_copy(update={"width": 3})])


def test_ids_are_moved_by_their_offsets() -> None:
    frame = FRAME.with_columns(pl.col("item").alias("again"))
    repeated = ITEM.model_copy(update={"name": "again"})
    assert fused_rows(frame, [ITEM, repeated], [10, 100]).tolist() == [[13, 103], [10, 100]]
    assert fused_rows(FRAME, [ITEM], [0]).dtype == np.int32


def test_an_empty_and_a_null_list_have_no_ids() -> None:
    frame = pl.DataFrame({"tags": pl.Series([[1, 2], None, [], [3]], dtype=pl.List(pl.UInt32))})
    values, starts = fused_lists(frame, TAGS, 10)
    assert values.tolist() == [11, 12, 13]
    assert starts.tolist() == [0, 2, 2, 2, 3]


def test_an_id_beyond_the_table_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"feature 'item' holds the id 3; the model knows ids below 3\. The features grew"
    ):
        fused_rows(FRAME, [ITEM.model_copy(update={"size": 3})], [0])
    with pytest.raises(DataError, match="feature 'tags' holds the id 2; the model knows ids below 2"):
        fused_lists(FRAME, TAGS.model_copy(update={"size": 2}), 0)


def test_a_null_id_is_refused() -> None:
    frame = pl.DataFrame({"item": pl.Series([None, 1], dtype=pl.UInt32), "tags": [[None], [1]]})
    with pytest.raises(DataError, match="feature 'item' holds 1 null ids; unknown values have the id 0"):
        fused_rows(frame, [ITEM], [0])
    with pytest.raises(DataError, match="feature 'tags' holds 1 null ids"):
        fused_lists(frame, TAGS, 0)


def test_missing_features_are_named() -> None:
    with pytest.raises(DataError, match="2 of 3 features are missing from the rows: a, b"):
        check_columns(FRAME, [AGE, *(TableFeature(name=name, kind="dense") for name in "ab")])


def test_columns_are_handed_over_as_they_lie_in_the_frame() -> None:
    columns = float_columns(FRAME, [ITEM, AGE])
    assert columns is not None
    assert columns.to_pydict() == {"item": [3, None], "age": [1.5, None]}
    assert float_columns(FRAME, [ITEM, TEXT]) is None


def test_an_infinite_value_in_a_column_is_refused_by_name() -> None:
    frame = FRAME.with_columns(age=pl.Series([1, -np.inf], dtype=pl.Float32))
    with pytest.raises(DataError, match=r"feature 'age' holds infinite values; clip or fill"):
        float_columns(frame, [ITEM, AGE])
