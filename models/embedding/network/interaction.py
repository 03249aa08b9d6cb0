"""All dot products between the vectors of a row, with a backward pass of half the usual work.

Shapes: B batch, N vectors of a row, D their width, P = N (N - 1) / 2 pairs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Interaction(nn.Module):
    """The dot product of every two different vectors of a row."""

    pairs_P: Tensor
    """Position of each pair among a row's N x N products."""
    sides_NN: Tensor
    """Inverse: the pair of each product; arbitrary on the diagonal."""

    def __init__(self, vectors: int) -> None:
        super().__init__()
        i_P, j_P = torch.tril_indices(vectors, vectors, offset=-1)
        sides_NN = torch.zeros(vectors, vectors, dtype=torch.int64)
        sides_NN[i_P, j_P] = sides_NN[j_P, i_P] = torch.arange(len(i_P))
        self.register_buffer("pairs_P", i_P * vectors + j_P, persistent=False)
        self.register_buffer("sides_NN", sides_NN.flatten(), persistent=False)

    def forward(self, vectors_BND: Tensor, fused: bool = False) -> Tensor:
        """Return the products, shape (B, P), float32.

        Args:
            vectors_BND: Vectors, in the type of products.
            fused: Whether Triton kernels multiply narrow vectors, on a GPU.
        """
        # torch does not annotate `apply`
        if fused and vectors_BND.dtype is not torch.float32:
            from models.embedding.network.fused_interaction import FusedDots  # needs Triton

            fused_BP: Tensor = FusedDots.apply(vectors_BND)  # type: ignore[no-untyped-call]
            return fused_BP
        pairs_BP: Tensor = _Dots.apply(vectors_BND, self.pairs_P, self.sides_NN)  # type: ignore[no-untyped-call]
        return pairs_BP


class _Dots(Function):
    """The pairs p of V V^T, and their derivative: with S_ij = S_ji the gradient of pair ij and 0 on the diagonal, S V.

    Autograd does not see that both factors are the same V; it multiplies twice and adds.
    """

    @staticmethod
    def forward(ctx: Any, vectors_BND: Tensor, pairs_P: Tensor, sides_NN: Tensor) -> Tensor:
        ctx.save_for_backward(vectors_BND, sides_NN)
        dots_BNN = torch.bmm(vectors_BND, vectors_BND.transpose(1, 2))
        # Torch picks columns of float32 five times as fast as of bf16.
        return dots_BNN.float().flatten(1).index_select(1, pairs_P)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BP: Tensor) -> tuple[Tensor, None, None]:
        vectors_BND, sides_NN = ctx.saved_tensors
        rows, vectors, _ = vectors_BND.shape
        if vectors == 1:  # no feature has a table, so there are no pairs
            return torch.zeros_like(vectors_BND), None, None
        s_BNN = gradient_BP.index_select(1, sides_NN).view(rows, vectors, vectors)
        s_BNN.diagonal(dim1=1, dim2=2).zero_()
        return torch.bmm(s_BNN.to(vectors_BND.dtype), vectors_BND), None, None
