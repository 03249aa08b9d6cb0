"""The loss of a batch: the network's loss of every row, times the weight of the row.

A kind brings its own loss by `row_losses` and `loss_name` of its network; steps, padding, weights of rows and trainings
by several processes are the same for all kinds. An `objective` that learns an order replaces the network's loss by one
of `models.embedding.training.order_loss`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.embedding.network.embedding_model import EmbeddingNetwork
from models.embedding.reading.weighted_labels import split_weights


def weighted_row_losses(network: EmbeddingNetwork, logits_B: Tensor, weighted_labels_B: Tensor) -> Tensor:
    """Return the loss of every row times its weight, shape (B,).

    Args:
        network: The network, whose loss it is.
        logits_B: Log-odds; shape (B, H) with further labels.
        weighted_labels_B: Labels, perhaps with weights, of the shape of the log-odds; see `weighted_labels`.
    """
    labels_B, weights_B = split_weights(weighted_labels_B)
    losses_B = network.row_losses(logits_B, labels_B)
    return losses_B * (weights_B if weights_B.ndim == 1 else weights_B[:, 0])


def batch_loss(
    network: EmbeddingNetwork, dense_BF: Tensor, pooled: Tensor, labels_B: Tensor, rows: Tensor | None
) -> Tensor:
    """Return the mean loss of a batch's rows.

    Args:
        network: The network.
        dense_BF: Floats.
        pooled: Pooled embeddings.
        labels_B: 0 or 1; or with weights, see `weighted_labels`. Shape (B, H) with further labels.
        rows: Number of rows that are no padding, the first ones; None: all.
    """
    losses_B = weighted_row_losses(network, network(dense_BF, pooled), labels_B)
    if rows is None:
        return losses_B.mean()
    is_row_B = torch.arange(len(labels_B), device=labels_B.device) < rows
    return torch.where(is_row_B, losses_B, 0.0).sum() / rows
