"""What sources with an index of vectors share: the search by a query's vector, and how good the index is."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shortlist.retrieval.index import VECTORS, ExactIndex, VectorIndex, index_recall, open_index
from shortlist.retrieval.source import IndexFacts, Queries, Ranked, Source

Matrix = NDArray[np.float32]

_QUERIES: Final = 1_000
"""By which an approximate index is compared with an exact search."""


class VectorSource(Source):
    """Items by the inner product of their vectors with a query's.

    Args:
        folder: From `shortlist.retrieval.index.build_index`.
    """

    def __init__(self, folder: Path) -> None:
        self.vectors: Matrix = np.load(folder / VECTORS, mmap_mode="r")
        self.index: VectorIndex = open_index(folder)

    @abstractmethod
    def query_vectors(self, queries: Queries) -> Matrix:
        """Return the vector of every query, shape (B, D); zeros where nothing is known."""

    def retrieve(self, queries: Queries, most: int) -> Ranked:
        """Return the nearest items; none for a query without a vector."""
        vectors = self.query_vectors(queries)
        found = self.index.search(vectors, most)
        known = np.any(vectors != 0, axis=1)[:, None]
        items = np.where(known, found.items, -1).astype(np.int32)
        return Ranked(items, np.where(known, found.scores, -np.inf).astype(np.float32))

    def index_facts(self, queries: Queries, most: int) -> IndexFacts:
        """Return which index there is, and how much of the exact answers an approximate one finds."""
        if not self.index.approximate:
            return IndexFacts("exact")
        vectors = self.query_vectors(queries.slice(0, _QUERIES))
        vectors = vectors[vectors.any(axis=1)]
        if not len(vectors):
            return IndexFacts("approximate")
        most = min(most, int(self.vectors.any(axis=1).sum()))
        return IndexFacts("approximate", index_recall(self.index, ExactIndex(self.vectors), vectors, most))
