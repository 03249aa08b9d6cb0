"""Which column of a log is what, as far as names and values tell: each choice with its reason and its alternatives."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import polars as pl

from shortlist.contracts import DataError
from shortlist.data.clock import event_times
from shortlist.data.leakage import column_auc
from shortlist.first_spec.columns import ColumnLook
from shortlist.first_spec.tables import Table
from shortlist.spec.log_shape import Positive

_LABELS: Final = (
    r"^(is_)?click(ed|s)?$", r"^label$", r"^target$", r"click", r"convert|conversion|purchase|bought|buy|order",
    r"install|watched|play(ed)?$", r"like", r"view",
)  # fmt: skip
_RATINGS: Final = r"rating|stars|score|grade"
_EVENTS: Final = r"event|action|behaviou?r|interaction|type"
_WANTED_EVENTS: Final = (
    r"click",
    r"purchas|buy|order|transaction",
    r"cart|basket",
    r"play|watch|listen|read",
    r"like|fav",
)
_USERS: Final = (
    r"^user(_?id)?$",
    r"user",
    r"^uid$",
    r"customer|visitor|member|reviewer|account",
    r"session|client|device_id",
)
_ITEMS: Final = (
    r"^item(_?id)?$", r"^(movie|video|product|news|article|song|track|book|game|ad|sku|asin|business|listing)(_?id)?$",
    r"item|movie|film|video|product|news|article|song|track|book|game|sku|asin|listing|content|creative|offer",
)  # fmt: skip
_REQUESTS: Final = r"request|impression|slate|search_?id|query_?id|session"
_TIMES: Final = r"time|date|stamp|_at$|^ts|_ts$|^t$|when|day"
_OUTCOMES: Final = (
    r"(^|_)(like[sd]?|follow(ed)?|comment(ed)?|shared?|forward(ed)?|hate[sd]?|dislike|buy|bought|purchased?|cart|ordered?"
    r"|conver(sion|ted)|dwell|watch|play_?time|stay|completion|revenue|view_?time|long_view|profile_enter|feedback|clicks?"
    r"|clicked|rating|watch_?(ratio|time)|watched)($|_)"
)
_MOST_AUC: Final = 0.85
_MOST_CANDIDATES: Final = 8


@dataclass(frozen=True)
class Choice:
    """What a role is given to."""

    value: str | None
    """Source name of the column; None: no column has the role."""
    reason: str
    others: tuple[str, ...] = ()
    """Columns that could have it too, the likeliest first."""


def choose_clock(log: Table) -> Choice:
    """Return the column that tells when."""
    found = [column for column in log.columns if column.clock is not None and _days(column) > 1]
    found.sort(key=lambda column: (not _named(column, _TIMES), column.type == "string", -column.distinct))
    found = [column for column in found if _named(column, _TIMES) or column.values.dtype.is_temporal()]
    if not found:
        return Choice(None, "no column holds times of two days or more; the rows' order takes the place of a clock")
    best = found[0]
    assert best.clock is not None
    written = f"unit {best.clock.unit}" if best.clock.unit else f"format {best.clock.format}"
    return Choice(best.source, f"read as {written} its values are times on {_days(best)} days", _names(found[1:]))


def choose_label(log: Table) -> Choice:
    """Return the column that tells what became of an impression."""
    binary = [column for column in log.columns if column.is_binary]
    ranked = _ranked(binary, _LABELS)
    pairs = [column for column in log.columns if column.pairs]
    ratings = [column for column in log.columns if _is_rating(column)]
    events = [
        column
        for column in log.columns
        if column.type == "string" and _named(column, _EVENTS) and column.distinct <= 20
    ]
    events = [column for column in events if _wanted_event(column) is not None]
    every = [*pairs, *ranked, *ratings, *events, *(column for column in binary if column not in ranked)]
    if not every:
        return Choice(None, "no column holds 0 and 1, ratings, or names of events")
    best = every[0]
    if best.pairs:
        reason = "each value lists the items shown, and after a dash what became of them"
    elif best.is_binary:
        reason = f"holds 0 and 1, {_mean(best):.1%} of them 1"
    else:
        reason = "holds ratings" if _is_rating(best) else "names what happened"
    return Choice(best.source, reason, _names(every[1:]))


def positive_of(column: ColumnLook) -> Positive | None:
    """Return which values of a label that is not 0 or 1 count as 1: of ratings, the upper part nearest to 45 %."""
    if column.is_binary or column.pairs:
        return None
    if column.type == "string":
        return Positive(any_of=(_wanted_event(column) or str(column.values.drop_nulls()[0]),))
    values = column.values.drop_nulls()
    levels = values.unique().sort().to_list()[1:]
    return Positive(at_least=min(levels, key=lambda level: abs(int((values >= level).sum()) / len(values) - 0.45)))


def choose_user(log: Table, taken: Iterable[str | None]) -> Choice:
    """Return the column that names the user."""
    return _key(log, _USERS, taken, "users")


def choose_item(log: Table, taken: Iterable[str | None]) -> Choice:
    """Return the column that names the item."""
    return _key(log, _ITEMS, taken, "items")


def choose_request(log: Table, taken: Iterable[str | None]) -> Choice:
    """Return the column that names the request of which several rows are part."""
    keys = [column for column in _keys(log, taken) if _named(column, _REQUESTS) and 1.05 < column.repeats < 500]
    if not keys:
        return Choice(None, "no column names requests that several rows share")
    return Choice(keys[0].source, f"{keys[0].repeats:.1f} rows share a value", _names(keys[1:]))


def choose_impression(log: Table, taken: Iterable[str | None]) -> Choice:
    """Return the integer column that names a row."""
    unique = [column for column in _keys(log, taken) if column.type == "integer" and column.distinct == column.rows]
    unique = [column for column in unique if re.search(r"id$|impression", column.name) and column.rows > 1]
    return Choice(unique[0].source if unique else None, "its values are unique")


def outcomes(log: Table, label: str | None, labels: pl.Series | None, taken: Iterable[str | None]) -> dict[str, str]:
    """Return the columns that are probably known only after the impression, and why.

    Args:
        log: The log.
        label: Source name of the label's column.
        labels: The label of each row, 0 or 1, null where unknown; None: it cannot be told row by row.
        taken: Columns that have a role.
    """
    found: dict[str, str] = {}
    roles = set(taken)
    for column in log.columns:
        if column.source in roles or column.source == label or column.pairs:
            continue
        if re.search(_OUTCOMES, column.name):
            found[column.source] = "its name is that of an outcome"
        elif labels is not None and column.type in ("integer", "number", "string") and column.distinct > 1:
            known = labels.is_not_null()
            auc = column_auc(column.values.filter(known), labels.filter(known).cast(pl.Boolean).to_numpy())
            if auc > _MOST_AUC:
                found[column.source] = f"alone it orders the labels with an AUC of {auc:.2f}, as only outcomes do"
    return found


def label_values(column: ColumnLook, positive: Positive | None) -> pl.Series | None:
    """Return the label of each row, 0 or 1; None where a row of the file holds several."""
    if column.pairs:
        return None
    if positive is None:
        return column.values.cast(pl.Int64)
    if positive.any_of is not None:
        return column.values.cast(pl.String).is_in([str(one) for one in positive.any_of]).cast(pl.Int64)
    return (column.values >= (positive.at_least or 0)).cast(pl.Int64)


def side_key(table: Table, log: Table, keys: Iterable[str | None]) -> tuple[str, float] | None:
    """Return the column of a table that keys the log, and the share of the log's rows that find it."""
    ordered = [*(key for key in keys if key), *(column.source for column in log.columns)]
    for source in dict.fromkeys(ordered):
        own = log.column(source)
        for column in table.columns:
            if column.name == own.name and column.type == own.type and column.type in ("integer", "string"):
                unique = column.distinct > 0.99 * (column.rows - column.nulls)
                found = own.values.drop_nulls().is_in(column.values.drop_nulls().unique().implode())
                if unique and found.any():
                    return column.source, int(found.sum()) / len(found)
    return None


