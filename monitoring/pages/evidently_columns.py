"""The columns that Evidently draws: live values beside the reference's, binned by the reference's bins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from monitoring.drift.drift_statistics import population_stability_index
from monitoring.reference.distributions import Kind
from monitoring.windows.known_columns import WINDOW_COLUMNS
from monitoring.windows.kpi import REQUEST, SCORE
from shortlist.evaluation.metrics.pointwise import Floats

if TYPE_CHECKING:
    from monitoring.reference.reference import ColumnReference, Reference

VERSION: Final = "version"
_MAX_OTHER_SHARE: Final = 0.5
_OTHER_VALUES: Final = "(other values)"
_LOOK_ALIKES: Final = str.maketrans({"<": "\u2039", ">": "\u203a", "&": "\uff06", "\u2028": " ", "\u2029": " "})
_TAILS: Final = (0.005, 0.995)
_CLIP_MARGIN: Final = 1e-6
"""Share of an outermost edge by which numbers below it are drawn below: less could not be told from the edge."""
_HISTOGRAM_BINS: Final = 100
"""More bins than Evidently's histograms have."""


@dataclass(frozen=True)
class DrawnColumn:
    """A column of both sides: numbers, or the names of the values with a bin of their own."""

    name: str
    reference: ColumnReference
    live: pl.Series
    reference_values: pl.Series

    @property
    def numeric(self) -> bool:
        """Whether it holds numbers."""
        return self.reference.bins.kind == "numeric"

    def index(self, values: Any) -> float:
        """Return the population stability index of values against all rows of the reference, over its bins.

        Args:
            values: A sample of `live`, as a pandas series without nulls.
        """
        bins, reference_counts = self.reference.bins, _bin_totals(self.reference)
        if self.numeric:
            live_counts = bins.count(pl.Series(values.to_numpy()))
        else:
            bin_numbers = {name: bin_number for bin_number, name in enumerate(_bin_names(self.reference))}
            live_counts = np.bincount(values.map(bin_numbers).to_numpy(), minlength=bins.size)
        return population_stability_index(reference_counts / reference_counts.sum(), live_counts / live_counts.sum())


def make_drawn_columns(
    live: pl.DataFrame, reference_sample: pl.DataFrame, reference: Reference, model: str, compared: Mapping[str, Kind]
) -> Iterator[DrawnColumn]:
    """Yield the compared columns, and the score, that are worth a plot.

    Left out are tags, columns without a value on either side, numbers that differ by rounding errors alone, and keys:
    categories for which most of the reference's rows are in the bin of other values. Numbers beyond the reference's
    0.5 % tails are clipped within their outermost bins: one outlier would otherwise reduce the histogram to one bar.

    Args:
        live: Rows of the window.
        reference_sample: Rows of the reference, with the column score.
        reference: The reference with the bins.
        model: Name of the model that gave the scores.
        compared: Compared columns with their kinds.
    """
    references = {
        name: reference.columns[name] for name in compared if name in reference.columns and name not in WINDOW_COLUMNS
    }
    if model in reference.models:
        references[SCORE] = reference.models[model].scores
    for name, column_reference in references.items():
        if name in live.columns and name in reference_sample.columns and _is_informative(column_reference):
            sides = [
                _drawn_values(rows[name], column_reference, reference_sample[name]) for rows in (live, reference_sample)
            ]
            if all(_is_drawable(values) for values in (*sides, pl.concat(sides))):
                yield DrawnColumn(name, column_reference, *sides)


def _is_drawable(values: pl.Series) -> bool:
    """Whether there are values, and numbers are apart enough for the equal bins of a histogram."""
    if values.null_count() == values.len() or not values.dtype.is_float():
        return values.null_count() < values.len()
    low, high = float(values.min()), float(values.max())  # type: ignore[arg-type]
    width = (high - low or 1.0) / _HISTOGRAM_BINS  # one number gets a bin of its own, one wide
    return bool(width > 2 * np.spacing(max(abs(low), abs(high))))


def sample_requests(rows: pl.DataFrame, max_rows: int, seed: int) -> pl.DataFrame:
    """Return a sample of whole requests with at most `max_rows` rows."""
    if rows.height <= max_rows:
        return rows
    shuffled = rows.group_by(REQUEST, maintain_order=True).len().sample(fraction=1.0, shuffle=True, seed=seed)
    return rows.join(shuffled.filter(pl.col("len").cum_sum() <= max_rows), on=REQUEST, how="semi")


def scores_of_one_version(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with the score set to null unless it is finite and of the version with most rows."""
    version = rows[VERSION].drop_nulls().mode().sort().head(1)
    score = pl.col(SCORE).cast(pl.Float64)
    is_usable = pl.col(VERSION).is_in(version.implode()) & score.is_finite()
    return rows.with_columns(pl.when(is_usable).then(score).alias(SCORE))


def _is_informative(reference: ColumnReference) -> bool:
    totals = _bin_totals(reference)
    if reference.bins.kind == "tags" or not totals.sum():
        return False
    return reference.bins.kind == "numeric" or bool(totals[-1] / totals.sum() <= _MAX_OTHER_SHARE)


def _bin_totals(reference: ColumnReference) -> Floats:
    totals: Floats = np.array(reference.counts, dtype=np.float64).reshape(-1, reference.bins.size).sum(axis=0)
    return totals


def _drawn_values(values: pl.Series, reference: ColumnReference, reference_values: pl.Series) -> pl.Series:
    if reference.bins.kind == "numeric":
        low, high = (_finite_numbers(reference_values).quantile(tail, "nearest") for tail in _TAILS)
        # Clip only beyond the outermost edges, so that no number changes its bin.
        outer_edges = [*reference.bins.edges[:1], *reference.bins.edges[-1:]]
        if outer_edges and low is not None and high is not None:
            below_edge = outer_edges[0] - _CLIP_MARGIN * max(abs(outer_edges[0]), _CLIP_MARGIN)
            low, high = min(low, below_edge), max(high, outer_edges[1])
        return _finite_numbers(values).clip(low, high)
    names = np.full(values.len(), None, dtype=object)
    rows, bins = reference.bins.codes(values)
    names[rows] = _bin_names(reference)[bins]
    return pl.Series(values.name, names.tolist(), dtype=pl.String)  # an array that begins with None is no text


def _finite_numbers(values: pl.Series) -> pl.Series:
    numbers = values.cast(pl.Float64)
    return numbers.set(~numbers.is_finite(), None)


def _bin_names(reference: ColumnReference) -> Any:
    """Return the names of the bins on the page.

    Evidently writes names into a script as JSON, where `</script>` would end the script and the rest would be markup of
    the page. So characters that start markup are replaced by look-alikes.
    """
    return np.array(
        [*(str(value).translate(_LOOK_ALIKES) for value in reference.bins.values), _OTHER_VALUES], dtype=object
    )
