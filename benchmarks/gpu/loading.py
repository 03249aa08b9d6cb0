"""Rows per second that reach the device in shuffled batches, by where decoded rows stay between epochs.

Every store gives the very batches of the host's, in the same order: that is checked first. The bound is the copy of as
many bytes from pinned memory to the device, in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from benchmarks.bench import Line
from benchmarks.gpu.published import published
from benchmarks.gpu.setting import Findings, Setting
from benchmarks.gpu.timing import ROUNDS, seconds, wall_s
from benchmarks.gpu.world import SEED, World
from models.embedding.reading.batches import BatchLoader, ChunkStore, pool_rows
from models.embedding.reading.chunks import Batch
from models.embedding.reading.device_batches import DeviceStore
from models.embedding.reading.device_chunks import DeviceChunk
from models.embedding.reading.file_offsets import read_chunk_size
from models.embedding.reading.loading import cudf_decoder, host_decoder
from models.embedding.reading.pools import DecodedStore

TITLE: Final = "Rows to the device, in shuffled batches"
_PEER: Final = "host decodes once, pageable copies"
_BUDGET: Final = 2**34


def run(setting: Setting) -> Findings:
    """Check and time every store."""
    findings = Findings(setting)
    configuration = published(setting)
    batch = configuration.section.batch_size
    with findings.attempt("loading"), World(setting, configuration, setting.pick(48, 6) * batch, batch) as world:
        bound = _bound(world, setting)
        peer = _loader(world, ChunkStore(world.learning, world.layout, _BUDGET))
        expected_batches = [batch.to("cpu") for batch in peer.shuffled(1)]
        reached = _rate(peer, setting)
        findings.lines.append(_line(_PEER, reached, reached, bound))
        for name, store in _stores(findings, world):
            if findings.out_of_time(name):
                continue
            with findings.attempt(name):
                loader = _loader(world, store())
                different = _difference(expected_batches, loader.shuffled(1))
                findings.expect(
                    f"{name}: the host's batches", not different, different or f"{len(expected_batches)} equal"
                )
                findings.lines.append(_line(name, _rate(loader, setting), reached, bound))
    return findings


def _stores(findings: Findings, world: World) -> Iterator[tuple[str, Callable[[], DecodedStore[Any]]]]:
    device, learning, layout = findings.setting.device, world.learning, world.layout
    sizes = {path: read_chunk_size(path, layout) for path in learning.paths("train", "validation")}

    def store(decode: Callable[[Path], DeviceChunk], chunk_device: Any) -> Callable[[], DecodedStore[Any]]:
        return lambda: DeviceStore(decode, sizes, device, chunk_device)

    host = host_decoder(learning, layout)
    yield "rows stay on the device", store(host, "device")
    yield "rows stay in pinned host memory", store(host, "host")
    yield "the host decodes in every epoch", store(host, "files")
    name = "cuDF decodes in every epoch"
    if findings.needs_cuda(name):
        return
    if find_spec("cudf") is None:
        findings.notes.append(f"{name}: not run, the package cudf is not installed")
        return
    yield name, store(cudf_decoder(learning, layout, device), "files")
    yield "cuDF decodes, rows stay on the device", store(cudf_decoder(learning, layout, device), "device")


def _loader(world: World, store: DecodedStore[Any]) -> BatchLoader:
    pool = pool_rows(world.layout, world.chunk_rows)
    return BatchLoader(store, world.learning.paths("train"), world.configuration.section.batch_size, pool, SEED)


def _rate(loader: BatchLoader, setting: Setting) -> float:
    """Return the rows per second of an epoch after the first, in which files are decoded."""

    def epoch() -> None:
        for batch in loader.shuffled(2):
            batch.to(setting.device)

    epoch()
    return loader.rows / median(wall_s(epoch, setting) for _ in range(setting.pick(ROUNDS, 1)))


def _difference(expected_batches: list[Batch], batches: Iterator[Batch]) -> str:
    """Return in which batch the first difference is; empty: there is none."""
    batch_count = 0
    for number, (expected, loaded) in enumerate(zip(expected_batches, batches, strict=False)):
        batch_count = number + 1
        moved = loaded.to("cpu")
        same = torch.equal(expected.labels_B, moved.labels_B) and torch.equal(
            expected.lookups.rows_L, moved.lookups.rows_L
        )
        if not (same and torch.equal(expected.dense_BF.nan_to_num(-9.0), moved.dense_BF.nan_to_num(-9.0))):
            return f"batch {number} differs"
    return "" if batch_count == len(expected_batches) else f"{batch_count} of {len(expected_batches)} batches"


def _bound(world: World, setting: Setting) -> float:
    """Return the rows per second of one long copy from pinned memory."""
    floats = 1 + world.layout.floats + len(world.layout.singles)
    rows = setting.pick(2**22, 2**10)
    host = torch.randn(rows, floats, pin_memory=setting.on_gpu)
    device_tensor = torch.empty_like(host, device=setting.device, pin_memory=False)
    return rows / seconds(lambda: device_tensor.copy_(host, non_blocking=True), setting)


def _line(name: str, rate: float, peer: float, bound: float) -> Line:
    return Line("loading", name, round(rate), "rows/s", _PEER, round(rate / peer, 3), round(rate / bound, 3))
