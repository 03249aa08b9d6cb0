"""Row-wise Adagrad whose shapes depend on no id: for a device that nobody waits for.

L lookups; other letters as in `models.dlrm.network`.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from models.embedding.chunks import Lookups
from models.embedding.optimizer import EPSILON, RowWiseAdagrad

_PIECE: Final = 256
"""Gradients that are added one after the other. On a GPU one thread adds a slot; a row that every batch looks up
thousands of times would keep one busy long after all others, were its sum not made of sums."""


class StaticShapeAdagrad(RowWiseAdagrad):
    """Its steps up to rounding, without asking how many rows there are.

    Sorted, equal rows are neighbours: a segment each. Every buffer has room for as many segments as there are lookups,
    and what is behind the last segment adds zero. Sums have a fixed order: the same batch, the same bits.
    """

    @torch.no_grad()
    def step(
        self, lookups: Lookups, gradient_slots_D: Tensor, admitted_L: Tensor | None = None,
        skipped: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Move the rows of a batch; arguments as there."""
        if not len(lookups.rows_L):
            return
        nobody = len(self._weight_RD)
        rows_L = lookups.rows_L if admitted_L is None else lookups.rows_L.masked_fill(~admitted_L, nobody)
        sorted_L, order_L = torch.sort(rows_L, stable=True)
        starts, gradient_LD = _segment_sums(
            sorted_L, *gradient_sources(lookups, order_L, len(gradient_slots_D)), gradient_slots_D
        )
        row_L = sorted_L.index_select(0, starts.clamp(max=len(sorted_L) - 1))
        moves_L = (starts < len(sorted_L)) & (row_L < nobody)
        if skipped is not None:
            moves_L &= skipped == 0
        # Adding zero moves no row; spread over the table, so that no row is waited for.
        anywhere_L = torch.arange(len(row_L), device=row_L.device) % nobody
        self._move(torch.where(moves_L, row_L, anywhere_L), gradient_LD, moves_L)

    def _move(self, row_L: Tensor, gradient_LD: Tensor, moves_L: Tensor) -> None:
        if self._decay:
            gradient_LD = gradient_LD + self._decay * self._weight_RD.index_select(0, row_L)
        added_L = gradient_LD.square().mean(1)
        squares_L = self._squares_R.index_select(0, row_L) + added_L
        step_L = -self._learning_rate / (squares_L.sqrt() + EPSILON)
        self._squares_R.index_add_(0, row_L, torch.where(moves_L, added_L, 0.0))
        moved_LD = torch.where(moves_L.unsqueeze(1), gradient_LD * step_L.unsqueeze(1), 0.0)
        self._weight_RD.index_add_(0, row_L, moved_LD)


def gradient_sources(lookups: Lookups, order_L: Tensor, slots: int) -> tuple[Tensor, Tensor | None]:
    """Return the slot that each lookup's gradient comes from, and its share of it; in the order given."""
    if lookups.shares_L is None:
        return order_L, None
    places_L = torch.arange(len(order_L), device=order_L.device)
    slot_of_lookup_L = torch.searchsorted(lookups.starts.long(), places_L, right=True) - 1
    # Lookups that are padding have a slot of their own behind the last.
    return slot_of_lookup_L[order_L].clamp(max=slots - 1), lookups.shares_L[order_L]


def _segment_sums(
    sorted_L: Tensor, slots_L: Tensor, shares_L: Tensor | None, gradient_slots_D: Tensor
) -> tuple[Tensor, Tensor]:
    """Return where each segment begins (L behind the last), shape (L,), and the sum of its gradients, (L, D).

    Segments are added in pieces of at most `_PIECE`, then the pieces of each.
    """
    places = len(sorted_L)
    places_L = torch.arange(places, device=sorted_L.device)
    first_L = functional.pad(sorted_L.diff() != 0, (1, 0), value=True)
    segment_L = first_L.cumsum(0) - 1
    starts = _begins(first_L, segment_L)
    # Counted from the segment's start: a sum must not depend on where its row is sorted to, which a cache changes.
    begins_piece_L = (places_L - starts.index_select(0, segment_L)) % _PIECE == 0
    piece_L = begins_piece_L.cumsum(0) - 1
    piece_starts = _begins(begins_piece_L, piece_L)
    pieces_LD = functional.embedding_bag(
        slots_L, gradient_slots_D, _closed(piece_starts), mode="sum", per_sample_weights=shares_L,
        include_last_offset=True,
    )  # fmt: skip
    # What is behind the last piece is zero, and is dealt out to the unused segments, at most one to each: the kernel
    # gives whatever is left to the last one, which would be busy with it alone.
    behind_L = (places_L + (piece_L[-1] - segment_L[-1])).clamp(max=places)
    own_L = piece_L.index_select(0, starts.clamp(max=places - 1))
    of_segment_L = torch.where(starts < places, own_L, behind_L)
    return starts, functional.embedding_bag(
        places_L, pieces_LD, _closed(of_segment_L), mode="sum", include_last_offset=True
    )


def _begins(first_L: Tensor, group_L: Tensor) -> Tensor:
    """Return the places that are first in their group, one after the other, filled up with the number of places.

    Places that are not first are written where nobody reads: every place that is read has one writer.
    """
    places = len(first_L)
    begins = group_L.new_full((places + 1,), places)
    begins.scatter_(0, torch.where(first_L, group_L, places), torch.arange(places, device=group_L.device))
    return begins[:places]


def _closed(starts: Tensor) -> Tensor:
    return functional.pad(starts, (0, 1), value=len(starts))
