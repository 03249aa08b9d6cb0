"""Counts of a reference's columns, per bin and day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

import numpy as np
import polars as pl

from monitoring.reference.distributions import Bins, present_values
from monitoring.reference.reference_parts import ColumnReference
from shortlist.features.counts.vocabulary import ValueIds


class ColumnCounts:
    """Values per bin and day, rows without a value, and values that are in no vocabulary."""

    def __init__(
        self,
        bins: Mapping[str, Bins],
        days: Sequence[date],
        vocabularies: Mapping[str, ValueIds],
        last_fitted_day: date,
    ) -> None:
        """Create empty counts.

        Args:
            bins: Bins by column.
            days: All days that will be added.
            vocabularies: Vocabularies by column; a column may have none.
            last_fitted_day: Last day that the vocabularies were fitted on; unknown values are counted on later days.
        """
        self._bins, self._last_fitted_day = bins, last_fitted_day
        self._day_index = {day: index for index, day in enumerate(days)}
        self._vocabularies = {name: vocabularies[name] for name in bins if name in vocabularies}
        self._counts = {name: np.zeros((len(days), column_bins.size), np.int64) for name, column_bins in bins.items()}
        self._nulls = dict.fromkeys(bins, 0)
        self._unknown_counts = {name: np.zeros(2, np.int64) for name in self._vocabularies}
        self._rows = 0

    def add(self, day: date, rows: pl.DataFrame) -> None:
        """Count rows of one day."""
        self._rows += rows.height
        for name, bins in self._bins.items():
            self._counts[name][self._day_index[day]] += bins.count(rows[name])
            self._nulls[name] += rows[name].null_count()
        if day > self._last_fitted_day:
            for name, vocabulary in self._vocabularies.items():
                _, values = present_values(rows[name], "tags")
                unknown_count = int((vocabulary.ids(values) == 0).sum())
                self._unknown_counts[name] += unknown_count, values.len()

    def columns(self) -> dict[str, ColumnReference]:
        """Return the distribution of each column."""
        return {
            name: ColumnReference(
                bins=bins,
                counts=tuple(tuple(day) for day in self._counts[name].tolist()),
                nulls=self._nulls[name] / self._rows,
                rows=self._rows,
            )
            for name, bins in self._bins.items()
        }

    def unknown_shares(self) -> dict[str, float]:
        """Return the share of values without an id of their own, by column; columns without values are left out."""
        return {
            name: float(unknown_count / value_count)
            for name, (unknown_count, value_count) in self._unknown_counts.items()
            if value_count
        }
