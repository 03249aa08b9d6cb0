"""Blocks of a file turned into typed rows, and the rows that are not of the declared types."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.data.clock import check_time_unit, event_times, wanted_time
from shortlist.data.convert import convert, wanted
from shortlist.data.failures import Failure, failure
from shortlist.data.layout import Block, Layout
from shortlist.data.quarantine import QUARANTINE_SCHEMA
from shortlist.data.sources import InputFile
from shortlist.spec.data import Column, null_texts

# A few bad values are bad rows; when nearly all of a column fail, the column is not what the spec says.
_MAX_FAILED_SHARE = 0.9
_MIN_FAILED_ROWS = 20


class TypedRows:
    """Types the blocks of one table, file after file.

    Args:
        layout: What the spec says about the table.
        widths: Numbers in the vectors of each column, as far as earlier files tell.
    """

    def __init__(self, layout: Layout, widths: Mapping[str, int] | None = None) -> None:
        self._layout = layout
        self._columns = layout.row_columns
        self.widths = dict(widths or {})
        """Numbers in the vectors of each column, from the first vector on."""

    def take(self, file: InputFile, block: Block) -> tuple[pl.DataFrame, list[Failure]]:
        """Return a block's rows and what is wrong with some of them.

        Returns:
            The columns `source_file`, `source_line`, `rows` (number within the block), `event_time` when the layout
            has a clock, and the declared ones; and the failures, the one that counts first.

        Raises:
            DataError: Nearly all rows are broken, or nearly all values of a column are not of its type.
        """
        _check_broken_share(file, block)
        # Delimited text lost its null values while it was parsed.
        null_values = () if file.format in ("csv", "tsv") else null_texts(self._layout.null_values)
        converted = convert(block.columns, self._columns, null_values)
        times, failures = self._times(file, block)
        for column in self._columns:
            if column.name in converted.failed:
                failures += _type_failure(file, block, column, converted.failed[column.name])
            if column.type == "vector":
                failures += self._width_failure(file, column, converted.columns[column.name])
        own = [
            pl.repeat(file.name, block.columns.height, dtype=pl.String(), eager=True).alias(Columns.SOURCE_FILE),
            block.lines.alias(Columns.SOURCE_LINE),
            block.numbers.alias(Columns.ROWS),
        ]
        return pl.DataFrame([*own, *times, *converted.columns]), failures

    def _times(self, file: InputFile, block: Block) -> tuple[list[pl.Series], list[Failure]]:
        clock = self._layout.clock
        if clock is None:
            return [], []
        raw = block.columns[clock.column]
        times = event_times(raw, clock)
        check_time_unit(raw, times, clock, file.name)
        return [times], failure("clock", times.is_null(), clock.column, raw, wanted_time(clock))

    def _width_failure(self, file: InputFile, column: Column, values: pl.Series) -> list[Failure]:
        lengths = values.cast(pl.List(pl.Float32())).list.len()
        known = lengths.drop_nulls()
        if known.is_empty():
            return []
        width = self.widths.setdefault(column.name, int(known[0]))
        if isinstance(values.dtype, pl.Array) and int(known[0]) != width:
            raise DataError(f"{file.name}: vectors '{column.name}' have {known[0]} numbers, those before have {width}")
        return failure("type", lengths != width, column.source_name, values, f"{width} numbers")


def broken_rows(file: InputFile, block: Block) -> pl.DataFrame:
    """Return the rows that a reader could not take apart as quarantine rows."""
    return block.broken.with_columns(pl.lit(file.name).alias(Columns.SOURCE_FILE)).select(QUARANTINE_SCHEMA.names())


def _type_failure(file: InputFile, block: Block, column: Column, flags: pl.Series) -> list[Failure]:
    raw = block.columns[column.source_name]
    found = failure("type", flags, column.source_name, raw, wanted(column))
    failed, values = int(flags.sum()), len(raw) - raw.null_count()
    if failed >= _MIN_FAILED_ROWS and failed > _MAX_FAILED_SHARE * values:
        raise DataError(
            f"{file.name}: column '{column.source_name}' is not of type {column.type}: {failed} of {values} values from"
            f" line {block.lines[0]} on fail, e.g. in line {block.lines.filter(flags)[0]} {found[0].detail[0]}."
            " Declare the type it has now, or repair the file."
        )
    return found


def _check_broken_share(file: InputFile, block: Block) -> None:
    broken = block.broken.height
    if broken >= _MIN_FAILED_ROWS and broken > _MAX_FAILED_SHARE * block.rows:
        line, rule, detail = block.broken.row(0)
        raise DataError(
            f"{file.name}: {broken} of {block.rows} rows from line {line} on cannot be read, e.g. line {line} breaks"
            f" '{rule}': {detail}. Check the format, the separator and the declared columns."
        )
