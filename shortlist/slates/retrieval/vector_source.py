"""Base of sources with a vector index: search by a query's vector, and recall of the index."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shortlist.slates.retrieval.catalogue import open_mapped_array
from shortlist.slates.retrieval.index import VECTORS, ExactIndex, VectorIndex, index_recall, open_index
from shortlist.slates.retrieval.source import IndexFacts, Queries, RankedItems, Source, pad_lists

Matrix = NDArray[np.float32]

_QUERIES: Final = 1_000
"""Number of queries by which an approximate index is compared with exact search."""


class VectorSource(Source):
    """Items by the inner product of their vectors with a query's.

    Args:
        folder: Folder that `shortlist.slates.retrieval.index.build_index` wrote.
    """

    has_helpers = True

    def __init__(self, folder: Path) -> None:
        self.vectors: Matrix = open_mapped_array(folder / VECTORS)
        self.index: VectorIndex = open_index(folder)

    @abstractmethod
    def query_vectors(self, queries: Queries) -> Matrix:
        """Return the vector of every query, shape (B, D); zeros for unknown users."""

    def retrieve(self, queries: Queries, max_items: int) -> RankedItems:
        """Return the nearest items; none for a query without a vector."""
        return self.begin(queries, max_items)()

    def begin(self, queries: Queries, max_items: int) -> Callable[[], RankedItems]:
        """Start a search; other threads take part where all queries have a vector."""
        vectors = self.query_vectors(queries)
        known_queries = np.flatnonzero((vectors != 0).any(axis=1))
        if len(known_queries) == len(vectors):
            return self.index.begin(vectors, max_items)
        return partial(self._search_known_queries, vectors, known_queries, max_items)

    def _search_known_queries(self, vectors: Matrix, known_queries: NDArray[np.intp], max_items: int) -> RankedItems:
        ranked = pad_lists(np.empty((len(vectors), 0), np.int32), np.empty((len(vectors), 0), np.float32), max_items)
        if len(known_queries):
            known_ranked = self.index.search(vectors[known_queries], max_items)
            ranked.items[known_queries], ranked.scores[known_queries] = known_ranked
        return ranked

    def index_facts(self, queries: Queries, max_items: int) -> IndexFacts:
        """Return the kind of index, and the share of the exact answers that an approximate one finds."""
        if not self.index.approximate:
            return IndexFacts("exact")
        vectors = self.query_vectors(queries.slice(0, _QUERIES))
        vectors = vectors[vectors.any(axis=1)]
        if not len(vectors):
            return IndexFacts("approximate")
        max_items = min(max_items, int(self.vectors.any(axis=1).sum()))
        return IndexFacts("approximate", index_recall(self.index, ExactIndex(self.vectors), vectors, max_items))
