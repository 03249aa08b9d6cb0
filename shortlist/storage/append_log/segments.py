"""The files of a stream: segments of framed records, named by the offset of their first byte.

A frame is a mark of four bytes, the length and the CRC-32 of the record (four bytes each, little-endian), and the
record. Offsets are those of bytes in the whole stream. Between two segments offsets may be left out.
"""

from __future__ import annotations

import glob
import itertools
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

MARK: Final = b"\xf5SL\x01"
_HEAD: Final = struct.Struct("<4sII")
HEAD_BYTES: Final = _HEAD.size
MAX_RECORD_BYTES: Final = 64 * 2**20
"""Longer records are refused; a frame that claims more is damaged."""
_SUFFIX: Final = ".segment"


class FramedRecord(NamedTuple):
    """A record, and the offset behind it: where a reader goes on."""

    content: bytes
    end: int


class LogSegment(NamedTuple):
    """A file of a stream, and the offset of its first byte."""

    first: int
    path: Path


class Damage(NamedTuple):
    """Bytes of a segment that are no record."""

    path: Path
    position: int
    length: int

    def __str__(self) -> str:
        return f"{self.path}: {self.length} bytes at byte {self.position} are no record; they are left out"


def segments(folder: Path) -> list[LogSegment]:
    """Return the segments of a stream in their order; a folder that does not exist has none."""
    names = sorted(glob.glob(f"*{_SUFFIX}", root_dir=folder))  # noqa: PTH207  (Path.glob raises when the folder vanishes)
    return [LogSegment(int(name.removesuffix(_SUFFIX)), folder / name) for name in names]


def segment_path(folder: Path, first: int) -> Path:
    """Return the path of the segment that begins at an offset.

    >>> segment_path(Path("stream"), 17).name
    '00000000000000000017.segment'
    """
    return folder / f"{first:020d}{_SUFFIX}"


def frame(record: bytes) -> bytes:
    """Return a record as it is written: with mark, length and checksum."""
    return _HEAD.pack(MARK, len(record), zlib.crc32(record)) + record


def iter_frames(content: bytes) -> Iterator[tuple[bytes | None, int, int]]:
    """Yield each record with its start and end; None in place of a record for bytes that are none.

    An incomplete record at the end is not yielded: it is being written, or was when its process ended.
    """
    position = 0
    while position < len(content):
        kind, end = _frame_at(content, position)
        if kind == "record":
            yield content[position + HEAD_BYTES : end], position, end
        else:
            end = _next_record(content, position + 1)
            if kind == "incomplete" and end == len(content):
                return
            yield None, position, end
        position = end


def _frame_at(content: bytes, position: int) -> tuple[Literal["record", "incomplete", "damaged"], int]:
    """Return what is at a position, and the end of a record."""
    head = content[position : position + HEAD_BYTES]
    if not MARK.startswith(head[: len(MARK)]):
        return "damaged", position
    if len(head) < HEAD_BYTES:
        return "incomplete", position
    _, length, checksum = _HEAD.unpack(head)
    end = position + HEAD_BYTES + length
    if length > MAX_RECORD_BYTES:
        return "damaged", position
    if end > len(content):
        return "incomplete", position
    is_whole = zlib.crc32(memoryview(content)[position + HEAD_BYTES : end]) == checksum
    return ("record", end) if is_whole else ("damaged", position)


def _next_record(content: bytes, position: int) -> int:
    """Return where the next whole record begins; the end of the content if there is none."""
    while (position := content.find(MARK, position)) >= 0:
        if _frame_at(content, position)[0] == "record":
            return position
        position += 1
    return len(content)


def complete_bytes(path: Path) -> int:
    """Return how many bytes of a segment come before the record that was being written when its process ended."""
    content = path.read_bytes()
    complete = 0
    for record, position, end in iter_frames(content):
        # After a power failure a file may end with blocks that were never written, and read as zeros.
        is_torn = record is None and end == len(content) and not content[position:].strip(b"\0")
        complete = position if is_torn else end
    return complete


def remove_segments(folder: Path, before: int, min_age_seconds: float) -> int:
    """Remove segments whose records all lie before an offset and that were last written long enough ago.

    The last segment stays: it holds the stream's end. Returns the number of removed files.
    """
    stream_segments, removed = segments(folder), 0
    for segment, following in itertools.pairwise(stream_segments):
        with suppress(FileNotFoundError):
            status = segment.path.stat()
            if following.first <= before and time.time() - status.st_mtime >= min_age_seconds:
                segment.path.unlink()
                removed += 1
    return removed
