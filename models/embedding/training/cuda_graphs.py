"""The whole training step as a CUDA graph: recorded once, then replayed by a single launch.

A step is a long sequence of small kernels, many of which a GPU finishes faster than Python starts the next one.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from models.embedding.network.embedding_model import EmbeddingModel
from models.embedding.reading.chunks import Batch, Lookups
from models.embedding.reading.padding import PaddedBatch, with_empty_slots
from models.embedding.table.precision import matmul_precision
from models.embedding.training.step import StepOptions, TrainingStep
from models.embedding_section import EmbeddingSection

_WARM_UP: Final = 3
"""Steps before recording, in which libraries choose kernels and allocate memory, which a recording must not do."""
_LOOKUP_MARGIN: Final = 1.25
"""Capacity for look-ups, relative to the first batch; lists make their number vary."""


class StepBuffers:
    """Tensors of fixed shapes and addresses that batches are copied into.

    Padding: rows of zeros whose slots are empty, and, behind the batch's look-ups, look-ups of row 0 in an unused slot,
    which are not admitted.
    """

    def __init__(self, example: Batch, rows: int, singles: int) -> None:
        """Allocate buffers for batches like an example.

        Args:
            example: A batch with the device, the floats and the features of all batches.
            rows: Rows of a step.
            singles: Number of features with one id per row.
        """
        device, lists = example.labels_B.device, example.lookups.shares_L is not None
        self._singles = singles
        per_row = (len(example.lookups.starts) - 1) // example.rows
        self.slots = per_row * rows
        capacity = int(len(example.lookups.rows_L) / example.rows * rows * _LOOKUP_MARGIN) + 1 if lists else self.slots
        self.labels_B = torch.zeros(rows, device=device)
        self.dense_BF = torch.zeros(rows, example.dense_BF.shape[1], device=device)
        self.rows_L = torch.zeros(max(capacity, len(example.lookups.rows_L)), dtype=torch.int32, device=device)
        self.shares_L = torch.zeros(len(self.rows_L), device=device) if lists else None
        # One slot for padding look-ups, where there are lists.
        self.starts = torch.arange(self.slots + 1 + lists, dtype=torch.int32, device=device)
        self.admitted_L = torch.zeros(len(self.rows_L), dtype=torch.bool, device=device)
        self.rows = torch.ones((), device=device)

    def holds(self, batch: Batch) -> bool:
        """Return whether a batch fits."""
        return len(batch.lookups.rows_L) <= len(self.rows_L)

    def fill(self, batch: Batch, admitted_L: Tensor | None = None) -> PaddedBatch:
        """Copy a batch into the buffers, and return the tensors of the step, which are always the same."""
        rows, lookups = batch.rows, len(batch.lookups.rows_L)
        self.rows.fill_(float(rows))
        _copy_padded(self.labels_B, batch.labels_B)
        _copy_padded(self.dense_BF, batch.dense_BF)
        _copy_padded(self.rows_L, batch.lookups.rows_L)
        self.admitted_L[lookups:] = False
        self.admitted_L[:lookups] = True if admitted_L is None else admitted_L
        if self.shares_L is not None:
            assert batch.lookups.shares_L is not None
            _copy_padded(self.shares_L, batch.lookups.shares_L)
            starts = with_empty_slots(batch.lookups.starts, rows, len(self.labels_B), self._singles)
            self.starts[: self.slots + 1] = starts
            self.starts[-1:].fill_(len(self.rows_L))  # `starts[-1] = ` would copy a number from the host and wait
        return PaddedBatch(
            self.labels_B, self.dense_BF, Lookups(self.rows_L, self.starts, self.shares_L), self.slots, self.rows,
            self.admitted_L,
        )  # fmt: skip


class CudaGraphStep(TrainingStep):
    """Replays the recorded step; records it again when a batch has more look-ups than the buffers hold."""

    def __init__(self, model: EmbeddingModel, section: EmbeddingSection, options: StepOptions, device: str) -> None:
        """See `make_step`."""
        assert options.fixed_shapes, "what depends on a batch's ids cannot be recorded"
        super().__init__(model, section, options, device)
        self._batch_rows = section.batch_size
        self._buffers: StepBuffers | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._loss = torch.zeros((), device=device)
        self._warm = 0

    def __call__(self, batch: Batch, admitted: Tensor | None = None) -> Tensor:
        """Learn from a batch; see `TrainingStep`. The loss is overwritten by the next step."""
        if self._buffers is None or not self._buffers.holds(batch):
            self._graph = None  # frees its memory before the next one is allocated
            self._buffers = StepBuffers(batch, self._batch_rows, self._model.network.singles)
            self._warm = 0
            # One stream for warm-ups and recording: every stream keeps memory and cuBLAS workspaces of its own.
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call] # torch does not annotate it
        filled = self._buffers.fill(batch, admitted)
        if self._graph is not None:
            self._graph.replay()
            return self._loss
        with matmul_precision(self.options.precision):
            if self._warm < _WARM_UP:
                self._warm += 1
                return self._warm_up_step(filled)
            self._graph = self._record(filled)
        self._graph.replay()
        return self._loss

    def _warm_up_step(self, batch: PaddedBatch) -> Tensor:
        """Take the step on the recording stream, separated from work on the default stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = self.train_batch(batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        return loss

    def _record(self, batch: PaddedBatch) -> torch.cuda.CUDAGraph:
        """Record a step without executing it."""
        graph = torch.cuda.CUDAGraph()
        # The loader's threads continue copying.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._loss = self.train_batch(batch)
        return graph


def _copy_padded(target: Tensor, source: Tensor) -> None:
    """Copy into the first places, and set the others to zero."""
    target[: len(source)].copy_(source, non_blocking=True)
    target[len(source) :].zero_()


def make_step(model: EmbeddingModel, section: EmbeddingSection, options: StepOptions, device: str) -> TrainingStep:
    """Return the step that trains a model.

    Args:
        model: The model on the device, changed in place.
        section: Rates, decays, and the rows of a batch.
        options: How steps are computed; see `step_options`.
        device: "cpu" or "cuda".
    """
    if options.graphs:
        return CudaGraphStep(model, section, options, device)
    return TrainingStep(model, section, options, device)
