"""What a source learnt of items' vectors (texts, images): norms and projections, computed without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.features.vectors import matrix
from shortlist.storage.artefacts import read_json, write_json

Matrix = NDArray[np.float32]

EPSILON: Final = 1e-5
"""Added to a variance before its root, and the least length that a vector is divided by."""
_NAMES: Final = "item_modalities.json"
_WEIGHTS: Final = "item_modality_{number}_{part}.npy"


@dataclass(frozen=True)
class Modality:
    """The vectors of one column.

    Attributes:
        column: Its name.
        projection: Weights, shape (D, width).
        scale: Of the layer norm, shape (width,); empty where vectors are brought to length 1 instead.
        shift: Of the layer norm, likewise.
    """

    column: str
    projection: Matrix
    scale: Matrix
    shift: Matrix

    def vectors(self, items: pl.DataFrame) -> Matrix:
        """Return what the column adds to items' vectors, shape (items, D).

        Raises:
            DataError: Its vectors have another width than those that were learnt.
        """
        given: Matrix = matrix(items[self.column], self.projection.shape[1])
        if len(self.scale):
            deviation = np.sqrt(given.var(axis=1, keepdims=True) + EPSILON)
            normed = (given - given.mean(axis=1, keepdims=True)) / deviation * self.scale + self.shift
        else:
            normed = given / np.maximum(np.linalg.norm(given, axis=1, keepdims=True), EPSILON)
        found: Matrix = (normed @ self.projection.T).astype(np.float32)
        return found


@dataclass(frozen=True)
class VectorContent:
    """All modalities of a source; what they add is summed."""

    modalities: tuple[Modality, ...] = ()

    def vectors(self, items: pl.DataFrame) -> Matrix | float:
        """Return what items' vectors add, shape (items, D); 0 where none are declared."""
        return sum(one.vectors(items) for one in self.modalities) if self.modalities else 0.0

    def write(self, folder: Path) -> None:
        """Write the files of `read` into a folder."""
        write_json(folder / _NAMES, {"columns": [one.column for one in self.modalities]})
        for number, one in enumerate(self.modalities):
            for part in ("projection", "scale", "shift"):
                np.save(folder / _WEIGHTS.format(number=number, part=part), getattr(one, part))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return what `write` wrote."""

        def modality(number: int, column: str) -> Modality:
            parts = ("projection", "scale", "shift")
            return Modality(column, *(np.load(folder / _WEIGHTS.format(number=number, part=part)) for part in parts))

        return cls(tuple(modality(*one) for one in enumerate(read_json(folder / _NAMES)["columns"])))
