"""Memory-mapped files for decoded rows beyond the memory budget, so that they are not decoded again."""

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

_RESERVED_BYTES: Final = 2**30
"""Bytes of the disk that are left free."""


class Spill:
    """A folder of memory-mapped arrays; it is deleted with this object, or at exit.

    Rows are copied from the system's page cache straight into a batch. The cache keeps pages while memory is free; the
    process itself holds only the pages in use.
    """

    def __init__(self) -> None:
        self._folder = Path(mkdtemp(prefix="shortlist-rows-"))
        self._numbers = count()
        self._maps: list[tuple[int, mmap.mmap]] = []
        finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def has_room(self, size: int) -> bool:
        """Return whether a number of bytes fits on the disk beside the reserve."""
        return shutil.disk_usage(self._folder).free >= size + _RESERVED_BYTES

    def empty(self, shape: tuple[int, ...], kind: type[np.generic]) -> np.ndarray:
        """Return an uninitialised array on disk, as `np.empty`.

        Raises:
            OSError: The disk is full. Space is allocated here, as writing a page without space would kill the process.
        """
        size = max(1, int(np.prod(shape)) * np.dtype(kind).itemsize)
        with (self._folder / str(next(self._numbers))).open("w+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            pages = mmap.mmap(file.fileno(), size)
        array = np.frombuffer(pages, kind, count=int(np.prod(shape))).reshape(shape)
        self._maps.append((np.frombuffer(pages, np.uint8).ctypes.data, pages))
        return array

    def prefetch_pages(self, parts: Iterable[np.ndarray]) -> None:
        """Let the system read parts of arrays ahead in order; a shuffle would read page by page."""
        self._advise(parts, mmap.MADV_WILLNEED)

    def release(self, parts: Iterable[np.ndarray]) -> None:
        """Release parts of arrays from the process' memory; they stay on disk, and perhaps in the page cache."""
        self._advise(parts, mmap.MADV_DONTNEED)

    def _advise(self, parts: Iterable[np.ndarray], advice: int) -> None:
        for part in parts:
            for start, pages in self._maps:
                first = part.ctypes.data - start
                if part.nbytes and 0 <= first < len(pages):
                    page = first - first % mmap.PAGESIZE
                    pages.madvise(advice, page, first + part.nbytes - page)
