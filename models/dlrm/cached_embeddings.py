"""An embedding table that is larger than the device: all rows in host memory, those of recent batches on the device.

Letters as in `models.dlrm.network`, with C slots of the cache in place of R rows; K rows on their way.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from models.dlrm.cache_policy import CacheError, CacheState
from models.dlrm.chunks import Lookups
from models.dlrm.fused_table import FusedTable
from models.dlrm.layout import Layout
from models.dlrm.row_transfer import RowTransfer, sent

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
        self.register_buffer("weight_RD", torch.zeros(slots, width))
        self.register_buffer("squares_R", torch.zeros(slots))
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

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self.flush()
        self._host[0]._save_to_state_dict(destination, prefix, keep_vars)

    @torch.no_grad()
    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        self._host[0]._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        self._forget()


def _halves(lookups: Lookups) -> tuple[Lookups, Lookups]:
    """Return the first and the other slots of a batch; a slot's lookups stay together."""
    rows_L, starts, shares_L = lookups
    middle = len(starts) // 2
    edge = int(starts[middle])
    first = Lookups(rows_L[:edge], starts[: middle + 1], None if shares_L is None else shares_L[:edge])
    return first, Lookups(rows_L[edge:], starts[middle:] - edge, None if shares_L is None else shares_L[edge:])
