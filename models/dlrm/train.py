"""The training loop: epochs over the training days until the validation days say stop."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from models.allocation import keep_freed_memory
from models.dlrm.batches import BatchLoader
from models.dlrm.chunks import Batch
from models.dlrm.network import DLRM
from models.dlrm.optimizer import RowWiseAdagrad
from models.ranker import OnEpoch
from models.validation import EarlyStopping, probabilities, quality
from shortlist.config.models import DLRMModel
from shortlist.contracts import ShortlistError
from shortlist.progress import progress


class TrainingError(ShortlistError):
    """Training went astray; the weights of the best epoch so far are back in the model."""


class Loaders(NamedTuple):
    """The days to learn from and the days that say when to stop."""

    train: BatchLoader
    validation: BatchLoader


class Training:
    """One training of a DLRM."""

    def __init__(self, model: DLRM, section: DLRMModel, device: str) -> None:
        keep_freed_memory()
        self._model = model
        self._section = section
        self._device = device
        self._adam = torch.optim.AdamW(
            model.parameters(), lr=section.learning_rate, weight_decay=section.weight_decay, fused=True
        )
        self._adagrad = RowWiseAdagrad(
            model.table.weight_RD, model.table.squares_R, section.embedding_learning_rate, section.embedding_decay
        )

    def run(self, loaders: Loaders, on_epoch: OnEpoch) -> tuple[list[dict[str, Any]], int]:
        """Train until patience or epochs end; leave the best epoch's weights in the model.

        Returns:
            A line per epoch, and the number of the best one.

        Raises:
            TrainingError: The loss is no number any more; names the step.
        """
        history: list[dict[str, Any]] = []
        stopping = EarlyStopping(self._section.patience)
        best: dict[str, torch.Tensor] | None = None
        try:
            for epoch in range(1, self._section.epochs + 1):
                line = self._epoch(epoch, loaders)
                history.append(line)
                on_epoch(line)
                if stopping.improved(epoch, line["validation_log_loss"]):
                    # In host memory: a device need not hold the tables twice.
                    best = {name: tensor.to("cpu", copy=True) for name, tensor in self._model.state_dict().items()}
                if stopping.patience_ended:
                    break
        finally:
            if best is not None:
                self._model.load_state_dict(best)
        return history, stopping.best_epoch

    def _epoch(self, epoch: int, loaders: Loaders) -> dict[str, Any]:
        start = time.perf_counter()
        train_log_loss = self._pass(epoch, loaders.train)
        seconds = time.perf_counter() - start
        line: dict[str, Any] = {"epoch": epoch, "train_log_loss": train_log_loss}
        line |= self._validated(epoch, loaders.validation)
        return line | {"rows_per_s": round(loaders.train.rows / seconds, 1), "seconds": round(seconds, 3)}

    def _pass(self, epoch: int, train: BatchLoader) -> float:
        """Return the mean log loss of an epoch, every batch's taken before its step."""
        total, rows = 0.0, 0
        self._model.train()
        with progress(f"dlrm epoch {epoch}/{self._section.epochs}", total=train.rows) as advance:
            for step, batch in enumerate(train.shuffled(epoch), start=1):
                loss = self.step(batch.to(self._device))
                if not math.isfinite(loss):
                    raise self._astray(f"step {step} of epoch {epoch} ({rows:,} rows into it)", loss)
                total, rows = total + loss * batch.rows, rows + batch.rows
                advance(batch.rows, f"loss {total / rows:.4f}")
        return total / rows

    def step(self, batch: Batch) -> float:
        """Learn from a batch, which is on the device; return its mean log loss before."""
        pooled = self._model.table(batch.lookups).requires_grad_()
        logits_B = self._model.network(batch.dense_BF, pooled)
        loss = functional.binary_cross_entropy_with_logits(logits_B, batch.labels_B)
        loss.backward()  # type: ignore[no-untyped-call] # torch does not annotate it
        self._adam.step()
        self._adam.zero_grad()
        assert pooled.grad is not None
        self._adagrad.step(batch.lookups, pooled.grad)
        return loss.item()

    def _validated(self, epoch: int, validation: BatchLoader) -> dict[str, float | None]:
        labels, scores = [], []
        for batch in validation.in_order():
            labels.append(batch.labels_B.numpy())
            scores.append(score_batch(self._model, batch.to(self._device)))
        every_score = np.concatenate(scores)
        if not np.isfinite(every_score).all():
            raise self._astray(f"the end of epoch {epoch}", float("nan"))
        return quality(np.concatenate(labels), every_score)

    def _astray(self, where: str, loss: float) -> TrainingError:
        return TrainingError(
            f"models.dlrm: the loss is {loss} at {where}; wanted a finite number. Lower models.dlrm.learning_rate"
            f" (now {self._section.learning_rate}) or embedding_learning_rate (now"
            f" {self._section.embedding_learning_rate}), or clip the numeric features."
        )


@torch.no_grad()
def score_batch(model: DLRM, batch: Batch) -> np.ndarray:
    """Return the probabilities of a batch, shape (B,), float32."""
    model.eval()
    return probabilities(model(batch.dense_BF, batch.lookups).cpu().numpy())
