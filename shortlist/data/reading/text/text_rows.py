"""A block of text taken apart row by row, so that what is broken can be named and the rest be read."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from shortlist.contracts import Columns
from shortlist.data.reading.text.quoting import Flags, Offsets, Text, line_ends
from shortlist.data.reading.text.text_blocks import TextBlock

BROKEN_SCHEMA = pl.Schema({Columns.SOURCE_LINE: pl.Int64, Columns.RULE: pl.String, Columns.DETAIL: pl.String})
_DECODE_BYTES = 1 << 16
_FIELD_COUNT, _EXPECTED_FIELD_COUNT = "got", "wanted"
_DETAILS = {
    "quotes": pl.lit('a quote (") opens in this line that never closes, or stands inside a field'),
    "field_count": pl.format("got {} fields, wanted {}", _FIELD_COUNT, _EXPECTED_FIELD_COUNT),
    "utf8": pl.lit("the bytes are not UTF-8 text"),
}
"""What is said of a row that breaks a rule; of several, the first counts."""


@dataclass(frozen=True)
class TextRows:
    """The rows of a text block, blank lines left out."""

    text: pa.LargeBinaryArray
    """Bytes of each row, its line end included."""
    table: pl.DataFrame
    """Line on which each row begins, its number of fields, and which rules it breaks."""

    @property
    def lines(self) -> pl.Series:
        """Int64: line of the file on which each row begins."""
        return self.table[Columns.SOURCE_LINE]

    @property
    def sound(self) -> pl.Series:
        """Boolean: which rows can be read."""
        return self.table.select(~pl.any_horizontal(*_DETAILS)).to_series()

    def sound_text(self) -> bytes:
        """Return the readable rows as one piece of text."""
        sound_rows = self.text.filter(self.sound.to_arrow())
        offsets = np.frombuffer(sound_rows.buffers()[1], np.int64)[
            sound_rows.offset : sound_rows.offset + len(sound_rows) + 1
        ]
        return bytes(memoryview(sound_rows.buffers()[2])[offsets[0] : offsets[-1]]) if len(sound_rows) else b""

    def broken(self) -> pl.DataFrame:
        """Return the unreadable rows with the first rule that each of them breaks."""
        rule = pl.coalesce(pl.when(name).then(pl.lit(name)) for name in _DETAILS)
        detail = pl.coalesce(pl.when(name).then(text) for name, text in _DETAILS.items())
        return self.table.filter(~self.sound).select(
            Columns.SOURCE_LINE, rule.alias(Columns.RULE), detail.alias(Columns.DETAIL)
        )


def split_text_rows(block: TextBlock, separator: str | None, fields: int) -> TextRows:
    """Return the rows of a block and which of them are broken.

    Args:
        block: Whole rows.
        separator: Character between fields; None for JSON lines, whose fields are not counted.
        fields: Fields every row must have.
    """
    newlines = line_ends(block.data)
    ends = block.quotes.outside(newlines)
    starts = np.concatenate([[0], ends[:-1] + 1])
    field_counts = _fields(block, separator, starts, ends) if separator is not None else np.full(ends.size, fields)
    table = pl.DataFrame(
        {
            Columns.SOURCE_LINE: block.first_line + np.searchsorted(newlines, starts),
            _FIELD_COUNT: field_counts,
            "quotes": _holds(block.quotes.broken, starts, ends),
            "field_count": field_counts != fields,
            "utf8": _not_utf8(block.data, ends),
        }
    )
    is_not_blank = _not_blank(block.data, starts, ends)
    text = _binary(block.data, ends).filter(pa.array(is_not_blank))
    return TextRows(
        text, table.with_columns(pl.lit(fields).alias(_EXPECTED_FIELD_COUNT)).filter(pl.Series(is_not_blank))
    )


def _holds(offsets: Offsets, starts: Offsets, ends: Offsets) -> Flags:
    """Return which rows hold one of the offsets."""
    holds_offset = np.searchsorted(offsets, ends, side="right") > np.searchsorted(offsets, starts)
    return np.asarray(holds_offset, bool)


def _fields(block: TextBlock, separator: str, starts: Offsets, ends: Offsets) -> Offsets:
    text = np.frombuffer(block.data, np.uint8)
    separators = block.quotes.outside(np.flatnonzero(text == ord(separator)))
    return np.searchsorted(separators, ends) - np.searchsorted(separators, starts) + 1


def _not_blank(data: Text, starts: Offsets, ends: Offsets) -> Flags:
    text = np.frombuffer(data, np.uint8)
    length = ends - starts
    is_not_blank: Flags = (length > 1) | ((length == 1) & (text[starts] != ord("\r")))
    return is_not_blank


def _not_utf8(data: Text, ends: Offsets) -> Flags:
    """Return which rows are not UTF-8; decoded in small steps, so that a bad row costs one step, not a block."""
    bad = np.zeros(ends.size, bool)
    view, start = memoryview(data), len(data) if data.isascii() else 0
    while start < len(data):
        last = min(int(np.searchsorted(ends, start + _DECODE_BYTES)), ends.size - 1)
        try:
            codecs.utf_8_decode(view[start : ends[last] + 1], "strict", True)
        except UnicodeDecodeError as error:
            last = int(np.searchsorted(ends, start + error.start))
            bad[last] = True
        start = int(ends[last]) + 1
    return bad


def _binary(data: Text, ends: Offsets) -> pa.LargeBinaryArray:
    offsets = np.concatenate([[0], ends + 1]).astype(np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), ends.size, buffers)
