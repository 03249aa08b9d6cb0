"""Row-wise Adagrad whose shapes depend on no id, so that the host never waits for the device.

L lookups; other letters as in `models.dlrm.network`.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from models.embedding.reading.chunks import Lookups
from models.embedding.table.optimizer import EPSILON, RowWiseAdagrad

_PIECE: Final = 256
"""Gradients that are added one after the other. On a GPU one thread adds a slot; without pieces, a row with thousands
of look-ups in a batch would occupy one thread long after all others."""


class StaticShapeAdagrad(RowWiseAdagrad):
    """`RowWiseAdagrad` up to rounding, without reading the number of distinct rows from the device.

    Sorted, equal rows are neighbours, a segment. Every buffer holds as many segments as there are look-ups; unused
    segments add zero. Sums have a fixed order, so the same batch gives the same bits.
    """

    @torch.no_grad()
    def step(
        self, lookups: Lookups, gradient_slots_D: Tensor, admitted_L: Tensor | None = None,
        skipped: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Update the rows of a batch; see `RowWiseAdagrad.step`."""
        if not len(lookups.rows_L):
            return
        no_row = len(self._weight_RD)
        rows_L = lookups.rows_L if admitted_L is None else lookups.rows_L.masked_fill(~admitted_L, no_row)
        sorted_L, order_L = torch.sort(rows_L, stable=True)
        starts, gradient_LD = _segment_sums(
            sorted_L, *gradient_sources(lookups, order_L, len(gradient_slots_D)), gradient_slots_D
        )
        row_L = sorted_L.index_select(0, starts.clamp(max=len(sorted_L) - 1))
        moves_L = (starts < len(sorted_L)) & (row_L < no_row)
        if skipped is not None:
            moves_L &= skipped == 0
        # Unused segments add zero, to rows spread over the table to avoid contention.
        spread_rows_L = torch.arange(len(row_L), device=row_L.device) % no_row
        self._update_rows(torch.where(moves_L, row_L, spread_rows_L), gradient_LD, moves_L)

    def _update_rows(self, row_L: Tensor, gradient_LD: Tensor, moves_L: Tensor) -> None:
        if self._decay:
            gradient_LD = gradient_LD + self._decay * self._weight_RD.index_select(0, row_L)
        added_L = gradient_LD.square().mean(1)
        squares_L = self._squares_R.index_select(0, row_L) + added_L
        step_L = -self._learning_rate / (squares_L.sqrt() + EPSILON)
        self._squares_R.index_add_(0, row_L, torch.where(moves_L, added_L, 0.0))
        moved_LD = torch.where(moves_L.unsqueeze(1), gradient_LD * step_L.unsqueeze(1), 0.0)
        self._weight_RD.index_add_(0, row_L, moved_LD)


def gradient_sources(lookups: Lookups, order_L: Tensor, slots: int) -> tuple[Tensor, Tensor | None]:
    """Return the slot of each look-up's gradient, and the look-up's share of it, in a given order."""
    if lookups.shares_L is None:
        return order_L, None
    places_L = torch.arange(len(order_L), device=order_L.device)
    slot_of_lookup_L = torch.searchsorted(lookups.starts.long(), places_L, right=True) - 1
    # Padding look-ups have a slot behind the last.
    return slot_of_lookup_L[order_L].clamp(max=slots - 1), lookups.shares_L[order_L]


def _segment_sums(
    sorted_L: Tensor, slots_L: Tensor, shares_L: Tensor | None, gradient_slots_D: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the start of each segment (L behind the last), shape (L,), and the sum of its gradients, (L, D).

    Segments are added in pieces of at most `_PIECE`, then the pieces of each.
    """
    places = len(sorted_L)
    places_L = torch.arange(places, device=sorted_L.device)
    first_L = functional.pad(sorted_L.diff() != 0, (1, 0), value=True)
    segment_L = first_L.cumsum(0) - 1
    segment_starts = _group_starts(first_L, segment_L)
    # Counted from the segment's start: a sum must not depend on the position of its row, which a cache changes.
    begins_piece_L = (places_L - segment_starts.index_select(0, segment_L)) % _PIECE == 0
    piece_L = begins_piece_L.cumsum(0) - 1
    piece_starts = _group_starts(begins_piece_L, piece_L)
    pieces_LD = functional.embedding_bag(
        slots_L, gradient_slots_D, _with_end(piece_starts), mode="sum", per_sample_weights=shares_L,
        include_last_offset=True,
    )  # fmt: skip
    # Pieces behind the last are zero and are assigned to the unused segments, at most one to each: the kernel would
    # assign all of them to the last segment, whose thread would then run alone.
    unused_L = (places_L + (piece_L[-1] - segment_L[-1])).clamp(max=places)
    segment_piece_L = piece_L.index_select(0, segment_starts.clamp(max=places - 1))
    first_piece_L = torch.where(segment_starts < places, segment_piece_L, unused_L)
    return segment_starts, functional.embedding_bag(
        places_L, pieces_LD, _with_end(first_piece_L), mode="sum", include_last_offset=True
    )


def _group_starts(first_L: Tensor, group_L: Tensor) -> Tensor:
    """Return the first place of every group, padded with the number of places.

    Other places are written to an unused element, so that every element that is read has one writer.
    """
    places = len(first_L)
    starts = group_L.new_full((places + 1,), places)
    starts.scatter_(0, torch.where(first_L, group_L, places), torch.arange(places, device=group_L.device))
    return starts[:places]


def _with_end(starts: Tensor) -> Tensor:
    return functional.pad(starts, (0, 1), value=len(starts))
