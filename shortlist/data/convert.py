"""Raw values turned into the declared types, and which of them cannot be."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import polars as pl

from shortlist.spec.data import Column

_LARGEST_EXACT = 2.0**53
_FLAGS = {"true": 1, "false": 0}


@dataclass(frozen=True)
class Converted:
    """Columns of the declared types."""

    columns: pl.DataFrame
    """Values under their declared names; null where there was none or it failed."""
    failed: dict[str, pl.Series]
    """Declared name -> which rows had a value that is not of the type; only columns with such rows."""


def convert(raw: pl.DataFrame, columns: Sequence[Column], null_values: Collection[str]) -> Converted:
    """Return a table's columns in their declared types.

    Args:
        raw: Values as a reader gives them, under the file's names.
        columns: What is declared.
        null_values: Texts that mean "no value".
    """
    raw = _with_nulls(raw, null_values)
    kinds = raw.schema
    # One query over all columns, so that Polars converts them in parallel; what fails is looked at again below.
    made = [_quick(column, kinds[column.source_name]).alias(column.name) for column in columns]
    first = raw.with_columns(made).select(column.name for column in columns)  # select alone makes one row of constants
    done: list[pl.Series] = []
    failed: dict[str, pl.Series] = {}
    for column in columns:
        before, after = raw[column.source_name], first[column.name]
        if after.null_count() > before.null_count():
            after = _patient(column, before, after)
            wrong = _has_value(before, column) & after.is_null()
            if wrong.any():
                failed[column.name] = wrong
        done.append(after.fill_nan(None) if column.type == "number" else after)
    return Converted(pl.DataFrame(done), failed)


def wanted(column: Column) -> str:
    """Return the words for what a column's values must be."""
    if column.type == "tags":
        return f"a list of {column.tag_type} values"
    if column.format is not None:
        return f"a date as {column.format}"
    words = {"hex": "at most 16 hexadecimal digits", "date": "an ISO 8601 date", "vector": "a list of finite numbers"}
    return words.get(column.type, {"integer": "an integer", "number": "a number"}.get(column.type, "text"))


def _with_nulls(raw: pl.DataFrame, null_values: Collection[str]) -> pl.DataFrame:
    raw = raw.with_columns(pl.col(pl.Float32(), pl.Float64()).fill_nan(None))
    if not null_values:
        return raw
    text = pl.col(pl.String())
    return raw.with_columns(pl.when(~text.is_in(list(null_values))).then(text))


def _has_value(raw: pl.Series, column: Column) -> pl.Series:
    # As typed parsing has it: blank text is no integer that failed, it is no value.
    if raw.dtype == pl.String() and column.type != "string":
        return (raw.str.strip_chars() != "").fill_null(False)
    return raw.is_not_null()


def _quick(column: Column, kind: pl.DataType) -> pl.Expr:
    value = pl.col(column.source_name)
    if column.type == "integer":
        return _integer(value, kind)
    if column.type == "number":
        return _number(value, kind)
    if column.type == "hex":
        return _hex(value, kind)
    if column.type == "date":
        return _date(column, value, kind)
    if column.type == "string":
        return pl.lit(None, pl.String()) if kind.is_nested() else value.cast(pl.String())
    return _vector(column, value, kind) if column.type == "vector" else _tags(column, value, kind)


def _number(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if kind.is_nested() or kind.is_temporal():
        return pl.lit(None, pl.Float64())
    return (value.str.strip_chars() if kind == pl.String() else value).cast(pl.Float64(), strict=False)


def _integer(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if kind == pl.String():
        return value.str.strip_chars().cast(pl.Int64(), strict=False)
    if kind.is_integer() or kind == pl.Boolean():
        return value.cast(pl.Int64(), strict=False)
    return _whole(value) if kind.is_float() or kind.is_decimal() else pl.lit(None, pl.Int64())


def _whole(value: pl.Expr) -> pl.Expr:
    exact = (value == value.round()) & (value.abs() <= _LARGEST_EXACT)
    return pl.when(exact).then(value).cast(pl.Int64(), strict=False)


def _hex(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if kind != pl.String():
        return value.cast(pl.Int64(), strict=False) if kind.is_integer() else pl.lit(None, pl.Int64())
    # 16 digits fill 64 bits: the sign bit is one of them.
    return value.str.to_integer(base=16, dtype=pl.UInt64(), strict=False).reinterpret(signed=True)


def _date(column: Column, value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if kind == pl.Date() or isinstance(kind, pl.Datetime):
        return value.cast(pl.Date())
    if kind == pl.String() or kind.is_integer():
        text = value.cast(pl.String())
        return (text if column.format is None else text.str.strip_chars()).str.to_date(
            column.format or "%Y-%m-%d", strict=False
        )
    return pl.lit(None, pl.Date())


def _tags(column: Column, value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    inner = pl.Int64() if column.tag_type == "integer" else pl.String()
    if isinstance(kind, pl.List | pl.Array):
        fits = kind.inner.is_integer() or kind.inner == pl.String()
        if kind.inner.is_nested() or (column.tag_type == "integer" and not fits):
            return pl.lit(None, pl.List(inner))
        values = value.cast(pl.List(kind.inner)).list.drop_nulls()
        if kind.inner == pl.String():  # as of text below
            values = values.list.eval(pl.element().filter(pl.element() != ""))
        return _all_valid(values.cast(pl.List(inner), strict=False))
    if kind.is_nested():
        return pl.lit(None, pl.List(inner))
    parts = value.cast(pl.String()).str.split(column.separator).list.eval(pl.element().str.strip_chars())
    return _all_valid(parts.list.eval(pl.element().filter(pl.element() != "")).cast(pl.List(inner), strict=False))


def _vector(column: Column, value: pl.Expr, kind: pl.DataType) -> pl.Expr:
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


def _all_valid(values: pl.Expr) -> pl.Expr:
    return pl.when(values.list.eval(pl.element().is_not_null()).list.all()).then(values)


def _patient(column: Column, before: pl.Series, after: pl.Series) -> pl.Series:
    """Try the rarer spellings of a type on the values that the quick conversion refused."""
    if before.dtype == pl.String():
        text = before.str.strip_chars()
        if column.type == "integer":
            whole = text.cast(pl.Float64(), strict=False).to_frame("x").select(_whole(pl.col("x"))).to_series()
            flags = text.str.to_lowercase().replace_strict(_FLAGS, default=None, return_dtype=pl.Int64())
            return _first_of(after, whole, flags)
        if column.type == "hex":
            plain = text.str.to_lowercase().str.strip_prefix("0x").to_frame("x")
            return _first_of(after, plain.select(_hex(pl.col("x"), pl.String())).to_series())
    if column.type == "date" and column.format is None and (before.dtype == pl.String() or before.dtype.is_integer()):
        text = before.cast(pl.String()).str.strip_chars()
        day = text.str.extract(r"^(\d{4}-\d{2}-\d{2})[T ]").str.to_date("%Y-%m-%d", strict=False)
        return _first_of(after, day, text.str.to_date("%Y%m%d", strict=False))
    return after


def _first_of(first: pl.Series, *others: pl.Series) -> pl.Series:
    return pl.select(pl.coalesce(first, *others)).to_series().alias(first.name)
