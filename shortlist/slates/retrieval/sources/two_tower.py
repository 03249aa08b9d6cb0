"""Source `two_tower`: learnt vectors of users and items, close where a user takes an item."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field

from shortlist.features.values.vectors import normalised
from shortlist.slates.retrieval.catalogue import open_mapped_array, realign_rows
from shortlist.slates.retrieval.index import VECTORS, build_index
from shortlist.slates.retrieval.item_content import ItemContent
from shortlist.slates.retrieval.source import FitInputs, SourceKind
from shortlist.slates.retrieval.sources.nearest import USER_VECTORS, USERS, NearestItems
from shortlist.slates.retrieval.vector_source import Matrix
from shortlist.spec.base import Names
from shortlist.spec.data import Data
from shortlist.spec.retrieval import check_columns, columns_of, item_tables, user_tables
from shortlist.spec.vector_inputs import VectorInputs
from shortlist.system.registry import resolve_address

_TUNING_QUERIES = 500
_CATEGORIES = ("integer", "string", "hex", "tags")


class Towers(NamedTuple):
    """Learnt vectors of users and items; their inner product orders a user's items."""

    users: pl.Series
    """Ids of the users, sorted."""
    user_vectors: Matrix
    """Vectors of the users, shape (users, D + 1): normalised, and a last number that is 1."""
    item_vectors: Matrix
    """Vectors of the items by row number of the catalogue, shape (items, D + 1): normalised, and a last number that
    popularity adds to every score."""
    content: ItemContent
    """Learnt vectors of items' columns."""
    history: list[dict[str, Any]]
    """Loss and samples per second of every epoch."""


class TwoTower(SourceKind):
    """Two towers: the inner product of a user's and an item's vector predicts a positive; trained on positive rows."""

    kind: Literal["two_tower"]
    """Learnt vectors."""
    embedding_dim: int = Field(default=32, ge=2, le=1_024)
    """Width of a vector."""
    user_columns: Names = ()
    """Columns of a user's side table whose values get embeddings beside the user's id."""
    item_columns: Names = ()
    """Columns of an item's side table whose values get embeddings beside the item's id."""
    item_numbers: Names = ()
    """Numeric columns of an item's side table, which a linear layer adds to the item's vector."""
    item_vectors: VectorInputs | None = None
    """Vector columns of an item's side table, one per modality: their projections are added to the item's vector. Items
    without positives are then placed by columns and vectors alone, are no negatives, and are as popular as the median
    item; `popularity: 0` retrieves more of them."""
    epochs: int = Field(default=5, ge=1, le=1_000)
    """Number of passes over the positive rows."""
    batch_size: int = Field(default=1_024, ge=8, le=1_000_000)
    """Number of positive rows per step; each is a negative for the others."""
    sampled_negatives: int = Field(default=512, ge=0, le=1_000_000)
    """Number of further items per step, drawn uniformly from the whole catalogue: negatives for all its rows."""
    learning_rate: float = Field(default=0.1, gt=0.0, le=10.0)
    """Learning rate of the embedding rows (row-wise Adagrad)."""
    temperature: float = Field(default=0.1, gt=0.0, le=10.0)
    """Divisor of the cosine similarities before the softmax; smaller values push the nearest negatives further away."""
    popularity: float = Field(default=1.0, ge=0.0, le=2.0)
    """Weight of an item's log frequency in its score. 1: the score predicts positives, so that popular items come
    first; 0: the score is relative to other users."""
    window_days: int | None = Field(default=None, ge=1, le=3_650)
    """Number of newest days whose positive rows are learnt; null: all."""

    def check(self, data: Data) -> None:
        """Check the columns and the clock; see `SourceSection.check`."""
        check_columns(self.user_columns, columns_of(user_tables(data)), _CATEGORIES, "a side table of the users")
        items = columns_of(item_tables(data))
        check_columns(self.item_columns, items, _CATEGORIES, "a side table of the items")
        check_columns(self.item_numbers, items, ("integer", "number"), "a side table of the items")
        if self.item_vectors is not None:
            check_columns(self.item_vectors.of, items, ("vector",), "a side table of the items")

    def fit(self, inputs: FitInputs, folder: Path) -> None:
        """Train, and write the vectors of users and items, and the items' index."""
        train: Callable[[TwoTower, FitInputs], Towers] = resolve_address("networks").load("train_two_tower_source")
        self._write(train(self, inputs), inputs, folder)

    def refresh(self, inputs: FitInputs, fitted_folder: Path, fitted_ids: pl.Series, folder: Path) -> None:
        """Keep the learnt vectors; new items are placed by their columns, and popularity is counted again."""
        content = ItemContent.read(fitted_folder)
        vectors, is_new = realign_rows(open_mapped_array(fitted_folder / VECTORS)[:, :-1], fitted_ids, inputs.catalogue)
        vectors[is_new.to_numpy()] = normalised(content.vectors(inputs.catalogue.items.filter(is_new)))
        counts = inputs.item_counts(inputs.last_days(self.window_days))
        if self.item_vectors is not None:  # as in training
            counts = np.where(counts > 0, counts, int(np.median(counts[counts > 0])))
        popularity_scores = self.temperature * self.popularity_logits(counts)
        item_vectors = np.column_stack([vectors, popularity_scores]).astype(np.float32)
        users, user_vectors = pl.read_parquet(fitted_folder / USERS)["user"], np.load(fitted_folder / USER_VECTORS)
        self._write(Towers(users, user_vectors, item_vectors, content, []), inputs, folder)

    def popularity_logits(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the part of popularity in items' scores, in units of the softmax, shape (items,).

        Args:
            counts: Number of positive rows of every item.
        """
        smoothed: NDArray[np.float64] = np.log((counts + 1) / (counts.sum() + len(counts)))
        return self.popularity * smoothed

    def _write(self, towers: Towers, inputs: FitInputs, folder: Path) -> None:
        towers.users.alias("user").to_frame().write_parquet(folder / USERS)
        np.save(folder / USER_VECTORS, towers.user_vectors)
        towers.content.write(folder)
        random = np.random.default_rng(inputs.seed)
        tuning_users = random.choice(len(towers.users), min(_TUNING_QUERIES, len(towers.users)), replace=False)
        build_index(
            towers.item_vectors, towers.user_vectors[tuning_users], inputs.index, inputs.max_items, folder, inputs.seed
        )

    def load(self, folder: Path) -> NearestItems:
        """Return the vectors in a folder; a user without one is the mean of the recent items' vectors."""
        users = pl.read_parquet(folder / USERS)["user"]
        return NearestItems(folder, 0.9, 20, (users, open_mapped_array(folder / USER_VECTORS)))
