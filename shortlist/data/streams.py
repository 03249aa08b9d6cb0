"""Bytes of a file, unpacked on the way."""

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
    """What a reader needs of an open file."""

    def readinto(self, buffer: bytearray | memoryview) -> int:
        """Fill a buffer with unpacked bytes; return how many there were, none at the end."""

    def position(self) -> int:
        """Return how many bytes of the file on disk have been read."""


class _Stream:
    def __init__(self, path: Path, raw: pa.NativeFile, codec: str | None) -> None:
        self._path = path
        self._raw = raw
        self._codec = codec
        self._source = raw if codec is None else pa.CompressedInputStream(raw, codec)
        self._read = 0

    def readinto(self, buffer: bytearray | memoryview) -> int:
        try:
            found = int(self._source.readinto(buffer))
        except OSError as error:
            raise DataError(
                f"{self._path}: the {self._codec or 'file'} stream is truncated or broken after {self._read} bytes of"
                f" text ({error}). Copy or download the file again."
            ) from None
        self._read += found
        return found

    def position(self) -> int:
        return int(self._raw.tell())


@contextmanager
def opened(path: Path) -> Iterator[ByteStream]:
    """Give the unpacked bytes of a plain, gzip or zstd file; the first bytes decide which it is.

    Raises:
        DataError: The name says gzip or zstd and the content does not; while reading: the stream is truncated.
    """
    with path.open("rb") as file:
        head = file.read(4)
    codec = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
    wanted = _CODEC.get(path.suffix.lower())
    if wanted is not None and codec != wanted:
        raise DataError(f"{path}: the name says {wanted}, the content begins with {head!r}; rename or restore the file")
    with pa.OSFile(str(path), "rb") as raw:
        yield _Stream(path, raw, codec)
