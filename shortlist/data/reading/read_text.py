"""CSV and TSV files, block by block: typed at once where the text is clean, row by row where it is not."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import polars as pl
import polars.exceptions

from shortlist.contracts import DataError
from shortlist.data.reading.layout import NAMELESS, FileLayout, RowBlock
from shortlist.data.reading.sources import InputFile
from shortlist.data.reading.text.clean_text import CleanText
from shortlist.data.reading.text.quoting import Text, count_of, line_ends
from shortlist.data.reading.text.streams import open_decompressed
from shortlist.data.reading.text.text_blocks import TextBlock, text_blocks
from shortlist.data.reading.text.text_rows import BROKEN_SCHEMA, split_text_rows
from shortlist.spec.data import null_texts
from shortlist.system.prefetch import parallel_map_pairs

SEPARATORS = {"csv": ",", "tsv": "\t"}
OTHER_DELIMITERS = (";", "\t", "|", ",")
_FIRST_LINE_BYTES = 1 << 20
# A column of which more than this share does not parse as typed text is read as text from then on.
_MAX_FAILED_SHARE = 0.1
_LARGE_BYTES = 128 << 20
"""Size from which a file is read by the compiled reader: loading that takes 0.4 s, what it saves on so much text."""
_THREADS = 4
"""In which it reads: faster than a disk gives text."""
_MOST_REFUSED = 3
"""Blocks in a row after which the compiled reader is asked no more: the file is written in a way that it has not."""


def text_fields(file: InputFile, layout: FileLayout) -> list[str]:
    """Return the names of the fields of a delimited file, in order; by the spec when there is no header.

    Raises:
        DataError: The first line is broken, or (without a header) has not as many fields as are declared.
    """
    with open_decompressed(file.path) as stream:
        block = next(text_blocks(stream, file.name, None, _FIRST_LINE_BYTES), None)
    first = block.data[: block.data.index(b"\n")] if block is not None else b""
    try:
        delimiter = layout.delimiter or SEPARATORS[file.format]
        fields = next(csv.reader([first.decode().rstrip("\r")], delimiter=delimiter, strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file.name}, line 1: not a row of UTF-8 {file.format.upper()} ({error})") from None
    if len(fields) == 1 < len(layout.sources) and (other := _likely_delimiter(first.decode(), len(layout.sources))):
        raise DataError(
            f"{file.name}: its first line has no {delimiter!r}, and {other!r} between {len(layout.sources)} names or"
            f" more; declare how its fields are separated: delimiter: {json.dumps(other)}"
        )
    if not layout.header:
        return layout.names_by_position(len(fields), file.name)
    return [name or f"{NAMELESS}{place}" for place, name in enumerate(fields)]


def _likely_delimiter(line: str, fields: int) -> str:
    """Return another character that separates at least so many fields of a line; empty when there is none."""
    return next((character for character in OTHER_DELIMITERS if line.count(character) >= fields - 1), "")


def is_large(file: InputFile) -> bool:
    """Say whether a file is large enough for the compiled reader."""
    return file.path.stat().st_size >= _LARGE_BYTES


def read_text(file: InputFile, layout: FileLayout, fields: list[str], rows_per_block: int) -> Iterator[RowBlock]:
    """Give the rows of a CSV or TSV file.

    Args:
        file: The file.
        layout: What the spec says about it.
        fields: Its fields in order, from `text_fields`.
        rows_per_block: Rows wanted at once.

    Raises:
        DataError: The file cannot be read to its end.
    """
    reader = _Reader(file, layout, fields)
    with open_decompressed(file.path) as stream:
        blocks = text_blocks(stream, file.name, reader.separator, rows_per_block)
        rows = (_without_first_line(block) if layout.header and block.first_line == 1 else block for block in blocks)
        for block, columns in parallel_map_pairs(
            reader.clean, filter(_has_rows, rows), min(pl.thread_pool_size(), _THREADS)
        ):
            yield reader.fast(block, columns) or reader.slow(block)


class _Reader:
    def __init__(self, file: InputFile, layout: FileLayout, fields: list[str]) -> None:
        self.separator = layout.delimiter or SEPARATORS[file.format]
        self._file = file
        self._layout = layout
        self._fields = fields
        self._types = layout.text_types
        self._is_large = is_large(file)
        self._refused = 0

    def clean(self, block: TextBlock) -> pl.DataFrame | None:
        """Return the columns of a block that is plainly right; None when it takes another reader. For any thread."""
        single = len(self._fields) == 1  # a blank line is no row then
        if not self._is_large or single or block.quotes.positions.size or block.quotes.broken.size:
            return None
        if self._refused >= _MOST_REFUSED:
            return None
        columns = self._clean_text.parse(block, self._layout.sources)
        self._refused = 0 if columns is not None else self._refused + 1
        return columns

    def fast(self, block: TextBlock, columns: pl.DataFrame | None) -> RowBlock | None:
        """Return the rows in their types, `columns` if they are known; None when anything is wrong with the block."""
        if block.quotes.broken.size:
            return None
        if columns is None:
            if not self._has_all_separators(block):
                return None
            try:
                columns = self._parse(block.data, self._types)
            except polars.exceptions.PolarsError:
                return None
        lines = _consecutive_lines(block, columns.height)
        if lines is None:
            return None
        numbers = pl.int_range(columns.height, eager=True)
        broken = pl.DataFrame(schema=BROKEN_SCHEMA)
        return RowBlock(columns, lines, numbers, columns.height, broken, block.position)

    def slow(self, block: TextBlock) -> RowBlock:
        """Return the sound rows as text, and the broken ones with the reason."""
        rows = split_text_rows(block, self.separator, len(self._fields))
        text = rows.sound_text()
        texts: dict[str, pl.DataType] = dict.fromkeys(self._fields, pl.String())
        try:
            columns = self._parse(text, texts) if text else pl.DataFrame(schema=texts).select(self._layout.sources)
        except polars.exceptions.PolarsError as error:
            raise DataError(f"{self._file.name}, from line {block.first_line} on: not readable ({error})") from None
        assert columns.height == rows.sound.sum(), "the parser cut the rows otherwise than we did"
        self._read_as_text_what_is_not_typed(columns)
        sound = rows.sound
        return RowBlock(
            columns,
            rows.lines.filter(sound),
            sound.arg_true().cast(pl.Int64),
            len(sound),
            rows.broken(),
            block.position,
        )

    @cached_property
    def _clean_text(self) -> CleanText:
        layout = self._layout
        return CleanText(
            self._fields, self.separator, self._types, layout.hexadecimal, sorted(null_texts(layout.null_values))
        )

    def _parse(self, data: Text, types: dict[str, pl.DataType]) -> pl.DataFrame:
        # All fields are parsed, undeclared ones too: with a projection Polars does not notice a row that is too long.
        schema = {name: types.get(name, pl.String()) for name in self._fields}
        nulls = sorted(null_texts(self._layout.null_values))
        # In one piece: Polars parses 8 MiB into 33 pieces, and working on them piece by piece makes ingesting 2 M rows
        # of 40 columns take 6.5 s of processor time instead of 5.7.
        frame = pl.read_csv(
            bytes(data), separator=self.separator, has_header=False, schema=schema, null_values=nulls, rechunk=True
        )
        return frame.select(self._layout.sources)

    def _has_all_separators(self, block: TextBlock) -> bool:
        """Polars fills a row that is too short with nulls and refuses one that is too long: so the sum tells."""
        if len(self._fields) == 1:
            blank = block.data.startswith((b"\n", b"\r\n")) or b"\n\n" in block.data or b"\n\r\n" in block.data
            return not blank
        if not block.quotes.positions.size:
            return count_of(block.data, ord(self.separator)) == block.lines * (len(self._fields) - 1)
        text = np.frombuffer(block.data, np.uint8)
        separators = block.quotes.outside(np.flatnonzero(text == ord(self.separator)))
        rows = block.quotes.outside(line_ends(block.data))
        return bool(separators.size == rows.size * (len(self._fields) - 1))

    def _read_as_text_what_is_not_typed(self, texts: pl.DataFrame) -> None:
        typed = {name: kind for name, kind in self._types.items() if kind != pl.String()}
        parsed = texts.select(pl.col(name).cast(kind, strict=False) for name, kind in typed.items())
        for name in typed:
            failed = parsed[name].null_count() - texts[name].null_count()
            if failed > _MAX_FAILED_SHARE * texts.height:
                self._types[name] = pl.String()


def _consecutive_lines(block: TextBlock, rows: int) -> pl.Series | None:
    if rows == block.lines:
        return pl.int_range(block.first_line, block.first_line + rows, eager=True)
    newlines = line_ends(block.data)
    ends = block.quotes.outside(newlines)
    if ends.size != rows:
        return None
    starts = np.concatenate([[0], ends[:-1] + 1])
    return pl.Series(block.first_line + np.searchsorted(newlines, starts))


def _has_rows(block: TextBlock) -> bool:
    return bool(block.data)


def _without_first_line(block: TextBlock) -> TextBlock:
    start = block.data.index(b"\n") + 1
    quotes = block.quotes.after(start)
    return TextBlock(block.data[start:], block.first_line + 1, block.lines - 1, quotes, block.position)
