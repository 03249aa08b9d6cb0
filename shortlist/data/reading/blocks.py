"""Read the files of a table in any format, block by block."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from threading import Thread

import polars as pl

from shortlist.contracts import DataError
from shortlist.data.reading.explode import explode_block
from shortlist.data.reading.layout import FileLayout, RowBlock
from shortlist.data.reading.read_arrays import npz_fields, parquet_fields, parquet_rows, read_npz, read_parquet
from shortlist.data.reading.read_json import json_fields, read_json
from shortlist.data.reading.read_text import SEPARATORS, is_large, read_text, text_fields
from shortlist.data.reading.sources import InputFile
from shortlist.data.reading.text import clean_text
from shortlist.data.reading.text.text_blocks import count_rows
from shortlist.system.progress import progress

_MEGABYTE = 1e6


def check_shared_fields(files: list[InputFile], layout: FileLayout) -> dict[str, list[str]]:
    """Check that all files have the declared columns; return the columns of each file.

    Logs gain columns as an application grows: files before the first one with a column may lack it, except the clock
    and what the layout requires. A column that is there once is in all later files.

    Args:
        files: Files of a table, in order.
        layout: Declared layout of the files.

    Raises:
        DataError: The files mix formats, a declared column is in none of them, or a column is not declared.
    """
    first = files[0]
    for file in files:
        if file.format != first.format:
            raise DataError(f"{file.name} is {file.format}, {first.name} is {first.format}; narrow `path` with a glob")
    fields_by_file = {file.name: _read_fields(file, layout) for file in files}
    in_any_file = {name for fields in fields_by_file.values() for name in fields}
    optional = layout.optional & in_any_file
    for name, fields in fields_by_file.items():
        optional -= set(fields)
        layout.check_fields(fields, name, optional)
    return fields_by_file


def find_lacking_columns(fields_by_file: Mapping[str, Collection[str]], layout: FileLayout) -> dict[str, list[str]]:
    """Return the files that lack a declared column, by the column's name in the files."""
    lacking = {
        source: [name for name, fields in fields_by_file.items() if source not in fields] for source in layout.sources
    }
    return {source: names for source, names in lacking.items() if names}


def read_blocks(
    files: list[InputFile], layout: FileLayout, rows_per_block: int
) -> Iterator[tuple[InputFile, RowBlock]]:
    """Yield the rows of all files in blocks, in file order; a column that a file lacks is null in its rows.

    Args:
        files: See `check_shared_fields`.
        layout: See `check_shared_fields`.
        rows_per_block: Rows of a block.

    Raises:
        DataError: As `check_shared_fields`, and when a file cannot be read to its end.
    """
    fields_by_file = check_shared_fields(files, layout)
    total = sum(file.path.stat().st_size for file in files) / _MEGABYTE
    with progress(f"read {layout.table}", total, "MB") as advance:
        for file in files:
            position = 0
            for block in _read_file(file, layout, fields_by_file[file.name], rows_per_block):
                advance((block.position - position) / _MEGABYTE, file.name)
                position = block.position
                yield file, block


def read_first_blocks(
    files: list[InputFile], layout: FileLayout, max_file_rows: int
) -> Iterator[tuple[InputFile, RowBlock | None]]:
    """Yield about the first `max_file_rows` rows of each file in blocks, and None where a file has more.

    Args:
        files: See `check_shared_fields`.
        layout: See `check_shared_fields`.
        max_file_rows: Rows of a file after which no further block is read.

    Raises:
        DataError: As `read_blocks`.
    """
    fields_by_file = check_shared_fields(files, layout)
    for file in files:
        rows = 0
        for block in _read_file(file, layout, fields_by_file[file.name], max_file_rows):
            if rows >= max_file_rows:
                yield file, None
                break
            rows += block.rows
            yield file, block


def count_file_rows(files: list[InputFile], layout: FileLayout) -> list[int]:
    """Return the number of rows of each file, including broken ones, counted in one fast pass.

    The compiled reader of large files is loaded in a thread meanwhile.
    """
    if any(file.format in SEPARATORS and is_large(file) for file in files):
        Thread(target=clean_text.load, name="load the compiled reader").start()
    with progress("count rows", len(files), "files") as advance:
        counts = []
        for file in files:
            counts.append(_count_rows(file, layout))
            advance(1, file.name)
    return counts


def _read_fields(file: InputFile, layout: FileLayout) -> list[str]:
    if file.format == "parquet":
        return parquet_fields(file)
    if file.format == "npz":
        return npz_fields(file)
    return json_fields(file) if file.format == "jsonl" else text_fields(file, layout)


def _read_file(file: InputFile, layout: FileLayout, fields: list[str], rows_per_block: int) -> Iterator[RowBlock]:
    missing = [source for source in layout.sources if source not in fields]
    present = layout.restrict_to(fields) if missing else layout
    nulls = [pl.lit(None, pl.String()).alias(source) for source in missing]
    for block in _read_present_columns(file, present, fields, rows_per_block):
        filled = replace(block, columns=block.columns.with_columns(nulls)) if missing else block
        yield explode_block(filled, layout)


def _read_present_columns(
    file: InputFile, layout: FileLayout, fields: list[str], rows_per_block: int
) -> Iterator[RowBlock]:
    if file.format == "parquet":
        return read_parquet(file, layout, rows_per_block)
    if file.format == "npz":
        return read_npz(file, layout, rows_per_block)
    if file.format == "jsonl":
        return read_json(file, layout, rows_per_block)
    return read_text(file, layout, fields, rows_per_block)


def _count_rows(file: InputFile, layout: FileLayout) -> int:
    if file.format == "parquet":
        return parquet_rows(file)
    separator = layout.delimiter or SEPARATORS[file.format] if file.format in SEPARATORS else None
    rows = count_rows(file.path, file.name, separator)
    return rows - 1 if layout.header and file.format != "jsonl" else rows
