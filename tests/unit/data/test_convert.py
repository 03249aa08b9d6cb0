"""Conversion from all raw types to all declared types."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from shortlist.data.reading.convert import convert_columns
from shortlist.spec.data import Column


def convert_values(kind: str, values: list[Any] | pl.Series, **settings: Any) -> tuple[list[Any], list[int]]:
    """Return the converted values and the positions of those that failed."""
    column = Column(name="x", source="raw", type=kind, **settings)
    converted = convert_columns(pl.Series("raw", values).to_frame(), [column], ("", "NA"))
    failed = converted.failed.get("x", pl.Series([False])).arg_true().to_list()
    return converted.columns["x"].to_list(), failed


@pytest.mark.parametrize(
    ("values", "expected", "failed_rows"),
    [
        (["1", " -2 ", "+3", "4.0", "true", "FALSE"], [1, -2, 3, 4, 1, 0], []),
        (["", " ", "NA", None], [None] * 4, []),
        (["1.5", "x", "9223372036854775808", "1e300"], [None] * 4, [0, 1, 2, 3]),
        (["9223372036854775807"], [2**63 - 1], []),
        ([1.0, 2.5, float("nan"), 2.0**60], [1, None, None, None], [1, 3]),
        ([True, False], [1, 0], []),
        ([Decimal(3), Decimal("3.5")], [3, None], [1]),
        (pl.Series([2**64 - 1, 5], dtype=pl.UInt64), [None, 5], [0]),
        ([date(2024, 1, 1)], [None], [0]),
    ],
)
def test_integers_are_converted(values: list[Any], expected: list[Any], failed_rows: list[int]) -> None:
    assert convert_values("integer", values) == (expected, failed_rows)


@pytest.mark.parametrize(
    ("values", "expected", "failed_rows"),
    [
        (["1", " 2.5 ", "1e3", "nan", "", "x"], [1.0, 2.5, 1000.0, None, None, None], [5]),
        ([1, None], [1.0, None], []),
        ([1.5, float("nan")], [1.5, None], []),
    ],
)
def test_numbers_are_converted(values: list[Any], expected: list[Any], failed_rows: list[int]) -> None:
    assert convert_values("number", values) == (expected, failed_rows)


def test_hexadecimal_text_fills_64_bits() -> None:
    values = ["ff", "FF", "0xff", "ffffffffffffffff", "10000000000000000", "fg", None]
    assert convert_values("hex", values) == ([255, 255, 255, -1, None, None, None], [4, 5])
    assert convert_values("hex", [255]) == ([255], [])


@pytest.mark.parametrize("form", ["2024-02-29", "20240229", "2024-02-29T10:00:00Z", "2024-02-29 10:00"])
def test_dates_in_any_iso_notation_are_converted(form: str) -> None:
    assert convert_values("date", [form, "2023-02-29", ""]) == ([date(2024, 2, 29), None, None], [1])


def test_dates_are_converted_from_other_types() -> None:
    assert convert_values("date", [datetime(2024, 2, 29, 10)]) == ([date(2024, 2, 29)], [])
    assert convert_values("date", [20240229, 7]) == ([date(2024, 2, 29), None], [1])
    assert convert_values("date", [1.5]) == ([None], [0])


@pytest.mark.parametrize(
    ("tag_type", "values", "expected", "failed_rows"),
    [
        ("string", ["a, b", "a", ",", "", None], [["a", "b"], ["a"], [], None, None], []),
        ("integer", ["1,2", "3", "4,x"], [[1, 2], [3], None], [2]),
        ("integer", [[1, 2], [], [None, 3], None], [[1, 2], [], [3], None], []),
        ("integer", [["1", "x"], ["2"]], [None, [2]], [0]),
        ("string", [[1, 2]], [["1", "2"]], []),
        ("integer", [[1.5]], [None], [0]),
        ("integer", [39, None], [[39], None], []),
    ],
)
def test_tags_are_converted(tag_type: str, values: list[Any], expected: list[Any], failed_rows: list[int]) -> None:
    assert convert_values("tags", values, tag_type=tag_type) == (expected, failed_rows)


def test_tags_are_split_at_a_declared_separator() -> None:
    assert convert_values("tags", ["a|b,c"], separator="|") == ([["a", "b,c"]], [])


def test_vectors_are_converted() -> None:
    assert convert_values("vector", ["0.5, 2", "1,x", "1,nan", None]) == ([[0.5, 2.0], None, None, None], [1, 2])
    assert convert_values("vector", [[1, 2], [], None]) == ([[1.0, 2.0], None, None], [1])
    array = pl.Series([[1.0, 2.0], [1.0, float("inf")], None], dtype=pl.Array(pl.Float64, 2))
    assert convert_values("vector", array) == ([[1.0, 2.0], None, None], [1])
    assert convert_values("vector", [1.0]) == ([None], [0])


def test_strings_are_converted_from_other_types() -> None:
    assert convert_values("string", [1, None]) == (["1", None], [])
    assert convert_values("string", pl.Series(["a", "NA"], dtype=pl.Categorical)) == (["a", "NA"], [])
    assert convert_values("string", [["a"]]) == ([None], [0])
