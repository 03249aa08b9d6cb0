"""Offsets of files in a chunk that holds the rows of many files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow.parquet as pq

from models.embedding.reading.chunks import ChunkSize
from models.embedding.reading.layout import Layout


def read_chunk_size(path: Path, layout: Layout) -> ChunkSize:
    """Return the number of rows of a file and an upper bound of the ids in its lists, from its metadata."""
    metadata = pq.read_metadata(path)
    counts = dict.fromkeys((feature.name for feature in layout.lists), 0)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns if counts else 0)):
            name = column.path_in_schema.removesuffix(".list.element")
            if name in counts:
                counts[name] += column.num_values  # an empty or null list counts, too
    return ChunkSize(metadata.num_rows, tuple(counts.values()))


class FileOffsets:
    """The offsets of files, one after the other."""

    def __init__(self, paths: Iterable[Path], sizes: Mapping[Path, ChunkSize]) -> None:
        """Compute the offsets of files in the order of `paths`."""
        self._starts: dict[Path, ChunkSize] = {}
        self._sizes = sizes
        total: ChunkSize | None = None
        for path in paths:
            size = sizes[path]
            start = ChunkSize(0, (0,) * len(size.values)) if total is None else total
            self._starts[path] = start
            total = ChunkSize(
                start.rows + size.rows, tuple(a + b for a, b in zip(start.values, size.values, strict=True))
            )
        self.total = total or ChunkSize(0, ())

    def __contains__(self, path: Path) -> bool:
        return path in self._starts

    def start(self, path: Path) -> ChunkSize:
        """Return the number of rows, and of ids in lists, before a file."""
        return self._starts[path]

    def rows(self, path: Path) -> tuple[int, int]:
        """Return the first row of a file, and the row after its last."""
        first = self._starts[path].rows
        return first, first + self._sizes[path].rows
