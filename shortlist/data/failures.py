"""Rows that break a rule, on their way into the quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from shortlist.contracts import Columns
from shortlist.data.quarantine import QUARANTINE_SCHEMA

_SHOWN_CHARACTERS = 100


@dataclass(frozen=True)
class Failure:
    """Rows that one rule refuses."""

    rule: str
    flags: pl.Series
    """Boolean, which rows."""
    detail: pl.Series
    """String, what to say of each refused row."""


def failure(rule: str, flags: pl.Series, column: str, values: pl.Series, wanted: str) -> list[Failure]:
    """Return what is wrong with the flagged values of a column: nothing, or one failure."""
    flags = flags.fill_null(False)
    if not flags.any():
        return []
    # Texts are joined by `+`: Polars' own `format` inside a condition panics on some columns (polars 1.39).
    quoted = ("'" + shown(values.filter(flags)) + "'").fill_null("nothing")
    return [Failure(rule, flags, f"{column}: got " + quoted + f", wanted {wanted}")]


def flagged(rows: int, failures: Sequence[Failure]) -> pl.Series:
    """Return which of so many rows some failure refuses."""
    taken = pl.repeat(False, rows, dtype=pl.Boolean(), eager=True)
    for found in failures:
        taken = taken | found.flags
    return taken


def split_failures(rows: pl.DataFrame, failures: list[Failure]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows without a failure, and the others as quarantine rows with the first of their failures."""
    if not failures:
        return rows, pl.DataFrame(schema=QUARANTINE_SCHEMA)
    taken = pl.repeat(False, rows.height, dtype=pl.Boolean(), eager=True)
    bad = [pl.DataFrame(schema=QUARANTINE_SCHEMA)]
    for found in failures:
        told = rows.select(Columns.SOURCE_FILE, Columns.SOURCE_LINE).filter(found.flags)
        told = told.with_columns(pl.lit(found.rule).alias(Columns.RULE), found.detail.alias(Columns.DETAIL))
        bad.append(told.filter(~taken.filter(found.flags)))
        taken = taken | found.flags
    return rows.filter(~taken), pl.concat(bad).sort(Columns.SOURCE_FILE, Columns.SOURCE_LINE)


def shown(values: pl.Series) -> pl.Series:
    """Return values of any type as short text for a message; null stays null.

    >>> shown(pl.Series([[1, 2], None])).to_list()
    ['[1, 2]', None]
    """
    if values.dtype.is_nested() and not _is_flat_list(values.dtype):
        texts = pl.Series([None if value is None else str(value) for value in values.to_list()], dtype=pl.String())
    elif isinstance(values.dtype, pl.List | pl.Array):
        items = values.cast(pl.List(pl.String())).list.join(", ", ignore_nulls=True)
        texts = "[" + items + "]"
    else:
        texts = values.cast(pl.String(), strict=False)
    return texts.str.slice(0, _SHOWN_CHARACTERS)


def _is_flat_list(kind: pl.DataType) -> bool:
    inner = kind.inner if isinstance(kind, pl.List | pl.Array) else None
    return isinstance(inner, pl.DataType) and not inner.is_nested()
