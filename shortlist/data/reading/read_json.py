"""JSON-lines files, block by block: typed at once where every line is clean, line by line where one is not."""

from __future__ import annotations

import json
from collections.abc import Iterator

import polars as pl
import polars.exceptions

from shortlist.contracts import Columns, DataError
from shortlist.data.reading.layout import FileLayout, RowBlock
from shortlist.data.reading.sources import InputFile
from shortlist.data.reading.text.streams import open_decompressed
from shortlist.data.reading.text.text_blocks import TextBlock, text_blocks
from shortlist.data.reading.text.text_rows import BROKEN_SCHEMA, split_text_rows
from shortlist.spec.data import Column

_PEEK_ROWS = 1_000
# As for delimited text: what mostly does not parse as typed is read as text from then on.
_MAX_FAILED_SHARE = 0.1
_FLAT_LIST = r"^\s*\[[^\[\]{}]*\]\s*$"
_STRING_LITERAL = r'"(?:\\.|[^"\\])*"'


def json_fields(file: InputFile) -> list[str]:
    """Return the keys found in the first rows of a JSON-lines file, in order of appearance.

    Raises:
        DataError: None of the first lines is a JSON object.
    """
    with open_decompressed(file.path) as stream:
        block = next(text_blocks(stream, file.name, None, _PEEK_ROWS), None)
    if block is None:
        raise DataError(f"{file.name}: the file has no rows")
    rows = split_text_rows(block, None, 0)
    lines = _texts(rows.sound_text())
    objects = lines.filter(_is_object(lines))
    if objects.is_empty():
        raise DataError(f"{file.name}: none of the first {len(lines)} lines is a JSON object; is the format jsonl?")
    return list(dict.fromkeys(key for line in objects.head(_PEEK_ROWS) for key in json.loads(line)))


def read_json(file: InputFile, layout: FileLayout, rows_per_block: int) -> Iterator[RowBlock]:
    """Give the rows of a JSON-lines file; a key that a line lacks is null there.

    Raises:
        DataError: The file cannot be read to its end.
    """
    reader = _Reader(layout)
    with open_decompressed(file.path) as stream:
        for block in text_blocks(stream, file.name, None, rows_per_block):
            yield reader.fast(block) or reader.slow(block)


class _Reader:
    def __init__(self, layout: FileLayout) -> None:
        self._types = layout.text_types
        lists = [column for column in layout.columns if column.type in ("tags", "vector")]
        self._lists = {column.source_name: _list_type(column) for column in lists}
        self._separators = {column.source_name: column.separator for column in lists}
        for name, element_columns in layout.exploded.items():
            assert layout.explode is not None
            self._lists[name] = _element_list(element_columns)
            self._separators[name] = layout.explode.separator

    def fast(self, block: TextBlock) -> RowBlock | None:
        """Return the rows parsed into their types, or None when anything at all is wrong with the block."""
        try:
            columns = pl.read_ndjson(bytes(block.data), schema={**self._types, **self._lists})
        except polars.exceptions.PolarsError:
            return None
        if columns.height != block.lines:
            return None
        lines = pl.int_range(block.first_line, block.first_line + columns.height, eager=True)
        numbers = pl.int_range(columns.height, eager=True)
        return RowBlock(columns, lines, numbers, columns.height, pl.DataFrame(schema=BROKEN_SCHEMA), block.position)

    def slow(self, block: TextBlock) -> RowBlock:
        """Return the lines that are JSON objects, with their values as text, and the others with the reason."""
        rows = split_text_rows(block, None, 0)
        texts = _texts(rows.sound_text())
        objects = _is_object(texts)
        object_texts = texts.filter(objects)
        columns = self._as_text(object_texts)
        self._read_as_text_what_is_not_typed(columns)
        lines, numbers = rows.lines.filter(rows.sound), rows.sound.arg_true().cast(pl.Int64)
        broken = pl.DataFrame({Columns.SOURCE_LINE: lines, Columns.DETAIL: texts}).filter(~objects)
        detail = pl.format("not a JSON object: {}", pl.col(Columns.DETAIL).str.slice(0, 100))
        return RowBlock(
            columns,
            lines.filter(objects),
            numbers.filter(objects),
            len(rows.lines),
            pl.concat([rows.broken(), broken.select(Columns.SOURCE_LINE, pl.lit("json").alias(Columns.RULE), detail)]),
            block.position,
        )

    def _as_text(self, lines: pl.Series) -> pl.DataFrame:
        schema = dict.fromkeys(self._types, pl.String())
        if lines.is_empty():
            return pl.DataFrame(schema=schema)
        values = pl.read_ndjson("\n".join(lines.to_list()).encode(), schema=schema)
        return values.with_columns(_list_of_texts(lines, name, self._separators[name]) for name in self._lists)

    def _read_as_text_what_is_not_typed(self, texts: pl.DataFrame) -> None:
        for name, kind in self._types.items():
            if name not in self._lists and kind != pl.String():
                failed = texts[name].cast(kind, strict=False).null_count() - texts[name].null_count()
                if failed > _MAX_FAILED_SHARE * texts.height:
                    self._types[name] = pl.String()


def _texts(data: bytes) -> pl.Series:
    lines = pl.Series([data.decode()]).str.strip_suffix("\n").str.split("\n").explode()
    return lines if data else lines.clear()


def _is_object(lines: pl.Series) -> pl.Series:
    return lines.str.contains(r"^\s*\{") & lines.str.json_path_match("$").is_not_null()


def _list_of_texts(lines: pl.Series, name: str, separator: str) -> pl.Series:
    """Return a key's values as lists of text: a flat list as it is, anything else as text to be cut at separators."""
    text = lines.str.json_path_match(f"$['{name}']")
    flat = text.str.replace_all(_STRING_LITERAL, "s").str.contains(_FLAT_LIST).fill_null(False)
    lists = text.set(~flat, None).str.json_decode(pl.List(pl.String()))
    parts = text.str.split(separator).list.eval(pl.element().str.strip_chars())
    return lists.zip_with(flat, parts).alias(name)


def _element_list(element_columns: list[Column]) -> pl.DataType:
    """Return the type of lists that become rows, of one column or of several in one text."""
    kinds = {"integer": pl.List(pl.Int64()), "number": pl.List(pl.Float64())}
    return (
        kinds.get(element_columns[0].type, pl.List(pl.String())) if len(element_columns) == 1 else pl.List(pl.String())
    )


def _list_type(column: Column) -> pl.DataType:
    if column.type == "vector":
        return pl.List(pl.Float32())
    return pl.List(pl.Int64() if column.tag_type == "integer" else pl.String())
