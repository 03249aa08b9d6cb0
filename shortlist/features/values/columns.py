"""Declared columns, and the name of each in rows whose side tables have been looked up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shortlist.contracts import Columns, DataError, ShortlistError, did_you_mean
from shortlist.spec.data import Column, Data, EventClock, SideTable

SUM_SCALE: Final = 2**16
"""Sums of `number` columns count in units of 1 / SUM_SCALE: integers add up to the same bits in any order."""

SECOND_OF_DAY: Final = "clock:second"
"""Seconds since midnight on the wall clock of the log's timezone, with fractions; a column of every request's rows."""
WEEKDAY: Final = "clock:weekday"
"""Days since Monday on that clock, 0 to 6."""


class PlanError(ShortlistError):
    """The declared features cannot be made from the declared columns."""


class IncompatibleFitError(DataError):
    """An earlier fit cannot be extended to this one; fitting without it is correct."""


@dataclass(frozen=True)
class DeclaredColumns:
    """The declared columns of a log and of its side tables."""

    data: Data

    def column(self, name: str) -> Column:
        """Return a declared column; `name` may be declared or the log's own (label, impression_id).

        Raises:
            PlanError: There is no such column; features of an older spec may ask for one.
        """
        declared_names = {Columns.LABEL: self.data.label, Columns.IMPRESSION: self.data.impression}
        declared_name = declared_names.get(name) or name
        if declared_name not in self.data.by_name:
            raise PlanError(f"features: no column '{name}' is declared{did_you_mean(name, self.data.by_name)}")
        return self.data.by_name[declared_name]

    def log_column(self, name: str) -> str:
        """Return a column's name in the valid log, which renames the label and the impression."""
        if name == self.data.label:
            return Columns.LABEL
        return Columns.IMPRESSION if name == self.data.impression else name

    def side_table_of(self, name: str) -> SideTable | None:
        """Return the side table that holds a column, None for the log's own."""
        if name in {column.name for column in self.data.columns}:
            return None
        return next(
            (table for table in self.data.side_tables if name in {column.name for column in table.columns}), None
        )

    def row_column(self, name: str) -> str:
        """Return the name under which looked-up rows hold a column: `<side table>:<column>` for a side table's."""
        side_table = self.side_table_of(name)
        return self.log_column(name) if side_table is None else f"{side_table.name}:{name}"

    def is_tags(self, name: str) -> bool:
        """Return whether a column holds several values per row."""
        return name != Columns.GLOBAL_KEY and self.column(name).type == "tags"

    def is_text(self, name: str) -> bool:
        """Return whether the values of a key column are texts; otherwise they are Int64."""
        if name == Columns.GLOBAL_KEY:
            return False
        column = self.column(name)
        return column.type == "string" or (column.type == "tags" and column.tag_type == "string")

    def is_fraction(self, name: str) -> bool:
        """Return whether a column holds floating-point numbers; the log's own columns are integers."""
        return name not in (Columns.LABEL, Columns.IMPRESSION) and self.column(name).type == "number"

    def scale(self, name: str) -> int:
        """Return how many units of a fixed-point sum make 1."""
        return SUM_SCALE if self.is_fraction(name) else 1

    def key(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return a key's columns in canonical order: user, item, then by name; () is the key of all rows.

        Raises:
            PlanError: A column cannot be a key.
        """
        for name in columns:
            column_type = self.column(name).type
            if column_type not in ("integer", "hex", "string", "tags"):
                raise PlanError(
                    f"features: key column '{name}' is of type {column_type}; wanted integer, hex, string or tags."
                    " Declare it so, or leave it out of the key."
                )
        role_order = {self.data.user: 0, self.data.item: 1}
        ordered = sorted(set(columns), key=lambda name: (role_order.get(name, 2), name))
        return tuple(self.log_column(name) for name in ordered) or (Columns.GLOBAL_KEY,)

    @property
    def timezone(self) -> str:
        """The timezone in which days begin."""
        return self.data.clock.timezone if isinstance(self.data.clock, EventClock) else "UTC"
