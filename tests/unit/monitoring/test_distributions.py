from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitoring.reference.distributions import Bins, compared_columns, make_bins
from shortlist.features.declared.plan import plan
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.load import load_spec
from shortlist.spec.monitoring import DriftLimits

LIMITS = DriftLimits(bins=4, top_values=2)
SPECS = Path(__file__).parents[3] / "pipelines" / "specs"


def test_numeric_bins_have_equal_counts() -> None:
    bins = make_bins(pl.Series(range(400)), "numeric", LIMITS)
    assert bins.edges == (100.0, 200.0, 300.0)
    assert bins.count(pl.Series(range(400))).tolist() == [100, 100, 100, 100]


def test_a_value_on_an_edge_belongs_to_the_upper_bin() -> None:
    assert Bins(kind="numeric", edges=(1.0, 2.0)).count(pl.Series([0.9, 1.0, 1.9, 2.0])).tolist() == [1, 2, 1]


def test_a_frequent_value_has_a_separate_bin() -> None:
    mostly_zero = pl.Series([0.0] * 97 + [1.0, 2.0, 3.0])
    assert make_bins(mostly_zero, "numeric", LIMITS).count(mostly_zero).tolist() == [97, 3]
    in_the_middle = pl.Series([1.0] * 10 + [5.0] * 80 + [9.0] * 10)
    assert make_bins(in_the_middle, "numeric", LIMITS).count(in_the_middle).tolist() == [10, 80, 10]


def test_the_value_of_a_constant_column_has_its_own_bin() -> None:
    bins = make_bins(pl.Series([7] * 50), "numeric", LIMITS)
    assert bins.count(pl.Series([7, 7, 6, 8, 8, 8])).tolist() == [1, 2, 3]
    assert bins.labels == ("below 7", "7", "7 and more")


def test_values_that_are_not_finite_are_not_counted() -> None:
    values = pl.Series([None, math.nan, math.inf, -math.inf, 1.0])
    assert Bins(kind="numeric", edges=(0.0,)).count(values).tolist() == [0, 1]
    assert make_bins(values, "numeric", LIMITS) == make_bins(pl.Series([1.0]), "numeric", LIMITS)


def test_the_most_frequent_values_have_bins_with_ties_in_order() -> None:
    values = pl.Series(["d", "b", "c", "a", "b", "c", "b", None])
    assert make_bins(values, "categorical", LIMITS).values == ("b", "c")
    assert make_bins(values.filter(values != "c"), "categorical", LIMITS).values == ("b", "a")
    assert make_bins(values, "categorical", LIMITS).count(values).tolist() == [3, 2, 2]


def test_a_new_value_is_counted_as_other_value() -> None:
    bins = make_bins(pl.Series([1, 1, 2]), "categorical", LIMITS)
    assert bins.count(pl.Series([3, 1, None], dtype=pl.Int64)).tolist() == [1, 0, 1]


def test_every_value_of_a_list_counts_and_an_empty_list_is_null() -> None:
    lists = pl.Series([["x", "y"], [], None, ["x", None, "z"]])
    bins = Bins(kind="tags", values=("x", "y"))
    assert bins.count(lists).tolist() == [2, 1, 1]
    rows, codes = bins.codes(lists)
    assert (rows.tolist(), codes.tolist()) == ([0, 0, 3, 3], [0, 1, 0, 2])
    assert make_bins(lists, "tags", LIMITS).values == ("x", "y")


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("numeric", pl.Null),
        ("numeric", pl.Int64),
        ("categorical", pl.Null),
        ("categorical", pl.String),
        ("tags", pl.Null),
        ("tags", pl.List(pl.Int64)),
    ],
)
def test_a_column_without_values_has_one_empty_bin(kind: str, dtype: pl.DataType) -> None:
    empty = pl.Series([None, None], dtype=dtype)
    assert make_bins(empty, kind, LIMITS).count(empty).tolist() == [0]


def test_a_column_of_nulls_has_zero_counts() -> None:
    for values, kind in (([1.0, 2.0], "numeric"), (["a"], "categorical"), ([["a"]], "tags")):
        bins = make_bins(pl.Series(values), kind, LIMITS)
        assert bins.count(pl.Series([None, None])).tolist() == [0] * bins.size


