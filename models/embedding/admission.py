"""Which buckets of hashed features learn: those seen often enough, until they are not seen for long.

Letters as in `models.dlrm.network`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.embedding.cached_embeddings import CachedTable
from models.embedding.chunks import Lookups
from models.embedding.fused_table import FusedTable
from models.embedding.layout import Layout
from models.hash_collisions import HashCollisions
from models.inputs import FeatureColumn, LearningTable
from models.record import read_record

_FILE: Final = "admission.safetensors"


class Admission:
    """Counts the look-ups of every row on the training days, and says whose rows may learn.

    A row of a feature with `admit_after` is zero and stays so until the training days, up to the running batch, looked
    it up so many times: an id that is too rare adds nothing, here and in the exported graph, which need not know
    of it. Every row of the training days counts once, however many the epochs: the first pass counts, later ones know.

    Counts are kept where the batches are. Nothing in `admitted` waits for a device.
    """

    def __init__(self, layout: Layout, rows: int, last_day: date) -> None:
        """Start to count.

        Args:
            layout: The features.
            rows: Of the training days.
            last_day: The last training day; everything that is looked up counts as seen on it.
        """
        self._layout = layout
        self._left = rows
        self._day = last_day.toordinal()
        self._counts_R = torch.zeros(layout.rows, dtype=torch.int32)
        self._before: dict[str, Tensor] = {}
        self._needed_R = self._needed()

    @torch.no_grad()
    def start(self, table: FusedTable) -> None:
        """Set the rows that are not admitted yet to zero.

        Args:
            table: Freshly drawn, whole, in host memory.
        """
        for feature, start in self._tables():
            if feature.admit_after > 1:
                table.weight_RD[start : start + (feature.size or 0)] = 0.0

    @torch.no_grad()
    def go_on(self, table: FusedTable, earlier: Path) -> None:
        """Go on from what an earlier model counted; set rows that were not looked up for long to zero.

        Args:
            table: With the rows of the earlier model, whole, in host memory.
            earlier: Its folder. What it did not count is taken from its accumulators: a row that learnt is admitted,
                and was seen on its last training day.
        """
        saved = load_file(earlier / _FILE) if (earlier / _FILE).exists() else {}
        seen = date.fromisoformat(read_record(earlier).train_days[-1]).toordinal()
        for feature, start in self._tables():
            rows = slice(start, start + (feature.size or 0))
            learnt = (table.squares_R[rows] > 0).int()
            counts = saved.get(_counts_of(feature), learnt * feature.admit_after)
            last_seen = saved.get(_last_seen_of(feature), learnt * seen)
            if feature.evict_after_days is not None:
                stale = self._day - last_seen > feature.evict_after_days
                table.weight_RD[rows][stale] = 0.0
                table.squares_R[rows][stale] = 0.0
                counts, last_seen = counts.masked_fill(stale, 0), last_seen.masked_fill(stale, 0)
            self._before |= {_counts_of(feature): counts.int(), _last_seen_of(feature): last_seen.int()}
        self._needed_R = self._needed()

    @torch.no_grad()
    def admitted(self, lookups: Lookups) -> Tensor | None:
        """Count a batch; return for every look-up whether its row may move, bool (L,).

        Args:
            lookups: By rows of the whole table, as the loader gives them.

        Returns:
            None when no feature declares `admit_after`: all may.
        """
        rows_L = lookups.rows_L
        self._follow(rows_L.device)
        if self._left > 0:
            self._left -= (len(lookups.starts) - 1) // len(self._layout.tables)
            self._counts_R.index_add_(0, rows_L, self._counts_R.new_ones(1).expand(len(rows_L)))
        if self._needed_R is None:
            return None
        return self._counts_R.index_select(0, rows_L) >= self._needed_R.index_select(0, rows_L)

    def hash_collisions(self) -> dict[str, HashCollisions]:
        """Return how full the buckets of every hashed feature are, by what was counted so far."""
        self._follow(torch.device("cpu"))
        found = {}
        for feature, start in self._tables():
            buckets = slice(start + 1, start + (feature.size or 0))  # the first is null's
            counts = self._counts_R[buckets]
            needed = 0 if self._needed_R is None else self._needed_R[buckets]
            admitted = int(((counts > 0) & (counts >= needed)).sum())
            found[feature.name] = HashCollisions.of(len(counts), int((counts > 0).sum()), admitted)
        return found

    def save(self, folder: Path) -> None:
        """Write counts and days beside the weights, where a feature declares something of them."""
        self._follow(torch.device("cpu"))
        tensors = {}
        for feature, start in self._tables():
            if feature.admit_after > 1 or feature.evict_after_days is not None:
                counts = self._counts_R[start : start + (feature.size or 0)]
                before, last_seen = (self._known(feature, key) for key in (_counts_of(feature), _last_seen_of(feature)))
                tensors[_counts_of(feature)] = counts + before
                tensors[_last_seen_of(feature)] = torch.where(counts > 0, self._day, last_seen).int()
        if tensors:
            save_file(tensors, folder / _FILE)

    def state(self) -> dict[str, Tensor]:
        """Return what a training has to remember to go on from a checkpoint, by name."""
        return {"left": torch.tensor(self._left), "counts_R": self._counts_R}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        self._left = int(state["left"])
        self._counts_R.copy_(state["counts_R"])

    def _needed(self) -> Tensor | None:
        """Return the look-ups that every row still needs; None when none needs any."""
        if all(feature.admit_after == 1 for feature, _ in self._tables()):
            return None
        needed_R = torch.zeros(self._layout.rows, dtype=torch.int32)
        for feature, start in self._tables():
            if feature.admit_after > 1:
                missing = feature.admit_after - self._known(feature, _counts_of(feature))
                needed_R[start + 1 : start + (feature.size or 0)] = missing[1:]
        return needed_R

    def _known(self, feature: FeatureColumn, key: str) -> Tensor:
        return self._before.get(key, torch.zeros(feature.size or 0, dtype=torch.int32))

    def _tables(self) -> Iterator[tuple[FeatureColumn, int]]:
        """Give every hashed feature and its first row."""
        for feature, start in zip(self._layout.tables, self._layout.starts, strict=True):
            if feature.hashed:
                yield feature, start

    def _follow(self, device: torch.device) -> None:
        if self._counts_R.device != device:
            self._counts_R = self._counts_R.to(device)
            self._needed_R = None if self._needed_R is None else self._needed_R.to(device)


def begun(layout: Layout, learning: LearningTable, table: FusedTable, earlier: Path | None) -> Admission | None:
    """Return the admission of a training that begins; None when no feature is hashed.

    Args:
        layout: The features.
        learning: The days to learn.
        table: Freshly drawn, or with the rows of the earlier model; in host memory, and changed there.
        earlier: Folder of the model to go on from; None: there is none.
    """
    if not any(feature.hashed for feature in layout.tables):
        return None
    admission = Admission(layout, learning.rows("train"), learning.split.train[-1])
    whole = table.whole if isinstance(table, CachedTable) else table
    if earlier is None:
        admission.start(whole)
    else:
        admission.go_on(whole, earlier)
    return admission


def _counts_of(feature: FeatureColumn) -> str:
    return f"{feature.name}.counts"


def _last_seen_of(feature: FeatureColumn) -> str:
    return f"{feature.name}.last_seen"
