"""Decoded rows that memory has no room for, on disk: mapped in again instead of decoded again."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Final
from weakref import finalize

import numpy as np

_LEFT_FREE: Final = 2**30
"""Bytes of the disk that are nobody's to fill."""


class Spill:
    """A folder of plain arrays that look as if they were in memory; it is deleted with this object, or at exit.

    Rows travel from the system's page cache straight into a batch. What was read once stays in that cache as long as
    nobody needs the memory; the process itself holds only the pages that it was told to look at.
    """

    def __init__(self) -> None:
        self._folder = Path(mkdtemp(prefix="shortlist-rows-"))
        self._numbers = count()
        self._maps: list[tuple[int, mmap.mmap]] = []
        finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def has_room(self, size: int) -> bool:
        """Return whether the disk takes so many bytes and some are left."""
        return shutil.disk_usage(self._folder).free >= size + _LEFT_FREE

    def empty(self, shape: tuple[int, ...], kind: type[np.generic]) -> np.ndarray:
        """Return an array on disk; it is as `np.empty` for whoever reads and writes it.

        Raises:
            OSError: The disk is full. It is now or never: a page of a map that has no room kills the process.
        """
        size = max(1, int(np.prod(shape)) * np.dtype(kind).itemsize)
        with (self._folder / str(next(self._numbers))).open("w+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            pages = mmap.mmap(file.fileno(), size)
        array = np.frombuffer(pages, kind, count=int(np.prod(shape))).reshape(shape)
        self._maps.append((np.frombuffer(pages, np.uint8).ctypes.data, pages))
        return array

    def will_need(self, parts: Iterable[np.ndarray]) -> None:
        """Let the system read parts of arrays ahead: in order, where a shuffle would fetch page by page."""
        self._advise(parts, mmap.MADV_WILLNEED)

    def leave(self, parts: Iterable[np.ndarray]) -> None:
        """Take parts of arrays out of the process' memory; they stay on disk, and in the page cache while it lasts."""
        self._advise(parts, mmap.MADV_DONTNEED)

    def _advise(self, parts: Iterable[np.ndarray], advice: int) -> None:
        for part in parts:
            for start, pages in self._maps:
                first = part.ctypes.data - start
                if part.nbytes and 0 <= first < len(pages):
                    page = first - first % mmap.PAGESIZE
                    pages.madvise(advice, page, first + part.nbytes - page)
