"""Source `co_visitation`: items that users took shortly before or after a user's recent ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field

from shortlist.contracts import Columns, DataError
from shortlist.retrieval.catalogue import Rows, mapped_array
from shortlist.retrieval.source import ROW, FitData, Queries, Ranked, Scores, Source, SourceKind, grouped, highest
from shortlist.spec.data import Data
from shortlist.spec.retrieval import check_days

_OTHER, _WEIGHT, _PLACE = "other_row", "weight", "place"
_STARTS, _ITEMS, _SCORES = "starts.npy", "items.npy", "scores.npy"


class CoVisitation(SourceKind):
    """From item to item, by the users who took both: the neighbours of a user's recent items."""

    kind: Literal["co_visitation"]
    """Items that were taken together."""
    nearby: int = Field(default=5, ge=1, le=100)
    """Two positives of a user are a pair when at most so many positions apart; a pair d apart counts 1 / d."""
    neighbours: int = Field(default=100, ge=1, le=10_000)
    """Neighbours kept per item, those with the highest score."""
    shrinkage: float = Field(default=5.0, ge=0.0)
    """A pair's score is its count / (root of both items' counts + this): chance meetings of rare items count less."""
    decay: float = Field(default=0.9, gt=0.0, le=1.0)
    """What the next older of a user's recent items counts, relative to the newer one."""
    window_days: int | None = Field(default=None, ge=1, le=3_650)
    """Days whose positives count, up to the newest; null: all."""

    def check(self, data: Data) -> None:
        """Check the clock; see `SourceSection.check`."""
        if self.window_days is not None:
            check_days(data, "window_days")

    def fit(self, given: FitData, folder: Path) -> None:
        """Count pairs day by day, and write each item's neighbours."""
        pairs, counts = self._counted(given)
        scored = (
            pairs.with_columns(
                pl.col(_WEIGHT)
                / (
                    (pl.lit(pl.Series(counts)).gather(ROW) * pl.lit(pl.Series(counts)).gather(_OTHER)).sqrt()
                    + self.shrinkage
                )
            )
            .sort([ROW, _WEIGHT, _OTHER], descending=[False, True, False])
            .group_by(ROW, maintain_order=True)
            .head(self.neighbours)
        )
        sizes = np.bincount(scored[ROW].to_numpy(), minlength=given.catalogue.size)
        np.save(folder / _STARTS, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
        np.save(folder / _ITEMS, scored[_OTHER].to_numpy().astype(np.int32))
        np.save(folder / _SCORES, scored[_WEIGHT].to_numpy().astype(np.float32))

    def load(self, folder: Path) -> Neighbours:
        """Return the neighbours in a folder."""
        starts, items, scores = (mapped_array(folder / name) for name in (_STARTS, _ITEMS, _SCORES))
        return Neighbours(starts, items, scores, self.decay)

    def _counted(self, given: FitData) -> tuple[pl.DataFrame, np.ndarray]:
        """Return the weight of every pair, in both directions, and every item's positives."""
        user = given.data.user
        assert user
        counts = np.zeros(given.catalogue.size)
        total: pl.DataFrame | None = None
        before: pl.DataFrame | None = None
        for rows in given.positives(given.last_days(self.window_days)):
            taken = rows.sort(Columns.TIME, maintain_order=True).select(user, ROW)
            counts += np.bincount(taken[ROW].to_numpy(), minlength=counts.size)
            # The last positives of every user go on into the next file: pairs do not end with a day.
            new = taken if before is None else pl.concat([before, taken])
            found = self._pairs(new, user, 0 if before is None else before.height)
            both = found if total is None else pl.concat([total, found])
            total = both.group_by(ROW, _OTHER).agg(pl.col(_WEIGHT).sum())
            before = new.group_by(user, maintain_order=True).tail(self.nearby).select(user, ROW)
        if total is None or not total.height:
            raise DataError("no user has two positive items near each other; declare a longer window or another kind")
        return total, counts

    def _pairs(self, taken: pl.DataFrame, user: str, known: int) -> pl.DataFrame:
        """Return pairs with their weights; those of which both are among the first `known` rows were counted before."""
        ordered = taken.with_row_index(_PLACE).with_columns(
            *(pl.col(ROW).shift(apart).over(user).alias(f"{_OTHER}{apart}") for apart in range(1, self.nearby + 1))
        )
        ordered = ordered.filter(pl.col(_PLACE) >= known)
        pairs = [
            ordered.select(ROW, pl.col(f"{_OTHER}{apart}").alias(_OTHER), pl.lit(1 / apart).alias(_WEIGHT))
            for apart in range(1, self.nearby + 1)
        ]
        one_way = pl.concat(pairs).filter(pl.col(_OTHER).is_not_null(), pl.col(_OTHER) != pl.col(ROW))
        other_way = one_way.select(pl.col(_OTHER).alias(ROW), pl.col(ROW).alias(_OTHER), _WEIGHT)
        return pl.concat([one_way, other_way]).group_by(ROW, _OTHER).agg(pl.col(_WEIGHT).sum())


class Neighbours(Source):
    """Each item's neighbours, one item's after the other's."""

    def __init__(self, starts: NDArray[np.int64], items: Rows, scores: Scores, decay: float) -> None:
        self._starts, self._items, self._scores, self._decay = starts, items, scores, decay

    def retrieve(self, queries: Queries, most: int) -> Ranked:
        """Return the neighbours of recent items, their scores summed; none for a user without recent items."""
        found = Ranked(np.full((queries.size, most), -1, np.int32), np.full((queries.size, most), -np.inf, np.float32))
        weights = recent_weights(queries.recent, self._decay)
        for line, recent in enumerate(queries.recent):
            known = recent >= 0
            items, sums = self._summed(recent[known], weights[line, known])
            order = highest(sums, most)  # equal sums by row number
            found.items[line, : len(order)], found.scores[line, : len(order)] = items[order], sums[order]
        return found

    def _summed(self, recent: Rows, weights: Scores) -> tuple[Rows, NDArray[Any]]:
        """Return the neighbours of some items by row number, and their sums."""
        counts = self._starts[recent + 1] - self._starts[recent]
        at = np.arange(counts.sum()) + np.repeat(self._starts[recent] - np.cumsum(counts) + counts, counts)
        items, entries, groups = grouped(self._items[at])
        scores = self._scores[at] * np.repeat(weights, counts)
        return items, np.bincount(groups, scores[entries], len(items))


def recent_weights(recent: Rows, decay: float) -> Scores:
    """Return how much every recent item counts, shape of `recent`: the newest 1, the next `decay`, and so on.

    >>> recent_weights(np.array([[7, 3, -1]], np.int32), 0.5).tolist()
    [[1.0, 0.5, 0.0]]
    """
    weights = np.float32(decay) ** np.arange(recent.shape[1], dtype=np.float32)
    return np.where(recent >= 0, weights, np.float32(0))
