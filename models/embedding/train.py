"""The training loop: epochs over the training days until the validation days say stop."""

from __future__ import annotations

import ctypes
import math
import sys
import time
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.embedding.batches import BatchLoader
from models.embedding.checkpoint import WORTH_S, Checkpoint, CheckpointStorage, random_states, restore_random_states
from models.embedding.chunks import Batch
from models.embedding.cuda_graphs import make_step
from models.embedding.embedding_model import EmbeddingModel
from models.embedding.step import AdmissionFilter, HostBackedTable, StepOptions, step_options
from models.embedding.training_progress import TrainingProgress
from models.embedding.weighted_labels import without_weights
from models.embedding_section import EmbeddingSection
from models.ranker import DivergedError, OnEpoch
from models.validation import probabilities, quality
from shortlist.contracts import ShortlistError
from shortlist.evaluation.ranking import mean_ndcg
from shortlist.system.progress import progress

_LOOK_EVERY: Final = 100
"""Steps on a GPU between two looks at the loss."""


class TrainingError(DivergedError):
    """Training diverged; the weights of the best epoch so far are back in the model."""


class Loaders(NamedTuple):
    """The days to learn from and the days that say when to stop."""

    train: BatchLoader
    validation: BatchLoader


class ValidationRows(NamedTuple):
    """The rows of the validation days, scored."""

    labels: np.ndarray
    scores: np.ndarray
    lists: np.ndarray | None
    """Number of every row's list; None: every row is learnt by itself."""
    weights: np.ndarray | None
    """How many impressions each row stands for; None: all alike."""

    @classmethod
    def of(cls, carried: np.ndarray, scores: np.ndarray, lists: np.ndarray | None) -> ValidationRows:
        """Return the rows of labels that may carry weights, see `weighted_labels`."""
        labels, weights = without_weights(carried)
        return cls(labels, scores, lists, weights)

    @property
    def quality(self) -> dict[str, float | None]:
        """Log loss and AUC."""
        return quality(self.labels, self.scores, self.weights)

    @property
    def says_when_to_stop(self) -> dict[str, float | None]:
        """What an epoch is judged by: log loss and AUC, or nDCG@10 where order is learnt."""
        if self.lists is None:
            return self.quality
        labels, scores = self.labels.astype(np.float64), self.scores.astype(np.float64)
        return {"validation_ndcg_at_10": mean_ndcg(labels, scores, self.lists)}


