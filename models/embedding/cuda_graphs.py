"""The whole training step as a CUDA graph: recorded once, then replayed by a single launch.

A step is a long row of small kernels, many of which a GPU finishes sooner than Python can start the next.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from models.embedding.chunks import Batch, Lookups
from models.embedding.embedding_model import EmbeddingModel
from models.embedding.padding import Padded, with_empty_slots
from models.embedding.precision import matmul_precision
from models.embedding.step import Step, StepOptions
from models.embedding_section import EmbeddingSection

_WARM_UP: Final = 3
"""Steps before recording, in which libraries choose kernels and allocate what a recording must not."""
_ROOM: Final = 1.25
"""Lookups that there is room for, times those of the batch that needed more; lists make them vary."""


class Buffers:
    """Tensors of fixed shapes and addresses that batches are copied into.

    Padding: rows of zeros whose slots are empty, and, behind the batch's lookups, lookups of row 0 in a slot of their
    own that nobody reads; they may not move.
    """

    def __init__(self, like: Batch, rows: int, singles: int) -> None:
        """Make room for batches like one.

        Args:
            like: Has the device, the floats and the features of all.
            rows: Of a step.
            singles: Features with one id per row.
        """
        device, lists = like.labels_B.device, like.lookups.shares_L is not None
        self._singles = singles
        per_row = (len(like.lookups.starts) - 1) // like.rows
        self.slots = per_row * rows
        room = int(len(like.lookups.rows_L) / like.rows * rows * _ROOM) + 1 if lists else self.slots
        self.labels_B = torch.zeros(rows, device=device)
        self.dense_BF = torch.zeros(rows, like.dense_BF.shape[1], device=device)
        self.rows_L = torch.zeros(max(room, len(like.lookups.rows_L)), dtype=torch.int32, device=device)
        self.shares_L = torch.zeros(len(self.rows_L), device=device) if lists else None
        # One slot for lookups that are padding, where there can be such beside those of padded rows.
        self.starts = torch.arange(self.slots + 1 + lists, dtype=torch.int32, device=device)
        self.admitted_L = torch.zeros(len(self.rows_L), dtype=torch.bool, device=device)
        self.rows = torch.ones((), device=device)

    def hold(self, batch: Batch) -> bool:
        """Return whether a batch fits."""
        return len(batch.lookups.rows_L) <= len(self.rows_L)

    def fill(self, batch: Batch, admitted_L: Tensor | None = None) -> Padded:
        """Copy a batch in, and return what a step computes with: always the same tensors."""
        rows, lookups = batch.rows, len(batch.lookups.rows_L)
        self.rows.fill_(float(rows))
        _copy(self.labels_B, batch.labels_B)
        _copy(self.dense_BF, batch.dense_BF)
        _copy(self.rows_L, batch.lookups.rows_L)
        self.admitted_L[lookups:] = False
        self.admitted_L[:lookups] = True if admitted_L is None else admitted_L
        if self.shares_L is not None:
            assert batch.lookups.shares_L is not None
            _copy(self.shares_L, batch.lookups.shares_L)
            starts = with_empty_slots(batch.lookups.starts, rows, len(self.labels_B), self._singles)
            self.starts[: self.slots + 1] = starts
            self.starts[-1:].fill_(len(self.rows_L))  # `starts[-1] = ` copies a number from the host, and waits for it
        return Padded(
            self.labels_B, self.dense_BF, Lookups(self.rows_L, self.starts, self.shares_L), self.slots, self.rows,
            self.admitted_L,
        )  # fmt: skip


class CudaGraphStep(Step):
    """Replays the step; records it anew when a batch has more lookups than there is room for."""

    def __init__(self, model: EmbeddingModel, section: EmbeddingSection, options: StepOptions, device: str) -> None:
        """See `make_step`."""
        assert options.fixed_shapes, "what depends on a batch's ids cannot be recorded"
        super().__init__(model, section, options, device)
        self._batch_rows = section.batch_size
        self._buffers: Buffers | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._loss = torch.zeros((), device=device)
        self._warm = 0

    def __call__(self, batch: Batch, admitted: Tensor | None = None) -> Tensor:
        """Learn from a batch; see `Step`. The loss is overwritten by the next step."""
        if self._buffers is None or not self._buffers.hold(batch):
            self._graph = None  # its memory is free before the next one's is taken
            self._buffers = Buffers(batch, self._batch_rows, self._model.network.singles)
            self._warm = 0
            # One for all warm-ups and the recording: every stream keeps memory and cuBLAS workspaces of its own.
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call] # torch does not annotate it
        filled = self._buffers.fill(batch, admitted)
        if self._graph is not None:
            self._graph.replay()
            return self._loss
        with matmul_precision(self.options.precision):
            if self._warm < _WARM_UP:
                self._warm += 1
                return self._warm_up_step(filled)
            self._graph = self._recorded(filled)
        self._graph.replay()
        return self._loss

    def _warm_up_step(self, batch: Padded) -> Tensor:
        """Take the step on another stream, as recording will: it must not meet work of the usual one."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = self.take(batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        return loss

    def _recorded(self, batch: Padded) -> torch.cuda.CUDAGraph:
        """Record a step without taking it."""
        graph = torch.cuda.CUDAGraph()
        # The loader's threads go on copying.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._loss = self.take(batch)
        return graph


def _copy(to: Tensor, part: Tensor) -> None:
    """Copy into the first places, and zero those behind."""
    to[: len(part)].copy_(part, non_blocking=True)
    to[len(part) :].zero_()


def make_step(model: EmbeddingModel, section: EmbeddingSection, options: StepOptions, device: str) -> Step:
    """Return the step that trains a model.

    Args:
        model: On the device; its weights are changed in place.
        section: Rates, decays, and the rows of a batch.
        options: How steps are computed; see `options_of`.
        device: "cpu" or "cuda".
    """
    if options.graphs:
        return CudaGraphStep(model, section, options, device)
    return Step(model, section, options, device)