def _key(log: Table, patterns: tuple[str, ...], taken: Iterable[str | None], what: str) -> Choice:
    keys = _keys(log, taken)
    ranked = _ranked([column for column in keys if column.repeats > 1], patterns)
    others = sorted(
        (column for column in keys if column not in ranked and _can_be_key(column)), key=lambda c: -c.distinct
    )
    if ranked:
        best = ranked[0]
        return Choice(best.source, f"named as {what} are; {best.distinct:,} of them", _names([*ranked[1:], *others]))
    if others:
        best = others[0]
        reason = f"no name says so, but it has {best.distinct:,} values, each on {best.repeats:.1f} rows"
        return Choice(best.source, reason, _names(others[1:]))
    return Choice(None, f"no column looks like the key of {what}", _names(keys))


def _keys(log: Table, taken: Iterable[str | None]) -> list[ColumnLook]:
    roles = set(taken)
    kinds = ("integer", "string")
    return [
        column for column in log.columns if column.type in kinds and column.source not in roles and not column.pairs
    ]


def _can_be_key(column: ColumnLook) -> bool:
    return (
        column.distinct > 20 and column.repeats > 1.3 and column.clock is None and not re.search(_OUTCOMES, column.name)
    )


def _ranked(columns: list[ColumnLook], patterns: tuple[str, ...]) -> list[ColumnLook]:
    """Return the columns whose names match, those of earlier patterns first."""
    places = {c.source: next((n for n, p in enumerate(patterns) if _named(c, p)), None) for c in columns}
    found = [column for column in columns if places[column.source] is not None]
    return sorted(found, key=lambda column: places[column.source] or 0)


def _named(column: ColumnLook, pattern: str) -> bool:
    return re.search(pattern, column.name) is not None


def _is_rating(column: ColumnLook) -> bool:
    numbers = column.type in ("integer", "number") and 2 < column.distinct <= 21
    return numbers and _named(column, _RATINGS)


def _wanted_event(column: ColumnLook) -> str | None:
    values = [str(value) for value in column.values.drop_nulls().unique().sort().to_list()]
    for pattern in _WANTED_EVENTS:
        for value in values:
            if re.search(pattern, value, re.IGNORECASE) and len(values) > 1:
                return value
    return None


def _days(column: ColumnLook) -> int:
    return len(days_of(column))


def days_of(column: ColumnLook) -> pl.Series:
    """Return the days on which a column's times lie, sorted; none where it holds no times."""
    if column.clock is None:
        return pl.Series([], dtype=pl.Date)
    try:
        times = column.values if column.type == "date" else event_times(column.values, column.clock)
    except DataError:
        return pl.Series([], dtype=pl.Date)
    return times.drop_nulls().dt.date().unique().sort()


def _mean(column: ColumnLook) -> float:
    value = column.values.cast(pl.Float64).mean()
    return value if isinstance(value, float) else 0.0


def _names(columns: Iterable[ColumnLook]) -> tuple[str, ...]:
    return tuple(column.source for column in columns)[:_MOST_CANDIDATES]
