"""Base classes of all networks over embedded ids: standardised floats, perceptrons in narrow types.

Shapes: B batch, F dense floats, S features with a table, D embedding width, I = F + S D inputs, R rows of the fused
table, L looked-up rows, B*S slots (see `Lookups`).
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.embedding.network.heads import MixtureOfExperts
from models.embedding.reading.chunks import Lookups
from models.embedding.reading.layout import Layout
from models.embedding.table.fused_table import FusedTable
from models.embedding.table.sharded import ShardedTable
from models.embedding_section import EmbeddingSection
from models.modalities import VectorColumns


class EmbeddingNetwork(nn.Module):
    """Computes log-odds from dense floats and pooled embeddings; a kind adds its layers and `forward`."""

    mean_F: Tensor
    scale_F: Tensor

    narrow: torch.dtype | None = None
    """Type of products in training, set by the training step; None: float32.

    Scores are always computed in float32, so that they do not depend on the processor.
    """
    multiple: int = 1
    """Inputs of perceptrons are padded with zeros to a multiple of this width in training, as set by the training step;
    the weights keep their shapes."""
    fused: bool = False
    """Whether Triton kernels replace torch's operations in training, as set by the training step."""
    loss_name: ClassVar[str] = "log_loss"
    """Name of the mean of `row_losses` in the history of a training: `train_<loss_name>`."""

    def __init__(self, layout: Layout, section: EmbeddingSection) -> None:
        super().__init__()
        self.singles, self._lists, self._width = layout.slots, len(layout.lists), section.embedding_dim
        self._build(layout, section)
        self.vectors = (
            None if section.vectors is None
            else VectorColumns(section.vectors, layout.dense, layout.floats, section.embedding_dim)
        )  # fmt: skip
        self.register_buffer("mean_F", torch.zeros(layout.floats))
        self.register_buffer("scale_F", torch.ones(layout.floats))

    def _build(self, layout: Layout, section: Any) -> None:
        """Create the layers that a section declares."""
        raise NotImplementedError

    def forward(self, dense_BF: Tensor, pooled: Tensor) -> Tensor:
        """Return the log-odds, shape (B,); with further labels shape (B, H), the label's first.

        Args:
            dense_BF: Floats of the feature table; NaN for null, which counts as the training mean.
            pooled: Pooled embeddings from the fused table, shape (slots, D).
        """
        raise NotImplementedError

    def row_losses(self, logits_B: Tensor, labels_B: Tensor) -> Tensor:
        """Return the loss of every row, shape (B,): the log loss, or its mean over all labels.

        A kind overrides it to bring its own loss. Padded rows and the weights of rows are left to the caller.

        Args:
            logits_B: Log-odds; shape (B, H) with further labels, the label's first.
            labels_B: 0 or 1, of the same shape.
        """
        losses = functional.binary_cross_entropy_with_logits(logits_B, labels_B, reduction="none")
        return losses if losses.ndim == 1 else losses.mean(dim=1)

    def select_lookups(self, lookups: Lookups, dense_BF: Tensor) -> Lookups:
        """Return the look-ups that `forward` reads outside compiled steps; by default, all."""
        return lookups

    @property
    def last(self) -> nn.Linear:
        """The layer whose bias is added to the log-odds."""
        raise NotImplementedError

    @torch.no_grad()
    def standardise(self, mean_F: Tensor, scale_F: Tensor) -> None:
        """Set the moments of the floats; vectors with a norm of their own are not standardised."""
        self.mean_F.copy_(mean_F)
        self.scale_F.copy_(scale_F)
        for columns in self.vectors.slices if self.vectors is not None else ():
            self.mean_F[columns], self.scale_F[columns] = 0.0, 1.0

    @torch.no_grad()
    def set_base_rates(self, *base_rates: float) -> None:
        """Set the last biases so that the untrained network predicts the base rates.

        Args:
            base_rates: Base rate of the label, then of the further labels.
        """
        self.last.bias.copy_(torch.tensor([math.log(rate / (1 - rate)) for rate in base_rates]))

    @property
    def _dtype(self) -> torch.dtype:
        return self.narrow if self.narrow is not None and self.training else torch.float32

    def _standard(self, dense_BF: Tensor) -> Tensor:
        """Return the floats with mean 0 and deviation 1, null is 0; behind them the projections of vectors."""
        standard_BF = torch.nan_to_num((dense_BF - self.mean_F) * self.scale_F, nan=0.0)
        return standard_BF if self.vectors is None else self.vectors(standard_BF)

    def _join_inputs(self, dense_BF: Tensor, pooled: Tensor) -> Tensor:
        """Return the standardised floats and all embeddings side by side, shape (B, I)."""
        embedded = [embeddings.flatten(1) for embeddings in self._embeddings_by_row(pooled, len(dense_BF))]
        return torch.cat([self._standard(dense_BF), *embedded], dim=1)

    def _embeddings_by_row(self, pooled: Tensor, rows: int) -> list[Tensor]:
        """Return the embeddings of rows, shape (B, features, D): of single ids, then of lists if there are any."""
        if not self._lists:
            return [pooled.view(rows, self.singles, self._width)]
        # Split, not sliced: the derivative of a slice allocates and adds a matrix of zeros of the full size.
        singles, lists = torch.split(pooled, [rows * self.singles, rows * self._lists])
        singles_BSD = singles.view(rows, self.singles, self._width)
        return [singles_BSD, lists.view(self._lists, rows, self._width).transpose(0, 1)]

    def _autocast(self, like: Tensor) -> AbstractContextManager[Any]:
        """Return a context in which layers multiply in the narrow type; their outputs may be narrow."""
        dtype = self._dtype
        return nullcontext() if dtype is torch.float32 else torch.autocast(like.device.type, dtype=dtype)

    def _apply_layers(self, network: nn.Sequential | MixtureOfExperts, *parts_BI: Tensor) -> Tensor:
        """Return the output of a perceptron over concatenated inputs, float32."""
        fills = self.training and isinstance(network, nn.Sequential)
        missing = -sum(part.shape[1] for part in parts_BI) % self.multiple if fills else 0
        zeros = [parts_BI[0].new_zeros(len(parts_BI[0]), missing)] if missing else []
        inputs = torch.cat([*parts_BI, *zeros], dim=1) if len(parts_BI) + len(zeros) > 1 else parts_BI[0]
        dtype = self._dtype
        if dtype is torch.float32:
            return _apply_padded(network, inputs, missing)
        with torch.autocast(inputs.device.type, dtype=dtype):
            outputs = _apply_padded(network, inputs, missing)
        return outputs.float()


class EmbeddingModel(nn.Module):
    """Embedding table and network; a kind sets `network_type`."""

    network_type: ClassVar[type[EmbeddingNetwork]]

    def __init__(
        self, layout: Layout, section: EmbeddingSection, table: FusedTable | ShardedTable | None = None
    ) -> None:
        super().__init__()
        self.table = table or FusedTable(layout, section.embedding_dim)
        self.network = self.network_type(layout, section)

    def forward(self, dense_BF: Tensor, lookups: Lookups) -> Tensor:
        """Return the log-odds, shape (B,)."""
        logits_B: Tensor = self.network(dense_BF, self.table(self.network.select_lookups(lookups, dense_BF)))
        return logits_B


def _apply_padded(network: nn.Sequential | MixtureOfExperts, inputs: Tensor, missing: int) -> Tensor:
    """Return the output of a perceptron; its first layer has no weights for the last `missing` columns."""
    if not missing:
        outputs: Tensor = network(inputs)
        return outputs
    assert isinstance(network, nn.Sequential)
    first = network[0]
    assert isinstance(first, nn.Linear)
    outputs = functional.linear(inputs, functional.pad(first.weight, (0, missing)), first.bias)
    for layer in list(network)[1:]:
        outputs = layer(outputs)
    return outputs
