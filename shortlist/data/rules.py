"""The rules of a row: a rule is a function whose name is what the report says a row breaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.data.failures import Failure, failure, flagged
from shortlist.data.keys import KeySet
from shortlist.spec.data import Column, Data, SideTable
from shortlist.storage.row_digest import Hashes, row_columns, row_hashes

DUPLICATE_ROW = "duplicate_row"
"""The rule whose rows have a tolerance of their own."""
FUTURE = "future"
"""The rule of rows that come too late to be read; they are nobody's mistake and count against no tolerance."""


@dataclass(frozen=True)
class Check:
    """One rule on one column."""

    rule: str
    column: str
    broken: pl.Expr
    """Which rows break it; null counts as no."""
    wanted: str


def not_null(column: Column) -> Check | None:
    """A column declared `nullable: false` has a value."""
    if column.nullable:
        return None
    return Check("not_null", column.name, pl.col(column.name).is_null(), "a value")


def finite_number(column: Column) -> Check | None:
    """A number is not infinite."""
    if column.type != "number":
        return None
    return Check("finite_number", column.name, pl.col(column.name).is_infinite(), "a finite number")


def in_range(column: Column) -> Check | None:
    """A value lies between the declared bounds, both included."""
    if column.min is None and column.max is None:
        return None
    low = float("-inf") if column.min is None else column.min
    high = float("inf") if column.max is None else column.max
    return Check("in_range", column.name, ~pl.col(column.name).is_between(low, high), f"a value in [{low:g}, {high:g}]")


def allowed_value(column: Column) -> Check | None:
    """A value is one of the declared ones."""
    if column.allowed is None:
        return None
    values = pl.Series(column.allowed, dtype=pl.Int64() if column.type == "integer" else pl.String(), strict=False)
    wanted = "one of " + ", ".join(str(value) for value in column.allowed)
    return Check("allowed_value", column.name, ~pl.col(column.name).is_in(values.implode()), wanted)


def label_is_binary() -> Check:
    """The label is 0 or 1."""
    label = pl.col(Columns.LABEL)
    return Check("label_is_binary", Columns.LABEL, label.is_null() | ~label.is_between(0, 1), "0 or 1")


_COLUMN_RULES: tuple[Callable[[Column], Check | None], ...] = (not_null, finite_number, in_range, allowed_value)


def not_in_the_future(until: datetime) -> Check:
    """A row lies before the moment from which on nothing may be read."""
    moment = until.astimezone(UTC)
    wanted = f"a time before {moment:%Y-%m-%d %H:%M:%S} UTC, the moment until which this run may read"
    return Check(FUTURE, Columns.TIME, pl.col(Columns.TIME) >= moment, wanted)


def log_checks(data: Data, until: datetime | None = None) -> list[Check]:
    """Return the checks of the log's rows, in the order in which a row's first broken rule is looked for.

    A row of the future comes first: whatever else is wrong with it is not this run's concern.
    """
    future = [] if until is None else [not_in_the_future(until)]
    others = [column for column in data.columns if column.name not in (data.label, data.impression)]
    impression = Column(name=Columns.IMPRESSION, type="integer", nullable=False)
    return [*future, label_is_binary(), *column_checks([impression, *others])]


def side_checks(table: SideTable) -> list[Check]:
    """Return the checks of a side table's rows; its key always has a value."""
    return column_checks([_with_value(column) if column.name == table.key else column for column in table.columns])


def broken_checks(rows: pl.DataFrame, checks: Sequence[Check]) -> list[Failure]:
    """Return the checks that some rows break."""
    flags = rows.select(check.broken.fill_null(False).alias(str(place)) for place, check in enumerate(checks))
    return [
        found
        for place, check in enumerate(checks)
        for found in failure(check.rule, flags[str(place)], check.column, rows[check.column], check.wanted)
    ]


class DayRules:
    """The rules that compare the rows of one day with each other: `duplicate_row`, `duplicate_impression`, `unique`."""

    def __init__(self, data: Data) -> None:
        self._vectors = [column.name for column in data.columns if column.type == "vector"]
        self.columns = row_columns(data)
        """Those that make a row what it is."""
        self._rows = KeySet()
        self._keys = {Columns.IMPRESSION: KeySet()} if data.impression is not None else {}
        self._keys |= {_own_name(name, data): KeySet() for name in data.rules.unique}

    def broken(self, rows: pl.DataFrame, failures: Sequence[Failure], hashed: Hashes) -> list[Failure]:
        """Return the rows that repeat an earlier one, among those that no other rule refuses.

        Args:
            rows: Of one day, after those of earlier calls.
            failures: What is wrong with them already.
            hashed: The hashes of their `columns`.
        """
        left = ~flagged(rows.height, failures)
        whole = row_hashes(rows.select(*self.columns, *self._vectors)) if self._vectors else hashed
        repeated = _repeated(whole, left, self._rows)
        result = _duplicates(repeated)
        for name, seen in self._keys.items():
            left = left & ~repeated
            repeated = _repeated(row_hashes(rows.select(name)), left & rows[name].is_not_null(), seen)
            rule = "duplicate_impression" if name == Columns.IMPRESSION else "unique"
            result += failure(rule, repeated, name, rows[name], "a value not seen before on its day")
        return result


def _duplicates(repeated: pl.Series) -> list[Failure]:
    detail = pl.repeat("an earlier row of the day is the same in every column", int(repeated.sum()), eager=True)
    return [Failure(DUPLICATE_ROW, repeated, detail)] if repeated.any() else []


def _repeated(keys: Hashes, left: pl.Series, seen: KeySet) -> pl.Series:
    """Return which of the rows that are left have a key seen before."""
    repeated = left.to_numpy(writable=True)
    repeated[repeated] = ~seen.add(keys[repeated])
    return pl.Series(repeated)


def _own_name(name: str, data: Data) -> str:
    if name not in {column.name for column in data.columns}:
        raise DataError(f"rules.unique: '{name}' is a column of a side table; wanted a column of the log")
    return {data.label: Columns.LABEL, data.impression: Columns.IMPRESSION}.get(name, name)


def column_checks(columns: Sequence[Column]) -> list[Check]:
    """Return the checks that the columns' own declarations ask for."""
    return [check for rule in _COLUMN_RULES for column in columns if (check := rule(column)) is not None]


def _with_value(column: Column) -> Column:
    return column.model_copy(update={"nullable": False})
