"""What is derived, and may be compiled: the loss of a batch whose embeddings are looked up already."""

from __future__ import annotations

import torch
from torch import Tensor

from models.dlrm.embedding_model import EmbeddingNetwork
from models.dlrm.weighted_labels import weighted_log_loss


def batch_loss(
    network: EmbeddingNetwork, dense_BF: Tensor, pooled: Tensor, labels_B: Tensor, rows: Tensor | None
) -> Tensor:
    """Return the mean log loss of a batch's rows.

    Args:
        network: The network.
        dense_BF: Floats.
        pooled: What the table gave.
        labels_B: 0 or 1; or with weights, see `weighted_labels`. Shape (B, H) with further labels: the loss is then the
            mean over labels too.
        rows: How many of the rows count, the first ones; None: all.
    """
    logits_B = network(dense_BF, pooled)
    if rows is None:
        return weighted_log_loss(logits_B, labels_B, "mean")
    losses_B = weighted_log_loss(logits_B, labels_B, "none")
    counts_B = torch.arange(len(labels_B), device=labels_B.device) < rows
    return torch.where(counts_B, losses_B, 0.0).sum() / rows
