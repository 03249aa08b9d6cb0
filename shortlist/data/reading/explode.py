"""Turn lists in a file's columns into rows."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl

from shortlist.contracts import Columns
from shortlist.data.reading.layout import FileLayout, RowBlock, element_column_name
from shortlist.data.reading.text.text_rows import BROKEN_SCHEMA
from shortlist.data.rules.failures import format_values
from shortlist.spec.data import null_texts

EXPLODE_RULE = "explode"
"""Rule that is broken by a row whose lists cannot become rows."""

_QUOTES = "'\" "


def explode_block(block: RowBlock, layout: FileLayout) -> RowBlock:
    """Return a block with one row per element of its lists, each with the line of its original row.

    A row without elements gives no row. Rows whose lists differ in length, and elements without a value for every
    column, are broken rows.

    Args:
        block: Block from a reader, with lists, or texts with separated elements.
        layout: Declares the columns that hold lists.
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
    is_uneven = lengths.select(pl.any_horizontal(pl.col(name) != pl.col(names[0]) for name in names)).to_series()
    broken = [block.broken]
    if is_uneven.any():
        counts = pl.concat_str([pl.format(f"{name}: {{}}", pl.col(name)) for name in names], separator=", ")
        details = lengths.select(
            pl.format("got lists of different lengths ({}), wanted equal ones", counts)
        ).to_series()
        broken.append(_broken_frame(block.lines.filter(is_uneven), details.filter(is_uneven)))
    rows_with_lists = block.columns.with_columns(lists).with_columns(block.lines.alias(Columns.SOURCE_LINE))
    rows = rows_with_lists.filter(~is_uneven & (lengths[names[0]] > 0)).explode(names)
    if explode.within is not None:
        rows, broken_elements = _split_elements(rows, names[0], explode.within, layout)
        broken.append(broken_elements)
    rows = rows.with_columns(_without_nulls(name, rows.schema[name], layout) for name in names)
    all_broken = pl.concat(broken)
    return replace(
        block,
        columns=rows.drop(Columns.SOURCE_LINE),
        lines=rows[Columns.SOURCE_LINE],
        numbers=pl.int_range(rows.height, eager=True),
        rows=rows.height + all_broken.height,
        broken=all_broken,
    )


def _as_lists(name: str, kind: pl.DataType, separator: str, drop_blank: bool) -> pl.Expr:
    value = pl.col(name)
    if isinstance(kind, pl.List):
        return value
    if isinstance(kind, pl.Array):
        return value.arr.to_list()
    text = value.cast(pl.String()).str.strip_chars()
    # Brackets as in Python's and NumPy's text of a list.
    without_brackets = (
        pl.when(text.str.contains(r"^\[.*\]$")).then(text.str.slice(1, text.str.len_chars() - 2)).otherwise(text)
    )
    parts = pl.when(without_brackets != "").then(without_brackets.str.split(separator)).otherwise(None)
    parts = parts.list.eval(pl.element().str.strip_chars(_QUOTES))
    return parts.list.eval(pl.element().filter(pl.element() != "")) if drop_blank else parts


def _split_elements(
    rows: pl.DataFrame, source: str, separator: str, layout: FileLayout
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split elements into one column per value, and return the broken rows; the first value may hold `separator`."""
    names = [element_column_name(column.name, layout) for column in layout.exploded[source]]
    escaped = re.escape(separator)
    groups = "".join(f"{escaped}([^{escaped}]*)" for _ in names[1:])
    pattern = rf"(?s)^(.*){groups}$"
    text = rows[source].cast(pl.String())
    is_valid = text.str.contains(pattern).fill_null(False)
    detail = (
        "got '"
        + format_values(text.filter(~is_valid)).fill_null("nothing")
        + f"', wanted {len(names)} values with '{separator}'"
    )
    broken = _broken_frame(rows[Columns.SOURCE_LINE].filter(~is_valid), detail + " between them")
    valid_rows = rows.filter(is_valid).with_columns(
        pl.col(source).str.extract(pattern, place).alias(name) for place, name in enumerate(names, 1)
    )
    return valid_rows, broken


def _without_nulls(name: str, kind: pl.DataType, layout: FileLayout) -> pl.Expr:
    value = pl.col(name)
    if kind != pl.String():
        return value
    return pl.when(~value.is_in(sorted(null_texts(layout.null_values)))).then(value).alias(name)


def _broken_frame(lines: pl.Series, detail: pl.Series) -> pl.DataFrame:
    return pl.DataFrame(
        {Columns.SOURCE_LINE: lines, Columns.RULE: EXPLODE_RULE, Columns.DETAIL: detail}, schema=BROKEN_SCHEMA
    )
