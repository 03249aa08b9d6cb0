"""Lists in columns of a file, turned into rows."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl

from shortlist.contracts import Columns
from shortlist.data.failures import shown
from shortlist.data.layout import Block, Layout, cut_name
from shortlist.data.rows import BROKEN_SCHEMA
from shortlist.spec.data import null_texts

RULE = "explode"
"""The rule that a row breaks whose lists cannot become rows."""

_QUOTES = "'\" "


def explode_block(block: Block, layout: Layout) -> Block:
    """Return a block with a row for each element of its lists, on the line of the row that held the list.

    A row without elements gives no row. Rows whose lists differ in length, and elements that do not hold a value of
    every column, are broken rows.

    Args:
        block: As a reader gives it: lists, or texts with a separator between their elements.
        layout: Declares which columns hold lists.
    """
    explode = layout.explode
    if explode is None:
        return block
    names = list(layout.exploded)
    lists = block.columns.select(
        _as_lists(name, block.columns.schema[name], explode.separator, drop_blank=explode.within is not None)
        for name in names
    )
    lengths = lists.select(pl.col(name).list.len().fill_null(0) for name in names)
    uneven = lengths.select(pl.any_horizontal(pl.col(name) != pl.col(names[0]) for name in names)).to_series()
    broken = [block.broken]
    if uneven.any():
        counts = pl.concat_str([pl.format(f"{name}: {{}}", pl.col(name)) for name in names], separator=", ")
        told = lengths.select(pl.format("got lists of different lengths ({}), wanted equal ones", counts)).to_series()
        broken.append(_broken(block.lines.filter(uneven), told.filter(uneven)))
    kept = block.columns.with_columns(lists).with_columns(block.lines.alias(Columns.SOURCE_LINE))
    rows = kept.filter(~uneven & (lengths[names[0]] > 0)).explode(names)
    if explode.within is not None:
        rows, bad = _cut(rows, names[0], explode.within, layout)
        broken.append(bad)
    rows = rows.with_columns(_without_nulls(name, rows.schema[name], layout) for name in names)
    every = pl.concat(broken)
    return replace(
        block,
        columns=rows.drop(Columns.SOURCE_LINE),
        lines=rows[Columns.SOURCE_LINE],
        numbers=pl.int_range(rows.height, eager=True),
        rows=rows.height + every.height,
        broken=every,
    )


def _as_lists(name: str, kind: pl.DataType, separator: str, drop_blank: bool) -> pl.Expr:
    value = pl.col(name)
    if isinstance(kind, pl.List):
        return value
    if isinstance(kind, pl.Array):
        return value.arr.to_list()
    text = value.cast(pl.String()).str.strip_chars()
    # As Python and NumPy print a list.
    bare = pl.when(text.str.contains(r"^\[.*\]$")).then(text.str.slice(1, text.str.len_chars() - 2)).otherwise(text)
    parts = pl.when(bare != "").then(bare.str.split(separator)).otherwise(None)
    parts = parts.list.eval(pl.element().str.strip_chars(_QUOTES))
    return parts.list.eval(pl.element().filter(pl.element() != "")) if drop_blank else parts


def _cut(rows: pl.DataFrame, source: str, within: str, layout: Layout) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows with a column for each value of an element, and the broken ones; the first may hold `within`."""
    names = [cut_name(column.name, layout) for column in layout.exploded[source]]
    mark = re.escape(within)
    groups = "".join(f"{mark}([^{mark}]*)" for _ in names[1:])
    pattern = rf"(?s)^(.*){groups}$"
    text = rows[source].cast(pl.String())
    fits = text.str.contains(pattern).fill_null(False)
    detail = "got '" + shown(text.filter(~fits)).fill_null("nothing") + f"', wanted {len(names)} values with '{within}'"
    bad = _broken(rows[Columns.SOURCE_LINE].filter(~fits), detail + " between them")
    cut = rows.filter(fits).with_columns(
        pl.col(source).str.extract(pattern, place).alias(name) for place, name in enumerate(names, 1)
    )
    return cut, bad


def _without_nulls(name: str, kind: pl.DataType, layout: Layout) -> pl.Expr:
    value = pl.col(name)
    if kind != pl.String():
        return value
    return pl.when(~value.is_in(sorted(null_texts(layout.null_values)))).then(value).alias(name)


def _broken(lines: pl.Series, detail: pl.Series) -> pl.DataFrame:
    return pl.DataFrame({Columns.SOURCE_LINE: lines, Columns.RULE: RULE, Columns.DETAIL: detail}, schema=BROKEN_SCHEMA)
