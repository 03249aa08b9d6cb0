"""Text cut into blocks at row ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shortlist.contracts import DataError
from shortlist.data.reading.text.quoting import (
    NEWLINE,
    NO_QUOTES,
    Offsets,
    Quotes,
    Text,
    complete_rows,
    count_of,
    line_ends,
)
from shortlist.data.reading.text.streams import ByteStream, open_decompressed

BOM = b"\xef\xbb\xbf"
_FIRST_BYTES = 1 << 20
_LEAST_BYTES = 1 << 16
# Larger blocks parse no faster and hold more memory.
_MOST_BYTES = 8 << 20
_LONGEST_ROW_BYTES = 64 << 20
_COUNT_BYTES = 1 << 20
_RETURN = ord("\r")


@dataclass(frozen=True)
class TextBlock:
    """Whole rows of a text file; every row ends with a line end."""

    data: Text
    first_line: int
    """Line of the file on which it begins, counted from 1."""
    lines: int
    """Line ends in it, those inside quoted fields included."""
    quotes: Quotes
    position: int
    """Bytes of the file on disk read so far."""


def text_blocks(stream: ByteStream, name: str, separator: str | None, rows_per_block: int) -> Iterator[TextBlock]:
    """Give the rows of a text file in blocks of at most about `rows_per_block` rows.

    Args:
        stream: The unpacked file.
        name: What messages call it.
        separator: Character between fields; None where a line end always ends a row (JSON lines).
        rows_per_block: Rows wanted per block; the size in bytes follows from the rows seen so far.

    Raises:
        DataError: The stream is truncated, the quotes are broken everywhere, or the file is not text at all.
    """
    carry, line, size = bytearray(), 1, _FIRST_BYTES
    final = False
    while not final:
        data = _append_bytes(carry, stream, size)
        final = len(data) == len(carry)
        if line == 1:
            data = _without_mark(data, name)
        if final and data and not data.endswith(b"\n"):
            data += b"\n"
        try:
            quotes, end = _complete(data, separator, final)
        except ValueError as error:
            raise DataError(f"{name}, from line {line} on: {error}") from None
        carry = data[end:]
        if len(carry) > _LONGEST_ROW_BYTES:
            max_mib = _LONGEST_ROW_BYTES >> 20
            raise DataError(f"{name}, line {line}: no row ends within {max_mib} MiB; is this a text file?")
        if end:
            del data[end:]
            lines = count_of(data, NEWLINE)
            yield TextBlock(data, line, lines, quotes, stream.position())
            line += lines
            size = min(max(end * rows_per_block // lines, _LEAST_BYTES), _MOST_BYTES)


def count_rows(path: Path, name: str, separator: str | None) -> int:
    """Return how many rows a text file has, a header included, blank lines not; raises as `text_blocks` does."""
    lines, tail, plain, buffer = 0, b"\n", True, bytearray(_COUNT_BYTES)
    with open_decompressed(path) as stream:
        while plain and (byte_count := stream.readinto(buffer)):
            text = tail + memoryview(buffer)[:byte_count]
            quoted = separator is not None and text.find(b'"') >= 0
            ends = line_ends(text)
            plain = not quoted and not _has_blank_line(text, ends)
            lines, tail = lines + ends.size - count_of(tail, NEWLINE), text[-2:]
    if plain and tail != b"\n\r":
        return lines + (not tail.endswith(b"\n"))
    with open_decompressed(path) as stream:
        return sum(_rows(block) for block in text_blocks(stream, name, separator, _MOST_BYTES))


def _has_blank_line(text: Text, ends: Offsets) -> bool:
    # `bytes.find` of two bytes takes many times as long as finding all line ends with numpy.
    lengths = np.diff(ends)
    return bool(np.any(lengths == 1) or (np.any(lengths == 2) and text.find(b"\n\r\n") >= 0))


def _append_bytes(start: bytearray, stream: ByteStream, size: int) -> bytearray:
    """Return a text with up to `size` bytes more; nothing is copied but the start."""
    data = bytearray(len(start) + size)
    data[: len(start)] = start
    with memoryview(data) as whole, whole[len(start) :] as free_bytes:
        byte_count = stream.readinto(free_bytes)
    del data[len(start) + byte_count :]
    return data


def _complete(data: Text, separator: str | None, final: bool) -> tuple[Quotes, int]:
    if separator is None:
        return NO_QUOTES, data.rfind(b"\n") + 1
    return complete_rows(data, ord(separator), final)


def _rows(block: TextBlock) -> int:
    ends = block.quotes.outside(line_ends(block.data))
    lengths = np.diff(ends, prepend=-1)
    byte_before = np.frombuffer(block.data, np.uint8)[np.maximum(ends - 1, 0)]
    return int(np.count_nonzero((lengths > 2) | ((lengths == 2) & (byte_before != _RETURN))))


def _without_mark(data: bytearray, name: str) -> bytearray:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{name}: the file is UTF-16 text; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)")
    return data.removeprefix(BOM)
