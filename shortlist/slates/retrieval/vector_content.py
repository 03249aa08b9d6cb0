"""Learnt norms and projections of items' vector columns (texts, images), computed without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.features.values.vectors import matrix
from shortlist.storage.artefacts import read_json, write_json

Matrix = NDArray[np.float32]

EPSILON: Final = 1e-5
"""Number that is added to a variance before its root, and the least length that a vector is divided by."""
_NAMES: Final = "item_modalities.json"
_WEIGHTS: Final = "item_modality_{number}_{part}.npy"


@dataclass(frozen=True)
class Modality:
    """Norm and projection of one vector column.

    Attributes:
        column: Name of the column.
        projection: Weights, shape (D, width).
        scale: Scale of the layer norm, shape (width,); empty where vectors are normalised to length 1 instead.
        shift: Shift of the layer norm, same shape.
    """

    column: str
    projection: Matrix
    scale: Matrix
    shift: Matrix

    def vectors(self, items: pl.DataFrame) -> Matrix:
        """Return the column's part of items' vectors, shape (items, D).

        Raises:
            DataError: The width of the vectors differs from that of training.
        """
        vectors: Matrix = matrix(items[self.column], self.projection.shape[1])
        if len(self.scale):
            deviation = np.sqrt(vectors.var(axis=1, keepdims=True) + EPSILON)
            normed = (vectors - vectors.mean(axis=1, keepdims=True)) / deviation * self.scale + self.shift
        else:
            normed = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), EPSILON)
        projected: Matrix = (normed @ self.projection.T).astype(np.float32)
        return projected


@dataclass(frozen=True)
class VectorContent:
    """All modalities of a source; their vectors are summed."""

    modalities: tuple[Modality, ...] = ()

    def vectors(self, items: pl.DataFrame) -> Matrix | float:
        """Return the sum of the modalities' vectors, shape (items, D); 0 where none are declared."""
        return sum(modality.vectors(items) for modality in self.modalities) if self.modalities else 0.0

    def write(self, folder: Path) -> None:
        """Write the files of `read` into a folder."""
        write_json(folder / _NAMES, {"columns": [modality.column for modality in self.modalities]})
        for number, modality in enumerate(self.modalities):
            for part in ("projection", "scale", "shift"):
                np.save(folder / _WEIGHTS.format(number=number, part=part), getattr(modality, part))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the content that `write` wrote."""

        def modality(number: int, column: str) -> Modality:
            parts = ("projection", "scale", "shift")
            return Modality(column, *(np.load(folder / _WEIGHTS.format(number=number, part=part)) for part in parts))

        return cls(
            tuple(modality(*numbered_column) for numbered_column in enumerate(read_json(folder / _NAMES)["columns"]))
        )
