"""An embedding table that is larger than the device: all rows in host memory, those of recent batches on the device.

Letters as in `models.dlrm.network`, with C slots of the cache in place of R rows; K rows on their way.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from models.embedding.reading.chunks import Lookups
from models.embedding.reading.layout import Layout
from models.embedding.table.cache_policy import CacheError, CacheState
from models.embedding.table.fused_table import FusedTable

_BLOCK: Final = 2**18
"""Rows per copy when all rows are written back: the copy takes memory on both sides."""


class CachedTable(FusedTable):
    """A `FusedTable` whose slots cache the rows of a larger table in host memory.

    `prepare` fetches the rows of a batch into the slots and replaces rows by slots in its look-ups; the step reads and
    updates only slots. The order of the look-ups is kept, and the optimizer adds a row's gradients in that order, so
    results equal those of the whole table on the device bit by bit.

    An evicted row is written back while the device computes the next step. The cost depends on the look-ups of a batch:
    53 000 look-ups, four in nine of them missing, took 8 ms of processor time with a table of 100 000 rows, and 11 ms
    with 10 million rows.
    """

    def __init__(self, layout: Layout, width: int, slots: int) -> None:
        """Draw the rows that a `FusedTable` draws.

        Args:
            layout: The features.
            width: Width of a row, D.
            slots: Most rows on the device, C.
        """
        whole = FusedTable(layout, width)
        nn.Module.__init__(self)
        slots = min(slots, layout.rows)
        # The state holds the whole table: see `_save_whole` and `_load_whole`.
        self.register_buffer("weight_RD", torch.zeros(slots, width), persistent=False)
        self.register_buffer("squares_R", torch.zeros(slots), persistent=False)
        self.register_state_dict_post_hook(_save_whole)  # type: ignore[no-untyped-call] # torch does not annotate it
        self.register_load_state_dict_pre_hook(_load_whole)  # type: ignore[no-untyped-call] # torch does not annotate it
        self._host = (whole,)  # in a tuple, torch does not move it to the device as a part of the model
        self._transfer = RowTransfer(whole)
        self._residents = CacheState(layout.rows, slots)
        self._moved_C = np.zeros(slots, bool)
        self._lookups = self._hits = 0

    @property
    def whole(self) -> FusedTable:
        """The whole table, in host memory; changes take effect with the next `prepare`."""
        self.flush()
        self._clear_cache()
        return self._host[0]

    @torch.no_grad()
    def prepare(self, lookups: Lookups) -> Lookups:
        """Fetch the rows of a batch to the device; in training mode they are marked as changed.

        Args:
            lookups: Look-ups by rows of the whole table; in host memory, else the host waits for the device.

        Returns:
            The look-ups by slots; `rows_L` is on the device.

        Raises:
            CacheError: The batch has more distinct rows than there are slots.
        """
        update = self._residents.admit_batch(lookups.rows_L.cpu().numpy())
        self._transfer.wait_for_transfers()
        leaving_K = (update.evicted_K >= 0) & self._moved_C[update.slots_K]
        if leaving_K.any():
            self._transfer.write_back(update.evicted_K[leaving_K], update.slots_K[leaving_K], self)
        self._moved_C[update.slots_K] = False
        if len(update.slots_K):
            self._transfer.fetch(update.fetched_K, update.slots_K, self)
        if self.training:
            self._moved_C[update.slots_L] = True
            self._lookups += len(update.slots_L)
            self._hits += update.hits
        return lookups._replace(rows_L=copy_to_device(torch.from_numpy(update.slots_L), self))

    @torch.no_grad()
    def look_up(self, lookups: Lookups) -> Tensor:
        """Return what `forward` does, for a batch to score; split where it has more distinct rows than slots.

        Args:
            lookups: Look-ups by rows of the whole table; in host memory, else the host waits for the device.

        Raises:
            CacheError: A single slot of the batch has more distinct rows than there are slots of the cache.
        """
        assert not self.training, "rows that were only looked up have not moved"
        try:
            cached_lookups = self.prepare(lookups)
        except CacheError:
            if len(lookups.starts) < 3:
                raise
            return torch.cat([self.look_up(half) for half in _halves(lookups)])
        starts, shares_L = (None if tensor is None else tensor.to(self.weight_RD.device) for tensor in lookups[1:])
        assert starts is not None
        return self.forward(Lookups(cached_lookups.rows_L, starts, shares_L))

    @torch.no_grad()
    def flush(self) -> None:
        """Write every changed row back to host memory; the rows stay on the device too."""
        slots = np.flatnonzero(self._moved_C)
        for first in range(0, len(slots), _BLOCK):
            block = slots[first : first + _BLOCK]
            self._transfer.write_back(self._residents.rows[block], block, self)
        self._transfer.wait_for_transfers()
        self._moved_C[:] = False

    def hit_rate(self) -> float | None:
        """Return the share of looked-up rows that were on the device, over the training batches since the last call."""
        rate = self._hits / self._lookups if self._lookups else None
        self._lookups = self._hits = 0
        return rate

    @torch.no_grad()
    def take_rows(self, first: int, weight_RD: Tensor, squares_R: Tensor) -> None:
        """Set the rows of the whole table from `first` on."""
        self.whole.take_rows(first, weight_RD, squares_R)

    def _clear_cache(self) -> None:
        self._residents.clear()
        self._moved_C[:] = False
        self._transfer.discard_transfers()


def _save_whole(table: CachedTable, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    """Add the rows of the whole table to a state; torch calls it at the end of `state_dict`."""
    table.flush()
    table._host[0].state_dict(destination=state, prefix=prefix)


def _load_whole(
    table: CachedTable, state: dict[str, Any], prefix: str, _metadata: Any, _strict: bool,
    missing_keys: list[str], _unexpected_keys: list[str], _errors: list[str],
) -> None:  # fmt: skip
    """Load the rows of the whole table from a state; torch calls it at the start of `load_state_dict`.

    Raises:
        RuntimeError: The rows have another shape.
    """
    host = table._host[0]
    names = host.state_dict().keys()
    whole_state = {name: state.pop(f"{prefix}{name}") for name in names if f"{prefix}{name}" in state}
    missing_keys.extend(f"{prefix}{name}" for name in host.load_state_dict(whole_state, strict=False).missing_keys)
    table._clear_cache()


def _halves(lookups: Lookups) -> tuple[Lookups, Lookups]:
    """Return the first and the second half of a batch's slots; look-ups of a slot stay together."""
    rows_L, starts, shares_L = lookups
    middle = len(starts) // 2
    edge = int(starts[middle])
    first = Lookups(rows_L[:edge], starts[: middle + 1], None if shares_L is None else shares_L[:edge])
    return first, Lookups(rows_L[edge:], starts[middle:] - edge, None if shares_L is None else shares_L[edge:])


