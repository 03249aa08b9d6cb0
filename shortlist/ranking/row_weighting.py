"""Weights of the rows that a model learns from: of a logged sample, and by how rows were shown."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date
from pathlib import Path
from typing import Any, Final

import polars as pl
from pydantic import BaseModel, ConfigDict

from shortlist.contracts import Columns, DataError
from shortlist.spec.models import RowWeights
from shortlist.storage.tables import DayTable

ROW_WEIGHTING: Final = "row_weighting"
"""Key of a feature table's notes with a `RowWeighting`, for processes that lack some of its files."""
_RARITY: Final = "rarity"


class RowWeighting(BaseModel):
    """How rows are weighted, by statistics of all training rows."""

    model_config = ConfigDict(frozen=True)

    mean: float
    """Mean weight of the training rows, by which weights are divided: settings in rows, such as the least weight of a
    tree's leaf, keep their meaning."""
    sampled: bool
    """Whether the log is a sample with different weights of impressions."""
    declared: RowWeights | None = None
    """Weights by how a row was shown; None: none."""
    place_shares: dict[int, float] = {}
    """Share of the training rows at each place; empty where places do not count."""
    mean_rarity: float = 1.0
    """Mean of 1 / (propensity and share of the place) over the training rows that have them."""
    effective_rows: float = 0.0
    """Number of rows of equal weight that say as much as the training rows (Kish, 1965)."""
    largest: float = 0.0
    """Largest weight of a training row; the mean is 1."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the feature table that weights are computed from."""
        shown_columns = () if self.declared is None else _shown_columns(self.declared)
        return (*((Columns.WEIGHT,) if self.sampled else ()), *shown_columns)

    def weigh(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return rows with their weight, Float32, in place of the columns that it is computed from."""
        shown_columns = [name for name in self.columns if name != Columns.WEIGHT]
        weight = (self.weight() / self.mean).cast(pl.Float32).alias(Columns.WEIGHT)
        return frame.with_columns(weight).drop(shown_columns)

    def weight(self) -> pl.Expr:
        """Return the weight of a row before it is divided by the mean, as an expression."""
        sampled = pl.col(Columns.WEIGHT).cast(pl.Float64) if self.sampled else pl.lit(1.0)
        if self.declared is None:
            return sampled
        relative = (self.rarity() / self.mean_rarity).clip(upper_bound=self.declared.max_weight)
        return sampled * relative.fill_null(1.0)

    def rarity(self) -> pl.Expr:
        """Return 1 / (propensity and share of the place), as an expression; null where a row does not say it."""
        assert self.declared is not None
        exposure = pl.lit(1.0)
        if self.declared.propensity:
            exposure = exposure * pl.col(Columns.PROPENSITY).cast(pl.Float64)
        if self.place_shares:
            # A place that no training row has is as rare as the rarest.
            shares = pl.col(Columns.POSITION).replace_strict(
                list(self.place_shares), list(self.place_shares.values()), default=min(self.place_shares.values()),
                return_dtype=pl.Float64,
            )  # fmt: skip
            exposure = exposure * pl.when(pl.col(Columns.POSITION).is_not_null()).then(shares)
        return 1.0 / exposure


def row_weighting(
    table: DayTable, train: Collection[date], validation: Collection[date], declared: RowWeights | None
) -> RowWeighting | None:
    """Return how the rows of a table are weighted; None where all training and validation rows weigh the same.

    Args:
        table: The feature table.
        train: The training days, whose rows have mean weight 1.
        validation: The validation days, whose rows are weighted in the same way.
        declared: The model's weights; None: none.

    Raises:
        DataError: No training row says how it was shown.
    """
    paths = table.paths(set(train)), table.paths(set(validation))
    sampled = _is_sampled([*paths[0], *paths[1]])
    if declared is None:
        return _with_mean(RowWeighting(mean=1.0, sampled=True), paths[0]) if sampled else None
    missing = [name for name in _shown_columns(declared) if name not in pl.read_parquet_schema(paths[0][0])]
    if missing:
        raise DataError(f"{table.folder}: has no column '{missing[0]}'; write the feature table again")
    weighting = RowWeighting(mean=1.0, sampled=sampled, declared=declared)
    rows = pl.scan_parquet(paths[0], hive_partitioning=False)
    if declared.position:
        places = rows.filter(pl.col(Columns.POSITION).is_not_null()).group_by(Columns.POSITION).len().collect()
        shares = dict(zip(places[Columns.POSITION], places["len"] / max(places["len"].sum(), 1), strict=True))
        weighting = weighting.model_copy(update={"place_shares": dict(sorted(shares.items()))})
    mean_rarity = rows.select(weighting.rarity().alias(_RARITY)).select(pl.col(_RARITY).mean()).collect().item()
    if mean_rarity is None:
        raise DataError(
            f"{table.folder}: no row of the training days has {' and '.join(_shown_columns(declared))}; rows cannot be"
            " weighted by how they were shown. Leave weights out, or give days whose rows have them"
        )
    return _with_mean(weighting.model_copy(update={"mean_rarity": mean_rarity}), paths[0])


def _shown_columns(declared: RowWeights) -> tuple[str, ...]:
    names = ((declared.propensity, Columns.PROPENSITY), (declared.position, Columns.POSITION))
    return tuple(name for is_read, name in names if is_read)


def _is_sampled(paths: list[Path]) -> bool:
    if any(Columns.WEIGHT not in pl.read_parquet_schema(path) for path in paths):
        return False
    weight = pl.col(Columns.WEIGHT).cast(pl.Float64)
    extremes = weight.min(), weight.max().alias("most")
    least, greatest = pl.scan_parquet(paths, hive_partitioning=False).select(extremes).collect().row(0)
    return bool(least != greatest)


def _with_mean(weighting: RowWeighting, train: list[Path]) -> RowWeighting:
    weight = weighting.weight()
    measures = {
        "mean": weight.mean(), "effective_rows": weight.sum() ** 2 / (weight**2).sum(),
        "largest": weight.max() / weight.mean(),
    }  # fmt: skip
    rows = pl.scan_parquet(train, hive_partitioning=False).select(**measures).collect()
    measured: dict[str, Any] = rows.row(0, named=True)
    return weighting.model_copy(update=measured)
