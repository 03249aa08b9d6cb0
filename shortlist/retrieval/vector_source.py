"""What sources with an index of vectors share: the search by a query's vector, and how good the index is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shortlist.retrieval.catalogue import mapped_array
from shortlist.retrieval.index import VECTORS, ExactIndex, VectorIndex, index_recall, open_index
from shortlist.retrieval.source import IndexFacts, Queries, Ranked, Source, padded

Matrix = NDArray[np.float32]

_QUERIES: Final = 1_000
"""By which an approximate index is compared with an exact search."""


class VectorSource(Source):
    """Items by the inner product of their vectors with a query's.

    Args:
        folder: From `shortlist.retrieval.index.build_index`.
    """

    has_helpers = True

    def __init__(self, folder: Path) -> None:
        self.vectors: Matrix = mapped_array(folder / VECTORS)
        self.index: VectorIndex = open_index(folder)

    @abstractmethod
    def query_vectors(self, queries: Queries) -> Matrix:
        """Return the vector of every query, shape (B, D); zeros where nothing is known."""

    def retrieve(self, queries: Queries, most: int) -> Ranked:
        """Return the nearest items; none for a query without a vector."""
        return self.begin(queries, most)()

    def begin(self, queries: Queries, most: int) -> Callable[[], Ranked]:
        """Begin the search for queries that all have a vector."""
        vectors = self.query_vectors(queries)
        known = np.flatnonzero((vectors != 0).any(axis=1))
        if len(known) == len(vectors):
            return self.index.begin(vectors, most)
        return partial(self._of_known, vectors, known, most)

    def _of_known(self, vectors: Matrix, known: NDArray[np.intp], most: int) -> Ranked:
        every = padded(np.empty((len(vectors), 0), np.int32), np.empty((len(vectors), 0), np.float32), most)
        if len(known):
            found = self.index.search(vectors[known], most)
            every.items[known], every.scores[known] = found
        return every

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
