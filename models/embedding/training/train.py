"""The training loop: epochs over the training days until the validation metric stops improving."""

from __future__ import annotations

import ctypes
import math
import sys
import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.embedding.network.embedding_model import EmbeddingModel
from models.embedding.reading.batches import BatchLoader
from models.embedding.reading.chunks import Batch
from models.embedding.reading.weighted_labels import without_weights
from models.embedding.training.checkpoint import (
    MIN_EPOCH_S,
    Checkpoint,
    CheckpointStorage,
    random_states,
    restore_random_states,
)
from models.embedding.training.cuda_graphs import make_step
from models.embedding.training.step import AdmissionFilter, HostBackedTable, StepOptions, step_options
from models.embedding.training.training_progress import TrainingProgress
from models.embedding_section import EmbeddingSection
from shortlist.contracts import ShortlistError
from shortlist.evaluation.metrics.ranking import mean_ndcg
from shortlist.ranking.ranker import DivergedError, OnEpoch
from shortlist.ranking.validation import probabilities, validation_metrics
from shortlist.system.progress import progress

_LOSS_CHECK_STEPS: Final = 100
"""Steps on a GPU between two checks of the loss."""


class TrainingError(DivergedError):
    """Training diverged; the model has the weights of the best epoch."""


class Loaders(NamedTuple):
    """Loaders of the training and the validation days."""

    train: BatchLoader
    validation: BatchLoader


class ValidationRows(NamedTuple):
    """Labels and scores of the validation days."""

    labels: np.ndarray
    scores: np.ndarray
    lists: np.ndarray | None
    """List number of every row; None: no order is learnt."""
    weights: np.ndarray | None
    """Weight of each row; None: all equal."""

    @classmethod
    def from_weighted_labels(
        cls, weighted_labels: np.ndarray, scores: np.ndarray, lists: np.ndarray | None
    ) -> ValidationRows:
        """Return the rows of labels that may contain weights, see `weighted_labels`."""
        labels, weights = without_weights(weighted_labels)
        return cls(labels, scores, lists, weights)

    @property
    def quality(self) -> dict[str, float | None]:
        """Log loss and AUC."""
        return validation_metrics(self.labels, self.scores, self.weights)

    @property
    def stopping_metrics(self) -> dict[str, float | None]:
        """Metrics for early stopping: log loss and AUC, or nDCG@10 where order is learnt."""
        if self.lists is None:
            return self.quality
        labels, scores = self.labels.astype(np.float64), self.scores.astype(np.float64)
        return {"validation_ndcg_at_10": mean_ndcg(labels, scores, self.lists)}


