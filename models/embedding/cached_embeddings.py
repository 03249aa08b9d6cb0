"""An embedding table that is larger than the device: all rows in host memory, those of recent batches on the device.

Letters as in `models.dlrm.network`, with C slots of the cache in place of R rows; K rows on their way.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from models.embedding.cache_policy import CacheError, CacheState
from models.embedding.chunks import Lookups
from models.embedding.fused_table import FusedTable
from models.embedding.layout import Layout

_BLOCK: Final = 2**18
"""Rows written back at once when all of them are: what is in between takes memory on both sides."""


class CachedTable(FusedTable):
    """A `FusedTable` of some slots that stands for one of many more rows.

    `prepare` brings the rows of a batch into the slots, and renames its lookups to them; the step looks up and moves
    the slots and knows of nothing else. Renaming keeps the order of the lookups, and the optimizer adds up a row's
    gradients in that order, so results are bit by bit those of the whole table on the device.

    A row that leaves is written back while the device takes the next step. A batch costs what it looks up: 53 000
    look-ups, four in nine of them missing, took 8 ms of processor time with a table of 100 000 rows, and 11 ms with one
    of 10 million that the same look-ups were spread over.
    """

    def __init__(self, layout: Layout, width: int, slots: int) -> None:
        """Draw the rows that a `FusedTable` draws.

        Args:
            layout: The features.
            width: D.
            slots: Rows on the device at most, C.
        """
        whole = FusedTable(layout, width)
        nn.Module.__init__(self)
        slots = min(slots, layout.rows)
        # What is kept is the whole table: see `_save_whole` and `_load_whole`.
        self.register_buffer("weight_RD", torch.zeros(slots, width), persistent=False)
        self.register_buffer("squares_R", torch.zeros(slots), persistent=False)
        self.register_state_dict_post_hook(_save_whole)  # type: ignore[no-untyped-call] # torch does not annotate it
        self.register_load_state_dict_pre_hook(_load_whole)  # type: ignore[no-untyped-call] # torch does not annotate it
        self._host = (whole,)  # in a tuple, torch does not take it for a part of the model that goes to the device
        self._transfer = RowTransfer(whole)
        self._residents = CacheState(layout.rows, slots)
        self._moved_C = np.zeros(slots, bool)
        self._lookups = self._hits = 0

    @property
    def whole(self) -> FusedTable:
        """The whole table, in host memory; what is done to it holds from the next `prepare` on."""
        self.flush()
        self._forget()
        return self._host[0]

    @torch.no_grad()
    def prepare(self, lookups: Lookups) -> Lookups:
        """Bring the rows of a batch to the device; in training mode they count as moved from then on.

        Args:
            lookups: By rows of the whole table; in host memory, or else the device is waited for.

        Returns:
            The lookups by slots; `rows_L` is on the device.

        Raises:
            CacheError: The batch has more distinct rows than there are slots.
        """
        exchange = self._residents.exchange(lookups.rows_L.cpu().numpy())
        self._transfer.wait_for_transfers()
        leaving_K = (exchange.evicted_K >= 0) & self._moved_C[exchange.into_K]
        if leaving_K.any():
            self._transfer.write_back(exchange.evicted_K[leaving_K], exchange.into_K[leaving_K], self)
        self._moved_C[exchange.into_K] = False
        if len(exchange.into_K):
            self._transfer.fetch(exchange.fetched_K, exchange.into_K, self)
        if self.training:
            self._moved_C[exchange.slots_L] = True
            self._lookups += len(exchange.slots_L)
            self._hits += exchange.hits
        return lookups._replace(rows_L=sent(torch.from_numpy(exchange.slots_L), self))

    @torch.no_grad()
    def look_up(self, lookups: Lookups) -> Tensor:
        """Return what `forward` does, for a batch to be scored: in pieces where it has more distinct rows than slots.

        Args:
            lookups: By rows of the whole table; in host memory, or else the device is waited for.

        Raises:
            CacheError: A single slot of the batch has more distinct rows than there are slots of the cache.
        """
        assert not self.training, "rows that were only looked up have not moved"
        try:
            here = self.prepare(lookups)
        except CacheError:
            if len(lookups.starts) < 3:
                raise
            return torch.cat([self.look_up(half) for half in _halves(lookups)])
        starts, shares_L = (None if one is None else one.to(self.weight_RD.device) for one in lookups[1:])
        assert starts is not None
        return self.forward(Lookups(here.rows_L, starts, shares_L))

    @torch.no_grad()
    def flush(self) -> None:
        """Write every moved row back to host memory; the rows stay on the device too."""
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
        """Take values for the rows of the whole table from `first` on."""
        self.whole.take_rows(first, weight_RD, squares_R)

    def _forget(self) -> None:
        self._residents.forget()
        self._moved_C[:] = False
        self._transfer.forget()


def _save_whole(table: CachedTable, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    """Put the rows of the whole table into a state; torch calls it at the end of `state_dict`."""
    table.flush()
    table._host[0].state_dict(destination=state, prefix=prefix)


def _load_whole(
    table: CachedTable, state: dict[str, Any], prefix: str, _metadata: Any, _strict: bool,
    missing_keys: list[str], _unexpected_keys: list[str], _errors: list[str],
) -> None:  # fmt: skip
    """Take the rows of the whole table out of a state; torch calls it at the begin of `load_state_dict`.

    Raises:
        RuntimeError: The rows have another shape.
    """
    host = table._host[0]
    names = host.state_dict().keys()
    own = {name: state.pop(f"{prefix}{name}") for name in names if f"{prefix}{name}" in state}
    missing_keys.extend(f"{prefix}{name}" for name in host.load_state_dict(own, strict=False).missing_keys)
    table._forget()


def _halves(lookups: Lookups) -> tuple[Lookups, Lookups]:
    """Return the first and the other slots of a batch; a slot's lookups stay together."""
    rows_L, starts, shares_L = lookups
    middle = len(starts) // 2
    edge = int(starts[middle])
    first = Lookups(rows_L[:edge], starts[: middle + 1], None if shares_L is None else shares_L[:edge])
    return first, Lookups(rows_L[edge:], starts[middle:] - edge, None if shares_L is None else shares_L[edge:])


