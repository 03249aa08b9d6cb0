"""Reading the files of a table, whatever their format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Thread

from shortlist.contracts import DataError
from shortlist.data import clean_text
from shortlist.data.explode import explode_block
from shortlist.data.layout import Block, Layout
from shortlist.data.read_arrays import npz_fields, parquet_fields, parquet_rows, read_npz, read_parquet
from shortlist.data.read_json import json_fields, read_json
from shortlist.data.read_text import SEPARATORS, is_large, read_text, text_fields
from shortlist.data.sources import Format, InputFile
from shortlist.data.text_blocks import count_rows
from shortlist.system.progress import progress

_MEGABYTE = 1e6


@dataclass(frozen=True)
class FirstFile:
    """What the first file of a table is like; all others must be like it."""

    name: str
    format: Format
    fields: tuple[str, ...]


def first_file(files: list[InputFile], layout: Layout) -> FirstFile:
    """Return what the first of some files is like; raises as `fields_of` does."""
    fields = _fields(files[0], layout)
    layout.check(fields, files[0].name)
    return FirstFile(files[0].name, files[0].format, tuple(fields))


def fields_of(files: list[InputFile], layout: Layout, first: FirstFile | None = None) -> list[str]:
    """Return the columns that all files share, after comparing them with each other and with the spec.

    Args:
        files: Files of a table, in order.
        layout: What the spec says about them.
        first: The table's first file, when it is not one of these; None: it is the first of them.

    Raises:
        DataError: The files mix formats or columns, or their columns are not the declared ones.
    """
    shared = first or first_file(files, layout)
    for file in files if first is not None else files[1:]:
        if file.format != shared.format:
            raise DataError(
                f"{file.name} is {file.format}, {shared.name} is {shared.format}; narrow `path` with a glob"
            )
        fields = _fields(file, layout)
        if file.format != "jsonl" and set(fields) != set(shared.fields):
            differing = ", ".join(sorted(set(fields) ^ set(shared.fields)))
            raise DataError(f"{file.name} has other columns than {shared.name}: {differing}. Read them as two logs.")
        layout.check(fields, file.name)
    return list(shared.fields)


def read_blocks(
    files: list[InputFile], layout: Layout, rows_per_block: int, first: FirstFile | None = None
) -> Iterator[tuple[InputFile, Block]]:
    """Give the rows of all files, in file order.

    Args:
        files: See `fields_of`.
        layout: Likewise.
        rows_per_block: Rows wanted at once.
        first: See `fields_of`.

    Raises:
        DataError: As `fields_of`, and when a file cannot be read to its end.
    """
    fields_of(files, layout, first)
    total = sum(file.path.stat().st_size for file in files) / _MEGABYTE
    with progress(f"read {layout.table}", total, "MB") as advance:
        for file in files:
            position = 0
            for block in _read(file, layout, rows_per_block):
                advance((block.position - position) / _MEGABYTE, file.name)
                position = block.position
                yield file, explode_block(block, layout)


def rows_of(files: list[InputFile], header: bool) -> list[int]:
    """Return how many rows each file holds, broken ones included, at the cost of one cheap pass.

    Meanwhile what reads large files is being loaded.
    """
    if any(file.format in SEPARATORS and is_large(file) for file in files):
        Thread(target=clean_text.load, name="load the compiled reader").start()
    with progress("count rows", len(files), "files") as advance:
        counts = []
        for file in files:
            counts.append(_count(file, header))
            advance(1, file.name)
    return counts


def _fields(file: InputFile, layout: Layout) -> list[str]:
    if file.format == "parquet":
        return parquet_fields(file)
    if file.format == "npz":
        return npz_fields(file)
    return json_fields(file) if file.format == "jsonl" else text_fields(file, layout)


def _read(file: InputFile, layout: Layout, rows_per_block: int) -> Iterator[Block]:
    if file.format == "parquet":
        return read_parquet(file, layout, rows_per_block)
    if file.format == "npz":
        return read_npz(file, layout, rows_per_block)
    if file.format == "jsonl":
        return read_json(file, layout, rows_per_block)
    return read_text(file, layout, text_fields(file, layout), rows_per_block)


def _count(file: InputFile, header: bool) -> int:
    if file.format == "parquet":
        return parquet_rows(file)
    rows = count_rows(file.path, file.name, SEPARATORS.get(file.format))
    return rows - 1 if header and file.format != "jsonl" else rows
