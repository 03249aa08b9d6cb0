"""Read files as streams of bytes, decompressed while reading."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from shortlist.contracts import DataError

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_CODEC = {".gz": "gzip", ".zst": "zstd"}


class ByteStream(Protocol):
    """An open file as text readers use it."""

    def readinto(self, buffer: bytearray | memoryview) -> int:
        """Fill a buffer with decompressed bytes; return their number, 0 at the end."""

    def position(self) -> int:
        """Return the number of bytes read from the file on disk."""


class _DecompressedStream:
    def __init__(self, path: Path, raw: pa.NativeFile, codec: str | None) -> None:
        self._path = path
        self._raw = raw
        self._codec = codec
        self._source = raw if codec is None else pa.CompressedInputStream(raw, codec)
        self._bytes_read = 0

    def readinto(self, buffer: bytearray | memoryview) -> int:
        try:
            byte_count = int(self._source.readinto(buffer))
        except OSError as error:
            raise DataError(
                f"{self._path}: the {self._codec or 'file'} stream is truncated or broken after {self._bytes_read}"
                f" bytes of text ({error}). Copy or download the file again."
            ) from None
        self._bytes_read += byte_count
        return byte_count

    def position(self) -> int:
        return int(self._raw.tell())


@contextmanager
def open_decompressed(path: Path) -> Iterator[ByteStream]:
    """Open a plain, gzip or zstd file, detected by its first bytes, as a stream of decompressed bytes.

    Raises:
        DataError: The name's ending is of gzip or zstd and the content is not; while reading: the stream is truncated.
    """
    with path.open("rb") as file:
        head = file.read(4)
    codec = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
    named_codec = _CODEC.get(path.suffix.lower())
    if named_codec is not None and codec != named_codec:
        raise DataError(
            f"{path}: the name says {named_codec}, the content begins with {head!r}; rename or restore the file"
        )
    with pa.OSFile(str(path), "rb") as raw:
        yield _DecompressedStream(path, raw, codec)
