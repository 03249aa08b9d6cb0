"""Carries embedding rows with their accumulators between host memory and a device.

Letters as in `models.dlrm.network`, with C slots on the device in place of R rows; K rows on their way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.dlrm.fused_table import FusedTable


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