class _PendingTransfer(NamedTuple):
    """Rows on their way to host memory."""

    rows_K: Tensor
    values: Tensor
    """Weights, then accumulators, in host memory once the copy is done."""
    done: torch.cuda.Event | None
    """None: it is done."""


class RowTransfer:
    """Moves rows between the host's table and the device's slots, one copy for all rows of a batch.

    Only what is on its way is pinned, not the table, so a table may take all of the host's memory. Rows that leave the
    device are waited for when they are needed, or when the next ones leave: by then they have long arrived.
    """

    def __init__(self, host: FusedTable) -> None:
        """Take the whole table, in host memory."""
        self._host = host
        self._leaving: _PendingTransfer | None = None

    def fetch(self, rows_K: np.ndarray, slots_K: np.ndarray, device: FusedTable) -> None:
        """Copy rows of the host into slots of the device; none of them may be on its way back."""
        rows, width = torch.from_numpy(rows_K), device.weight_RD.shape[1]
        values = _in_between(len(rows) * (width + 1), device)
        torch.index_select(self._host.weight_RD, 0, rows, out=values[: -len(rows)].view(-1, width))
        torch.index_select(self._host.squares_R, 0, rows, out=values[-len(rows) :])
        # torch does not give pinned memory away again before the copy from it is done.
        there, slots = sent(values, device), sent(torch.from_numpy(slots_K.astype(np.int64)), device)
        device.weight_RD.index_copy_(0, slots, there[: -len(rows)].view(-1, width))
        device.squares_R.index_copy_(0, slots, there[-len(rows) :])

    def write_back(self, rows_K: np.ndarray, slots_K: np.ndarray, device: FusedTable) -> None:
        """Start to copy slots of the device into rows of the host; `land` ends it."""
        self.wait_for_transfers()
        slots = sent(torch.from_numpy(slots_K.astype(np.int64)), device)
        leaving = torch.cat(
            [device.weight_RD.index_select(0, slots).flatten(), device.squares_R.index_select(0, slots)]
        )
        values = _in_between(len(leaving), device).copy_(leaving, non_blocking=True)
        done = None
        if leaving.is_cuda:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch does not annotate it
            done.record()
        self._leaving = _PendingTransfer(torch.from_numpy(rows_K.astype(np.int64)), values, done)

    def wait_for_transfers(self) -> None:
        """Wait for the rows that left, and put them where they belong."""
        if self._leaving is None:
            return
        rows_K, values, done = self._leaving
        if done is not None:
            done.synchronize()
        self._host.weight_RD.index_copy_(0, rows_K, values[: -len(rows_K)].view(len(rows_K), -1))
        self._host.squares_R.index_copy_(0, rows_K, values[-len(rows_K) :])
        self._leaving = None

    def forget(self) -> None:
        """Let the rows on their way be lost."""
        self._leaving = None


def sent(host: Tensor, device: FusedTable) -> Tensor:
    """Return a tensor of the host on a table's device, without waiting for it."""
    if not device.weight_RD.is_cuda:
        return host
    pinned = host if host.is_pinned() else host.pin_memory()
    return pinned.to(device.weight_RD.device, non_blocking=True)


def _in_between(floats: int, device: FusedTable) -> Tensor:
    return torch.empty(floats, pin_memory=device.weight_RD.is_cuda)
