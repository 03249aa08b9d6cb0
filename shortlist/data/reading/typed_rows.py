"""Convert blocks of a file into typed rows, and find the values that are not of the declared types."""

from __future__ import annotations

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.data.reading.clock import check_time_unit, describe_valid_time, event_times
from shortlist.data.reading.convert import convert_columns, describe_type
from shortlist.data.reading.layout import FileLayout, RowBlock
from shortlist.data.reading.sources import InputFile
from shortlist.data.rules.failures import RowFailure, find_failures
from shortlist.data.rules.quarantine import QUARANTINE_SCHEMA
from shortlist.spec.data import Column, null_texts

# A few bad values are bad rows; if nearly all values of a column fail, the column is not as declared.
_MAX_FAILED_SHARE = 0.9
_MIN_FAILED_ROWS = 20


class TypedRows:
    """Converts the blocks of one table to their declared types, file after file.

    Args:
        layout: Declared layout of the table.
    """

    def __init__(self, layout: FileLayout) -> None:
        self._layout = layout
        self._columns = layout.row_columns
        self._widths: dict[str, int] = {}
        """Width of each column's vectors, set by the first vector."""

    def convert_block(self, file: InputFile, block: RowBlock) -> tuple[pl.DataFrame, list[RowFailure]]:
        """Return a block's typed rows and their failures.

        Returns:
            The columns `source_file`, `source_line`, `rows` (number within the block), `event_time` when the layout
            has a clock, and the declared ones; and the failures, the decisive one first.

        Raises:
            DataError: Nearly all rows are broken, or nearly all values of a column are not of its type.
        """
        _check_broken_share(file, block)
        # Null values of delimited text were replaced while parsing.
        null_values = () if file.format in ("csv", "tsv") else null_texts(self._layout.null_values)
        converted = convert_columns(block.columns, self._columns, null_values, self._layout.keys)
        times, failures = self._read_times(file, block)
        for column in self._columns:
            if column.name in converted.failed:
                flags = converted.failed[column.name]
                failures += _find_type_failures(file, block, column, flags, describe_type(column, self._layout.keys))
            if column.type == "vector":
                failures += self._find_width_failures(file, column, converted.columns[column.name])
        source_columns = [
            pl.repeat(file.name, block.columns.height, dtype=pl.String(), eager=True).alias(Columns.SOURCE_FILE),
            block.lines.alias(Columns.SOURCE_LINE),
            block.numbers.alias(Columns.ROWS),
        ]
        return pl.DataFrame([*source_columns, *times, *converted.columns]), failures

    def _read_times(self, file: InputFile, block: RowBlock) -> tuple[list[pl.Series], list[RowFailure]]:
        clock = self._layout.clock
        if clock is None:
            return [], []
        raw = block.columns[clock.column]
        times = event_times(raw, clock)
        check_time_unit(raw, times, clock, file.name)
        return [times], find_failures("clock", times.is_null(), clock.column, raw, describe_valid_time(clock))

    def _find_width_failures(self, file: InputFile, column: Column, values: pl.Series) -> list[RowFailure]:
        lengths = values.cast(pl.List(pl.Float32())).list.len()
        known_lengths = lengths.drop_nulls()
        if known_lengths.is_empty():
            return []
        width = self._widths.setdefault(column.name, int(known_lengths[0]))
        if isinstance(values.dtype, pl.Array) and int(known_lengths[0]) != width:
            raise DataError(
                f"{file.name}: vectors '{column.name}' have {known_lengths[0]} numbers, those before have {width}"
            )
        return find_failures("type", lengths != width, column.source_name, values, f"{width} numbers")


def broken_rows(file: InputFile, block: RowBlock) -> pl.DataFrame:
    """Return the rows that a reader could not parse, as quarantine rows."""
    return block.broken.with_columns(pl.lit(file.name).alias(Columns.SOURCE_FILE)).select(QUARANTINE_SCHEMA.names())


def _find_type_failures(
    file: InputFile, block: RowBlock, column: Column, flags: pl.Series, expected: str
) -> list[RowFailure]:
    raw = block.columns[column.source_name]
    failures = find_failures("type", flags, column.source_name, raw, expected)
    failed, values = int(flags.sum()), len(raw) - raw.null_count()
    if failed >= _MIN_FAILED_ROWS and failed > _MAX_FAILED_SHARE * values:
        raise DataError(
            f"{file.name}: column '{column.source_name}' is not of type {column.type}: {failed} of {values} values from"
            f" line {block.lines[0]} on fail, e.g. in line {block.lines.filter(flags)[0]} {failures[0].detail[0]}."
            " Declare the type it has now, or repair the file."
        )
    return failures


def _check_broken_share(file: InputFile, block: RowBlock) -> None:
    broken = block.broken.height
    if broken >= _MIN_FAILED_ROWS and broken > _MAX_FAILED_SHARE * block.rows:
        line, rule, detail = block.broken.row(0)
        raise DataError(
            f"{file.name}: {broken} of {block.rows} rows from line {line} on cannot be read, e.g. line {line} breaks"
            f" '{rule}': {detail}. Check the format, the separator and the declared columns."
        )
