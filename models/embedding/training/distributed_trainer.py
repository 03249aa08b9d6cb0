"""The training of a DLRM by many processes, each with its share of the rows: the steps that one process would take.

The perceptrons are copied, and their gradients summed over the processes before each step; the embedding table is
spread by rows (`sharded`). A step's loss is the mean over the rows of all processes, so with the same rows
in it a step is that of one process up to the order of additions.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat, takewhile
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from models.embedding.network.embedding_model import EmbeddingModel
from models.embedding.reading.batches import BatchLoader
from models.embedding.reading.chunks import Batch, Lookups
from models.embedding.reading.layout import Layout
from models.embedding.table.precision import matmul_precision
from models.embedding.table.sharded import ShardedAdagrad, ShardedTable
from models.embedding.training.losses import weighted_row_losses
from models.embedding.training.order_loss import ORDER_LOSSES
from models.embedding.training.step import StepOptions, make_adam, step_options
from models.embedding.training.train import Loaders, Training, ValidationRows, score_in_order
from models.embedding_section import EmbeddingSection
from shortlist.contracts import ShortlistError
from shortlist.ranking.inputs import LearningTable
from shortlist.ranking.process_group import ProcessGroup
from shortlist.system.progress import progress


class DistributedTrainer(Training):
    """A training that takes every step with the other processes."""

    def __init__(
        self,
        model: EmbeddingModel,
        section: EmbeddingSection,
        device: str,
        layout: Layout,
        learning: LearningTable,
        group: ProcessGroup,
    ) -> None:
        """Take the model with its own rows of the table, and the table of features whose rows are shared.

        See `Training`; dropout draws other units in every process. The network is not compiled: gradients are
        exchanged in the middle of a step.

        Raises:
            ShortlistError: fp16 is declared.
        """
        options = step_options(section, device)
        if options.precision == "fp16":
            raise ShortlistError(
                "precision is fp16, whose loss is scaled by one process alone; several workers train."
                " Declare bf16, tf32 or fp32, or one worker."
            )
        super().__init__(model, section, device, StepOptions(options.precision))
        assert isinstance(model.table, ShardedTable)
        torch.manual_seed(torch.initial_seed() + group.rank)
        self._layout, self._rows, self._group = layout, learning.rows("train"), group
        self._sharded = ShardedAdagrad(model.table, section.embedding_learning_rate, section.embedding_decay)
        self._weights = list(model.parameters())
        self._adam = make_adam(model, section, device)

    def _epoch(self, epoch: int, loaders: Loaders) -> dict[str, Any]:
        epoch_metrics = super()._epoch(epoch, loaders)
        return epoch_metrics | {"rows_per_s": round(epoch_metrics["rows_per_s"] * self._rows / loaders.train.rows, 1)}

    def _train_epoch(self, epoch: int, train: BatchLoader) -> float:
        total, rows = 0.0, 0
        self._model.train()
        with progress(f"{self._section.kind} epoch {epoch}/{self._section.epochs}", total=self._rows) as advance:
            for step, batch in enumerate(self._padded_with_empty_batches(train.shuffled(epoch)), start=1):
                with matmul_precision(self._step.options.precision):
                    loss, step_rows = self._distributed_step(batch)
                if not step_rows:
                    break
                if not np.isfinite(loss):
                    raise self._diverged_error(
                        f"step {step} of epoch {epoch} ({rows:,} rows into it)", loss / step_rows
                    )
                total, rows = total + loss, rows + step_rows
                advance(step_rows, f"loss {total / rows:.4f}")
        return total / rows

    def _distributed_step(self, batch: Batch) -> tuple[float, int]:
        """Take a step; return the sum of the losses before it, and the rows, of all processes."""
        batch = batch.with_lookups_for(self._model.network.select_lookups)
        pooled = self._model.table(batch.lookups).requires_grad_()
        logits_B = self._model.network(batch.dense_BF, pooled)
        loss = self._loss_sum(logits_B, batch)
        loss.backward()  # type: ignore[no-untyped-call] # torch does not annotate it
        assert pooled.grad is not None
        total, rows = self._average_gradients(loss.detach(), batch.rows)
        if rows:
            self._adam.step()
            self._sharded.step(batch.lookups, pooled.grad.div_(rows))
        self._adam.zero_grad()
        return total, rows

    def _loss_sum(self, logits_B: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the sum of the losses of this process's rows."""
        order_loss = ORDER_LOSSES.get(self._section.objective)
        if order_loss is None:
            return weighted_row_losses(self._model.network, logits_B, batch.labels_B).sum()
        # An empty batch of a process that has no rows left has no lists either.
        lists_B = torch.zeros_like(batch.labels_B, dtype=torch.int64) if batch.lists_B is None else batch.lists_B
        return order_loss(logits_B, batch.labels_B, lists_B) * batch.rows

    @torch.no_grad()
    def _average_gradients(self, loss: torch.Tensor, rows: int) -> tuple[float, int]:
        """Put into the perceptrons the mean gradient over all processes' rows; return their losses' sum, and number."""
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        # Rows and loss travel with the gradients: one exchange per step. float32 counts to 16.7 million rows exactly.
        loss_and_rows = torch.stack([loss, loss.new_tensor(float(rows))])
        flat_gradients = torch.cat([*(gradient.flatten() for gradient in gradients), loss_and_rows])
        dist.all_reduce(flat_gradients)
        total_rows = int(flat_gradients[-1])
        for gradient, summed in zip(
            gradients, torch.split(flat_gradients, [*(gradient.numel() for gradient in gradients), 2]), strict=False
        ):
            gradient.copy_(summed.view_as(gradient).div_(max(1, total_rows)))
        return float(flat_gradients[-2]), total_rows

    def _score_validation_by_label(self, validation: BatchLoader) -> list[ValidationRows]:
        batches = takewhile(self._total_rows, self._padded_with_empty_batches(validation.in_order()))
        columns = score_in_order(self._model, batches, validation)
        labels, scores = np.concatenate(self._group.gather(columns), axis=1)
        list_numbers = validation.lists_in_order()
        if list_numbers is None:
            return [ValidationRows.from_weighted_labels(labels, scores, None)]
        # The lists of other processes are other lists.
        lists = [numbers * self._group.world + rank for rank, numbers in enumerate(self._group.gather(list_numbers))]
        return [ValidationRows.from_weighted_labels(labels, scores, np.concatenate(lists))]

    def _total_rows(self, batch: Batch) -> int:
        rows = torch.tensor([batch.rows])
        dist.all_reduce(rows)
        return int(rows)

    def _padded_with_empty_batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Give the batches, then empty ones: a process that has no rows left still answers those that have."""
        layout = self._layout
        empty_batch = Batch(
            torch.empty(0), torch.empty(0, layout.floats),
            Lookups(
                torch.empty(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int32),
                torch.empty(0) if layout.lists else None,
            ),
        )  # fmt: skip
        return (batch.to(self._device) for batch in chain(batches, repeat(empty_batch)))


def gather_to_rank_zero(model: EmbeddingModel) -> str:
    """Put the whole model into host memory on rank 0, where it is written and scores; return its device there."""
    assert isinstance(model.table, ShardedTable)
    whole = model.table.whole()
    if whole is not None:
        model.table = whole
        model.to("cpu")
    return "cpu"
