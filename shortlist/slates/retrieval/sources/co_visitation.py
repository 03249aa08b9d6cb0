"""Source `co_visitation`: items that users took shortly before or after a user's recent items."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field

from shortlist.contracts import Columns, DataError
from shortlist.slates.retrieval.catalogue import Rows, open_mapped_array
from shortlist.slates.retrieval.source import (
    ROW,
    FitInputs,
    Queries,
    RankedItems,
    Scores,
    Source,
    WindowedSourceKind,
    group_rows,
    top_positions,
)

_NEIGHBOUR, _WEIGHT, _POSITION = "other_row", "weight", "place"
_STARTS, _ITEMS, _SCORES = "starts.npy", "items.npy", "scores.npy"


class CoVisitation(WindowedSourceKind):
    """Neighbours of a user's recent items, by the users who took both."""

    kind: Literal["co_visitation"]
    """Items that were taken together."""
    nearby: int = Field(default=5, ge=1, le=100)
    """Largest distance of a pair of positives of a user, in positions; a pair at distance d counts 1 / d."""
    neighbours: int = Field(default=100, ge=1, le=10_000)
    """Number of neighbours per item, those with the highest score."""
    shrinkage: float = Field(default=5.0, ge=0.0)
    """Shrinkage of scores: count of the pair / (root of both items' counts + shrinkage), so that pairs of rare items
    count less."""
    decay: float = Field(default=0.9, gt=0.0, le=1.0)
    """Weight of the next older of a user's recent items, relative to the newer one."""

    def fit(self, inputs: FitInputs, folder: Path) -> None:
        """Count pairs day by day, and write each item's neighbours."""
        pairs, counts = self._count_pairs(inputs)
        scored = (
            pairs.with_columns(
                pl.col(_WEIGHT)
                / (
                    (pl.lit(pl.Series(counts)).gather(ROW) * pl.lit(pl.Series(counts)).gather(_NEIGHBOUR)).sqrt()
                    + self.shrinkage
                )
            )
            .sort([ROW, _WEIGHT, _NEIGHBOUR], descending=[False, True, False])
            .group_by(ROW, maintain_order=True)
            .head(self.neighbours)
        )
        items, scores = scored[_NEIGHBOUR].to_numpy(), scored[_WEIGHT].to_numpy()
        write_neighbours(folder, np.bincount(scored[ROW].to_numpy(), minlength=inputs.catalogue.size), items, scores)

    def load(self, folder: Path) -> Neighbours:
        """Return the neighbours in a folder."""
        return Neighbours.open(folder, self.decay)

    def _count_pairs(self, inputs: FitInputs) -> tuple[pl.DataFrame, np.ndarray]:
        """Return the weights of all pairs, in both directions, and the number of positives of every item."""
        user = inputs.data.user
        assert user
        counts = np.zeros(inputs.catalogue.size)
        total: pl.DataFrame | None = None
        last_positives: pl.DataFrame | None = None
        for rows in inputs.positives(inputs.last_days(self.window_days)):
            positives = rows.sort(Columns.TIME, maintain_order=True).select(user, ROW)
            counts += np.bincount(positives[ROW].to_numpy(), minlength=counts.size)
            # The last positives of every user are carried over to the next file: pairs may span days.
            new_positives = positives if last_positives is None else pl.concat([last_positives, positives])
            pairs = self._weigh_pairs(new_positives, user, 0 if last_positives is None else last_positives.height)
            all_pairs = pairs if total is None else pl.concat([total, pairs])
            total = all_pairs.group_by(ROW, _NEIGHBOUR).agg(pl.col(_WEIGHT).sum())
            last_positives = new_positives.group_by(user, maintain_order=True).tail(self.nearby).select(user, ROW)
        if total is None or not total.height:
            raise DataError("no user has two positive items near each other; declare a longer window or another kind")
        return total, counts

    def _weigh_pairs(self, positives: pl.DataFrame, user: str, counted_rows: int) -> pl.DataFrame:
        """Return pairs with their weights, except those within the first `counted_rows` rows, which were counted."""
        ordered = positives.with_row_index(_POSITION).with_columns(
            *(
                pl.col(ROW).shift(distance).over(user).alias(f"{_NEIGHBOUR}{distance}")
                for distance in range(1, self.nearby + 1)
            )
        )
        ordered = ordered.filter(pl.col(_POSITION) >= counted_rows)
        pairs = [
            ordered.select(
                ROW, pl.col(f"{_NEIGHBOUR}{distance}").alias(_NEIGHBOUR), pl.lit(1 / distance).alias(_WEIGHT)
            )
            for distance in range(1, self.nearby + 1)
        ]
        one_way = pl.concat(pairs).filter(pl.col(_NEIGHBOUR).is_not_null(), pl.col(_NEIGHBOUR) != pl.col(ROW))
        other_way = one_way.select(pl.col(_NEIGHBOUR).alias(ROW), pl.col(ROW).alias(_NEIGHBOUR), _WEIGHT)
        return pl.concat([one_way, other_way]).group_by(ROW, _NEIGHBOUR).agg(pl.col(_WEIGHT).sum())