class Training:
    """The training of a network."""

    def __init__(
        self, model: EmbeddingModel, section: EmbeddingSection, device: str, options: StepOptions | None = None,
        admission: AdmissionFilter | None = None,
    ) -> None:  # fmt: skip
        """Create the training of a model on its device.

        Args:
            model: The model, changed in place.
            section: Learning rates, batch size, epochs, patience.
            device: "cpu" or "cuda".
            options: How steps are computed; None: as the section declares, for a training of unknown length.
            admission: Decides which embedding rows may be updated; None: all.
        """
        keep_freed_memory()
        self._model = model
        self._section = section
        self._device = device
        self._step = make_step(model, section, options or step_options(section, device), device)
        self._admission = admission
        self._cache = model.table if isinstance(model.table, HostBackedTable) else None
        self._steps = 0

    def run(
        self, loaders: Loaders, on_epoch: OnEpoch, storage: CheckpointStorage | None = None
    ) -> tuple[list[dict[str, Any]], int]:  # fmt: skip
        """Train until patience or epochs end; leave the best epoch's weights in the model.

        Args:
            loaders: Loaders of the training and the validation days.
            on_epoch: Called after every epoch with its metrics.
            storage: Storage of checkpoints; a training resumes from the one it holds.

        Returns:
            The metrics of every epoch, and the number of the best epoch.

        Raises:
            TrainingError: The loss is not finite; names the step.
            GpuFailureError: The GPU failed; names the epoch of the last checkpoint.
        """
        progress_so_far = self._resume(storage)
        try:
            while not progress_so_far.has_ended(self._section):
                epoch = len(progress_so_far.history) + 1
                epoch_metrics = self._epoch(epoch, loaders)
                progress_so_far.record_epoch(epoch_metrics, self._model)
                on_epoch(epoch_metrics)
                if (
                    storage is not None
                    and epoch_metrics["seconds"] >= MIN_EPOCH_S
                    and not progress_so_far.has_ended(self._section)
                ):
                    self._checkpoint(progress_so_far).save(storage)
                    progress_so_far.checkpoint_epoch = epoch
        except BaseException as error:
            if (
                isinstance(error, RuntimeError)
                and (gpu_error := gpu_failure(error, self._device, self._steps, progress_so_far)) is not None
            ):
                raise gpu_error from None
            self._restore_best_weights(progress_so_far)
            raise
        self._restore_best_weights(progress_so_far)
        best = progress_so_far.stopping.best_epoch
        if self._section.learns_order:
            progress_so_far.history[best - 1] |= self._score_validation(loaders.validation).quality
        return progress_so_far.history, best

    def train_epochs(self, train: BatchLoader, epochs: int) -> None:
        """Train for a fixed number of epochs, without validation.

        Args:
            train: Loader of the training rows.
            epochs: Number of epochs: the best one of an earlier training on fewer days.

        Raises:
            TrainingError: The loss is not finite; names the step.
        """
        for epoch in range(1, epochs + 1):
            self._train_epoch(epoch, train)

    def _restore_best_weights(self, training_progress: TrainingProgress) -> None:
        """Restore the best epoch's weights."""
        if training_progress.best:
            self._model.load_state_dict(training_progress.best)

    def _resume(self, storage: CheckpointStorage | None) -> TrainingProgress:
        training_progress = TrainingProgress(self._section.patience)
        checkpoint = Checkpoint.load(storage) if storage is not None else None
        if checkpoint is None:
            return training_progress
        self._model.load_state_dict(checkpoint.weights)
        self._step.restore(checkpoint.optimizer)
        restore_random_states(checkpoint.random)
        for epoch_metrics in checkpoint.history:
            training_progress.record_metrics(epoch_metrics)
        training_progress.best, training_progress.checkpoint_epoch = (
            checkpoint.best or checkpoint.weights,
            len(checkpoint.history),
        )
        if self._admission is not None:
            self._admission.restore(checkpoint.admission)
        return training_progress

    def _checkpoint(self, training_progress: TrainingProgress) -> Checkpoint:
        last_is_best = training_progress.stopping.best_epoch == len(training_progress.history)
        best = {} if last_is_best else training_progress.best
        state = self._model.state_dict()
        admission_state = {} if self._admission is None else self._admission.state()
        return Checkpoint(
            training_progress.history, state, self._step.state(), best, admission_state, random_states(self._device)
        )

    def _epoch(self, epoch: int, loaders: Loaders) -> dict[str, Any]:
        start = time.perf_counter()
        loss = self._train_epoch(epoch, loaders.train)
        seconds = time.perf_counter() - start
        loss_name = f"{self._section.objective}_loss" if self._section.learns_order else self._model.network.loss_name
        epoch_metrics: dict[str, Any] = {"epoch": epoch, f"train_{loss_name}": loss}
        epoch_metrics |= self._validate(epoch, loaders.validation)
        epoch_metrics |= self._step.scale.epoch_metrics() if self._step.scale is not None else {}
        epoch_metrics |= {"cache_hit_rate": self._cache.hit_rate()} if self._cache is not None else {}
        return epoch_metrics | {"rows_per_s": round(loaders.train.rows / seconds, 1), "seconds": round(seconds, 3)}

    def _train_epoch(self, epoch: int, train: BatchLoader) -> float:
        """Train for an epoch; return the mean of the batches' losses, each before its step."""
        losses = LossMonitor(_LOSS_CHECK_STEPS if self._device == "cuda" else 1, self._device)
        self._model.train()
        with progress(f"{self._section.kind} epoch {epoch}/{self._section.epochs}", total=train.rows) as advance:
            try:
                for self._steps, batch in enumerate(train.shuffled(epoch), start=1):
                    losses.add(self.train_batch(batch), batch.rows)
                    advance(batch.rows, f"loss {losses.mean:.4f}" if losses.rows else "")
                losses.check_finite()
            except NonFiniteLossError as problem:
                location = f"step {problem.step} of epoch {epoch} ({problem.rows:,} rows into it)"
                raise self._diverged_error(location, problem.loss) from None
        return losses.mean

    def train_batch(self, batch: Batch) -> torch.Tensor:
        """Train on a batch of the loader; return its mean loss before the step, on the device."""
        if not self._step.options.compiled:
            batch = batch.with_lookups_for(self._model.network.select_lookups)
        admitted = None if self._admission is None else self._admission.count_and_admit(batch.lookups)
        if self._cache is not None:
            batch = batch._replace(lookups=self._cache.prepare(batch.lookups))
        return self._step(batch.to(self._device), None if admitted is None else admitted.to(self._device))

    def _validate(self, epoch: int, validation: BatchLoader) -> dict[str, float | None]:
        rows, *further = self._score_validation_by_label(validation)
        if not all(np.isfinite(validation_rows.scores).all() for validation_rows in (rows, *further)):
            raise self._diverged_error(f"the end of epoch {epoch}", float("nan"))
        epoch_metrics = dict(rows.stopping_metrics)
        for label, label_rows in zip(self._section.labels, further, strict=True):
            epoch_metrics |= {f"{name}_{label}": value for name, value in label_rows.quality.items()}
        return epoch_metrics

    def _score_validation(self, validation: BatchLoader) -> ValidationRows:
        """Return all rows of the validation days with their scores."""
        return self._score_validation_by_label(validation)[0]

    def _score_validation_by_label(self, validation: BatchLoader) -> list[ValidationRows]:
        """Return all rows of the validation days with their scores, once per label, the label first."""
        columns = score_in_order(self._model, (batch.to(self._device) for batch in validation.in_order()), validation)
        lists = validation.lists_in_order()
        return [
            ValidationRows.from_weighted_labels(labels, scores, lists)
            for labels, scores in zip(*np.split(columns, 2), strict=True)
        ]

    def _diverged_error(self, location: str, loss: float) -> TrainingError:
        kind = self._section.kind
        return TrainingError(
            f"models.{kind}: the loss is {loss} at {location}; wanted a finite number. Lower"
            f" models.{kind}.learning_rate (now {self._section.learning_rate}) or embedding_learning_rate (now"
            f" {self._section.embedding_learning_rate}), or clip the numeric features."
        )


