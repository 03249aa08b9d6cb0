"""Base of sources with item vectors: an index, and a query's vector from recent items."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from shortlist.slates.retrieval.catalogue import find_positions
from shortlist.slates.retrieval.source import Queries
from shortlist.slates.retrieval.sources.co_visitation import recent_weights
from shortlist.slates.retrieval.vector_source import Matrix, VectorSource

USERS: Final = "users.parquet"
USER_VECTORS: Final = "user_vectors.npy"


class NearestItems(VectorSource):
    """Items by the inner product of their vectors with a query's.

    Args:
        folder: Folder that `shortlist.slates.retrieval.index.build_index` wrote.
        decay: Weight of the next older of a user's recent items, relative to the newer one.
        newest: Number of newest items of a query.
        users: Ids of users with learnt vectors, and these vectors; their last number is 1, so that the last number of
            an item's vector is added to all its scores. None: queries are made from recent items alone.
    """

    def __init__(
        self, folder: Path, decay: float, newest: int, users: tuple[pl.Series, Matrix] | None = None
    ) -> None:  # fmt: skip
        super().__init__(folder)
        self._decay, self._newest = decay, newest
        self._users = users

    def query_vectors(self, queries: Queries) -> Matrix:
        """Return the vector of every query, shape (B, D); zeros for unknown users without recent items."""
        recent = queries.recent[:, : self._newest]
        weights = recent_weights(recent, self._decay)
        recent_vectors = np.zeros((queries.size, self.vectors.shape[1]), np.float32)
        for place in range(recent.shape[1]):  # only these rows are read from disk
            recent_vectors += weights[:, place, None] * self.vectors[np.maximum(recent[:, place], 0)]
        if self._users is None:
            return recent_vectors
        users, vectors = self._users
        length = np.linalg.norm(recent_vectors[:, :-1], axis=1, keepdims=True)
        recent_vectors = np.where(length > 0, recent_vectors / np.where(length > 0, length, 1), 0).astype(np.float32)
        recent_vectors[:, -1:] = length > 0
        user_positions = find_positions(queries.users, users)
        return np.where((user_positions >= 0)[:, None], vectors[np.maximum(user_positions, 0)], recent_vectors).astype(
            np.float32
        )
