"""Rows that break a rule, with the quarantine rows made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from shortlist.contracts import Columns
from shortlist.data.rules.quarantine import QUARANTINE_SCHEMA

_MAX_CHARACTERS = 100


@dataclass(frozen=True)
class RowFailure:
    """Rows that break one rule."""

    rule: str
    flags: pl.Series
    """Boolean, whether each row breaks it."""
    detail: pl.Series
    """String, the reason for each row that breaks it."""


def find_failures(rule: str, flags: pl.Series, column: str, values: pl.Series, expected: str) -> list[RowFailure]:
    """Return the failure of a column's flagged values, as a list of one, or empty without such values."""
    flags = flags.fill_null(False)
    if not flags.any():
        return []
    # Texts are joined by `+`: Polars' own `format` inside a condition panics on some columns (polars 1.39).
    quoted = ("'" + format_values(values.filter(flags)) + "'").fill_null("nothing")
    return [RowFailure(rule, flags, f"{column}: got " + quoted + f", wanted {expected}")]


def flag_failed_rows(rows: int, failures: Sequence[RowFailure]) -> pl.Series:
    """Return whether each row has any of the failures, boolean, shape (rows,)."""
    is_failed = pl.repeat(False, rows, dtype=pl.Boolean(), eager=True)
    for failure in failures:
        is_failed = is_failed | failure.flags
    return is_failed


def split_failures(rows: pl.DataFrame, failures: list[RowFailure]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split rows into those without a failure and the others, as quarantine rows with their first failure."""
    if not failures:
        return rows, pl.DataFrame(schema=QUARANTINE_SCHEMA)
    is_failed = pl.repeat(False, rows.height, dtype=pl.Boolean(), eager=True)
    quarantined = [pl.DataFrame(schema=QUARANTINE_SCHEMA)]
    for failure in failures:
        quarantine_rows = rows.select(Columns.SOURCE_FILE, Columns.SOURCE_LINE).filter(failure.flags)
        quarantine_rows = quarantine_rows.with_columns(
            pl.lit(failure.rule).alias(Columns.RULE), failure.detail.alias(Columns.DETAIL)
        )
        quarantined.append(quarantine_rows.filter(~is_failed.filter(failure.flags)))
        is_failed = is_failed | failure.flags
    return rows.filter(~is_failed), pl.concat(quarantined).sort(Columns.SOURCE_FILE, Columns.SOURCE_LINE)


def format_values(values: pl.Series) -> pl.Series:
    """Return values of any type as short texts for messages; null stays null.

    >>> format_values(pl.Series([[1, 2], None])).to_list()
    ['[1, 2]', None]
    """
    if values.dtype.is_nested() and not _is_flat_list(values.dtype):
        texts = pl.Series([None if value is None else str(value) for value in values.to_list()], dtype=pl.String())
    elif isinstance(values.dtype, pl.List | pl.Array):
        items = values.cast(pl.List(pl.String())).list.join(", ", ignore_nulls=True)
        texts = "[" + items + "]"
    else:
        texts = values.cast(pl.String(), strict=False)
    return texts.str.slice(0, _MAX_CHARACTERS)


def _is_flat_list(kind: pl.DataType) -> bool:
    inner = kind.inner if isinstance(kind, pl.List | pl.Array) else None
    return isinstance(inner, pl.DataType) and not inner.is_nested()
