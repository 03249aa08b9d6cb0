"""Where the rows of every file lie, when those of many files lie in one chunk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow.parquet as pq

from models.embedding.chunks import Size
from models.embedding.layout import Layout


def size_of(path: Path, layout: Layout) -> Size:
    """Return the rows of a file, and at most how many ids its lists hold, without reading them."""
    metadata = pq.read_metadata(path)
    counts = dict.fromkeys((feature.name for feature in layout.lists), 0)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns if counts else 0)):
            name = column.path_in_schema.removesuffix(".list.element")
            if name in counts:
                counts[name] += column.num_values  # an empty or null list counts, too
    return Size(metadata.num_rows, tuple(counts.values()))


class FileOffsets:
    """The places of some files, one after the other."""

    def __init__(self, paths: Iterable[Path], sizes: Mapping[Path, Size]) -> None:
        """Lay out the files of some sizes, in the order of `paths`."""
        self._starts: dict[Path, Size] = {}
        self._sizes = sizes
        total: Size | None = None
        for path in paths:
            own = sizes[path]
            start = Size(0, (0,) * len(own.values)) if total is None else total
            self._starts[path] = start
            total = Size(start.rows + own.rows, tuple(a + b for a, b in zip(start.values, own.values, strict=True)))
        self.total = total or Size(0, ())

    def __contains__(self, path: Path) -> bool:
        return path in self._starts

    def start(self, path: Path) -> Size:
        """Return how many rows, and ids of lists, come before a file's."""
        return self._starts[path]

    def rows(self, path: Path) -> tuple[int, int]:
        """Return the first row of a file, and the row after its last."""
        first = self._starts[path].rows
        return first, first + self._sizes[path].rows
