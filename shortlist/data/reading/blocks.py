"""Read the files of a table in any format, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Thread

from shortlist.contracts import DataError
from shortlist.data.reading.explode import explode_block
from shortlist.data.reading.layout import FileLayout, RowBlock
from shortlist.data.reading.read_arrays import npz_fields, parquet_fields, parquet_rows, read_npz, read_parquet
from shortlist.data.reading.read_json import json_fields, read_json
from shortlist.data.reading.read_text import SEPARATORS, is_large, read_text, text_fields
from shortlist.data.reading.sources import Format, InputFile
from shortlist.data.reading.text import clean_text
from shortlist.data.reading.text.text_blocks import count_rows
from shortlist.system.progress import progress

_MEGABYTE = 1e6


@dataclass(frozen=True)
class FirstFile:
    """Format and fields of a table's first file, which all others must share."""

    name: str
    format: Format
    fields: tuple[str, ...]


def describe_first_file(files: list[InputFile], layout: FileLayout) -> FirstFile:
    """Return format and fields of the first file; raises like `check_shared_fields`."""
    fields = _read_fields(files[0], layout)
    layout.check_fields(fields, files[0].name)
    return FirstFile(files[0].name, files[0].format, tuple(fields))


def check_shared_fields(files: list[InputFile], layout: FileLayout, first: FirstFile | None = None) -> list[str]:
    """Check that all files have the same fields, as declared in the spec; return them.

    Args:
        files: Files of a table, in order.
        layout: Declared layout of the files.
        first: The table's first file, if it is not one of `files`; None: it is the first of them.

    Raises:
        DataError: The files mix formats or columns, or their columns are not the declared ones.
    """
    shared = first or describe_first_file(files, layout)
    for file in files if first is not None else files[1:]:
        if file.format != shared.format:
            raise DataError(
                f"{file.name} is {file.format}, {shared.name} is {shared.format}; narrow `path` with a glob"
            )
        fields = _read_fields(file, layout)
        if file.format != "jsonl" and set(fields) != set(shared.fields):
            differing = ", ".join(sorted(set(fields) ^ set(shared.fields)))
            raise DataError(f"{file.name} has other columns than {shared.name}: {differing}. Read them as two logs.")
        layout.check_fields(fields, file.name)
    return list(shared.fields)


def read_blocks(
    files: list[InputFile], layout: FileLayout, rows_per_block: int, first: FirstFile | None = None
) -> Iterator[tuple[InputFile, RowBlock]]:
    """Yield the rows of all files in blocks, in file order.

    Args:
        files: See `check_shared_fields`.
        layout: See `check_shared_fields`.
        rows_per_block: Rows of a block.
        first: See `check_shared_fields`.

    Raises:
        DataError: As `check_shared_fields`, and when a file cannot be read to its end.
    """
    check_shared_fields(files, layout, first)
    total = sum(file.path.stat().st_size for file in files) / _MEGABYTE
    with progress(f"read {layout.table}", total, "MB") as advance:
        for file in files:
            position = 0
            for block in _read_file(file, layout, rows_per_block):
                advance((block.position - position) / _MEGABYTE, file.name)
                position = block.position
                yield file, explode_block(block, layout)


def count_file_rows(files: list[InputFile], header: bool) -> list[int]:
    """Return the number of rows of each file, including broken ones, counted in one fast pass.

    The compiled reader of large files is loaded in a thread meanwhile.
    """
    if any(file.format in SEPARATORS and is_large(file) for file in files):
        Thread(target=clean_text.load, name="load the compiled reader").start()
    with progress("count rows", len(files), "files") as advance:
        counts = []
        for file in files:
            counts.append(_count_rows(file, header))
            advance(1, file.name)
    return counts


def _read_fields(file: InputFile, layout: FileLayout) -> list[str]:
    if file.format == "parquet":
        return parquet_fields(file)
    if file.format == "npz":
        return npz_fields(file)
    return json_fields(file) if file.format == "jsonl" else text_fields(file, layout)


def _read_file(file: InputFile, layout: FileLayout, rows_per_block: int) -> Iterator[RowBlock]:
    if file.format == "parquet":
        return read_parquet(file, layout, rows_per_block)
    if file.format == "npz":
        return read_npz(file, layout, rows_per_block)
    if file.format == "jsonl":
        return read_json(file, layout, rows_per_block)
    return read_text(file, layout, text_fields(file, layout), rows_per_block)


def _count_rows(file: InputFile, header: bool) -> int:
    if file.format == "parquet":
        return parquet_rows(file)
    rows = count_rows(file.path, file.name, SEPARATORS.get(file.format))
    return rows - 1 if header and file.format != "jsonl" else rows
