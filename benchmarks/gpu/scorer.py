"""A DLRM that scores batches of one size, in a precision, compiled or not, replayed as a CUDA graph or not."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from benchmarks.gpu.roofs import DTYPES
from models.dlrm.network import DLRM
from models.embedding.reading.chunks import Batch, Lookups
from models.embedding.table.precision import matmul_precision
from models.embedding.training.step import StepOptions

_WARM_UPS = 3


class Scorer:
    """Look-ups and network; inputs are copied into buffers of its own, from the device or from pinned memory.

    Perceptrons are turned into the type of the precision once: scoring needs no float32 copy of them.
    """

    def __init__(self, model: DLRM, like: Batch, options: StepOptions) -> None:
        """Prepare the scoring of batches.

        Args:
            model: Its perceptrons are turned into the precision; nothing is trained with it any more.
            like: A batch of the size, on the device, with one id per feature and row.
            options: The precision, and whether to compile, to record and to look up by a kernel of our own; there is
                nothing else to choose.
        """
        assert like.lookups.shares_L is None
        self._dense_BF, self._rows_L = like.dense_BF.clone(), like.lookups.rows_L.clone()
        self._lookups = Lookups(self._rows_L, like.lookups.starts, None)
        self._precision, self._dtype = options.precision, DTYPES[options.precision]
        self._model = model.eval()
        model.table.fused = options.fused
        for network in (model.network.bottom, model.network.top):
            network.to(self._dtype)
        self._network = torch.compile(model.network, dynamic=False) if options.compiled else model.network
        self._graph: torch.cuda.CUDAGraph | None = None
        if options.graphs:
            self._record()

    def __call__(self, batch: Batch) -> Tensor:
        """Return the probabilities, shape (B,), float32, on the device; overwritten by the next call where recorded."""
        self._dense_BF.copy_(batch.dense_BF, non_blocking=True)
        self._rows_L.copy_(batch.lookups.rows_L, non_blocking=True)
        if self._graph is None:
            return self._scores()
        self._graph.replay()
        return self._recorded

    @torch.no_grad()
    def _scores(self) -> Tensor:
        with matmul_precision(self._precision), self._casting():
            pooled = self._model.table(self._lookups)
            return torch.sigmoid(self._network(self._dense_BF, pooled).float())

    def _casting(self) -> AbstractContextManager[object]:
        if self._dtype is torch.float32:
            return nullcontext()
        # Nothing is cast twice: weights have the type already, and a cache would outlive what a graph recorded.
        return torch.autocast(self._dense_BF.device.type, dtype=self._dtype, cache_enabled=False)

    def _record(self) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._scores()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._recorded = self._scores()
