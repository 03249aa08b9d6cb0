"""What is decided about a log before its spec is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import polars as pl

from shortlist.contracts import RESERVED, DataError
from shortlist.data.reading.clock import event_times
from shortlist.first_spec.columns import ColumnProfile
from shortlist.first_spec.roles import MIN_DAYS
from shortlist.first_spec.tables import TableSample
from shortlist.spec.log_shape import Positive

_TEST_SHARE = 0.12
_MAX_TEST_DAYS_SHARE = 0.25
_DAYS_WITHOUT_CLOCK = 7
SHOWN_ITEM, IS_POSITIVE = "shown_item", "is_click"
"""Names of the two columns that are cut out of `N12-0 N7-1`."""


@dataclass
class SideTableDraft:
    """A table about users or items."""

    table: TableSample
    name: str
    key: str
    """Source name of its key."""
    coverage: float
    """Share of the log's rows that find it."""


@dataclass
class SpecDraft:
    """The decisions; columns by their source names in the log."""

    location: Path
    log: TableSample
    label: str
    positive: Positive | None = None
    clock: str | None = None
    user: str | None = None
    item: str | None = None
    request: str | None = None
    impression: str | None = None
    position: str | None = None
    outcomes: dict[str, str] = field(default_factory=dict)
    """Columns known only after the impression, and why."""
    sides: list[SideTableDraft] = field(default_factory=list)
    rules: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Rule -> its value as YAML, and why it is not the default."""
    comments: dict[str, str] = field(default_factory=dict)
    """What the spec says of a column of the log, by its source name."""
    determined_by: dict[str, str] = field(default_factory=dict)
    """Columns of the log that a key alone determines, by their source names -> that of the key."""
    item_columns: set[str] = field(default_factory=set)
    """Columns of the log whose newest value of an item is that of a candidate, by their source names: the item alone
    determines them, or they differ among the items of a request."""
    unused: set[str] = field(default_factory=set)
    """Columns of the log that become no feature, by their source names."""
    in_tables: set[str] = field(default_factory=set)
    """Columns of the log that are taken from a side table instead, by their source names."""
    user_returns: bool = False
    """Whether users come back on other days, with so few rows that the newest day is much of what is known."""
    young_share: float = 0.0
    """Share of the rows with items that first came within a day."""
    has_slates: bool = False
    """Whether several rows share a request."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Tables that are no part of the spec, and why."""

    @property
    def columns(self) -> list[ColumnProfile]:
        """The log's columns that are declared: all but the clock, and those that are taken from a side table."""
        return [column for column in self.log.columns if column.source not in (self.clock, *self.in_tables)]

    @property
    def total_rows(self) -> int:
        """Rows of the log, as far as they were counted."""
        return sum(rows for _, rows in self.day_rows)

    @property
    def is_paired(self) -> bool:
        """Whether one text holds items and labels."""
        return self.log.column(self.label).pairs

    @property
    def roles(self) -> set[str | None]:
        """Columns of the log that have a role."""
        return {self.label, self.clock, self.user, self.item, self.request, self.impression, self.position}

    @property
    def feature_columns(self) -> list[ColumnProfile]:
        """The log's columns that may become features."""
        left_out = self.roles | self.unused | set(self.outcomes)
        return [column for column in self.columns if column.source not in left_out and column.is_usable]

    def determined_columns(self, key: str) -> set[str]:
        """Return the columns that a key alone determines, in the log or by a table: the source names of all."""
        in_tables = {column.source for side in self.sides if side.key == key for column in side.table.columns}
        return in_tables | {column for column, its_key in self.determined_by.items() if its_key == key}

    def name_of(self, column: ColumnProfile, side: SideTableDraft | None = None) -> str:
        """Return the name by which the spec declares a column: no other column's, and none of Shortlist's own."""
        own_name = {self.label: "label", self.impression: "impression_id"}.get(column.source) if side is None else None
        name = column.name
        if name in RESERVED and name != own_name:
            name = f"{name}_value"
        if side is None:
            sources = [other_column.source for other_column in self.columns if other_column.name == column.name]
            return name if sources[:1] == [column.source] else f"{name}_{sources.index(column.source) + 1}"
        if column.source == side.key:
            return self.name_of(next(log_column for log_column in self.columns if log_column.name == column.name))
        names_in_use = {log_column.name for log_column in self.columns} | {
            other_column.name
            for earlier_side in self.sides[: self.sides.index(side)]
            for other_column in earlier_side.table.columns
        }
        return f"{side.name}_{name}" if name in names_in_use else name

    days: tuple[tuple[date, int], ...] = ()
    """Rows of every day of the whole log, once they were counted."""

    @property
    def day_rows(self) -> list[tuple[date, int]]:
        """Rows of every day, in order: of the whole log once they were counted, else of the rows looked at.

        Of a log without a clock, those of its equal parts.
        """
        if self.days:
            return list(self.days)
        rows = self.log.rows.height
        if self.clock is None:
            return [(date(2000, 1, 3 + day), rows // _DAYS_WITHOUT_CLOCK) for day in range(_DAYS_WITHOUT_CLOCK)]
        column = self.log.column(self.clock)
        assert column.clock is not None
        raw = self.log.rows[self.clock]
        times = event_times(raw, column.clock)
        counts = pl.DataFrame({"day": times.dt.date()}).drop_nulls().group_by("day").len().sort("day")
        return [(day, int(n)) for day, n in counts.rows()]

    @property
    def split(self) -> tuple[int, int, int]:
        """Days to warm up, to validate and to test: whole days with about an eighth of the rows each.

        Raises:
            DataError: The log has too few days.
        """
        counts = [n for _, n in self.day_rows]
        if len(counts) < MIN_DAYS:
            names = ", ".join(str(day) for day, _ in self.day_rows)
            raise DataError(
                f"{self.location}: the log has {len(counts)} day(s) ({names}); a split by days needs {MIN_DAYS}: one to"
                " warm up the statistics, and one each to train, validate and test. Collect more days; or sort the rows"
                " by time, and init cuts them into equal parts (docs/data.md)"
            )
        max_days = max(1, int(_MAX_TEST_DAYS_SHARE * len(counts)))
        test = _count_test_days(counts, max_days)
        validation = _count_test_days(counts[:-test], max_days)
        warmup = 1 if len(counts) < 10 else max(1, len(counts) // 10)
        return warmup, validation, test

    @property
    def test_rows(self) -> int:
        """Rows of the test days."""
        return sum(n for _, n in self.day_rows[-self.split[2] :])


def _count_test_days(counts: list[int], max_days: int) -> int:
    min_rows, days, rows = _TEST_SHARE * sum(counts), 0, 0
    while days < max_days and (rows < min_rows or not days):
        days += 1
        rows += counts[-days]
    return days
