"""Stores of decoded rows for a GPU: in device memory, or in pinned host memory and prefetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch

from models.embedding.reading.chunks import Batch, ChunkSize
from models.embedding.reading.device_chunks import DeviceChunk, RowOrder

Residence = Literal["device", "host", "files"]
_DEVICE_SHARE: Final = 0.5
"""Share of the device memory beside the embeddings for rows; the rest is for two pools, activations and gradients."""


def row_residence(row_bytes: int, device_free: int, model_bytes: int, host_budget: int) -> Residence:
    """Return where decoded rows are kept between epochs.

    Args:
        row_bytes: Bytes of all rows.
        device_free: Free bytes of device memory.
        model_bytes: Bytes of device memory that the model will take.
        host_budget: Bytes of host memory for rows.

    >>> [row_residence(rows, 80, 20, 100) for rows in (30, 31, 101)]
    ['device', 'host', 'files']
    """
    if row_bytes <= _DEVICE_SHARE * (device_free - model_bytes):
        return "device"
    return "host" if row_bytes <= host_budget else "files"


class SideStream:
    """A CUDA stream beside the computing one; on the CPU, work is executed at once."""

    def __init__(self, device: str) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device == "cuda":
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call] # torch does not annotate it

    def run(self, work: Callable[[], DevicePool]) -> DevicePool:
        """Return the pool that a function creates on this stream, with the event of its completion."""
        if self._stream is None:
            return work()
        self._stream.wait_stream(torch.cuda.default_stream())  # cuDF decodes files there
        with torch.cuda.stream(self._stream):
            pool = work()
            pool.ready = self._stream.record_event()
        return pool

    def keep_until_read(self, chunk: DeviceChunk) -> None:
        """Keep the memory of a chunk of another stream until this stream has read it."""
        _record_use(self._stream, chunk.tensors)


class DevicePool:
    """Rows on a device, some of which may still be in transfer."""

    def __init__(self, rows: DeviceChunk, order: RowOrder) -> None:
        self._rows = rows
        self._order = order
        self.ready: torch.cuda.Event | None = None
        """Event after all rows have arrived; None: they have."""

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self._order.host)

    def batch(self, first: int, last: int) -> Batch:
        """Return a range of the rows; the device waits for them, not the caller."""
        if self.ready is not None:
            computing = torch.cuda.current_stream()
            computing.wait_event(self.ready)
            _record_use(computing, (*self._rows.tensors, self._order.device))
            self.ready = None
        return self._rows.reordered(self._order.part(first, last)).batch()


class DeviceStore:
    """Decodes the files of a table, only once where their rows fit on the device or in pinned host memory."""

    def __init__(
        self, decode: Callable[[Path], DeviceChunk], sizes: Mapping[Path, ChunkSize], device: str, residence: Residence
    ) -> None:
        """Create the store; files are decoded when they are read.

        Args:
            decode: Returns the rows of a file, on the device or on the host.
            sizes: Size of every file.
            device: "cuda"; or "cpu", which gives the same rows without a GPU.
            residence: Where decoded rows are kept; "files": they are decoded again in every epoch.
        """
        self._decode = decode
        self._sizes = sizes
        self._device = device
        self._residence = residence
        self._resident_chunks: dict[Path, DeviceChunk] = {}
        self._stream = SideStream(device)

    def rows(self, path: Path) -> int:
        """Return the rows of a file."""
        return self._sizes[path].rows

    def chunk(self, path: Path) -> DeviceChunk:
        """Return the rows of a file, on the device or on the host."""
        if path in self._resident_chunks:
            return self._resident_chunks[path]
        chunk = self._decode(path)
        if self._residence == "device":
            chunk = self._resident_chunks[path] = chunk.moved(self._device)
        elif self._residence == "host":
            chunk = self._resident_chunks[path] = chunk.pinned() if self._device == "cuda" else chunk
        return chunk

    def iter_dense(self, paths: list[Path]) -> Iterator[np.ndarray]:
        """Yield the dense floats of several files on the host, file by file."""
        return (self.chunk(path).dense.cpu().numpy() for path in paths)

    def row_numbers(self, paths: list[Path]) -> np.ndarray:
        """Return the row numbers of several files when their chunks are concatenated."""
        return np.arange(sum(map(self.rows, paths)))

    def pool(self, decoders: ThreadPoolExecutor, paths: list[Path], order: np.ndarray) -> DevicePool:
        """Return the rows of several files in the order of `ChunkStore`; they may still be in transfer."""
        # One after the other: decoding one file occupies the whole GPU; the host decodes only in the first epoch.
        chunks = list(map(self.chunk, paths))
        return self._fetch_pool(chunks, order)

    def file(self, path: Path) -> DevicePool:
        """Return the rows of a file, as they are."""
        return self._fetch_pool([self.chunk(path)], np.arange(self.rows(path)))

    def release(self, pool: DevicePool) -> None:
        """Do nothing: torch frees a pool's memory when the device has read it."""

    def _fetch_pool(self, chunks: list[DeviceChunk], order: np.ndarray) -> DevicePool:
        def fetch() -> DevicePool:
            moved = [chunk.moved(self._device) for chunk in chunks]
            for chunk in moved:
                self._stream.keep_until_read(chunk)
            return DevicePool(DeviceChunk.concatenate(moved), RowOrder.on_device(order, self._device))

        return self._stream.run(fetch)


def _record_use(stream: torch.cuda.Stream | None, tensors: Any) -> None:
    for tensor in tensors if stream is not None else ():
        tensor.record_stream(stream)


def on_default_stream(device: str) -> Any:
    """Return the context of the default stream, on which cuDF works and reuses memory."""
    return torch.cuda.stream(torch.cuda.default_stream()) if device == "cuda" else nullcontext()