class _PendingTransfer(NamedTuple):
    """Rows that are being copied to host memory."""

    rows_K: Tensor
    values: Tensor
    """Weights, then accumulators, in host memory once the copy is done."""
    copied: torch.cuda.Event | None
    """Event after the copy; None: the copy is done."""


class RowTransfer:
    """Moves rows between the host's table and the device's slots, one copy for all rows of a batch.

    Only rows in transfer are pinned, not the table, so a table may take all of the host's memory. The host waits for
    evicted rows only when they are needed or when the next rows are evicted.
    """

    def __init__(self, host: FusedTable) -> None:
        """Create a transfer of the whole table in host memory."""
        self._host = host
        self._leaving: _PendingTransfer | None = None

    def fetch(self, rows_K: np.ndarray, slots_K: np.ndarray, device: FusedTable) -> None:
        """Copy rows of the host into slots of the device; none of them may be in a pending transfer."""
        rows, width = torch.from_numpy(rows_K), device.weight_RD.shape[1]
        staged = _staging_buffer(len(rows) * (width + 1), device)
        torch.index_select(self._host.weight_RD, 0, rows, out=staged[: -len(rows)].view(-1, width))
        torch.index_select(self._host.squares_R, 0, rows, out=staged[-len(rows) :])
        # torch does not reuse pinned memory before the copy from it is done.
        values, slots = (
            copy_to_device(staged, device),
            copy_to_device(torch.from_numpy(slots_K.astype(np.int64)), device),
        )
        device.weight_RD.index_copy_(0, slots, values[: -len(rows)].view(-1, width))
        device.squares_R.index_copy_(0, slots, values[-len(rows) :])

    def write_back(self, rows_K: np.ndarray, slots_K: np.ndarray, device: FusedTable) -> None:
        """Start copying slots of the device into rows of the host; `wait_for_transfers` completes it."""
        self.wait_for_transfers()
        slots = copy_to_device(torch.from_numpy(slots_K.astype(np.int64)), device)
        leaving = torch.cat(
            [device.weight_RD.index_select(0, slots).flatten(), device.squares_R.index_select(0, slots)]
        )
        values = _staging_buffer(len(leaving), device).copy_(leaving, non_blocking=True)
        copied = None
        if leaving.is_cuda:
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch does not annotate it
            copied.record()
        self._leaving = _PendingTransfer(torch.from_numpy(rows_K.astype(np.int64)), values, copied)

    def wait_for_transfers(self) -> None:
        """Wait for the pending rows, and write them into the host's table."""
        if self._leaving is None:
            return
        rows_K, values, copied = self._leaving
        if copied is not None:
            copied.synchronize()
        self._host.weight_RD.index_copy_(0, rows_K, values[: -len(rows_K)].view(len(rows_K), -1))
        self._host.squares_R.index_copy_(0, rows_K, values[-len(rows_K) :])
        self._leaving = None

    def discard_transfers(self) -> None:
        """Discard the pending rows."""
        self._leaving = None


def copy_to_device(host: Tensor, device: FusedTable) -> Tensor:
    """Return a tensor of the host on a table's device, without waiting for the copy."""
    if not device.weight_RD.is_cuda:
        return host
    pinned = host if host.is_pinned() else host.pin_memory()
    return pinned.to(device.weight_RD.device, non_blocking=True)


def _staging_buffer(floats: int, device: FusedTable) -> Tensor:
    return torch.empty(floats, pin_memory=device.weight_RD.is_cuda)
