"""What a training has found so far: a line per epoch, and the weights of the best one."""

from __future__ import annotations

from typing import Any

import torch

from models.embedding.embedding_model import EmbeddingModel
from models.embedding_section import EmbeddingSection
from models.validation import EarlyStopping


class TrainingProgress:
    """What a training has found so far.

    Attributes:
        history: A line per epoch.
        stopping: Which epoch is the best, and whether patience has ended.
        best: Its weights, in host memory: a device need not hold the tables twice, and it may be lost.
        kept: The epoch of the last checkpoint; 0: there is none.
    """

    def __init__(self, patience: int) -> None:
        self.history: list[dict[str, Any]] = []
        self.stopping = EarlyStopping(patience)
        self.best: dict[str, torch.Tensor] = {}
        self.kept = 0

    def tell(self, line: dict[str, Any]) -> bool:
        """Take the line of an epoch; return whether it is the best."""
        self.history.append(line)
        ndcg = line.get("validation_ndcg_at_10")  # where order is learnt
        return self.stopping.improved(len(self.history), line["validation_log_loss"] if ndcg is None else -ndcg)

    def take(self, line: dict[str, Any], model: EmbeddingModel) -> None:
        """Take the line and the weights of an epoch."""
        if self.tell(line):
            self.best = {name: tensor.to("cpu", copy=True) for name, tensor in model.state_dict().items()}

    def ended(self, section: EmbeddingSection) -> bool:
        """Return whether there is no epoch left to learn."""
        return len(self.history) >= section.epochs or bool(self.history and self.stopping.patience_ended)