@torch.no_grad()
def batch_log_odds(model: EmbeddingModel, batch: Batch) -> np.ndarray:
    """Return the log-odds of a batch, shape (B,), float32; (B, H) for a model with further labels."""
    model.eval()
    table, batch = model.table, batch.with_lookups_for(model.network.select_lookups)
    pooled = table.look_up(batch.lookups) if isinstance(table, HostBackedTable) else table(batch.lookups)
    log_odds: np.ndarray = model.network(batch.dense_BF, pooled).cpu().numpy()
    return log_odds


def score_batch(model: EmbeddingModel, batch: Batch) -> np.ndarray:
    """Return the probabilities of a batch, shape (B,), float32."""
    return probabilities(batch_log_odds(model, batch))


def join_arrays(arrays: Iterable[np.ndarray], rows: int) -> np.ndarray:
    """Return arrays joined along their first dimension, each copied to its place when it comes.

    Kept until all have come, the small array of every batch would lie in the place of a large one that was freed, where
    no large one fits any more: the process would grow by several MB per batch.

    Args:
        arrays: At least one.
        rows: Their rows together.
    """
    joined, filled = np.empty(0), 0
    for array in arrays:
        if not filled:
            joined = np.empty((rows, *array.shape[1:]), array.dtype)
        joined[filled : filled + len(array)] = array
        filled += len(array)
    assert filled == rows, f"{filled} of {rows} rows"
    return joined


