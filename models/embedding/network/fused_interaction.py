"""All dot products of a row's vectors, and their derivative, each in one kernel of Triton.

The products of a row stay in registers; only its pairs, and the gradient of its vectors, are written. Torch's batched
product writes all N x N products, of which less than half are used, and is slow where N is no multiple of 8.

Letters as in `models.embedding.network.interaction`; constants of a kernel are in capitals.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from triton import language as tl

_MIN_BLOCK: Final = 16
"""Least rows and columns that tensor cores multiply."""
_WARPS: Final = 1


class FusedDots(Function):
    """The pairs of bf16 or fp16 vectors on a GPU, float32; see `models.embedding.network.interaction`."""

    @staticmethod
    def forward(ctx: Any, vectors_BND: Tensor) -> Tensor:
        """Return the pairs, shape (B, P)."""
        vectors_BND = vectors_BND.contiguous()
        ctx.save_for_backward(vectors_BND)
        rows, vectors, _ = vectors_BND.shape
        pairs_BP = torch.empty(rows, vectors * (vectors - 1) // 2, device=vectors_BND.device)
        if rows and pairs_BP.shape[1]:
            _pairs[(rows,)](vectors_BND, pairs_BP, **_constants(vectors_BND), num_warps=_WARPS)
        return pairs_BP

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BP: Tensor) -> Tensor:
        """Return the gradient of the vectors, in their type."""
        (vectors_BND,) = ctx.saved_tensors
        gradient_BND = torch.zeros_like(vectors_BND) if vectors_BND.shape[1] == 1 else torch.empty_like(vectors_BND)
        if len(vectors_BND) and vectors_BND.shape[1] > 1:
            _gradient[(len(vectors_BND),)](
                vectors_BND, gradient_BP.contiguous(), gradient_BND, **_constants(vectors_BND), num_warps=_WARPS
            )
        return gradient_BND


def _constants(vectors_BND: Tensor) -> dict[str, int]:
    _, vectors, width = vectors_BND.shape
    block_n, block_d = (max(_MIN_BLOCK, triton.next_power_of_2(size)) for size in (vectors, width))
    return {"N": vectors, "D": width, "P": vectors * (vectors - 1) // 2, "BLOCK_N": block_n, "BLOCK_D": block_d}


@triton.jit
def _pairs(
    vectors, pairs,
    N: tl.constexpr, D: tl.constexpr, P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Multiply the vectors of a row with each other; keep the products below the diagonal, row by row."""
    row = tl.program_id(0).to(tl.int64)
    i, d = tl.arange(0, BLOCK_N)[:, None], tl.arange(0, BLOCK_D)[None, :]
    vectors_of_row = tl.load(vectors + row * N * D + i * D + d, mask=(i < N) & (d < D), other=0.0)
    dots = tl.dot(vectors_of_row, tl.trans(vectors_of_row))
    j = tl.arange(0, BLOCK_N)[None, :]
    tl.store(pairs + row * P + i * (i - 1) // 2 + j, dots, mask=(i < N) & (j < i))


@triton.jit
def _gradient(
    vectors, gradient_of_pairs, gradient,
    N: tl.constexpr, D: tl.constexpr, P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Multiply the gradients of a row's pairs, as a symmetric matrix, with its vectors."""
    row = tl.program_id(0).to(tl.int64)
    i, d = tl.arange(0, BLOCK_N)[:, None], tl.arange(0, BLOCK_D)[None, :]
    j = tl.arange(0, BLOCK_N)[None, :]
    larger, smaller = tl.maximum(i, j), tl.minimum(i, j)
    place = gradient_of_pairs + row * P + larger * (larger - 1) // 2 + smaller
    sides = tl.load(place, mask=(larger < N) & (i != j), other=0.0)
    vectors_of_row = tl.load(vectors + row * N * D + i * D + d, mask=(i < N) & (d < D), other=0.0)
    dots = tl.dot(sides.to(vectors_of_row.dtype), vectors_of_row)
    tl.store(gradient + row * N * D + i * D + d, dots.to(vectors_of_row.dtype), mask=(i < N) & (d < D))
