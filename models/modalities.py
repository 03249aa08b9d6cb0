"""Vectors of several modalities as inputs of a network, each with a norm and a projection of its own.

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

from shortlist.contracts import DataError
from shortlist.features.values.vectors import matrix, width_of
from shortlist.ranking.inputs import TableFeature
from shortlist.slates.retrieval.vector_content import EPSILON, Modality, VectorContent
from shortlist.spec.vector_inputs import VectorInputs


class UnitLength(nn.Module):
    """Scales vectors to length 1; zeros stay zeros."""

    def forward(self, vectors_NW: Tensor) -> Tensor:
        """Return vectors of length 1."""
        return functional.normalize(vectors_NW, dim=1, eps=EPSILON)


class Modalities(nn.Module):
    """Norms and projections of several vectors, summed or concatenated."""

    def __init__(self, declared: VectorInputs, widths: Mapping[str, int], embedding_dim: int) -> None:
        """Draw the projections.

        Args:
            declared: The declared vectors.
            widths: Width of each vector.
            embedding_dim: Width of a projection where none is declared.
        """
        super().__init__()
        self.sums = declared.combine == "sum"
        self.norms = nn.ModuleList(_norm(declared, name, widths[name]) for name in declared.of)
        self.projections = nn.ModuleList(
            nn.Linear(widths[name], declared.width or embedding_dim, bias=False) for name in declared.of
        )

    def forward(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the projections of vectors of shape (N, W) each, summed (N, D) or concatenated (N, modalities * D)."""
        projected = [
            projection(norm(vector))
            for norm, projection, vector in zip(self.norms, self.projections, vectors, strict=True)
        ]
        return torch.stack(projected).sum(dim=0) if self.sums else torch.cat(projected, dim=1)


def _norm(declared: VectorInputs, name: str, width: int) -> nn.Module:
    return nn.LayerNorm(width, eps=EPSILON) if declared.norm_of(name) == "layer" else UnitLength()


class VectorColumns(nn.Module):
    """Projects the vectors of a network's dense matrix: other floats come first, the projections after them."""

    plain_P: Tensor

    def __init__(self, declared: VectorInputs, dense: Sequence[TableFeature], floats: int, embedding_dim: int) -> None:
        """Find the vectors among the columns.

        Args:
            declared: The declared vectors; names features.
            dense: The features of the dense matrix, in its order.
            floats: Width of the dense matrix; columns after the features are no vectors.
            embedding_dim: Width of a projection where none is declared.
        """
        super().__init__()
        edges = [*accumulate((feature.width or 1 for feature in dense), initial=0)]
        slice_by_name = {feature.name: slice(*edge) for feature, edge in zip(dense, pairwise(edges), strict=True)}
        self.slices = [slice_by_name[name] for name in declared.of]
        vector_columns = {number for columns in self.slices for number in range(columns.start, columns.stop)}
        plain = torch.tensor([number for number in range(floats) if number not in vector_columns], dtype=torch.int64)
        self.register_buffer("plain_P", plain, persistent=False)
        self.modalities = Modalities(declared, {feature.name: feature.width or 1 for feature in dense}, embedding_dim)

    def forward(self, standard_NF: Tensor) -> Tensor:
        """Return the other floats, then the projections, shape (N, inner floats)."""
        vectors = self.modalities([standard_NF[:, columns] for columns in self.slices])
        return torch.cat([standard_NF.index_select(1, self.plain_P), vectors.to(standard_NF.dtype)], dim=1)


class ItemModalities(nn.Module):
    """Projects the vectors of all items to summands of the items' embeddings, which start at zero."""

    def __init__(self, declared: VectorInputs, vectors: Sequence[Tensor], embedding_dim: int) -> None:
        """Start with projections of zeros.

        Args:
            declared: The declared vectors; names columns.
            vectors: Vectors of each modality, shape (I, W), zeros where an item has none.
            embedding_dim: Width of the summands, D.
        """
        super().__init__()
        widths = {name: vectors_IW.shape[1] for name, vectors_IW in zip(declared.of, vectors, strict=True)}
        self._names = tuple(declared.of)
        self._vectors = list(vectors)
        self.modalities = Modalities(declared, widths, embedding_dim)
        for projection in self.modalities.projections:
            nn.init.zeros_(projection.weight)  # type: ignore[arg-type]
        combined_width = declared.output_width(embedding_dim)
        self.out = (
            nn.Identity() if combined_width == embedding_dim else nn.Linear(combined_width, embedding_dim, bias=False)
        )

    @classmethod
    def from_catalogue(cls, declared: VectorInputs | None, items: pl.DataFrame, embedding_dim: int) -> Self | None:
        """Return the projections of a catalogue's columns; None where no vectors are declared.

        Raises:
            DataError: No item has a vector of a modality, vectors differ in width, or hold a number that is not finite.
        """
        if declared is None:
            return None
        return cls(declared, [item_vectors(items, name) for name in declared.of], embedding_dim)

    def forward(self, items: Tensor) -> Tensor:
        """Return the summands of items' embeddings, shape (items, D)."""
        added: Tensor = self.out(self.modalities([vectors_IW[items] for vectors_IW in self._vectors]))
        return added

    @torch.no_grad()
    def to_vector_content(self) -> VectorContent:
        """Return the trained projections without torch, for items added later."""
        parts, start = [], 0
        combined_width = sum(
            projection.out_features for projection in self.modalities.projections if isinstance(projection, nn.Linear)
        )
        out_DP = self.out.weight if isinstance(self.out, nn.Linear) else torch.eye(combined_width)
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
            parts.append(Modality(name, *(tensor.detach().numpy().copy() for tensor in (weight_DW, scale, shift))))
        return VectorContent(tuple(parts))


def item_vectors(items: pl.DataFrame, name: str) -> Tensor:
    """Return the vectors of a column of the catalogue, shape (I, W); zeros where an item has none.

    Raises:
        DataError: As `ItemModalities.from_catalogue`.
    """
    column = items[name]
    width = width_of(column)
    if not width:
        raise DataError(f"no item of the catalogue has a vector in column '{name}'")
    vectors_IW = torch.from_numpy(matrix(column, width))
    is_broken = ~torch.isfinite(vectors_IW).all(dim=1)
    if is_broken.any():
        key, row = items.columns[0], int(is_broken.int().argmax())
        raise DataError(
            f"vector column '{name}': the vectors of {int(is_broken.sum())} items hold NaN or infinity, first that of"
            f" {key} {items[key][row]}; wanted finite numbers, or null for an item without a vector"
        )
    return vectors_IW
