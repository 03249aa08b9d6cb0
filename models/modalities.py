"""Vectors of several modalities as inputs of a network: each has a norm and a projection of its own.

Shapes: N rows, F floats of the dense matrix, W width of one modality, D width of the projections, I items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Self

import polars as pl
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.inputs import FeatureColumn
from shortlist.contracts import DataError
from shortlist.features.vectors import matrix, width_of
from shortlist.retrieval.vector_content import EPSILON, Modality, VectorContent
from shortlist.spec.vector_inputs import VectorInputs


class UnitLength(nn.Module):
    """Brings vectors to length 1; zeros stay zeros."""

    def forward(self, vectors_NW: Tensor) -> Tensor:
        """Return vectors of length 1."""
        return functional.normalize(vectors_NW, dim=1, eps=EPSILON)


class Modalities(nn.Module):
    """Norms and projections of some vectors, and what becomes of them together."""

    def __init__(self, declared: VectorInputs, widths: Mapping[str, int], embedding_dim: int) -> None:
        """Draw the projections.

        Args:
            declared: What the spec says.
            widths: Numbers of each vector.
            embedding_dim: Width of a projection where none is declared.
        """
        super().__init__()
        self.sums = declared.combine == "sum"
        self.norms = nn.ModuleList(_norm(declared, name, widths[name]) for name in declared.of)
        self.projections = nn.ModuleList(
            nn.Linear(widths[name], declared.width or embedding_dim, bias=False) for name in declared.of
        )

    def forward(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return what vectors of shape (N, W) each give together, shape (N, D), or (N, modalities * D)."""
        projected = [
            projection(norm(one)) for norm, projection, one in zip(self.norms, self.projections, vectors, strict=True)
        ]
        return torch.stack(projected).sum(dim=0) if self.sums else torch.cat(projected, dim=1)


def _norm(declared: VectorInputs, name: str, width: int) -> nn.Module:
    return nn.LayerNorm(width, eps=EPSILON) if declared.norm_of(name) == "layer" else UnitLength()


class VectorColumns(nn.Module):
    """The dense matrix of a network with its vectors projected: other floats first, what vectors give behind them."""

    plain_P: Tensor

    def __init__(self, declared: VectorInputs, dense: Sequence[FeatureColumn], floats: int, embedding_dim: int) -> None:
        """Find the vectors among the columns.

        Args:
            declared: What the spec says; names features.
            dense: The features of the dense matrix, in its order.
            floats: Its width; what stands behind the features is no vector.
            embedding_dim: Width of a projection where none is declared.
        """
        super().__init__()
        edges = [*accumulate((one.width or 1 for one in dense), initial=0)]
        places = {one.name: slice(*edge) for one, edge in zip(dense, pairwise(edges), strict=True)}
        self.places = [places[name] for name in declared.of]
        taken = {number for place in self.places for number in range(place.start, place.stop)}
        plain = torch.tensor([number for number in range(floats) if number not in taken], dtype=torch.int64)
        self.register_buffer("plain_P", plain, persistent=False)
        self.modalities = Modalities(declared, {one.name: one.width or 1 for one in dense}, embedding_dim)

    def forward(self, standard_NF: Tensor) -> Tensor:
        """Return the floats that are no vector, then what the vectors give, shape (N, inner floats)."""
        vectors = self.modalities([standard_NF[:, place] for place in self.places])
        return torch.cat([standard_NF.index_select(1, self.plain_P), vectors.to(standard_NF.dtype)], dim=1)


class ItemModalities(nn.Module):
    """The vectors of all items, and what they add to the items' embeddings: nothing before something is learnt."""

    def __init__(self, declared: VectorInputs, vectors: Sequence[Tensor], embedding_dim: int) -> None:
        """Start from zero.

        Args:
            declared: What the spec says; names columns.
            vectors: Of each modality, shape (I, W), zeros where an item has none.
            embedding_dim: Width of what is added.
        """
        super().__init__()
        widths = {name: one.shape[1] for name, one in zip(declared.of, vectors, strict=True)}
        self._names = tuple(declared.of)
        self._vectors = list(vectors)
        self.modalities = Modalities(declared, widths, embedding_dim)
        for projection in self.modalities.projections:
            nn.init.zeros_(projection.weight)  # type: ignore[arg-type]
        together = declared.output_width(embedding_dim)
        self.out = nn.Identity() if together == embedding_dim else nn.Linear(together, embedding_dim, bias=False)

    @classmethod
    def of(cls, declared: VectorInputs | None, items: pl.DataFrame, embedding_dim: int) -> Self | None:
        """Return what the columns of a catalogue add; None where nothing is declared.

        Raises:
            DataError: No item has a vector of a modality, vectors differ in width, or hold a number that is not finite.
        """
        if declared is None:
            return None
        return cls(declared, [item_vectors(items, name) for name in declared.of], embedding_dim)

    def forward(self, items: Tensor) -> Tensor:
        """Return what is added to items' embeddings, shape (items, D)."""
        added: Tensor = self.out(self.modalities([vectors_IW[items] for vectors_IW in self._vectors]))
        return added

    @torch.no_grad()
    def learnt(self) -> VectorContent:
        """Return the same without torch, for items that come later."""
        parts, start = [], 0
        together = sum(each.out_features for each in self.modalities.projections if isinstance(each, nn.Linear))
        out_DP = self.out.weight if isinstance(self.out, nn.Linear) else torch.eye(together)
        for name, norm, projection in zip(self._names, self.modalities.norms, self.modalities.projections, strict=True):
            assert isinstance(projection, nn.Linear)
            weight_DW: Tensor = projection.weight
            if not self.modalities.sums:
                end = start + projection.out_features
                weight_DW, start = out_DP[:, start:end] @ weight_DW, end
            elif isinstance(self.out, nn.Linear):
                weight_DW = self.out.weight @ weight_DW
            empty = torch.empty(0)
            scale, shift = (norm.weight, norm.bias) if isinstance(norm, nn.LayerNorm) else (empty, empty)
            parts.append(Modality(name, *(one.detach().numpy().copy() for one in (weight_DW, scale, shift))))
        return VectorContent(tuple(parts))


def item_vectors(items: pl.DataFrame, name: str) -> Tensor:
    """Return the vectors of a column of the catalogue, shape (I, W); zeros where an item has none.

    Raises:
        DataError: As `ItemModalities.of`.
    """
    column = items[name]
    width = width_of(column)
    if not width:
        raise DataError(f"no item of the catalogue has a vector in column '{name}'")
    found = torch.from_numpy(matrix(column, width))
    broken = ~torch.isfinite(found).all(dim=1)
    if broken.any():
        key, row = items.columns[0], int(broken.int().argmax())
        raise DataError(
            f"vector column '{name}': the vectors of {int(broken.sum())} items hold NaN or infinity, first that of"
            f" {key} {items[key][row]}; wanted finite numbers, or null for an item without a vector"
        )
    return found
