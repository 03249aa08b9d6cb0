"""Convert raw values to the declared types, and find the values that cannot be converted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import polars as pl

from shortlist.spec.data import Column

_LARGEST_EXACT = 2.0**53
_FLAGS = {"true": 1, "false": 0}
_LEADING_ZEROS = r"^\s*[+-]?0\d"


@dataclass(frozen=True)
class ConvertedColumns:
    """Columns of the declared types."""

    columns: pl.DataFrame
    """Values under their declared names; null where there was no value or the conversion failed."""
    failed: dict[str, pl.Series]
    """Declared name -> boolean, rows whose value is not of the type; only columns with such rows."""


def convert_columns(
    raw: pl.DataFrame, columns: Sequence[Column], null_values: Collection[str], keys: Collection[str] = ()
) -> ConvertedColumns:
    """Return a table's columns in their declared types.

    A key is the same in every file: in a column of texts, a whole floating-point number is written as the integer that
    it is, and an integer key with leading zeros is refused, because it may be another key than the one without.

    Args:
        raw: Values as a reader returns them, under the file's names.
        columns: The declared columns.
        null_values: Texts that mean "no value".
        keys: Names of the columns that hold keys.
    """
    raw = _replace_null_texts(raw, null_values)
    kinds = raw.schema
    # One query over all columns, so that Polars converts them in parallel; failed values are retried below.
    expressions = [_convert_expression(column, kinds[column.source_name]).alias(column.name) for column in columns]
    converted = raw.with_columns(expressions).select(
        column.name for column in columns
    )  # select alone makes one row of constants
    final_columns: list[pl.Series] = []
    failed: dict[str, pl.Series] = {}
    for column in columns:
        raw_values, values = raw[column.source_name], converted[column.name]
        if values.null_count() > raw_values.null_count():
            values = _retry_rare_notations(column, raw_values, values)
        if column.name in keys and column.type == "integer" and raw_values.dtype == pl.String():
            values = values.set(raw_values.str.contains(_LEADING_ZEROS).fill_null(False), None)
        if values.null_count() > raw_values.null_count():
            is_wrong = _has_value(raw_values, column) & values.is_null()
            if is_wrong.any():
                failed[column.name] = is_wrong
        final_columns.append(values.fill_nan(None) if column.type == "number" else values)
    return ConvertedColumns(pl.DataFrame(final_columns), failed)


def describe_type(column: Column, keys: Collection[str] = ()) -> str:
    """Return a description of a column's valid values."""
    if column.type == "integer" and column.name in keys:
        return "an integer without leading zeros (type: string keeps them)"
    if column.type == "tags":
        return f"a list of {column.tag_type} values"
    if column.format is not None:
        return f"a date as {column.format}"
    if column.decimal_comma:
        return "a number with a decimal comma"
    descriptions = {
        "hex": "at most 16 hexadecimal digits",
        "date": "an ISO 8601 date",
        "vector": "a list of finite numbers",
    }
    return descriptions.get(column.type, {"integer": "an integer", "number": "a number"}.get(column.type, "text"))


def _replace_null_texts(raw: pl.DataFrame, null_values: Collection[str]) -> pl.DataFrame:
    raw = raw.with_columns(pl.col(pl.Float32(), pl.Float64()).fill_nan(None))
    if not null_values:
        return raw
    text = pl.col(pl.String())
    return raw.with_columns(pl.when(~text.is_in(list(null_values))).then(text))


def _has_value(raw: pl.Series, column: Column) -> pl.Series:
    # As in typed parsing, blank text is no value rather than a failed integer.
    if raw.dtype == pl.String() and column.type != "string":
        return (raw.str.strip_chars() != "").fill_null(False)
    return raw.is_not_null()


def _convert_expression(column: Column, kind: pl.DataType) -> pl.Expr:
    value = pl.col(column.source_name)
    if column.type == "integer":
        return _to_integer(value, kind)
    if column.type == "number":
        if column.decimal_comma and kind == pl.String():
            value = value.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
        return _to_number(value, kind)
    if column.type == "hex":
        return _hex_to_integer(value, kind)
    if column.type == "date":
        return _to_date(column, value, kind)
    if column.type == "string":
        return _to_text(value, kind)
    return _to_vector(column, value, kind) if column.type == "vector" else _to_tags(column, value, kind)