class Training:
    """One training of a network."""

    def __init__(
        self, model: EmbeddingModel, section: EmbeddingSection, device: str, options: StepOptions | None = None,
        admission: AdmissionFilter | None = None,
    ) -> None:  # fmt: skip
        """Take a model on its device.

        Args:
            model: Its weights are changed in place.
            section: Rates, rows of a batch, epochs, patience.
            device: "cpu" or "cuda".
            options: How steps are computed; None: as the section declares, for a training of unknown length.
            admission: Says which embedding rows may learn already; None: all.
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
        self, loaders: Loaders, on_epoch: OnEpoch, place: CheckpointStorage | None = None
    ) -> tuple[list[dict[str, Any]], int]:  # fmt: skip
        """Train until patience or epochs end; leave the best epoch's weights in the model.

        Args:
            loaders: The days to learn from, and those to validate on.
            on_epoch: Called after every epoch with its line of the history.
            place: Where checkpoints are left, and one is looked for to go on from.

        Returns:
            A line per epoch, and the number of the best one.

        Raises:
            TrainingError: The loss is no number any more; names the step.
            GpuFailureError: The GPU failed; names the epoch to go on from.
        """
        so_far = self._resumed(place)
        try:
            while not so_far.ended(self._section):
                epoch = len(so_far.history) + 1
                line = self._epoch(epoch, loaders)
                so_far.take(line, self._model)
                on_epoch(line)
                if place is not None and line["seconds"] >= WORTH_S and not so_far.ended(self._section):
                    self._checkpoint(so_far).save(place)
                    so_far.kept = epoch
        except BaseException as error:
            if (
                isinstance(error, RuntimeError)
                and (lost := gpu_failure(error, self._device, self._steps, so_far)) is not None
            ):
                raise lost from None
            self._restore(so_far)
            raise
        self._restore(so_far)
        best = so_far.stopping.best_epoch
        if self._section.learns_order:
            so_far.history[best - 1] |= self._scored(loaders.validation).quality
        return so_far.history, best

    def repeat(self, train: BatchLoader, epochs: int) -> None:
        """Train for some epochs, whatever the loss; what to learn says itself how long that is worth it.

        Args:
            train: What to learn.
            epochs: As many as an earlier training on fewer days was best after.

        Raises:
            TrainingError: The loss is no number any more; names the step.
        """
        for epoch in range(1, epochs + 1):
            self._pass(epoch, train)

    def _restore(self, so_far: TrainingProgress) -> None:
        """Put the best epoch's weights back."""
        if so_far.best:
            self._model.load_state_dict(so_far.best)

    def _resumed(self, place: CheckpointStorage | None) -> TrainingProgress:
        so_far = TrainingProgress(self._section.patience)
        found = Checkpoint.load(place) if place is not None else None
        if found is None:
            return so_far
        self._model.load_state_dict(found.weights)
        self._step.restore(found.optimizer)
        restore_random_states(found.random)
        for line in found.history:
            so_far.tell(line)
        so_far.best, so_far.kept = found.best or found.weights, len(found.history)
        if self._admission is not None:
            self._admission.restore(found.admission)
        return so_far

    def _checkpoint(self, so_far: TrainingProgress) -> Checkpoint:
        last_is_best = so_far.stopping.best_epoch == len(so_far.history)
        best = {} if last_is_best else so_far.best
        state = self._model.state_dict()
        counted = {} if self._admission is None else self._admission.state()
        return Checkpoint(so_far.history, state, self._step.state(), best, counted, random_states(self._device))

    def _epoch(self, epoch: int, loaders: Loaders) -> dict[str, Any]:
        start = time.perf_counter()
        loss = self._pass(epoch, loaders.train)
        seconds = time.perf_counter() - start
        learnt = f"{self._section.objective}_loss" if self._section.learns_order else "log_loss"
        line: dict[str, Any] = {"epoch": epoch, f"train_{learnt}": loss}
        line |= self._validated(epoch, loaders.validation)
        line |= self._step.scale.line() if self._step.scale is not None else {}
        line |= {"cache_hit_rate": self._cache.hit_rate()} if self._cache is not None else {}
        return line | {"rows_per_s": round(loaders.train.rows / seconds, 1), "seconds": round(seconds, 3)}

    def _pass(self, epoch: int, train: BatchLoader) -> float:
        """Return the mean loss of an epoch, every batch's taken before its step."""
        losses = LossMonitor(_LOOK_EVERY if self._device == "cuda" else 1, self._device)
        self._model.train()
        with progress(f"{self._section.kind} epoch {epoch}/{self._section.epochs}", total=train.rows) as advance:
            try:
                for self._steps, batch in enumerate(train.shuffled(epoch), start=1):
                    losses.add(self.take(batch), batch.rows)
                    advance(batch.rows, f"loss {losses.mean:.4f}" if losses.rows else "")
                losses.check_finite()
            except NonFiniteLossError as found:
                where = f"step {found.step} of epoch {epoch} ({found.rows:,} rows into it)"
                raise self._astray(where, found.loss) from None
        return losses.mean

    def take(self, batch: Batch) -> torch.Tensor:
        """Learn from a batch of the loader; return its mean loss before, on the device."""
        if not self._step.options.compiled:
            batch = batch.narrowed(self._model.network.needed)
        admitted = None if self._admission is None else self._admission.admitted(batch.lookups)
        if self._cache is not None:
            batch = batch._replace(lookups=self._cache.prepare(batch.lookups))
        return self._step(batch.to(self._device), None if admitted is None else admitted.to(self._device))

    def step(self, batch: Batch) -> float:
        """Learn from a batch; return its mean loss before, and wait for it."""
        return float(self.take(batch))

    def _validated(self, epoch: int, validation: BatchLoader) -> dict[str, float | None]:
        rows, *further = self._scored_labels(validation)
        if not all(np.isfinite(one.scores).all() for one in (rows, *further)):
            raise self._astray(f"the end of epoch {epoch}", float("nan"))
        line = dict(rows.says_when_to_stop)
        for label, one in zip(self._section.labels, further, strict=True):
            line |= {f"{name}_{label}": value for name, value in one.quality.items()}
        return line

    def _scored(self, validation: BatchLoader) -> ValidationRows:
        """Return all rows of the validation days with their scores."""
        return self._scored_labels(validation)[0]

    def _scored_labels(self, validation: BatchLoader) -> list[ValidationRows]:
        """Return all rows of the validation days with their scores, once per label, the label first."""
        labels, scores = [], []
        for batch in validation.in_order():
            labels.append(batch.labels_B.cpu().numpy())
            scores.append(score_batch(self._model, batch.to(self._device)))
        carried_NH, scores_NH = (np.concatenate(one).reshape(-1, self._section.outputs) for one in (labels, scores))
        lists = validation.lists_in_order()
        return [ValidationRows.of(*both, lists) for both in zip(carried_NH.T, scores_NH.T, strict=True)]

    def _astray(self, where: str, loss: float) -> TrainingError:
        kind = self._section.kind
        return TrainingError(
            f"models.{kind}: the loss is {loss} at {where}; wanted a finite number. Lower models.{kind}.learning_rate"
            f" (now {self._section.learning_rate}) or embedding_learning_rate (now"
            f" {self._section.embedding_learning_rate}), or clip the numeric features."
        )


