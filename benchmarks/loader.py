"""Rows per second from a feature table to shuffled torch batches: ours, and what others do.

The table is the generated Criteo log: 13 floats, 26 ids, a label. Every loader gives an epoch of all rows in batches.
It is checked first that every row comes once, and that ours has one order per epoch and seed wherever rows are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import polars as pl
import torch
from rich.console import Console

from benchmarks.bench import Line, in_turn, peak_mib, record, show
from benchmarks.criteo_table import CHUNK_ROWS, write_table
from benchmarks.targets import exit_code
from models.embedding.reading.batches import BatchLoader, ChunkStore, pool_rows
from models.embedding.reading.chunks import Chunk
from models.embedding.reading.layout import Layout
from models.embedding.reading.spill import Spill
from shortlist.contracts import Files
from shortlist.ranking.inputs import LearningTable, features_matching
from shortlist.storage.tables import DayTable

ROWS: Final = 4_000_000
BATCHES: Final = (8_192, 65_536)
SEED: Final = 17
MAP_STYLE_ROWS: Final = 100_000
"""A loader that fetches row by row is timed on so many: all of them would take a minute."""
Give = Callable[[], Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]
"""An epoch: labels, floats and ids of every batch."""


class World:
    """The table, and the loaders over it."""

    def __init__(self, table: DayTable) -> None:
        self.learning = LearningTable(table, features_matching(table, ("*",)))
        self.layout = Layout.from_features(self.learning.features)
        self.rows = self.learning.rows("train")

    def loader(self, batch: int, budget: int, spill: Spill | None, seed: int = SEED) -> BatchLoader:
        """Return ours, with so many bytes of memory for rows."""
        store = ChunkStore(self.learning, self.layout, budget, spill)
        return BatchLoader(store, self.learning.paths("train"), batch, pool_rows(self.layout, CHUNK_ROWS), seed)

    def whole(self) -> Chunk:
        """Return all rows, in memory."""
        return Chunk.decoded(pl.concat(list(self.learning.frames("train"))), self.layout)


def iterate_loader(loader: BatchLoader) -> Give:
    """Give what training gets."""
    return lambda: ((batch.labels_B, batch.dense_BF, batch.lookups.rows_L) for batch in loader.shuffled(1))


def slices(rows: Chunk, batch: int) -> Give:
    """Give copies of neighbouring rows in memory, not shuffled: the bound."""

    def epoch() -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        arrays = [torch.from_numpy(array) for array in (rows.labels, rows.dense, rows.singles)]
        for first in range(0, rows.rows, batch):
            labels, dense, ids = (array[first : first + batch].clone() for array in arrays)
            yield labels, dense, ids

    return epoch


def plain_parquet(world: World, batch: int) -> Give:
    """Give the batches of one file after the other, shuffled by numpy: what one writes first."""

    def epoch() -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        random = np.random.default_rng(SEED)
        names = [[feature.name for feature in side] for side in (world.layout.dense, world.layout.singles)]
        starts = np.array(world.layout.starts[: len(names[1])], np.int32)
        paths = world.learning.paths("train")
        for place in random.permutation(len(paths)):
            frame = world.learning.read(paths[place])
            order = random.permutation(frame.height)
            labels = frame["label"].to_numpy().astype(np.float32)[order]
            dense = frame.select(names[0]).to_numpy().astype(np.float32)[order]
            ids = (frame.select(names[1]).to_numpy().astype(np.int32) + starts)[order]
            edges = [*range(0, frame.height, batch), frame.height]
            for first, last in pairwise(edges):
                yield tuple(torch.from_numpy(array[first:last]) for array in (labels, dense, ids))

    return epoch


class Rows(torch.utils.data.Dataset[tuple[float, np.ndarray, np.ndarray]]):
    """Rows by number, as torch's guide has it."""

    def __init__(self, rows: Chunk, count: int) -> None:
        self._rows, self._count = rows, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> tuple[float, np.ndarray, np.ndarray]:
        return float(self._rows.labels[row]), self._rows.dense[row], self._rows.singles[row]


def map_style(rows: Chunk, batch: int) -> Give:
    """Give what torch's own DataLoader makes of rows in memory."""
    torch_loader = torch.utils.data.DataLoader(Rows(rows, MAP_STYLE_ROWS), batch_size=batch, shuffle=True)
    return lambda: ((labels, dense, ids) for labels, dense, ids in torch_loader)


