"""Row-wise Adagrad, whose cost depends on the rows of the batch and not on the size of the table."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from models.embedding.reading.chunks import Lookups

EPSILON: Final = 1e-8


class RowWiseAdagrad:
    """Adagrad with one accumulator per embedding row.

    For every row r that the batch looks up, with g_r the sum of its gradients over the batch (plus decay * w_r):

        a_r <- a_r + mean_d(g_rd^2)
        w_r <- w_r - learning_rate * g_r / (sqrt(a_r) + epsilon)

    Other rows do not change. The same as TorchRec's EXACT_ROWWISE_ADAGRAD (Mudigere et al., 2022); Adagrad is by Duchi
    et al. (2011).
    """

    def __init__(self, weight_RD: Tensor, squares_R: Tensor, learning_rate: float, decay: float = 0.0) -> None:
        """Create the optimizer of a table and its accumulators a, both changed in place."""
        self._weight_RD = weight_RD
        self._squares_R = squares_R
        self._learning_rate = learning_rate
        self._decay = decay

    @torch.no_grad()
    def step(
        self, lookups: Lookups, gradient_slots_D: Tensor, admitted_L: Tensor | None = None,
        skipped: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Update the rows of a batch.

        Args:
            lookups: The rows of every slot.
            gradient_slots_D: Gradient of the loss by the pooled slots, shape (slots, D).
            admitted_L: Whether the row of each look-up may be updated, bool; None: all may.
            skipped: 1 when the step is skipped, else 0, no dimensions; None: it is not.
        """
        if skipped is not None and skipped.item():
            return
        rows_U, gradient_UD = sum_by_row(lookups, gradient_slots_D)
        if admitted_L is not None:
            is_admitted_U = torch.isin(rows_U, lookups.rows_L[admitted_L])
            rows_U, gradient_UD = rows_U[is_admitted_U], gradient_UD[is_admitted_U]
        weight_UD = self._weight_RD.index_select(0, rows_U)
        if self._decay:
            gradient_UD.add_(weight_UD, alpha=self._decay)
        squares_U = self._squares_R.index_select(0, rows_U) + gradient_UD.square().mean(1)
        step_U = -self._learning_rate / (squares_U.sqrt() + EPSILON)
        self._squares_R.index_copy_(0, rows_U, squares_U)
        self._weight_RD.index_copy_(0, rows_U, weight_UD.addcmul_(gradient_UD, step_U.unsqueeze(1)))


def sum_by_row(lookups: Lookups, gradient_slots_D: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct rows of a batch, int64 (U,), and the sum of the gradients of each, (U, D).

    A look-up is a sparse matrix times the table; this is its transpose times the gradient. Sorting the rows turns the
    sum into another `embedding_bag`, whose order of addition is fixed, so the same batch gives the same bits.
    """
    sorted_L, order_L = torch.sort(lookups.rows_L, stable=True)
    rows_U, counts_U = torch.unique_consecutive(sorted_L, return_counts=True)
    starts = functional.pad(counts_U.cumsum(0), (1, 0))
    slots_L, shares_L = order_L, None
    if lookups.shares_L is not None:
        lengths = lookups.starts.diff()
        slot_of_lookup_L = torch.repeat_interleave(torch.arange(len(lengths), device=order_L.device), lengths)
        slots_L, shares_L = slot_of_lookup_L[order_L], lookups.shares_L[order_L]
    summed_UD = functional.embedding_bag(
        slots_L, gradient_slots_D, starts, mode="sum", per_sample_weights=shares_L, include_last_offset=True
    )
    return rows_U.long(), summed_UD