@given(st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=1), st.integers(1, 5), st.integers(2, 8))
def test_counts_equal_those_of_a_plain_counter(values: list[int | None], top: int, bins: int) -> None:
    present = [value for value in values if value is not None]
    column = pl.Series(values, dtype=pl.Int64)
    limits = DriftLimits(top_values=top, bins=bins)
    column_bins = make_bins(column, "categorical", limits)
    expected = [present.count(value) for value in column_bins.values]
    assert column_bins.count(column).tolist() == [*expected, len(present) - sum(expected)]
    ranges = make_bins(column, "numeric", limits)
    limited = [-math.inf, *ranges.edges, math.inf]
    inside = [sum(low <= value < high for value in present) for low, high in pairwise(limited)]
    assert ranges.count(column).tolist() == inside


def test_counts_of_text_and_integers_agree_with_many_values() -> None:
    values = pl.Series(np.random.default_rng(0).zipf(1.3, 50_000).clip(max=100_000))
    limits = DriftLimits()
    as_integers, as_texts = (make_bins(column, "categorical", limits) for column in (values, values.cast(pl.String)))
    counts = as_integers.count(values)
    assert as_integers.size == 65
    assert counts[:5].tolist() == as_texts.count(values.cast(pl.String))[:5].tolist()
    assert counts.sum() == 50_000


def test_bins_round_trip_through_json() -> None:
    for values, kind in (([0.1, 1 / 3, 2e-17, 0.1], "numeric"), (["1", "a"], "categorical"), ([[1], [2]], "tags")):
        bins = make_bins(pl.Series(values), kind, LIMITS)
        assert Bins.model_validate_json(bins.model_dump_json()) == bins


def test_labels_have_enough_digits_to_be_distinct() -> None:
    assert Bins(kind="numeric", edges=(1.23456, 2.0)).labels == ("below 1.235", "1.235 to 2", "2 and more")
    days = Bins(kind="numeric", edges=(20220425.0, 20220426.0))
    assert days.labels == ("below 20220425", "20220425 to 20220426", "20220426 and more")
    assert Bins(kind="categorical", values=("home", 3)).labels == ("'home'", "'3'", "other values")


def test_the_kinds_of_the_demos_columns() -> None:
    spec = load_spec(SPECS / "demo.yaml")
    assert compared_columns(plan(spec.data, spec.features), DriftLimits(ignore=("country",))) == {
        "user_id": "categorical",
        "item_id": "categorical",
        "surface": "categorical",
        "device": "categorical",
        "position": "categorical",  # a vocabulary reads it
        "duration": "numeric",
        "age_group": "categorical",
        "liked_items": "tags",
        "creator_id": "categorical",
        "tags": "tags",
    }


def test_an_integer_is_numeric_unless_a_feature_reads_it_as_a_key() -> None:
    names = ("vocabulary", "hashed", "crossed", "counted", "rated", "away", "lagged", "side_key", "number", "read")
    columns = [{"name": name, "type": "integer"} for name in (*names, "is_click", "impression")]
    columns += [{"name": "version", "type": "integer"}, {"name": "embedding", "type": "vector"}]
    columns += [{"name": "seconds", "type": "number", "known": "after"}, {"name": "C1", "type": "hex"}]
    side = {"name": "shops", "path": "s", "key": "side_key", "columns": [{"name": "side_key", "type": "integer"}]}
    data = Data.model_validate(
        {
            "source": {"kind": "generated"},
            "columns": columns,
            "label": "is_click",
            "impression": "impression",
            "clock": {"kind": "row_order"},
            "side_tables": [side],
        }
    )
    operations = [
        {"kind": "vocabulary", "each": "vocabulary"},
        {"kind": "hash", "each": "hashed", "buckets": 8},
        {"kind": "cross", "columns": ["crossed", "hashed"], "name": "both", "buckets": 8},
        {"kind": "count", "key": "counted", "name": "a"},
        {"kind": "target", "key": "rated", "name": "b"},
        {"kind": "time_since", "key": "away", "name": "c"},
        {"kind": "lag", "key": "lagged", "column": "read", "name": "d"},
        {"kind": "numeric", "each": "number"},
    ]
    kinds = compared_columns(plan(data, Features.model_validate({"columns": operations})), DriftLimits())
    expected = dict.fromkeys(names[:8], "categorical") | {"number": "numeric", "read": "numeric", "C1": "categorical"}
    assert kinds == expected  # and no label, impression, vector, outcome, nor `version`, which rows have themselves