def check(world: World, rows: Chunk) -> None:
    """Hold ours to every row once, in an order that is its epoch's and seed's."""
    expected = _fingerprint(torch.from_numpy(rows.labels), torch.from_numpy(rows.dense), torch.from_numpy(rows.singles))
    spilled = world.loader(BATCHES[0], 0, Spill())
    for name, give in {
        "ours from disk": iterate_loader(spilled),
        "ours from disk, mapped": iterate_loader(spilled),
        "ours from Parquet": iterate_loader(world.loader(BATCHES[0], 0, None)),
        "plain Parquet": plain_parquet(world, BATCHES[0]),
    }.items():
        fingerprint = sum(_fingerprint(*batch) for batch in give())
        assert abs(fingerprint / expected - 1) < 1e-9, f"{name}: not every row came once"
    first, first_repeated, second = (
        next(loader.shuffled(epoch)).lookups.rows_L
        for loader, epoch in ((spilled, 1), (world.loader(BATCHES[0], 0, None), 1), (spilled, 2))
    )
    assert torch.equal(first, first_repeated), "the order depends on where rows are kept"
    assert not torch.equal(first, second), "two epochs have one order"


def _fingerprint(labels: torch.Tensor, dense: torch.Tensor, ids: torch.Tensor) -> float:
    """Return a number that changes when values move to another row, and not when whole rows move."""
    ids_BS = ids.view(len(labels), -1).double()
    floats = dense.nan_to_num(nan=-1).double()
    weights = torch.arange(1, 1 + ids_BS.shape[1], dtype=torch.float64).sqrt()
    row_B = (ids_BS.sqrt() @ weights) * (1 + floats @ torch.arange(1.0, 1 + floats.shape[1], dtype=torch.float64))
    return float((row_B * (2 + labels)).sum())


def count_rows(give: Give) -> Callable[[], int]:
    """Return the work that is timed."""
    return lambda: sum(len(labels) for labels, _, _ in give())


def spilled_epochs(folder: str) -> None:
    """Load two epochs from disk, the first from Parquet: what a process of its own is measured on."""
    world = World(DayTable.open(Path(folder), Files.TABLE))
    loader = world.loader(BATCHES[0], 0, Spill())
    for epoch in (1, 2):
        assert sum(batch.rows for batch in loader.shuffled(epoch)) == world.rows


def opened(folder: str) -> None:
    """Open the table and look at one batch of the smallest kind: what every process needs."""
    world = World(DayTable.open(Path(folder), Files.TABLE))
    batch = Chunk.decoded(world.learning.read(world.learning.paths("train")[0]).head(1), world.layout).batch(0, 1)
    assert batch.rows == 1


def measure(world: World, rows: Chunk, batch: int) -> list[Line]:
    """Time all loaders in turn."""
    disk = world.loader(batch, 0, Spill())
    works = {
        "slices, in order": count_rows(slices(rows, batch)),
        "disk": count_rows(iterate_loader(disk)),
        "Parquet": count_rows(iterate_loader(world.loader(batch, 0, None))),
        "plain": count_rows(plain_parquet(world, batch)),
        "map-style": count_rows(map_style(rows, batch)),
    }
    for name, work in works.items():  # warm-up; ours writes its rows to disk here
        assert work() == (MAP_STYLE_ROWS if "map-style" in name else world.rows)
    costs = in_turn(works)
    counts = {name: MAP_STYLE_ROWS if "map-style" in name else world.rows for name in works}
    rates = {name: counts[name] / cost.wall_s / 1e6 for name, cost in costs.items()}
    peer, bound = rates["plain"], rates["slices, in order"]
    return [
        Line("loader", f"{name}, {batch}", round(rate, 3), "M rows/s", "plain",
             round(rate / peer, 3), round(rate / bound, 3))
        for name, rate in rates.items()
    ]  # fmt: skip


def main() -> int:
    """Print the table and write the results; exit code 1 when ours is below what it must reach."""
    with TemporaryDirectory() as scratch, Console().status("writing the table") as status:
        folder = Path(scratch) / "table"
        world = World(write_table(folder, ROWS, CHUNK_ROWS))
        rows = world.whole()
        status.update("checking that every row comes once")
        check(world, rows)
        lines = []
        for batch in BATCHES:
            status.update(f"batches of {batch:,}")
            lines += measure(world, rows, batch)
        status.update("memory")
        # What a process has that only opens the table is Python, torch and their libraries.
        added = peak_mib(spilled_epochs, str(folder)) - peak_mib(opened, str(folder))
        whole = rows.bytes / 2**20
        lines.append(Line("loader", "disk, memory", round(added, 1), "MiB", "all rows", round(added / whole, 3)))
    show(f"Loader, {ROWS:,} rows of 160 bytes, shuffled, to torch; names end with the rows of a batch", lines)
    Console().print("plain: Parquet by Polars, shuffled file by file by numpy; map-style: torch's own DataLoader")
    if find_spec("merlin") is None:
        Console().print("merlin-dataloader is not installed: no line of it")
    record(lines)
    return exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
