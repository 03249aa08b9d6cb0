"""Progress of a training: the metrics of every epoch, and the weights of the best one."""

from __future__ import annotations

from typing import Any

import torch

from models.embedding.network.embedding_model import EmbeddingModel
from models.embedding_section import EmbeddingSection
from shortlist.ranking.validation import EarlyStopping


class TrainingProgress:
    """Progress of a training.

    Attributes:
        history: Metrics of every epoch.
        stopping: The best epoch, and whether patience has ended.
        best: Weights of the best epoch, in host memory: the device need not hold the tables twice, and may fail.
        checkpoint_epoch: Epoch of the last checkpoint; 0: there is none.
    """

    def __init__(self, patience: int) -> None:
        self.history: list[dict[str, Any]] = []
        self.stopping = EarlyStopping(patience)
        self.best: dict[str, torch.Tensor] = {}
        self.checkpoint_epoch = 0

    def record_metrics(self, epoch_metrics: dict[str, Any]) -> bool:
        """Record the metrics of an epoch; return whether it is the best."""
        self.history.append(epoch_metrics)
        ndcg = epoch_metrics.get("validation_ndcg_at_10")  # where order is learnt
        return self.stopping.improved(
            len(self.history), epoch_metrics["validation_log_loss"] if ndcg is None else -ndcg
        )

    def record_epoch(self, epoch_metrics: dict[str, Any], model: EmbeddingModel) -> None:
        """Record the metrics and the weights of an epoch."""
        if self.record_metrics(epoch_metrics):
            self.best = {name: tensor.to("cpu", copy=True) for name, tensor in model.state_dict().items()}

    def has_ended(self, section: EmbeddingSection) -> bool:
        """Return whether the training has ended."""
        return len(self.history) >= section.epochs or bool(self.history and self.stopping.patience_ended)
