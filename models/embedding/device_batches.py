"""Keeps decoded rows where a GPU has them at once, or fetches them while it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch

from models.embedding.chunks import Batch, Size
from models.embedding.device_chunks import DeviceChunk, RowOrder

Residence = Literal["device", "host", "files"]
_DEVICE_SHARE: Final = 0.5
"""Of the device memory that the embeddings leave free; the rest is for two pools, activations and gradients."""


def row_residence(rows: int, device_free: int, beside: int, host_budget: int) -> Residence:
    """Return where decoded rows stay between epochs.

    Args:
        rows: Bytes of all rows.
        device_free: Bytes of device memory that are free.
        beside: Bytes that the model takes of them.
        host_budget: Bytes of host memory for rows.

    >>> [row_residence(rows, 80, 20, 100) for rows in (30, 31, 101)]
    ['device', 'host', 'files']
    """
    if rows <= _DEVICE_SHARE * (device_free - beside):
        return "device"
    return "host" if rows <= host_budget else "files"


class SideStream:
    """A CUDA stream beside the one that computes; on the CPU, nothing: work is done when it was called."""

    def __init__(self, device: str) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device == "cuda":
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call] # torch does not annotate it

    def queued(self, work: Callable[[], DevicePool]) -> DevicePool:
        """Return what work makes on this stream, with the event that says when it is there."""
        if self._stream is None:
            return work()
        self._stream.wait_stream(torch.cuda.default_stream())  # files are decoded there, by cuDF
        with torch.cuda.stream(self._stream):
            pool = work()
            pool.ready = self._stream.record_event()
        return pool

    def uses(self, chunk: DeviceChunk) -> None:
        """Keep the memory of a chunk that another stream made until this one has read it."""
        _used_by(self._stream, chunk.tensors)


class DevicePool:
    """Rows on a device, some of which may still be on their way."""

    def __init__(self, rows: DeviceChunk, order: RowOrder) -> None:
        self._rows = rows
        self._order = order
        self.ready: torch.cuda.Event | None = None
        """Happens when all rows are there; None: they are."""

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self._order.host)

    def batch(self, first: int, last: int) -> Batch:
        """Return a part of the rows; it is the device that waits for them, not the caller."""
        if self.ready is not None:
            computing = torch.cuda.current_stream()
            computing.wait_event(self.ready)
            _used_by(computing, (*self._rows.tensors, self._order.device))
            self.ready = None
        return self._rows.taken(self._order.part(first, last)).batch()


class DeviceStore:
    """Decodes the files of a table, once where their rows fit on the device or in pinned host memory."""

    def __init__(
        self, decode: Callable[[Path], DeviceChunk], sizes: Mapping[Path, Size], device: str, where: Residence
    ) -> None:
        """Decode nothing yet.

        Args:
            decode: Returns the rows of a file, on the device or on the host.
            sizes: Of the files.
            device: "cuda"; or "cpu", where all is the same but the speed.
            where: Decoded rows stay; "files": they are decoded again in every epoch.
        """
        self._decode = decode
        self._sizes = sizes
        self._device = device
        self._where = where
        self._kept: dict[Path, DeviceChunk] = {}
        self._stream = SideStream(device)

    def rows(self, path: Path) -> int:
        """Return the rows of a file."""
        return self._sizes[path].rows

    def chunk(self, path: Path) -> DeviceChunk:
        """Return the rows of a file, where they are."""
        if path in self._kept:
            return self._kept[path]
        chunk = self._decode(path)
        if self._where == "device":
            chunk = self._kept[path] = chunk.moved(self._device)
        elif self._where == "host":
            chunk = self._kept[path] = chunk.pinned() if self._device == "cuda" else chunk
        return chunk

    def dense(self, paths: list[Path]) -> Iterator[np.ndarray]:
        """Give the dense floats of several files to the host, file by file."""
        return (self.chunk(path).dense.cpu().numpy() for path in paths)

    def places(self, paths: list[Path]) -> np.ndarray:
        """Return where the rows of several files are when their chunks are joined."""
        return np.arange(sum(map(self.rows, paths)))

    def pool(self, decoders: ThreadPoolExecutor, paths: list[Path], order: np.ndarray) -> DevicePool:
        """Return the rows of several files, in the order that `ChunkStore` gives them; they may be on their way."""
        # One after the other: a GPU decodes with all of itself, and the host does so in the first epoch only.
        chunks = list(map(self.chunk, paths))
        return self._fetched(chunks, order)

    def file(self, path: Path) -> DevicePool:
        """Return the rows of a file, as they are."""
        return self._fetched([self.chunk(path)], np.arange(self.rows(path)))

    def leave(self, pool: DevicePool) -> None:
        """Do nothing: a pool's memory is free for the next when the device is done with it."""

    def _fetched(self, chunks: list[DeviceChunk], order: np.ndarray) -> DevicePool:
        def fetch() -> DevicePool:
            moved = [chunk.moved(self._device) for chunk in chunks]
            for chunk in moved:
                self._stream.uses(chunk)
            return DevicePool(DeviceChunk.joined(moved), RowOrder.of(order, self._device))

        return self._stream.queued(fetch)


def _used_by(stream: torch.cuda.Stream | None, tensors: Any) -> None:
    for tensor in tensors if stream is not None else ():
        tensor.record_stream(stream)


def on_default_stream(device: str) -> Any:
    """Return the context of the stream that cuDF works on, whose memory is then reused in its order."""
    return torch.cuda.stream(torch.cuda.default_stream()) if device == "cuda" else nullcontext()
