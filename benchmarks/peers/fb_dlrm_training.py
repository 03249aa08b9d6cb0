"""facebookresearch/dlrm's design, re-implemented: what DLRM training is measured against.

The repository itself cannot be installed. What is kept of it (Naumov et al., 2019; its dlrm_s_pytorch.py with the
defaults): one `nn.EmbeddingBag` per category with sparse gradients, dense perceptrons in float32, interaction by `cat`,
`bmm` and the lower triangle, one SGD over all parameters, a step and a `zero_grad` per batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from models.dlrm.network import DLRM
from models.embedding.reading.chunks import Batch


class Naumov(nn.Module):
    """The network; shapes as in `models.dlrm.network`."""

    def __init__(self, sizes: Sequence[int], width: int, bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        vectors = len(sizes) + 1
        self.tables = nn.ModuleList(nn.EmbeddingBag(size, width, mode="sum", sparse=True) for size in sizes)
        self.bottom = _perceptron((*bottom, width), nn.ReLU())
        self.top = _perceptron((width + vectors * (vectors - 1) // 2, *top, 1), nn.Sigmoid())
        self.i_P, self.j_P = torch.tril_indices(vectors, vectors, offset=-1)

    def forward(self, dense_BF: Tensor, ids_SB: Tensor, offsets_B: Tensor) -> Tensor:
        """Return the probabilities, shape (B,)."""
        bottom_BD = self.bottom(dense_BF)
        pooled = [table(ids_B, offsets_B) for table, ids_B in zip(self.tables, ids_SB, strict=True)]
        vectors_BND = torch.cat([bottom_BD, *pooled], dim=1).view(len(dense_BF), -1, bottom_BD.shape[1])
        dots_BNN = torch.bmm(vectors_BND, vectors_BND.transpose(1, 2))
        pairs_BP = dots_BNN[:, self.i_P, self.j_P]
        scores: Tensor = self.top(torch.cat([bottom_BD, pairs_BP], dim=1))
        return scores.squeeze(1)

    @torch.no_grad()
    def start_as(self, model: DLRM, starts: Sequence[int]) -> None:
        """Take the weights of one of ours: both then learn the same from the same rows."""
        for table, start in zip(self.tables, starts, strict=True):
            table.weight.copy_(model.table.weight_RD[start : start + len(table.weight)])
        for own_layers, model_layers in ((self.bottom, model.network.bottom), (self.top, model.network.top)):
            pairs = zip(_linears(own_layers), _linears(model_layers), strict=True)
            for own_layer, model_layer in pairs:
                own_layer.load_state_dict(model_layer.state_dict())


class NaumovTraining:
    """One step after the other, as its main loop does."""

    def __init__(self, network: Naumov, starts: Sequence[int], rate: float) -> None:
        self.network = network
        self._starts_S1 = torch.tensor(starts, dtype=torch.int64).unsqueeze(1)
        self._optimizer = torch.optim.SGD(network.parameters(), lr=rate)
        self._loss = nn.BCELoss()

    def step(self, batch: Batch, standard_BF: Tensor) -> float:
        """Learn from a batch; return its loss before."""
        loss = self._loss(self.network(standard_BF, *self._ids(batch)), batch.labels_B)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return float(loss.item())

    @torch.no_grad()
    def scores(self, batch: Batch, standard_BF: Tensor) -> Tensor:
        """Return the probabilities of a batch."""
        scores: Tensor = self.network(standard_BF, *self._ids(batch))
        return scores

    def _ids(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return what its loader gives: ids by category and their offsets, int64."""
        fused_BS = batch.lookups.rows_L.view(batch.rows, -1)
        return fused_BS.t().long() - self._starts_S1, torch.arange(batch.rows)


def _perceptron(widths: Sequence[int], last: nn.Module) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1], last)


def _linears(network: nn.Module) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
