"""A block of text taken apart row by row, so that what is broken can be named and the rest be read."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from shortlist.contracts import Columns
from shortlist.data.quoting import Flags, Offsets, line_ends
from shortlist.data.text_blocks import TextBlock

BROKEN_SCHEMA = pl.Schema({Columns.SOURCE_LINE: pl.Int64, Columns.RULE: pl.String, Columns.DETAIL: pl.String})
_DECODE_BYTES = 1 << 16


@dataclass(frozen=True)
class Rows:
    """The rows of a text block, blank lines left out."""

    text: pa.LargeBinaryArray
    """Bytes of each row, its line end included."""
    lines: Offsets
    """Line of the file on which each row begins."""
    reasons: dict[str, Flags]
    """Rule name -> which rows break it."""
    details: dict[str, pl.Series]
    """Rule name -> what to say of each row."""

    @property
    def sound(self) -> Flags:
        """Which rows can be read."""
        bad = np.zeros(self.lines.size, bool)
        for flags in self.reasons.values():
            bad |= flags
        return ~bad

    def sound_text(self) -> bytes:
        """Return the readable rows as one piece of text."""
        kept = self.text.filter(pa.array(self.sound))
        offsets = np.frombuffer(kept.buffers()[1], np.int64)[kept.offset : kept.offset + len(kept) + 1]
        return bytes(memoryview(kept.buffers()[2])[offsets[0] : offsets[-1]]) if len(kept) else b""

    def broken(self) -> pl.DataFrame:
        """Return the unreadable rows with the first rule each of them breaks."""
        found = [
            pl.DataFrame({Columns.SOURCE_LINE: self.lines, Columns.DETAIL: self.details[rule]})
            .filter(pl.Series(flags))
            .select(Columns.SOURCE_LINE, pl.lit(rule).alias(Columns.RULE), Columns.DETAIL)
            for rule, flags in self.reasons.items()
        ]
        stacked = pl.concat([pl.DataFrame(schema=BROKEN_SCHEMA), *found])
        return stacked.unique(Columns.SOURCE_LINE, keep="first", maintain_order=True).sort(Columns.SOURCE_LINE)


def take_apart(block: TextBlock, separator: str | None, fields: int) -> Rows:
    """Return the rows of a block and which of them are broken.

    Args:
        block: Whole rows.
        separator: Character between fields; None for JSON lines, whose fields are not counted.
        fields: Fields every row must have.
    """
    newlines = line_ends(block.data)
    ends = block.quotes.outside(newlines)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lines = block.first_line + np.searchsorted(newlines, starts)
    reasons: dict[str, Flags] = {}
    details: dict[str, pl.Series] = {}
    if separator is not None:
        reasons["quotes"] = _holds(block.quotes.broken, starts, ends)
        details["quotes"] = pl.repeat(_QUOTES, lines.size, eager=True)
        count = _fields(block, separator, starts, ends)
        reasons["field_count"] = count != fields
        details["field_count"] = pl.select(pl.format(f"got {{}} fields, wanted {fields}", pl.Series(count))).to_series()
    reasons["utf8"] = _not_utf8(block.data, ends)
    details["utf8"] = pl.repeat("the bytes are not UTF-8 text", lines.size, eager=True)
    shown = _not_blank(block.data, starts, ends)
    return Rows(
        _binary(block.data, ends).filter(pa.array(shown)),
        lines[shown],
        {rule: flags[shown] for rule, flags in reasons.items()},
        {rule: texts.filter(pl.Series(shown)) for rule, texts in details.items()},
    )


_QUOTES = 'a quote (") opens in this line that never closes, or stands inside a field'


def _holds(offsets: Offsets, starts: Offsets, ends: Offsets) -> Flags:
    """Return which rows hold one of the offsets."""
    found = np.searchsorted(offsets, ends, side="right") > np.searchsorted(offsets, starts)
    return np.asarray(found, bool)


def _fields(block: TextBlock, separator: str, starts: Offsets, ends: Offsets) -> Offsets:
    text = np.frombuffer(block.data, np.uint8)
    separators = block.quotes.outside(np.flatnonzero(text == ord(separator)))
    return np.searchsorted(separators, ends) - np.searchsorted(separators, starts) + 1


def _not_blank(data: bytes, starts: Offsets, ends: Offsets) -> Flags:
    text = np.frombuffer(data, np.uint8)
    length = ends - starts
    shown: Flags = (length > 1) | ((length == 1) & (text[starts] != ord("\r")))
    return shown


def _not_utf8(data: bytes, ends: Offsets) -> Flags:
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


def _binary(data: bytes, ends: Offsets) -> pa.LargeBinaryArray:
    offsets = np.concatenate([[0], ends + 1]).astype(np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), ends.size, buffers)
