"""Decoded rows that memory has no room for, on disk: mapped in again instead of decoded again."""

from __future__ import annotations

import shutil
from itertools import count, takewhile
from pathlib import Path
from tempfile import mkdtemp
from typing import Final
from weakref import finalize

import numpy as np

from models.dlrm.chunks import Chunk, Ragged

_LEFT_FREE: Final = 2**30
"""Bytes of the disk that are nobody's to fill."""


class Spill:
    """A folder of chunks, as plain arrays; it is deleted with this object, or at exit.

    Reading maps the files: rows travel from the system's page cache straight to where they are shuffled into, and
    what is mapped is given back with the chunk. Against decoding Parquet again that is three times as fast.
    """

    def __init__(self) -> None:
        self._folder = Path(mkdtemp(prefix="shortlist-rows-"))
        self._numbers = count()
        finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def write(self, chunk: Chunk) -> int | None:
        """Write a chunk where the disk has room; return its number, or None where it has not."""
        if shutil.disk_usage(self._folder).free < chunk.bytes + _LEFT_FREE:
            return None
        number = next(self._numbers)
        arrays = [chunk.labels, chunk.dense, chunk.singles]
        arrays += [array for one in chunk.lists for array in (one.values, one.starts)]
        (self._folder / str(number)).mkdir()
        for place, array in enumerate(arrays):
            np.save(self._folder / str(number) / f"{place}.npy", array)
        return number

    def read(self, number: int) -> Chunk:
        """Return a chunk that was written; its arrays are on disk until they are looked at."""
        paths = (self._folder / str(number) / f"{place}.npy" for place in count())
        # Copy on write: torch takes no array that must not be written to, and the file stays as it is.
        arrays = [np.asarray(np.load(path, mmap_mode="c")) for path in takewhile(Path.exists, paths)]
        labels, dense, singles, *lists = arrays
        return Chunk(labels, dense, singles, tuple(Ragged(*pair) for pair in zip(lists[::2], lists[1::2], strict=True)))