def score_in_order(model: EmbeddingModel, batches: Iterable[Batch], loader: BatchLoader) -> np.ndarray:
    """Return the labels, then the scores of all rows of a loader, float32, shape (2 H, rows).

    Args:
        model: The network.
        batches: The loader's batches in order, on the network's device.
        loader: The loader.
    """
    scored = (
        np.column_stack([batch.labels_B.cpu().numpy(), score_batch(model, batch)]).astype(np.float32, copy=False)
        for batch in batches
    )
    return np.ascontiguousarray(join_arrays(scored, loader.rows).T)


_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MMAP_THRESHOLD_BYTES: Final = 2**26
"""Freed blocks up to this size are kept by the process; larger ones, such as a loader's pools, are returned."""


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next step; return whether the C library supports it.

    By default glibc returns blocks over 32 MiB to the system, which clears every page again: at an embedding width of
    128 and 2 048 rows that was a fifth of a step's processor time (28 500 page faults per step, then none).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    return mallopt is not None and all(
        mallopt(option, bytes_) == 1
        for option, bytes_ in ((_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES), (_M_TRIM_THRESHOLD, 2**29))
    )


class GpuFailureError(ShortlistError):
    """The GPU failed during a training; its weights are lost."""


def gpu_failure(
    error: RuntimeError, device: str, step: int, training_progress: TrainingProgress
) -> GpuFailureError | None:
    """Return the error of a training whose GPU failed; None when the error is no failure of the GPU.

    Args:
        error: The error of torch.
        device: Device of the training.
        step: Last step that was started in the current epoch; the GPU may have failed earlier.
        training_progress: Epochs that are learnt, and the one that a checkpoint was left of.
    """
    # Failures of cuBLAS and cuDNN have no class of their own.
    if not isinstance(error, torch.AcceleratorError) and not str(error).startswith("CUDA error"):
        return None
    reason = str(error).partition("\n")[0]
    location = f"at or shortly before step {step} of epoch {len(training_progress.history) + 1}"
    checkpoint_note = (
        f"The checkpoint of epoch {training_progress.checkpoint_epoch} is kept: start the same run again, and it goes"
        " on from there"
        if training_progress.checkpoint_epoch
        else "No checkpoint was left yet: start the same run again, and it begins anew"
    )
    return GpuFailureError(
        f"{device} was lost {location} ({reason}). {checkpoint_note} (a step that Kubeflow retries does so by itself)."
        " If it happens again, look for Xid errors in the node's kernel log, and drain the node."
    )


class NonFiniteLossError(ValueError):
    """A loss is not finite.

    Attributes:
        step: Number of the step, from 1.
        rows: Rows of the epoch before the step.
        loss: The loss.
    """

    def __init__(self, step: int, rows: int, loss: float) -> None:
        super().__init__(f"the loss of step {step} is {loss}")
        self.step, self.rows, self.loss = step, rows, loss


class LossMonitor:
    """Sums losses, and finds the first that is not finite.

    Reading a loss makes the host wait for its step, so on a GPU many are checked together; the step of a bad loss is
    named exactly.

    Attributes:
        steps, rows: Number of steps and rows checked so far.
    """

    def __init__(self, check_steps: int, device: str) -> None:
        self.steps = self.rows = 0
        self._total = 0.0
        self._pending_losses_K = torch.zeros(check_steps, device=device)
        self._pending_rows_K: list[int] = []

    @property
    def mean(self) -> float:
        """Mean log loss of a row."""
        return self._total / self.rows

    def add(self, loss: Tensor, rows: int) -> None:
        """Record the mean loss of a step and its rows.

        Raises:
            NonFiniteLossError: A loss is not finite.
        """
        self._pending_losses_K[len(self._pending_rows_K)] = loss
        self._pending_rows_K.append(rows)
        if len(self._pending_rows_K) == len(self._pending_losses_K):
            self.check_finite()

    def check_finite(self) -> None:
        """Check the losses recorded since the last check.

        Raises:
            NonFiniteLossError: A loss is not finite.
        """
        losses = self._pending_losses_K[: len(self._pending_rows_K)].tolist()
        for loss, rows in zip(losses, self._pending_rows_K, strict=True):
            self.steps += 1
            if not math.isfinite(loss):
                raise NonFiniteLossError(self.steps, self.rows, loss)
            self._total, self.rows = self._total + loss * rows, self.rows + rows
        self._pending_rows_K.clear()
