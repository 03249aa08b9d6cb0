"""Source `item_vector`: the items whose vector column is nearest to those of a user's recent items."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from shortlist.contracts import DataError
from shortlist.features.values.vectors import matrix, normalised, width_of
from shortlist.slates.retrieval.index import build_index
from shortlist.slates.retrieval.source import FitInputs, SourceKind
from shortlist.slates.retrieval.sources.nearest import NearestItems
from shortlist.spec.data import Data
from shortlist.spec.retrieval import check_columns, columns_of, item_tables

_TUNING_QUERIES = 500


class ItemVector(SourceKind):
    """Cosine similarity with the mean vector of a user's recent items."""

    kind: Literal["item_vector"]
    """Nearest vectors."""
    column: str
    """Column of type `vector` in a side table of the items."""
    newest: int = Field(default=5, ge=1, le=1_000)
    """Number of newest items whose mean vector is the query."""
    decay: float = Field(default=0.8, gt=0.0, le=1.0)
    """Weight of the next older of them, relative to the newer one."""

    def check(self, data: Data) -> None:
        """Check the column; see `SourceSection.check`."""
        check_columns((self.column,), columns_of(item_tables(data)), ("vector",), "a side table of the items")

    def fit(self, inputs: FitInputs, folder: Path) -> None:
        """Write the normalised vectors and their index."""
        column = inputs.catalogue.items[self.column]
        width = width_of(column)
        if not width:
            raise DataError(f"no item of the catalogue has a vector in column '{self.column}'")
        vectors = normalised(matrix(column, width))
        item_rows = np.flatnonzero(vectors.any(axis=1))
        random = np.random.default_rng(inputs.seed)
        queries = vectors[random.choice(item_rows, min(_TUNING_QUERIES, len(item_rows)), replace=False)]
        build_index(vectors, queries, inputs.index, inputs.max_items, folder, inputs.seed)

    def load(self, folder: Path) -> NearestItems:
        """Return the vectors in a folder."""
        return NearestItems(folder, self.decay, self.newest)
