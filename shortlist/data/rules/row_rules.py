"""The rules of a row: functions whose names are the rules' names in reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.data.rules.failures import RowFailure, find_failures, flag_failed_rows
from shortlist.data.rules.keys import KeySet
from shortlist.spec.data import Column, Data, SideTable
from shortlist.storage.row_digest import Hashes, row_columns, row_hashes

CLIENT_CLOCK = "client_clock"
"""Rule of collected rows whose time, which clients send, is far from the answer."""
DUPLICATE_ROW = "duplicate_row"
"""Rule of exact copies, which have their own tolerance."""
FUTURE = "future"
"""Rule of rows at or after `until`, which count against no tolerance."""


@dataclass(frozen=True)
class RowCheck:
    """One rule on one column."""

    rule: str
    column: str
    broken: pl.Expr
    """Whether a row breaks it; null counts as false."""
    expected: str


def not_null(column: Column) -> RowCheck | None:
    """A column declared `nullable: false` has a value."""
    if column.nullable:
        return None
    return RowCheck("not_null", column.name, pl.col(column.name).is_null(), "a value")


def finite_number(column: Column) -> RowCheck | None:
    """A number is not infinite."""
    if column.type != "number":
        return None
    return RowCheck("finite_number", column.name, pl.col(column.name).is_infinite(), "a finite number")


def in_range(column: Column) -> RowCheck | None:
    """A value lies between the declared bounds, both included."""
    if column.min is None and column.max is None:
        return None
    low = float("-inf") if column.min is None else column.min
    high = float("inf") if column.max is None else column.max
    return RowCheck(
        "in_range", column.name, ~pl.col(column.name).is_between(low, high), f"a value in [{low:g}, {high:g}]"
    )


def allowed_value(column: Column) -> RowCheck | None:
    """A value is one of the declared ones."""
    if column.allowed is None:
        return None
    values = pl.Series(column.allowed, dtype=pl.Int64() if column.type == "integer" else pl.String(), strict=False)
    expected = "one of " + ", ".join(str(value) for value in column.allowed)
    return RowCheck("allowed_value", column.name, ~pl.col(column.name).is_in(values.implode()), expected)


def label_is_binary() -> RowCheck:
    """The label is 0 or 1."""
    label = pl.col(Columns.LABEL)
    return RowCheck("label_is_binary", Columns.LABEL, label.is_null() | ~label.is_between(0, 1), "0 or 1")


def build_placement_checks(data: Data) -> list[RowCheck]:
    """Return the checks of the columns that say how a row was shown; a row may lack them."""
    checks = []
    if data.position is not None:
        checks.append(RowCheck("position_from_1", data.position, pl.col(data.position) < 1, "a place, from 1"))
    if data.propensity is not None:
        value, expected = pl.col(data.propensity), "a probability above 0 and at most 1"
        # An item that was shown had a positive probability; 0 would be an infinite weight.
        checks.append(RowCheck("propensity", data.propensity, ~((value > 0) & (value <= 1)), expected))
        if data.policy is not None:
            is_missing = pl.col(data.policy).is_null() & value.is_not_null()
            checks.append(RowCheck("policy_of_propensity", data.policy, is_missing, "the policy of the propensity"))
    if data.randomized is not None:
        checks.append(RowCheck("randomized", data.randomized, ~pl.col(data.randomized).is_in([0, 1]), "0 or 1"))
    return checks


_COLUMN_RULES: tuple[Callable[[Column], RowCheck | None], ...] = (not_null, finite_number, in_range, allowed_value)


def not_in_the_future(until: datetime) -> RowCheck:
    """A row is earlier than the time from which rows may not be read."""
    moment = until.astimezone(UTC)
    expected = f"a time before {moment:%Y-%m-%d %H:%M:%S} UTC, the moment until which this run may read"
    return RowCheck(FUTURE, Columns.TIME, pl.col(Columns.TIME) >= moment, expected)


def build_log_checks(data: Data, until: datetime | None = None) -> list[RowCheck]:
    """Return the checks of the log's rows, in the order that determines a row's first broken rule.

    The check of future rows is first, because this run does not report their other problems.
    """
    future = [] if until is None else [not_in_the_future(until)]
    feature_columns = [column for column in data.columns if column.name not in (data.label, data.impression)]
    impression = Column(name=Columns.IMPRESSION, type="integer", nullable=False)
    column_checks = build_column_checks([impression, *feature_columns])
    return [*future, label_is_binary(), *column_checks, *build_placement_checks(data)]


def build_side_checks(table: SideTable) -> list[RowCheck]:
    """Return the checks of a side table's rows; its key always has a value."""
    return build_column_checks(
        [_require_value(column) if column.name == table.key else column for column in table.columns]
    )


