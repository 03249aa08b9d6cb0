"""Text cut into blocks at row ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shortlist.contracts import DataError
from shortlist.data.quoting import NEWLINE, NO_QUOTES, Quotes, complete_rows, count_of, line_ends
from shortlist.data.streams import ByteStream, opened

BOM = b"\xef\xbb\xbf"
_FIRST_BYTES = 1 << 20
_LEAST_BYTES = 1 << 16
# Larger blocks parse no faster and hold more memory.
_MOST_BYTES = 8 << 20
_LONGEST_ROW_BYTES = 64 << 20
_COUNT_BYTES = 1 << 20


@dataclass(frozen=True)
class TextBlock:
    """Whole rows of a text file; every row ends with a line end."""

    data: bytes
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
    carry, line, size = b"", 1, _FIRST_BYTES
    final = False
    while not final:
        fresh = stream.read(size)
        final = not fresh
        data = carry + fresh if carry else fresh
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
            most = _LONGEST_ROW_BYTES >> 20
            raise DataError(f"{name}, line {line}: no row ends within {most} MiB; is this a text file?")
        if end:
            whole = data[:end]
            lines = count_of(whole, NEWLINE)
            yield TextBlock(whole, line, lines, quotes, stream.position())
            line += lines
            size = min(max(end * rows_per_block // lines, _LEAST_BYTES), _MOST_BYTES)


def count_rows(path: Path, name: str, separator: str | None) -> int:
    """Return how many rows a text file has, a header and blank lines included; raises as `text_blocks` does."""
    lines, last, quoted = 0, b"", False
    with opened(path) as stream:
        while data := stream.read(_COUNT_BYTES):
            quoted = quoted or (separator is not None and b'"' in data)
            lines, last = lines + count_of(data, NEWLINE), data
    if not quoted:
        return lines + (not last.endswith(b"\n"))
    with opened(path) as stream:
        return sum(_rows(block) for block in text_blocks(stream, name, separator, _MOST_BYTES))


def _complete(data: bytes, separator: str | None, final: bool) -> tuple[Quotes, int]:
    if separator is None:
        return NO_QUOTES, data.rfind(b"\n") + 1
    return complete_rows(data, ord(separator), final)


def _rows(block: TextBlock) -> int:
    if not block.quotes.positions.size:
        return block.lines
    return int(block.quotes.outside(line_ends(block.data)).size)


def _without_mark(data: bytes, name: str) -> bytes:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{name}: the file is UTF-16 text; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)")
    return data.removeprefix(BOM)
