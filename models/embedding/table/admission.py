"""Admission of hash buckets to training: only buckets that are looked up often enough, and recently, learn.

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

from models.embedding.reading.chunks import Lookups
from models.embedding.reading.layout import Layout
from models.embedding.table.cached_embeddings import CachedTable
from models.embedding.table.fused_table import FusedTable
from shortlist.ranking.hash_collisions import HashCollisions
from shortlist.ranking.inputs import LearningTable, TableFeature
from shortlist.ranking.record import read_record

_FILE: Final = "admission.safetensors"


class BucketAdmission:
    """Counts the look-ups of every embedding row on the training days; rows may learn from `admit_after` look-ups on.

    A row of a feature with `admit_after` is zero until it was looked up so many times on the training days, up to the
    current batch: a rare id adds nothing, in training and in the exported graph. Every row of the training days counts
    once, in the first epoch.

    Counts are kept on the device of the batches. `count_and_admit` never waits for a device.
    """

    def __init__(self, layout: Layout, rows: int, last_day: date) -> None:
        """Start counting at zero.

        Args:
            layout: The features.
            rows: Number of rows of the training days.
            last_day: The last training day, taken as the day of all look-ups.
        """
        self._layout = layout
        self._rows_left = rows
        self._last_day_ordinal = last_day.toordinal()
        self._counts_R = torch.zeros(layout.rows, dtype=torch.int32)
        self._previous_counts: dict[str, Tensor] = {}
        self._required_R = self._required_lookups()

    @torch.no_grad()
    def zero_rows(self, table: FusedTable) -> None:
        """Set the rows that are not admitted yet to zero.

        Args:
            table: The whole table, freshly drawn, in host memory.
        """
        for feature, start in self._tables():
            if feature.admit_after > 1:
                table.weight_RD[start : start + (feature.size or 0)] = 0.0

    @torch.no_grad()
    def resume_from(self, table: FusedTable, previous_model: Path) -> None:
        """Continue the counts of an earlier model; set rows that were not looked up for long to zero.

        Args:
            table: The whole table with the rows of the earlier model, in host memory.
            previous_model: Folder of the earlier model. Counts that it lacks follow from its accumulators: a row that
                learnt is admitted, and was seen on the last training day.
        """
        saved = load_file(previous_model / _FILE) if (previous_model / _FILE).exists() else {}
        last_train_day = date.fromisoformat(read_record(previous_model).train_days[-1]).toordinal()
        for feature, start in self._tables():
            rows = slice(start, start + (feature.size or 0))
            learnt = (table.squares_R[rows] > 0).int()
            counts = saved.get(_counts_key(feature), learnt * feature.admit_after)
            last_seen = saved.get(_last_seen_key(feature), learnt * last_train_day)
            if feature.evict_after_days is not None:
                stale = self._last_day_ordinal - last_seen > feature.evict_after_days
                table.weight_RD[rows][stale] = 0.0
                table.squares_R[rows][stale] = 0.0
                counts, last_seen = counts.masked_fill(stale, 0), last_seen.masked_fill(stale, 0)
            self._previous_counts |= {_counts_key(feature): counts.int(), _last_seen_key(feature): last_seen.int()}
        self._required_R = self._required_lookups()

    @torch.no_grad()
    def count_and_admit(self, lookups: Lookups) -> Tensor | None:
        """Count a batch; return for every look-up whether its row may be updated, bool (L,).

        Args:
            lookups: Look-ups by rows of the whole table, as the loader gives them.

        Returns:
            None when no feature declares `admit_after`.
        """
        rows_L = lookups.rows_L
        self._move_to(rows_L.device)
        if self._rows_left > 0:
            self._rows_left -= (len(lookups.starts) - 1) // len(self._layout.tables)
            self._counts_R.index_add_(0, rows_L, self._counts_R.new_ones(1).expand(len(rows_L)))
        if self._required_R is None:
            return None
        return self._counts_R.index_select(0, rows_L) >= self._required_R.index_select(0, rows_L)

    def hash_collisions(self) -> dict[str, HashCollisions]:
        """Return the bucket occupancy of every hashed feature, by the counts so far."""
        self._move_to(torch.device("cpu"))
        collisions = {}
        for feature, start in self._tables():
            buckets = slice(start + 1, start + (feature.size or 0))  # the first is null's
            counts = self._counts_R[buckets]
            required = 0 if self._required_R is None else self._required_R[buckets]
            admitted = int(((counts > 0) & (counts >= required)).sum())
            collisions[feature.name] = HashCollisions.from_counts(len(counts), int((counts > 0).sum()), admitted)
        return collisions

    def save(self, folder: Path) -> None:
        """Write counts and days beside the weights, for features that declare admission or eviction."""
        self._move_to(torch.device("cpu"))
        tensors = {}
        for feature, start in self._tables():
            if feature.admit_after > 1 or feature.evict_after_days is not None:
                counts = self._counts_R[start : start + (feature.size or 0)]
                previous_counts, last_seen = (
                    self._previous(feature, key) for key in (_counts_key(feature), _last_seen_key(feature))
                )
                tensors[_counts_key(feature)] = counts + previous_counts
                tensors[_last_seen_key(feature)] = torch.where(counts > 0, self._last_day_ordinal, last_seen).int()
        if tensors:
            save_file(tensors, folder / _FILE)

    def state(self) -> dict[str, Tensor]:
        """Return the state of a checkpoint, by name."""
        return {"left": torch.tensor(self._rows_left), "counts_R": self._counts_R}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._rows_left = int(state["left"])
        self._counts_R.copy_(state["counts_R"])

    def _required_lookups(self) -> Tensor | None:
        """Return the look-ups that every row needs before it learns; None when all rows learn at once."""
        if all(feature.admit_after == 1 for feature, _ in self._tables()):
            return None
        needed_R = torch.zeros(self._layout.rows, dtype=torch.int32)
        for feature, start in self._tables():
            if feature.admit_after > 1:
                missing = feature.admit_after - self._previous(feature, _counts_key(feature))
                needed_R[start + 1 : start + (feature.size or 0)] = missing[1:]
        return needed_R

    def _previous(self, feature: TableFeature, key: str) -> Tensor:
        return self._previous_counts.get(key, torch.zeros(feature.size or 0, dtype=torch.int32))

    def _tables(self) -> Iterator[tuple[TableFeature, int]]:
        """Yield every hashed feature and its first row."""
        for feature, start in zip(self._layout.tables, self._layout.starts, strict=True):
            if feature.hashed:
                yield feature, start

    def _move_to(self, device: torch.device) -> None:
        if self._counts_R.device != device:
            self._counts_R = self._counts_R.to(device)
            self._required_R = None if self._required_R is None else self._required_R.to(device)


def start_admission(
    layout: Layout, learning: LearningTable, table: FusedTable, previous_model: Path | None
) -> BucketAdmission | None:
    """Return the admission at the start of a training; None when no feature is hashed.

    Args:
        layout: The features.
        learning: The days to learn.
        table: The fresh table, or with the rows of the earlier model; in host memory, changed in place.
        previous_model: Folder of the model to go on from; None: there is none.
    """
    if not any(feature.hashed for feature in layout.tables):
        return None
    admission = BucketAdmission(layout, learning.rows("train"), learning.split.train[-1])
    whole = table.whole if isinstance(table, CachedTable) else table
    if previous_model is None:
        admission.zero_rows(whole)
    else:
        admission.resume_from(whole, previous_model)
    return admission


def _counts_key(feature: TableFeature) -> str:
    return f"{feature.name}.counts"


def _last_seen_key(feature: TableFeature) -> str:
    return f"{feature.name}.last_seen"
