"""Columns that are derived from values which no graph can read, such as the number of words of a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

from shortlist.contracts import DataError
from shortlist.features.values.columns import DeclaredColumns

DerivedForm = Literal["number", "list"]
"""A Float64 number, or a list of Int64."""

_TYPES = {"number": pl.Float64(), "list": pl.List(pl.Int64)}


@dataclass(frozen=True)
class DerivedColumn:
    """A column that is computed from each value of another column, and from nothing else."""

    name: str
    """Name that no declared column has, such as that of the feature."""
    source: str
    """The declared column."""
    form: DerivedForm
    derive: Callable[[pl.Series], pl.Series] = field(compare=False, repr=False)
    """derive(values) returns one number or list per value of the source; a null gives a null."""

    def row_column(self, declared: DeclaredColumns) -> str:
        """Return the name under which looked-up rows hold the column: `<side table>:<name>`, or `derived:<name>`."""
        side_table = declared.side_table_of(self.source)
        return f"derived:{self.name}" if side_table is None else f"{side_table.name}:{self.name}"

    def values(self, source: pl.Series) -> pl.Series:
        """Return the column for values of the source: Float64, or lists of Int64 without nulls.

        Raises:
            DataError: The kind did not derive one number or list per value.
        """
        derived = self.derive(source)
        if len(derived) != len(source):
            raise DataError(
                f"features: '{self.name}': got {len(derived)} derived values for {len(source)} values of"
                f" '{self.source}'; a kind must derive one from each"
            )
        typed = derived.cast(_TYPES[self.form]).alias(self.name)
        return typed.list.drop_nulls() if self.form == "list" else typed


def log_derived_columns(derived: Iterable[DerivedColumn], declared: DeclaredColumns) -> tuple[DerivedColumn, ...]:
    """Return the columns that are derived from columns of the log, and therefore computed for every row."""
    return tuple(column for column in derived if declared.side_table_of(column.source) is None)


def with_derived_columns(
    rows: pl.DataFrame, derived: Iterable[DerivedColumn], declared: DeclaredColumns
) -> pl.DataFrame:
    """Return rows of the log with the columns derived from columns of the log."""
    return rows.with_columns(
        column.values(rows[declared.row_column(column.source)]).alias(column.row_column(declared))
        for column in log_derived_columns(derived, declared)
    )
