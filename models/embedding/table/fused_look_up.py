"""Copies embedding rows to the slots of a batch, in a Triton kernel that loads several rows at once."""

from __future__ import annotations

from typing import Final

import torch
import triton
from torch import Tensor
from triton import language as tl

_TILE: Final = 1_024
"""Floats that a warp loads at once: 32 for each of its threads."""


def look_up_rows(weight_RD: Tensor, rows_L: Tensor) -> Tensor:
    """Return the rows of a table on a GPU, shape (L, D), equal to those of `index_select` bit by bit."""
    count, width = len(rows_L), weight_RD.shape[1]
    rows_LD = torch.empty(count, width, device=weight_RD.device)
    if count:
        block = triton.next_power_of_2(width)
        tile = max(1, _TILE // block)
        _copy_rows[(triton.cdiv(count, tile),)](
            weight_RD, rows_L, rows_LD, count, D=width, BLOCK=block, TILE=tile, num_warps=1
        )
    return rows_LD


@triton.jit(do_not_specialize=["L"])
def _copy_rows(weight, rows, copied, L, D: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """Copy the rows of neighbouring look-ups."""
    place, d = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, BLOCK)[None, :]
    row = tl.load(rows + place, mask=place < L, other=0).to(tl.int64)[:, None]
    mask = (place < L)[:, None] & (d < D)
    tl.store(copied + place.to(tl.int64)[:, None] * D + d, tl.load(weight + row * D + d, mask=mask), mask=mask)
