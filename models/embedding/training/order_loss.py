"""Ranking losses: the loss of pairs, and the loss of a whole list.

Shapes: B rows of a batch, L its lists, P pairs of a positive and a negative row of one list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from models.embedding.reading.weighted_labels import split_weights
from models.objective_section import Objective

OrderLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""order_loss(logits_B, labels_B, lists_B) -> the loss of a batch, no dimensions.

It is the mean over all rows of the batch, where every row has the loss of its list, and rows of lists with one class
have loss 0: lists are weighted by their rows, as in GAUC, and by the weights in their labels (`weighted_labels`).
"""


def pairwise_loss(logits_B: Tensor, labels_B: Tensor, lists_B: Tensor) -> Tensor:
    """Return the mean of log(1 + exp(s_negative - s_positive)) over all pairs of a list (RankNet; Burges et al., 2005).

    Args:
        logits_B: Scores s.
        labels_B: 0 or 1; or with weights.
        lists_B: Number of every row's list, int64, from 0, rising.
    """
    labels_B, rows_B = split_weights(labels_B)
    list_counts = _ListCounts.from_labels(labels_B, lists_B)
    positives, negatives = (labels_B > 0.5).nonzero().squeeze(1), (labels_B <= 0.5).nonzero().squeeze(1)
    # Every positive with all negatives of its list, which are neighbours in `negatives`.
    first_L = list_counts.negatives_L.long().cumsum(0) - list_counts.negatives_L.long()
    list_of_positive = lists_B[positives]
    count = list_counts.negatives_L.long()[list_of_positive]
    positive_P = torch.repeat_interleave(positives, count)
    start_P = torch.repeat_interleave(first_L[list_of_positive] - (count.cumsum(0) - count), count)
    negative_P = negatives[start_P + torch.arange(len(start_P), device=start_P.device)]
    losses_P = functional.softplus(logits_B[negative_P] - logits_B[positive_P])
    pairs_L = list_counts.positives_L * list_counts.negatives_L
    weights_P = (list_counts.rows() / pairs_L.clamp(min=1))[lists_B[positive_P]] * rows_B[positive_P]
    return (losses_P * weights_P).sum() / max(1, len(labels_B))


def listwise_loss(logits_B: Tensor, labels_B: Tensor, lists_B: Tensor) -> Tensor:
    """Return the cross-entropy of a list's positives and the softmax of its scores (ListNet; Cao et al., 2007).

    Args:
        logits_B: Scores s.
        labels_B: 0 or 1; or with weights.
        lists_B: Number of every row's list, int64, from 0, rising.
    """
    labels_B, rows_B = split_weights(labels_B)
    list_counts = _ListCounts.from_labels(labels_B, lists_B)
    highest_L = logits_B.new_zeros(len(labels_B))
    highest_L.scatter_reduce_(0, lists_B, logits_B.detach(), "amax", include_self=False)
    exponents_B = torch.exp(logits_B - highest_L[lists_B])
    total_L = torch.zeros_like(highest_L).index_add(0, lists_B, exponents_B)
    mean_L = torch.zeros_like(highest_L).index_add(0, lists_B, logits_B * labels_B) / list_counts.positives_L.clamp(
        min=1
    )
    # Unused list numbers would add the logarithm of 0.
    varied_L = (list_counts.positives_L > 0) & (list_counts.negatives_L > 0)
    losses_L = torch.log(torch.where(varied_L, total_L, 1.0)) + highest_L - mean_L
    counted_L = torch.zeros_like(highest_L).index_add(0, lists_B, rows_B)
    return torch.where(varied_L, losses_L * counted_L, 0.0).sum() / max(1, len(labels_B))


ORDER_LOSSES: Final[dict[Objective, OrderLoss]] = {"pairwise": pairwise_loss, "listwise": listwise_loss}
"""Ranking losses by `objective`."""


class _ListCounts(NamedTuple):
    """Positives and negatives of each list of a batch; B numbers, 0 behind the last list."""

    positives_L: Tensor
    negatives_L: Tensor

    @classmethod
    def from_labels(cls, labels_B: Tensor, lists_B: Tensor) -> _ListCounts:
        zeros_L = torch.zeros_like(labels_B)
        positives_L = zeros_L.index_add(0, lists_B, labels_B)
        return cls(positives_L, zeros_L.index_add(0, lists_B, 1 - labels_B))

    def rows(self) -> Tensor:
        return self.positives_L + self.negatives_L
