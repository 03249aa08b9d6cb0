"""What Evidently is given to draw: a column of a window beside the reference's, in the reference's own bins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from monitoring.drift.drift_statistics import population_stability_index
from monitoring.reference.distributions import Kind
from monitoring.windows.known_columns import OWN
from monitoring.windows.kpi import REQUEST, SCORE
from shortlist.evaluation.metrics import Floats

if TYPE_CHECKING:
    from monitoring.reference.reference import ColumnReference, Reference

VERSION: Final = "version"
_MOST_OTHER: Final = 0.5
_OTHER: Final = "(other values)"
_LOOK_ALIKES: Final = str.maketrans({"<": "\u2039", ">": "\u203a", "&": "\uff06", "\u2028": " ", "\u2029": " "})
_TAILS: Final = (0.005, 0.995)


@dataclass(frozen=True)
class DrawnColumn:
    """A column of both sides: numbers, or the names of the values that are told apart."""

    name: str
    usual: ColumnReference
    live: pl.Series
    then: pl.Series

    @property
    def numeric(self) -> bool:
        """Whether it holds numbers."""
        return self.usual.bins.kind == "numeric"

    def index(self, drawn: Any) -> float:
        """Return how far values are from all rows of the reference: the population stability index over its bins.

        Args:
            drawn: Some of `live`, as a series of pandas without nulls.
        """
        bins, then = self.usual.bins, _totals(self.usual)
        if self.numeric:
            now = bins.count(pl.Series(drawn.to_numpy()))
        else:
            places = {name: place for place, name in enumerate(_names(self.usual))}
            now = np.bincount(drawn.map(places).to_numpy(), minlength=bins.size)
        return population_stability_index(then / then.sum(), now / now.sum())


def drawn_columns(
    live: pl.DataFrame, then: pl.DataFrame, reference: Reference, model: str, compared: Mapping[str, Kind]
) -> Iterator[DrawnColumn]:
    """Return the compared columns and the score of which a picture tells something.

    Not those are tags, columns without a value on either side, and keys: categories of which most of the reference's
    rows have none of the values that are told apart. Numbers beyond the reference's 0.5 % tails are put at their ends,
    which no bin notices: one outlier would otherwise make a histogram of one bar.

    Args:
        live: Rows of the window.
        then: Rows of the reference, likewise with the column score.
        reference: With the bins.
        model: Whose scores they are.
        compared: Columns and how they are compared.
    """
    usual = {name: reference.columns[name] for name in compared if name in reference.columns and name not in OWN}
    if model in reference.models:
        usual[SCORE] = reference.models[model].scores
    for name, one in usual.items():
        if name in live.columns and name in then.columns and _tells(one):
            sides = [_drawn(side[name], one, then[name]) for side in (live, then)]
            if all(side.null_count() < side.len() for side in sides):
                yield DrawnColumn(name, one, *sides)


def sample_requests(rows: pl.DataFrame, most: int, seed: int) -> pl.DataFrame:
    """Return a sample of whole requests with at most so many rows."""
    if rows.height <= most:
        return rows
    shuffled = rows.group_by(REQUEST, maintain_order=True).len().sample(fraction=1.0, shuffle=True, seed=seed)
    return rows.join(shuffled.filter(pl.col("len").cum_sum() <= most), on=REQUEST, how="semi")


def scores_of_one_version(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with a score only where the version that most rows come from gave a usable one."""
    version = rows[VERSION].drop_nulls().mode().sort().head(1)
    score = pl.col(SCORE).cast(pl.Float64)
    usable = pl.col(VERSION).is_in(version.implode()) & score.is_finite()
    return rows.with_columns(pl.when(usable).then(score).alias(SCORE))


def _tells(usual: ColumnReference) -> bool:
    totals = _totals(usual)
    if usual.bins.kind == "tags" or not totals.sum():
        return False
    return usual.bins.kind == "numeric" or bool(totals[-1] / totals.sum() <= _MOST_OTHER)


def _totals(usual: ColumnReference) -> Floats:
    totals: Floats = np.array(usual.counts, dtype=np.float64).reshape(-1, usual.bins.size).sum(axis=0)
    return totals


def _drawn(values: pl.Series, usual: ColumnReference, then: pl.Series) -> pl.Series:
    if usual.bins.kind == "numeric":
        low, high = (_finite(then).quantile(tail, "nearest") for tail in _TAILS)
        # Never past the outermost edges: a number would change its bin.
        ends = [*usual.bins.edges[:1], *usual.bins.edges[-1:]]
        if ends and low is not None and high is not None:
            low, high = min(low, np.nextafter(ends[0], -np.inf)), max(high, ends[1])
        return _finite(values).clip(low, high)
    names = np.full(values.len(), None, dtype=object)
    rows, bins = usual.bins.codes(values)
    names[rows] = _names(usual)[bins]
    return pl.Series(values.name, names, dtype=pl.String)


def _finite(values: pl.Series) -> pl.Series:
    numbers = values.cast(pl.Float64)
    return numbers.set(~numbers.is_finite(), None)


def _names(usual: ColumnReference) -> Any:
    """Return what the bins are called on the page.

    Evidently writes names into a script as JSON, where `</script>` ends the script and whatever follows is markup of
    the page. So characters that begin markup are replaced by ones that look alike.
    """
    return np.array([*(str(value).translate(_LOOK_ALIKES) for value in usual.bins.values), _OTHER], dtype=object)
