"""Source `co_visitation`: items that users took shortly before or after a user's recent ones."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from pydantic import Field
from scipy import sparse

from shortlist.contracts import Columns, DataError
from shortlist.retrieval.catalogue import Rows
from shortlist.retrieval.source import ROW, FitData, Queries, Ranked, SourceKind
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
        starts, items, scores = (np.load(folder / name, mmap_mode="r") for name in (_STARTS, _ITEMS, _SCORES))
        size = len(starts) - 1
        return Neighbours(sparse.csr_array((scores, items, starts), shape=(size, size), copy=False), self.decay)

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


class Neighbours:
    """Each item's neighbours as a sparse matrix."""

    def __init__(self, scores: sparse.csr_array, decay: float) -> None:
        self._scores, self._decay = scores, decay

    def retrieve(self, queries: Queries, most: int) -> Ranked:
        """Return the neighbours of recent items, their scores summed; none for a user without recent items."""
        recent = weighted_recent(queries.recent, self._decay, self._scores.shape[0])
        found = (recent @ self._scores).tocsr()
        return _best_of_lines(found, most)


def weighted_recent(recent: Rows, decay: float, items: int) -> sparse.csr_array:
    """Return how much every recent item counts, shape (queries, items): the newest 1, the next `decay`, and so on."""
    line, place = np.nonzero(recent >= 0)
    weights = np.float32(decay) ** place.astype(np.float32)
    shape = (len(recent), items)
    return sparse.csr_array((weights, (line, recent[line, place])), shape=shape, dtype=np.float32)


def _best_of_lines(scores: sparse.csr_array, most: int) -> Ranked:
    """Return the columns with the highest values of every line; equal values by column."""
    lengths = np.diff(scores.indptr)
    line = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((scores.indices, -scores.data, line))
    place = np.arange(len(order)) - np.repeat(scores.indptr[:-1], lengths)
    kept = place < most
    items = np.full((len(lengths), most), -1, np.int32)
    values = np.full(items.shape, -np.inf, np.float32)
    at = line[kept], place[kept]
    items[at], values[at] = scores.indices[order][kept], scores.data[order][kept]
    return Ranked(items, values)
