"""Columns counted day by day, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

import numpy as np
import polars as pl

from monitoring.reference.distributions import Bins, known_values
from monitoring.reference.reference_parts import ColumnReference
from shortlist.features.vocabulary import ValueIds


class ColumnCounts:
    """Values per bin and day, rows without a value, and values that a vocabulary does not know."""

    def __init__(
        self, bins: Mapping[str, Bins], days: Sequence[date], vocabularies: Mapping[str, ValueIds], fitted: date
    ) -> None:
        """Begin with nothing.

        Args:
            bins: By column.
            days: Those that will come.
            vocabularies: By column, of all columns or of some.
            fitted: Last of the days that they were fitted on; what they do not know of later ones is counted.
        """
        self._bins, self._fitted = bins, fitted
        self._place = {day: place for place, day in enumerate(days)}
        self._vocabularies = {name: vocabularies[name] for name in bins if name in vocabularies}
        self._counts = {name: np.zeros((len(days), one.size), np.int64) for name, one in bins.items()}
        self._nulls = dict.fromkeys(bins, 0)
        self._unknown = {name: np.zeros(2, np.int64) for name in self._vocabularies}
        self._rows = 0

    def add(self, day: date, rows: pl.DataFrame) -> None:
        """Count rows of one day."""
        self._rows += rows.height
        for name, bins in self._bins.items():
            self._counts[name][self._place[day]] += bins.count(rows[name])
            self._nulls[name] += rows[name].null_count()
        if day > self._fitted:
            for name, vocabulary in self._vocabularies.items():
                _, values = known_values(rows[name], "tags")
                strangers = int((vocabulary.ids(values) == 0).sum())
                self._unknown[name] += strangers, values.len()

    def columns(self) -> dict[str, ColumnReference]:
        """Return what was counted."""
        return {
            name: ColumnReference(
                bins=bins,
                counts=tuple(tuple(day) for day in self._counts[name].tolist()),
                nulls=self._nulls[name] / self._rows,
                rows=self._rows,
            )
            for name, bins in self._bins.items()
        }

    def unknown(self) -> dict[str, float]:
        """Return the share of values without an id of their own; columns without a value are not there."""
        return {name: float(unknown / values) for name, (unknown, values) in self._unknown.items() if values}