def _to_text(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if kind.is_nested():
        return pl.lit(None, pl.String())
    text = value.cast(pl.String())
    return pl.coalesce(_to_whole_number(value).cast(pl.String()), text) if kind.is_float() else text


def _to_number(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if kind.is_nested() or kind.is_temporal():
        return pl.lit(None, pl.Float64())
    return (value.str.strip_chars() if kind == pl.String() else value).cast(pl.Float64(), strict=False)


def _to_integer(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if kind == pl.String():
        return value.str.strip_chars().cast(pl.Int64(), strict=False)
    if kind.is_integer() or kind == pl.Boolean():
        return value.cast(pl.Int64(), strict=False)
    return _to_whole_number(value) if kind.is_float() or kind.is_decimal() else pl.lit(None, pl.Int64())


def _to_whole_number(value: pl.Expr) -> pl.Expr:
    is_exact = (value == value.round()) & (value.abs() <= _LARGEST_EXACT)
    return pl.when(is_exact).then(value).cast(pl.Int64(), strict=False)


def _hex_to_integer(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if kind != pl.String():
        return value.cast(pl.Int64(), strict=False) if kind.is_integer() else pl.lit(None, pl.Int64())
    # 16 digits fill 64 bits: the sign bit is one of them.
    return value.str.to_integer(base=16, dtype=pl.UInt64(), strict=False).reinterpret(signed=True)


def _to_date(column: Column, value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if kind == pl.Date() or isinstance(kind, pl.Datetime):
        return value.cast(pl.Date())
    if kind == pl.String() or kind.is_integer():
        text = value.cast(pl.String())
        return (text if column.format is None else text.str.strip_chars()).str.to_date(
            column.format or "%Y-%m-%d", strict=False
        )
    return pl.lit(None, pl.Date())


def _to_tags(column: Column, value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    inner = pl.Int64() if column.tag_type == "integer" else pl.String()
    if isinstance(kind, pl.List | pl.Array):
        fits_integer = kind.inner.is_integer() or kind.inner == pl.String()
        if kind.inner.is_nested() or (column.tag_type == "integer" and not fits_integer):
            return pl.lit(None, pl.List(inner))
        values = value.cast(pl.List(kind.inner)).list.drop_nulls()
        if kind.inner == pl.String():  # as of text below
            values = values.list.eval(pl.element().filter(pl.element() != ""))
        return _null_if_partial(values.cast(pl.List(inner), strict=False))
    if kind.is_nested():
        return pl.lit(None, pl.List(inner))
    parts = value.cast(pl.String()).str.split(column.separator).list.eval(pl.element().str.strip_chars())
    return _null_if_partial(parts.list.eval(pl.element().filter(pl.element() != "")).cast(pl.List(inner), strict=False))


def _to_vector(column: Column, value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if isinstance(kind, pl.Array):
        numbers = value.cast(pl.Array(pl.Float32(), kind.shape[0]), strict=False)
        return pl.when(numbers.cast(pl.List(pl.Float32())).list.eval(pl.element().is_finite()).list.all()).then(numbers)
    if kind == pl.String():
        parts = value.str.split(column.separator).list.eval(pl.element().str.strip_chars())
    elif isinstance(kind, pl.List):
        parts = value
    else:
        return pl.lit(None, pl.List(pl.Float32()))
    numbers = parts.cast(pl.List(pl.Float32()), strict=False)
    finite = numbers.list.eval(pl.element().is_finite().fill_null(False)).list.all() & (numbers.list.len() > 0)
    return pl.when(finite).then(numbers)


def _null_if_partial(values: pl.Expr) -> pl.Expr:
    return pl.when(values.list.eval(pl.element().is_not_null()).list.all()).then(values)


def _retry_rare_notations(column: Column, raw_values: pl.Series, values: pl.Series) -> pl.Series:
    """Retry values that the first conversion refused with rarer notations of the type."""
    if raw_values.dtype == pl.String():
        text = raw_values.str.strip_chars()
        if column.type == "integer":
            whole_numbers = (
                text.cast(pl.Float64(), strict=False).to_frame("x").select(_to_whole_number(pl.col("x"))).to_series()
            )
            flags = text.str.to_lowercase().replace_strict(_FLAGS, default=None, return_dtype=pl.Int64())
            return _coalesce(values, whole_numbers, flags)
        if column.type == "hex":
            digits = text.str.to_lowercase().str.strip_prefix("0x").to_frame("x")
            return _coalesce(values, digits.select(_hex_to_integer(pl.col("x"), pl.String())).to_series())
    if (
        column.type == "date"
        and column.format is None
        and (raw_values.dtype == pl.String() or raw_values.dtype.is_integer())
    ):
        text = raw_values.cast(pl.String()).str.strip_chars()
        day = text.str.extract(r"^(\d{4}-\d{2}-\d{2})[T ]").str.to_date("%Y-%m-%d", strict=False)
        return _coalesce(values, day, text.str.to_date("%Y%m%d", strict=False))
    return values


def _coalesce(first: pl.Series, *alternatives: pl.Series) -> pl.Series:
    return pl.select(pl.coalesce(first, *alternatives)).to_series().alias(first.name)