def find_broken_checks(rows: pl.DataFrame, checks: Sequence[RowCheck]) -> list[RowFailure]:
    """Return the failures of the checks that some rows break."""
    flags = rows.select(check.broken.fill_null(False).alias(str(place)) for place, check in enumerate(checks))
    return [
        failure
        for number, check in enumerate(checks)
        for failure in find_failures(check.rule, flags[str(number)], check.column, rows[check.column], check.expected)
    ]


class DayRules:
    """Rules that compare the rows of one day with each other: `duplicate_row`, `duplicate_impression`, `unique`."""

    def __init__(self, data: Data) -> None:
        self._vectors = [column.name for column in data.columns if column.type == "vector"]
        self.columns = row_columns(data)
        """Columns that identify a row's content."""
        self._rows = KeySet()
        self._keys = {Columns.IMPRESSION: KeySet()} if data.impression is not None else {}
        self._keys |= {_log_column_name(name, data): KeySet() for name in data.rules.unique}

    def find_repeated(self, rows: pl.DataFrame, failures: Sequence[RowFailure], hashes: Hashes) -> list[RowFailure]:
        """Return failures of rows that repeat an earlier one, among those without other failures.

        Args:
            rows: Rows of one day, after those of earlier calls.
            failures: Their failures of other rules.
            hashes: Hashes of their `columns`.
        """
        is_unflagged = ~flag_failed_rows(rows.height, failures)
        row_keys = row_hashes(rows.select(*self.columns, *self._vectors)) if self._vectors else hashes
        is_repeated = _flag_repeated(row_keys, is_unflagged, self._rows)
        found_failures = _duplicate_failures(is_repeated)
        for name, earlier_keys in self._keys.items():
            is_unflagged = is_unflagged & ~is_repeated
            is_repeated = _flag_repeated(
                row_hashes(rows.select(name)), is_unflagged & rows[name].is_not_null(), earlier_keys
            )
            rule = "duplicate_impression" if name == Columns.IMPRESSION else "unique"
            found_failures += find_failures(rule, is_repeated, name, rows[name], "a value not seen before on its day")
        return found_failures


def _duplicate_failures(is_repeated: pl.Series) -> list[RowFailure]:
    detail = pl.repeat("an earlier row of the day is the same in every column", int(is_repeated.sum()), eager=True)
    return [RowFailure(DUPLICATE_ROW, is_repeated, detail)] if is_repeated.any() else []


def _flag_repeated(keys: Hashes, is_unflagged: pl.Series, earlier_keys: KeySet) -> pl.Series:
    """Return whether each unflagged row has the key of an earlier one, boolean, shape (rows,)."""
    is_repeated = is_unflagged.to_numpy(writable=True)
    is_repeated[is_repeated] = ~earlier_keys.add(keys[is_repeated])
    return pl.Series(is_repeated)


def _log_column_name(name: str, data: Data) -> str:
    if name not in {column.name for column in data.columns}:
        raise DataError(f"data.rules.unique: '{name}' is a column of a side table; wanted a column of the log")
    return {data.label: Columns.LABEL, data.impression: Columns.IMPRESSION}.get(name, name)


def build_column_checks(columns: Sequence[Column]) -> list[RowCheck]:
    """Return the checks that the columns' declarations define."""
    return [check for rule in _COLUMN_RULES for column in columns if (check := rule(column)) is not None]


def _require_value(column: Column) -> Column:
    return column.model_copy(update={"nullable": False})