@torch.no_grad()
def batch_log_odds(model: EmbeddingModel, batch: Batch) -> np.ndarray:
    """Return the log-odds of a batch, shape (B,), float32; (B, H) of a model with further labels."""
    model.eval()
    table, batch = model.table, batch.narrowed(model.network.needed)
    pooled = table.look_up(batch.lookups) if isinstance(table, HostBackedTable) else table(batch.lookups)
    found: np.ndarray = model.network(batch.dense_BF, pooled).cpu().numpy()
    return found


def score_batch(model: EmbeddingModel, batch: Batch) -> np.ndarray:
    """Return the probabilities of a batch, shape (B,), float32."""
    return probabilities(batch_log_odds(model, batch))


_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 2**26
"""Freed blocks up to this size stay with the process; larger ones, such as a loader's pools, go back."""


def keep_freed_memory() -> bool:
    """Let glibc keep what a step frees for the next one; return whether there is a glibc to tell.

    By default it gives blocks over 32 MiB back to the system, which clears every page again: at an embedding width of
    128 and 2 048 rows that was a fifth of a step's processor time (28 500 page faults a step, then none).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    return mallopt is not None and all(
        mallopt(what, bytes_) == 1 for what, bytes_ in ((_M_MMAP_THRESHOLD, _KEPT_BYTES), (_M_TRIM_THRESHOLD, 2**29))
    )


class GpuFailureError(ShortlistError):
    """The GPU failed in the middle of a training; the weights on it are gone."""


def gpu_failure(error: RuntimeError, device: str, step: int, so_far: TrainingProgress) -> GpuFailureError | None:
    """Return what a failure of the GPU means for a training; None when the error is none.

    Args:
        error: What torch says.
        device: Where the training ran.
        step: The last one begun in the running epoch; the GPU may have failed earlier, for nobody waits for it.
        so_far: Epochs that are learnt, and the one that a checkpoint was left of.
    """
    # Failures of cuBLAS and cuDNN have no class of their own.
    if not isinstance(error, torch.AcceleratorError) and not str(error).startswith("CUDA error"):
        return None
    why = str(error).partition("\n")[0]
    where = f"at or shortly before step {step} of epoch {len(so_far.history) + 1}"
    kept = (
        f"The checkpoint of epoch {so_far.kept} is kept: start the same run again, and it goes on from there"
        if so_far.kept
        else "No checkpoint was left yet: start the same run again, and it begins anew"
    )
    return GpuFailureError(
        f"{device} was lost {where} ({why}). {kept} (a step that Kubeflow retries does so by itself)."
        " If it happens again, look for Xid errors in the node's kernel log, and drain the node."
    )


class NonFiniteLossError(ValueError):
    """A loss is no finite number.

    Attributes:
        step: Whose, from 1.
        rows: Of the pass before it.
        loss: What it is.
    """

    def __init__(self, step: int, rows: int, loss: float) -> None:
        super().__init__(f"the loss of step {step} is {loss}")
        self.step, self.rows, self.loss = step, rows, loss


class LossMonitor:
    """Sums up losses, and finds the first that is no finite number.

    Looking at a loss makes the host wait for its step, so on a GPU many are looked at together; a bad one is found that
    many steps late at most, and named exactly.

    Attributes:
        steps, rows: Looked at so far.
    """

    def __init__(self, every: int, device: str) -> None:
        self.steps = self.rows = 0
        self._total = 0.0
        self._waiting_K = torch.zeros(every, device=device)
        self._rows_K: list[int] = []

    @property
    def mean(self) -> float:
        """Mean log loss of a row."""
        return self._total / self.rows

    def add(self, loss: Tensor, rows: int) -> None:
        """Take the mean loss of a step and its rows.

        Raises:
            NonFiniteLossError: One of them is no finite number.
        """
        self._waiting_K[len(self._rows_K)] = loss
        self._rows_K.append(rows)
        if len(self._rows_K) == len(self._waiting_K):
            self.check_finite()

    def check_finite(self) -> None:
        """Look at the losses that wait.

        Raises:
            NonFiniteLossError: One of them is no finite number.
        """
        losses = self._waiting_K[: len(self._rows_K)].tolist()
        for loss, rows in zip(losses, self._rows_K, strict=True):
            self.steps += 1
            if not math.isfinite(loss):
                raise NonFiniteLossError(self.steps, self.rows, loss)
            self._total, self.rows = self._total + loss * rows, self.rows + rows
        self._rows_K.clear()