class Neighbours(Source):
    """Neighbours of all items, concatenated."""

    def __init__(self, starts: NDArray[np.int64], items: Rows, scores: Scores, decay: float) -> None:
        self._starts, self._items, self._scores, self._decay = starts, items, scores, decay

    @classmethod
    def open(cls, folder: Path, decay: float) -> Self:
        """Return the neighbours that `write_neighbours` wrote, mapped into memory.

        Args:
            folder: The folder.
            decay: Weight of the next older of a user's recent items, relative to the newer one.
        """
        starts, items, scores = (open_mapped_array(folder / name) for name in (_STARTS, _ITEMS, _SCORES))
        return cls(starts, items, scores, decay)

    def retrieve(self, queries: Queries, max_items: int) -> RankedItems:
        """Return the neighbours of recent items, their scores summed; none for a user without recent items."""
        ranked = RankedItems(
            np.full((queries.size, max_items), -1, np.int32), np.full((queries.size, max_items), -np.inf, np.float32)
        )
        weights = recent_weights(queries.recent, self._decay)
        for query_number, recent in enumerate(queries.recent):
            is_item = recent >= 0
            items, sums = self._sum_scores(recent[is_item], weights[query_number, is_item])
            order = top_positions(sums, max_items)  # equal sums by row number
            ranked.items[query_number, : len(order)], ranked.scores[query_number, : len(order)] = (
                items[order],
                sums[order],
            )
        return ranked

    def _sum_scores(self, recent: Rows, weights: Scores) -> tuple[Rows, NDArray[Any]]:
        """Return the neighbours of some items by row number, and their summed scores."""
        counts = self._starts[recent + 1] - self._starts[recent]
        neighbour_positions = np.arange(counts.sum()) + np.repeat(
            self._starts[recent] - np.cumsum(counts) + counts, counts
        )
        items, positions, groups = group_rows(self._items[neighbour_positions])
        scores = self._scores[neighbour_positions] * np.repeat(weights, counts)
        return items, np.bincount(groups, scores[positions], len(items))


def write_neighbours(
    folder: Path, counts: NDArray[np.integer[Any]], items: NDArray[np.integer[Any]], scores: NDArray[np.floating[Any]]
) -> None:
    """Write the neighbours of every item into a folder.

    Args:
        folder: The folder.
        counts: Number of neighbours of every item, by row number.
        items: Row numbers of the neighbours, those of one item after those of the item before.
        scores: Their scores, same shape.
    """
    np.save(folder / _STARTS, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
    np.save(folder / _ITEMS, items.astype(np.int32))
    np.save(folder / _SCORES, scores.astype(np.float32))


def recent_weights(recent: Rows, decay: float) -> Scores:
    """Return the weights of recent items, shape of `recent`: 1 for the newest, `decay` for the next, and so on.

    >>> recent_weights(np.array([[7, 3, -1]], np.int32), 0.5).tolist()
    [[1.0, 0.5, 0.0]]
    """
    weights = np.float32(decay) ** np.arange(recent.shape[1], dtype=np.float32)
    return np.where(recent >= 0, weights, np.float32(0))
