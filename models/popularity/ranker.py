"""The popularity baseline: every item's smoothed click rate on the training days."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from models.popularity.section import PopularityModel
from shortlist.contracts import Columns, DataError
from shortlist.ranking.inputs import LearningTable
from shortlist.ranking.ranker import FitOutcome, OnEpoch, Ranker
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.system.progress import progress

_RATES = "rates.parquet"
_RATE = "rate"
_PRIOR_ROWS = 20.0
"""Weight of the overall rate in every item's rate, in rows; the default of the `target` feature."""


class PopularityRanker(Ranker[PopularityModel]):
    """(clicks + prior * overall rate) / (impressions + prior) of the item; the overall rate of an unseen item.

    A log without an item key has one rate for every row.
    """

    kind = "popularity"
    section_type = PopularityModel
    _rates: pl.DataFrame | None = None

    def _learning(self, table: DayTable) -> LearningTable:
        without_items = LearningTable(table, ())
        names = pl.read_parquet_schema(without_items.paths("train")[0])
        return LearningTable(table, (), extra_columns=(Columns.ITEM,)) if Columns.ITEM in names else without_items

    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> FitOutcome:
        counts: pl.DataFrame | None = None
        with progress(self.name, total=learning.rows("train")) as advance:
            for frame in learning.frames("train"):
                if Columns.ITEM in frame.columns:
                    counts = _add_counts(counts, frame)
                advance(frame.height, "")
        if counts is not None:
            clicks, rows = pl.col(Columns.LABEL), pl.col(Columns.ROWS)
            rate = (clicks + _PRIOR_ROWS * learning.base_rate) / (rows + _PRIOR_ROWS)
            self._rates = counts.select(Columns.ITEM, rate.cast(pl.Float32).alias(_RATE)).sort(Columns.ITEM)
        return FitOutcome()

    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        if self._rates is None:
            return np.full(frame.height, self.record.base_rate)
        if Columns.ITEM not in frame.columns:
            raise DataError(f"the rows have no column '{Columns.ITEM}'; the popularity model needs it")
        rates = frame.select(Columns.ITEM).join(self._rates, on=Columns.ITEM, how="left", maintain_order="left")
        return rates[_RATE].fill_null(self.record.base_rate).to_numpy()

    def _write(self, folder: Path) -> None:
        if self._rates is not None:
            self._rates.write_parquet(folder / _RATES)

    def _read(self, folder: Path) -> None:
        if (folder / _RATES).is_file():
            self._rates = pl.read_parquet(folder / _RATES)


def _add_counts(counts: pl.DataFrame | None, frame: pl.DataFrame) -> pl.DataFrame:
    clicks, rows = pl.col(Columns.LABEL).cast(pl.Int64).sum(), pl.len().cast(pl.Int64).alias(Columns.ROWS)
    if Columns.WEIGHT in frame.columns:
        weight = pl.col(Columns.WEIGHT).cast(pl.Float64)
        clicks, rows = (pl.col(Columns.LABEL) * weight).sum(), weight.sum().alias(Columns.ROWS)
    file_counts = frame.group_by(Columns.ITEM).agg(clicks, rows)
    if counts is None:
        return file_counts
    return pl.concat([counts, file_counts]).group_by(Columns.ITEM).agg(pl.col(Columns.LABEL, Columns.ROWS).sum())
