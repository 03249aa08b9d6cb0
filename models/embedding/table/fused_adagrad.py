"""Row-wise Adagrad in two kernels of Triton: a gradient is read once, a row is read and written once.

Sorted, the look-ups of a row are neighbours, a segment. A segment is added in pieces of `_PIECE` look-ups, counted from
its start: a sum must not depend on the position of its row, which a cache changes. The first kernel adds every piece,
and updates a row whose segment is one piece. The second adds the pieces of longer segments and updates their rows. No
shape depends on ids, and every sum has a fixed order, so the same batch gives the same bits.

Kernels have scalars in lower case, letters for lengths (L lookups, R rows, D width), and constants in capitals.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
from torch import Tensor
from triton import language as tl

from models.embedding.reading.chunks import Lookups
from models.embedding.table.optimizer import EPSILON, RowWiseAdagrad
from models.embedding.table.static_shape_adagrad import gradient_sources

_PIECE: Final = 64
_WINDOW: Final = 32
"""Neighbouring look-ups whose pieces one warp adds."""
_TILE: Final = 1_024
"""Gradients that a warp loads at once: 32 for each of its threads."""
_CHUNK: Final = 64
"""Sums of pieces that are added at once."""


class FusedAdagrad(RowWiseAdagrad):
    """`RowWiseAdagrad` up to rounding, without waiting for the GPU; `StaticShapeAdagrad` is the same without Triton."""

    @torch.no_grad()
    def step(
        self, lookups: Lookups, gradient_slots_D: Tensor, admitted_L: Tensor | None = None,
        skipped: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Update the rows of a batch; see `RowWiseAdagrad.step`."""
        count = len(lookups.rows_L)
        if not count:
            return
        rows, width = self._weight_RD.shape
        rows_L = lookups.rows_L if admitted_L is None else lookups.rows_L.masked_fill(~admitted_L, rows)
        sorted_L, order_L = torch.sort(rows_L, stable=True)
        slots_L, shares_L = gradient_sources(lookups, order_L, len(gradient_slots_D))
        # Every full piece and the remainder of a long segment have a place: see `_piece_sum_place`.
        partial_sums = gradient_slots_D.new_empty(2 * (count // _PIECE + 1), width)
        block = triton.next_power_of_2(width)
        table = (self._weight_RD, self._squares_R, partial_sums, sorted_L, skipped)
        scalars = (self._learning_rate, self._decay, EPSILON, count, rows)
        constants: dict[str, Any] = {"D": width, "BLOCK": block, "PIECE": _PIECE, "SKIPS": skipped is not None}
        _add_pieces[(triton.cdiv(count, _WINDOW),)](
            *table, slots_L, shares_L, gradient_slots_D.contiguous(), *scalars,
            WINDOW=_WINDOW, TILE=min(_PIECE, max(1, _TILE // block)), SHARES=shares_L is not None,
            **constants, num_warps=1,
        )  # fmt: skip
        _add_sums[(triton.cdiv(count, _PIECE),)](
            *table, *scalars, CHUNK=min(_CHUNK, max(1, 8 * _TILE // block)), **constants, num_warps=4
        )


@triton.jit
def _update_row(weight, squares, row, summed, d, learning_rate, decay, epsilon, D: tl.constexpr):
    """Update a row by the sum of its gradients."""
    place = weight + row.to(tl.int64) * D + d
    weights = tl.load(place, mask=d < D, other=0.0)
    square = tl.load(squares + row)
    gradient = tl.where(d < D, summed + decay * weights, 0.0)
    square += tl.sum(gradient * gradient, axis=0) / D
    tl.store(squares + row, square)
    tl.store(place, weights - gradient * tl.div_rn(learning_rate, tl.sqrt_rn(square) + epsilon), mask=d < D)


@triton.jit
def _piece_sum_place(begin, is_full, PIECE: tl.constexpr):
    """Return the place of a piece's sum, unique and below 2 * (L // PIECE + 1).

    Full pieces begin at least PIECE look-ups apart, and so do remainders, as each follows a full piece.
    """
    return 2 * (begin // PIECE) + tl.where(is_full, 0, 1)


@triton.jit(do_not_specialize=["L", "R"])
def _add_pieces(
    weight, squares, partial_sums, sorted_rows, skipped, slots, shares, gradient,
    learning_rate, decay, epsilon, L, R,
    D: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr, SKIPS: tl.constexpr,
    WINDOW: tl.constexpr, TILE: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Add the pieces that begin in a window of the sorted look-ups; update the rows that have a single piece."""
    if SKIPS:
        if tl.load(skipped) != 0:
            return
    d = tl.arange(0, BLOCK)
    begin = tl.program_id(0) * WINDOW
    end_of_window = tl.minimum(begin + WINDOW, L)
    # Skip the end of a piece that began before this window.
    row = tl.load(sorted_rows + begin)
    if tl.load(sorted_rows + begin - 1, mask=begin > 0, other=-1) == row:
        lower_bound, start = -1, begin  # the segment starts after `below`, at `start` at the latest
        while start - lower_bound > 1:
            middle = (lower_bound + start) // 2
            if tl.load(sorted_rows + middle) == row:
                start = middle
            else:
                lower_bound = middle
        reaching = (PIECE - (begin - start) % PIECE) % PIECE
        places = begin + tl.arange(0, PIECE)
        is_same_row = (tl.load(sorted_rows + places, mask=places < L, other=-1) == row) & (places < begin + reaching)
        begin += tl.sum(is_same_row.to(tl.int32), axis=0)
    while begin < end_of_window:
        row = tl.load(sorted_rows + begin)
        if row >= R:  # not admitted, as all look-ups sorted behind it
            begin = end_of_window
        else:
            places = begin + tl.arange(0, PIECE)
            is_same_row = tl.load(sorted_rows + places, mask=places < L, other=-1) == row
            end = begin + tl.sum(is_same_row.to(tl.int32), axis=0)
            summed = tl.zeros((BLOCK,), tl.float32)
            for first in range(begin, end, TILE):
                lookup = first + tl.arange(0, TILE)
                slot = tl.load(slots + lookup, mask=lookup < end, other=0).to(tl.int64)
                mask = (lookup < end)[:, None] & (d < D)[None, :]
                tile = tl.load(gradient + slot[:, None] * D + d[None, :], mask=mask, other=0.0)
                if SHARES:
                    tile *= tl.load(shares + lookup, mask=lookup < end, other=0.0)[:, None]
                summed += tl.sum(tile, axis=0)
            row_before = tl.load(sorted_rows + begin - 1, mask=begin > 0, other=-1)
            row_behind = tl.load(sorted_rows + end, mask=end < L, other=-1)
            if (row_before == row) | (row_behind == row):
                place = _piece_sum_place(begin, end - begin == PIECE, PIECE)
                tl.store(partial_sums + place.to(tl.int64) * D + d, summed, mask=d < D)
            else:
                _update_row(weight, squares, row, summed, d, learning_rate, decay, epsilon, D)
            begin = end


@triton.jit(do_not_specialize=["L", "R"])
def _add_sums(
    weight, squares, partial_sums, sorted_rows, skipped,
    learning_rate, decay, epsilon, L, R,
    D: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr, SKIPS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Update the row whose segment is longer than a piece and starts among PIECE look-ups; there is at most one."""
    if SKIPS:
        if tl.load(skipped) != 0:
            return
    d = tl.arange(0, BLOCK)
    places = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
    rows = tl.load(sorted_rows + places, mask=places < L, other=R)
    rows_before = tl.load(sorted_rows + places - 1, mask=(places > 0) & (places < L), other=-1)
    rows_behind = tl.load(sorted_rows + places + PIECE, mask=places + PIECE < L, other=-1)
    start = tl.max(tl.where((rows != rows_before) & (rows == rows_behind) & (rows < R), places, -1), axis=0)
    if start >= 0:
        row = tl.load(sorted_rows + start)
        summed = tl.zeros((BLOCK,), tl.float32)
        begin, pieces = start, CHUNK
        while pieces == CHUNK:
            begins = begin + tl.arange(0, CHUNK) * PIECE
            in_segment = tl.load(sorted_rows + begins, mask=begins < L, other=-1) == row
            last = begins + PIECE - 1
            is_full = tl.load(sorted_rows + last, mask=last < L, other=-1) == row
            place = _piece_sum_place(begins, is_full, PIECE).to(tl.int64)
            mask = in_segment[:, None] & (d < D)[None, :]
            summed += tl.sum(tl.load(partial_sums + place[:, None] * D + d[None, :], mask=mask, other=0.0), axis=0)
            pieces = tl.sum(in_segment.to(tl.int32), axis=0)
            begin += CHUNK * PIECE
        _update_row(weight, squares, row, summed, d, learning_rate, decay, epsilon, D)
