"""Which column of a log is what, as far as names and values tell: each choice with its reason and its alternatives."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import polars as pl

from shortlist.contracts import DataError
from shortlist.data.reading.clock import event_times
from shortlist.data.rules.leakage import column_auc
from shortlist.first_spec.columns import ColumnProfile
from shortlist.first_spec.key_behaviour import KeyBehaviour
from shortlist.first_spec.tables import TableSample
from shortlist.spec.log_shape import Positive

_LABEL_PATTERNS: Final = (
    r"^(is_)?click(ed|s)?$", r"^label$", r"^target$", r"click", r"convert|conversion|purchase|bought|buy|order",
    r"install|watched|play(ed)?$", r"open(ed|s)?$|tap(ped|s)?$", r"appl(y|ied)$|book(ed|ing)?$|subscrib|rent(ed)?$",
    r"like", r"view",
)  # fmt: skip
_ANSWERS: Final = (("yes", "no"), ("y", "n"), ("true", "false"), ("t", "f"), ("on", "off"))
"""Pairs of texts of which the first says that it happened, in any case."""
_RATING_PATTERN: Final = r"rating|stars|score|grade"
_EVENT_PATTERN: Final = r"event|action|behaviou?r|interaction|type"
_POSITIVE_EVENT_PATTERNS: Final = (
    r"click",
    r"purchas|buy|order|transaction",
    r"cart|basket",
    r"play|watch|listen|read",
    r"like|fav",
)
_USER_PATTERNS: Final = (
    r"^user(_?id)?$",
    r"user",
    r"^uid$",
    r"customer|visitor|member|reviewer|account|shopper|buyer|guest|viewer|reader|listener|player|subscriber|person",
    r"client|device_id|session",
)
_ITEM_PATTERNS: Final = (
    r"^item(_?id)?$", r"^(movie|video|product|news|article|song|track|book|game|ad|sku|asin|business|listing)(_?id)?$",
    r"item|movie|film|video|product|news|article|song|track|book|game|sku|asin|listing|content|creative|offer"
    r"|^(job|posting|vacancy|recipe|episode|podcast|hotel|property|course|restaurant|dish|deal|coupon|story)(_?id)?$",
)  # fmt: skip
_REQUEST_PATTERN: Final = r"request|impression|slate|search|query"
_POSITION_PATTERN: Final = r"(^|_)(rank|ranking|pos|position|slot|place)($|_)"
_MAX_PLACES: Final = 1_000
_TIME_PATTERN: Final = r"time|date|stamp|_at$|^ts|_ts$|^t$|when|day"
_OUTCOME_PATTERN: Final = (
    r"(^|_)(like[sd]?|follow(ed)?|comment(ed)?|shared?|forward(ed)?|hate[sd]?|dislike|buy|bought|purchased?|cart|ordered?"
    r"|conver(sion|ted)|dwell|watch|play_?time|stay|completion|revenue|view_?time|long_view|profile_enter|feedback|clicks?"
    r"|clicked|rating|watch_?(ratio|time)|watched|opened|applied|booked|subscribed|installed)($|_)"
)
_MAX_AUC: Final = 0.85
_MIN_USERS: Final = 20
_MAX_ANSWERS: Final = 10
_MIN_NEGATIVES_BY_CHANCE: Final = 10
_MIN_REQUESTS: Final = 50
"""Fewest requests, with a positive row and without one, by which a column of requests is judged."""
_MAX_SESSIONS: Final = 20
"""Most sessions per user, on average, of a key that no name calls a user."""
_MAX_REQUEST_ROWS: Final = 500
_MIN_ORDERED_SHARE: Final = 0.95
_MAX_ALTERNATIVES: Final = 8
MIN_DAYS: Final = 4
"""Fewest days of a log: one each to warm up, to train, to validate and to test."""


@dataclass(frozen=True)
class RoleChoice:
    """What a role is given to."""

    value: str | None
    """Source name of the column; None: no column has the role."""
    reason: str
    alternatives: tuple[str, ...] = ()
    """Columns that could have it too, the likeliest first."""


def choose_clock(log: TableSample) -> RoleChoice:
    """Return the column that tells when; none for a log of few days whose rows are in time order: they are counted."""
    clocks = [column for column in log.columns if column.clock is not None and _count_days(column) > 1]
    clocks.sort(key=lambda column: (not _has_name(column, _TIME_PATTERN), column.type == "string", -column.distinct))
    clocks = [
        column
        for column in clocks
        if _has_name(column, _TIME_PATTERN) or column.values.dtype.is_temporal() or _is_in_order(log, column)
    ]
    if not clocks:
        return RoleChoice(None, "no column holds times of two days or more; the rows' order takes the place of a clock")
    best = clocks[0]
    assert best.clock is not None
    days = _count_days(best)
    if days < MIN_DAYS and _is_ordered(log, best):
        reason = (
            f"the times of {best.source} lie on {days} day(s), and a split by days needs {MIN_DAYS}; the rows are in"
            " time order, and are cut into equal parts instead"
        )
        return RoleChoice(None, reason, _source_names(clocks))
    notation = f"unit {best.clock.unit}" if best.clock.unit else f"format {best.clock.format}"
    return RoleChoice(best.source, f"read as {notation} its values are times on {days} days", _source_names(clocks[1:]))


def choose_label(log: TableSample) -> RoleChoice:
    """Return the column that tells what became of an impression."""
    binary = [column for column in log.columns if column.is_binary or _positive_answer(column) is not None]
    ranked = _rank_by_name(binary, _LABEL_PATTERNS)
    pairs = [column for column in log.columns if column.pairs]
    ratings = [column for column in log.columns if _is_rating(column)]
    events = [
        column
        for column in log.columns
        if column.type == "string" and _has_name(column, _EVENT_PATTERN) and column.distinct <= 20
    ]
    events = [column for column in events if _positive_event(column) is not None]
    candidates = [*pairs, *ranked, *ratings, *events, *(column for column in binary if column not in ranked)]
    if not candidates:
        reason = "no column holds 0 and 1, yes and no, ratings, or names of events"
        return RoleChoice(None, reason)
    best = candidates[0]
    if best.pairs:
        reason = "each value lists the items shown, and after a dash what became of them"
    elif best.is_binary:
        reason = f"holds 0 and 1, {_mean(best):.1%} of them 1"
    elif (answer := _positive_answer(best)) is not None:
        answers = best.values.drop_nulls()
        reason = f"holds two answers, {int((answers == answer).sum()) / answers.len():.1%} of them '{answer}'"
    else:
        reason = "holds ratings" if _is_rating(best) else "names what happened"
    return RoleChoice(best.source, reason, _source_names(candidates[1:]))


def choose_positive(column: ColumnProfile) -> Positive | None:
    """Return which values of a label that is not 0 or 1 count as 1: of ratings, the upper part nearest to 45 %."""
    if column.is_binary or column.pairs:
        return None
    if column.type == "string":
        positive = _positive_answer(column) or _positive_event(column) or str(column.values.drop_nulls()[0])
        return Positive(any_of=(positive,))
    values = column.values.drop_nulls()
    levels = values.unique().sort().to_list()[1:]
    return Positive(at_least=min(levels, key=lambda level: abs(int((values >= level).sum()) / len(values) - 0.45)))


def choose_user(log: TableSample, used_columns: Iterable[str | None], behaviour: KeyBehaviour) -> RoleChoice:
    """Return the column that names the user: by its name, unless its values live for a visit only.

    A session has one user, and lives for an hour; the user comes back on other days.
    """
    used = set(used_columns)
    choice = _choose_key(log, _USER_PATTERNS, used, "users")
    chosen = next((column for column in log.columns if column.source == choice.value), None)
    lifetime = behaviour.lifetime(chosen) if chosen is not None else None
    if chosen is None or lifetime is None or not lifetime.is_session:
        return choice
    owners = [
        column
        for column in _key_columns(log, used | {chosen.source})
        if column.distinct > _MIN_USERS
        and (_is_user_name(column) or column.distinct * _MAX_SESSIONS > chosen.distinct)
        and not _matches_any(column, _ITEM_PATTERNS)
        and (owner_lifetime := behaviour.lifetime(column)) is not None
        and owner_lifetime.is_lasting
        and behaviour.determines(chosen, column)
    ]
    owners.sort(key=lambda column: (not _is_user_name(column), -column.distinct))
    if not owners:
        return replace(choice, reason=f"{choice.reason}; half of them live {lifetime} at most, and none names who came")
    reason = (
        f"{owners[0].distinct:,} of them come back on other days; {chosen.source} has one of them and is a visit: half"
        f" of its values live {lifetime} at most"
    )
    return RoleChoice(owners[0].source, reason, _source_names([*owners[1:], chosen]))


def choose_item(
    log: TableSample, used_columns: Iterable[str | None], behaviour: KeyBehaviour, user: str | None
) -> RoleChoice:
    """Return the column that names the item; without such a name none whose values live for one user's visit."""
    owner = log.column(user) if user is not None else None
    visits = {
        column.source
        for column in _key_columns(log, used_columns)
        if not _matches_any(column, _ITEM_PATTERNS)
        and (lifetime := behaviour.lifetime(column)) is not None
        and lifetime.is_session
        and (owner is None or behaviour.determines(column, owner))
    }
    return _choose_key(log, _ITEM_PATTERNS, {*used_columns, *visits}, "items")


def choose_request(
    log: TableSample, used_columns: Iterable[str | None], behaviour: KeyBehaviour, user: str | None, is_paired: bool
) -> RoleChoice:
    """Return the column that names the request of which several rows are part: its values live for one answer.

    Args:
        log: The log.
        used_columns: Columns that have a role.
        behaviour: How long values live.
        user: Source name of the user's column; a request has one user.
        is_paired: Whether a row of the file holds all rows of a request.
    """
    keys = _key_columns(log, used_columns)
    if is_paired:
        unique = [column for column in keys if column.distinct == column.rows and _has_name(column, _REQUEST_PATTERN)]
        reason = "each row of the file is one answer, and has a value of its own"
        return RoleChoice(unique[0].source, reason) if unique else RoleChoice(None, "no column names the answers")
    keys = [column for column in keys if 1.05 < column.rows_per_value < _MAX_REQUEST_ROWS]
    lifetimes = {column.source: behaviour.lifetime(column) for column in keys}
    owner = log.column(user) if user is not None else None
    requests = [
        column
        for column in keys
        if (
            lifetime.is_request and (owner is None or behaviour.determines(column, owner))
            if (lifetime := lifetimes[column.source]) is not None
            else _has_name(column, f"{_REQUEST_PATTERN}|session")
        )
        and column.distinct > _MIN_USERS
    ]
    if not requests:
        return RoleChoice(None, "no column names requests that several rows share")
    requests.sort(key=lambda column: (not _has_name(column, _REQUEST_PATTERN), -column.distinct))
    best = requests[0]
    lives = f", and its values live {lifetimes[best.source]} at most" if lifetimes[best.source] is not None else ""
    return RoleChoice(best.source, f"{best.rows_per_value:.1f} rows share a value{lives}", _source_names(requests[1:]))


def find_position(
    log: TableSample,
    used_columns: Iterable[str | None],
    behaviour: KeyBehaviour,
    request: str | None,
    user: str | None,
) -> tuple[ColumnProfile, bool] | None:
    """Return the column with the place at which a row was shown, and whether places begin at 1; None without one.

    Args:
        log: The log.
        used_columns: Columns that have a role.
        behaviour: What its keys do.
        request: Column whose values the rows of one answer share.
        user: Column that names the user.
    """
    places = [
        column
        for column in _key_columns(log, used_columns)
        if column.type == "integer" and column.distinct > 1 and int(column.values.max()) <= _MAX_PLACES  # type: ignore[arg-type]
    ]
    request_and_user = [None if name is None else log.column(name) for name in (request, user)]
    numbering = [column for column in places if behaviour.numbers_requests(column, *request_and_user)]
    named = [column for column in places if _has_name(column, _POSITION_PATTERN)]
    for column in (*numbering, *named):
        if (first_place := int(column.values.min())) >= 0:  # type: ignore[arg-type]
            return column, first_place >= 1
    return None


def choose_impression(log: TableSample, used_columns: Iterable[str | None]) -> RoleChoice:
    """Return the integer column that names a row."""
    unique = [
        column
        for column in _key_columns(log, used_columns)
        if column.type == "integer" and column.distinct == column.rows
    ]
    unique = [column for column in unique if re.search(r"id$|impression", column.name) and column.rows > 1]
    return RoleChoice(unique[0].source if unique else None, "its values are unique")


def find_outcomes(
    log: TableSample, label: str | None, labels: pl.Series | None, used_columns: Iterable[str | None],
    request: str | None,
) -> dict[str, str]:  # fmt: skip
    """Return the columns that are probably known only after the impression, and why.

    Args:
        log: The log.
        label: Source name of the label's column.
        labels: The label of each row, 0 or 1, null where unknown; None: it cannot be told row by row.
        used_columns: Columns that have a role.
        request: Column that names the request; None: none does.
    """
    reason_by_column: dict[str, str] = {}
    roles = set(used_columns)
    for column in log.columns:
        if column.source in roles or column.source == label or column.pairs:
            continue
        if re.search(_OUTCOME_PATTERN, column.name):
            reason_by_column[column.source] = "its name is that of an outcome"
        elif labels is not None and column.type in ("integer", "number", "string") and column.distinct > 1:
            has_label = labels.is_not_null()
            auc = column_auc(column.values.filter(has_label), labels.filter(has_label).cast(pl.Boolean).to_numpy())
            if auc > _MAX_AUC:
                reason_by_column[column.source] = (
                    f"alone it orders the labels with an AUC of {auc:.2f}, as only outcomes do"
                )
            elif (value := _value_of_positives(column, labels)) is not None:
                reason_by_column[column.source] = f"all of its rows with '{value}' have {label} 1, as only outcomes do"
            elif request is not None and (auc := _auc_of_requests(column, labels, log.column(request))) > _MAX_AUC:
                reason_by_column[column.source] = (
                    f"it is the same in all rows of a {request}, and says with an AUC of {auc:.2f} whether any of them"
                    f" has {label} 1, as only outcomes do"
                )
    return reason_by_column


def _value_of_positives(column: ColumnProfile, labels: pl.Series) -> str | None:
    """Return the value of a column of few values whose rows all have label 1; None without one.

    Whoever applied had opened the page: an answer that follows another is no cause of it. By chance at least ten of
    its rows would have label 0.
    """
    if column.distinct > _MAX_ANSWERS:
        return None
    rows = pl.DataFrame({"value": column.values.cast(pl.String), "label": labels}).drop_nulls()
    if not rows.height:
        return None
    by_value = rows.group_by("value").agg(pl.len().alias("rows"), pl.col("label").sum().alias("positives"))
    negatives_by_chance = pl.col("rows") * (1 - rows["label"].mean())  # type: ignore[operator]
    certain = by_value.filter(pl.col("positives") == pl.col("rows"), negatives_by_chance >= _MIN_NEGATIVES_BY_CHANCE)
    return certain.sort("rows", descending=True)["value"].to_list()[0] if certain.height else None


def _auc_of_requests(column: ColumnProfile, labels: pl.Series, request: ColumnProfile) -> float:
    """Return the AUC of a request's value against whether any of its rows is positive; 0 where rows differ in it."""
    rows = pl.DataFrame({"request": request.values, "value": column.values, "label": labels})
    by_request = rows.drop_nulls(["request", "label"]).group_by("request", maintain_order=True)
    requests = by_request.agg(
        pl.len().alias("rows"), pl.col("value").n_unique().alias("values"), pl.col("value").first(),
        pl.col("label").max() > 0,
    )  # fmt: skip
    several_rows = requests.filter(pl.col("rows") > 1)
    is_positive = requests["label"].to_numpy()
    if several_rows.height < _MIN_REQUESTS or min(is_positive.sum(), (~is_positive).sum()) < _MIN_REQUESTS:
        return 0.0
    if int((several_rows["values"] > 1).sum()) > 0.01 * several_rows.height:
        return 0.0
    return column_auc(requests["value"], is_positive)


def label_values(column: ColumnProfile, positive: Positive | None) -> pl.Series | None:
    """Return the label of each row, 0 or 1; None where a row of the file holds several."""
    if column.pairs:
        return None
    if positive is None:
        return column.values.cast(pl.Int64)
    if positive.any_of is not None:
        return column.values.cast(pl.String).is_in([str(value) for value in positive.any_of]).cast(pl.Int64)
    return (column.values >= (positive.at_least or 0)).cast(pl.Int64)


def find_side_key(table: TableSample, log: TableSample, keys: Iterable[str | None]) -> tuple[str, float] | None:
    """Return the column of a table that keys the log, and the share of the log's rows that find it."""
    ordered = [*(key for key in keys if key), *(column.source for column in log.columns)]
    for source in dict.fromkeys(ordered):
        log_column = log.column(source)
        for column in table.columns:
            if (
                column.name == log_column.name
                and column.type == log_column.type
                and column.type in ("integer", "string")
            ):
                is_unique = column.distinct > 0.99 * (column.rows - column.nulls)
                has_row = log_column.values.drop_nulls().is_in(column.values.drop_nulls().unique().implode())
                if is_unique and has_row.any():
                    return column.source, int(has_row.sum()) / len(has_row)
    return None


def _choose_key(
    log: TableSample, patterns: tuple[str, ...], used_columns: Iterable[str | None], role: str
) -> RoleChoice:
    keys = _key_columns(log, used_columns)
    ranked = _rank_by_name([column for column in keys if column.rows_per_value > 1], patterns)
    unnamed_keys = sorted(
        (column for column in keys if column not in ranked and _can_be_key(column)), key=lambda c: -c.distinct
    )
    if ranked:
        best = ranked[0]
        return RoleChoice(
            best.source, f"named as {role} are; {best.distinct:,} of them", _source_names([*ranked[1:], *unnamed_keys])
        )
    if unnamed_keys:
        best = unnamed_keys[0]
        reason = f"no name says so, but it has {best.distinct:,} values, each on {best.rows_per_value:.1f} rows"
        return RoleChoice(best.source, reason, _source_names(unnamed_keys[1:]))
    return RoleChoice(None, f"no column looks like the key of {role}", _source_names(keys))


def _key_columns(log: TableSample, used_columns: Iterable[str | None]) -> list[ColumnProfile]:
    roles = set(used_columns)
    kinds = ("integer", "string")
    return [
        column for column in log.columns if column.type in kinds and column.source not in roles and not column.pairs
    ]


def _can_be_key(column: ColumnProfile) -> bool:
    return (
        column.distinct > 20
        and column.rows_per_value > 1.3
        and column.clock is None
        and not re.search(_OUTCOME_PATTERN, column.name)
    )


def _is_user_name(column: ColumnProfile) -> bool:
    return _matches_any(column, _USER_PATTERNS)


def _matches_any(column: ColumnProfile, patterns: Iterable[str]) -> bool:
    return any(_has_name(column, pattern) for pattern in patterns)


def _is_in_order(log: TableSample, column: ColumnProfile) -> bool:
    """Whether the rows of a log without names are in the order of a column's times."""
    return not log.form.header and _is_ordered(log, column)


def _is_ordered(log: TableSample, column: ColumnProfile) -> bool:
    assert column.clock is not None
    times = event_times(log.rows[column.source], column.clock).drop_nulls()
    return len(times) > 1 and bool((times.diff().drop_nulls() >= timedelta(0)).mean() > _MIN_ORDERED_SHARE)  # type: ignore[operator]


def _rank_by_name(columns: list[ColumnProfile], patterns: tuple[str, ...]) -> list[ColumnProfile]:
    """Return the columns whose names match, those of earlier patterns first."""
    rank_by_source = {c.source: next((n for n, p in enumerate(patterns) if _has_name(c, p)), None) for c in columns}
    matching = [column for column in columns if rank_by_source[column.source] is not None]
    return sorted(matching, key=lambda column: rank_by_source[column.source] or 0)


def _has_name(column: ColumnProfile, pattern: str) -> bool:
    return re.search(pattern, column.name) is not None


def _is_rating(column: ColumnProfile) -> bool:
    numbers = column.type in ("integer", "number") and 2 < column.distinct <= 21
    return numbers and _has_name(column, _RATING_PATTERN)


def _positive_answer(column: ColumnProfile) -> str | None:
    """Return which of a column's two values says yes; None where they are no such answers."""
    if column.type != "string" or column.distinct != len(_ANSWERS[0]):
        return None
    values = [str(value) for value in column.values.drop_nulls().unique().to_list()]
    answers = {tuple(sorted(pair)): pair[0] for pair in _ANSWERS}
    yes = answers.get(tuple(sorted(value.lower() for value in values)))
    return next((value for value in values if value.lower() == yes), None)


def _positive_event(column: ColumnProfile) -> str | None:
    values = [str(value) for value in column.values.drop_nulls().unique().sort().to_list()]
    for pattern in _POSITIVE_EVENT_PATTERNS:
        for value in values:
            if re.search(pattern, value, re.IGNORECASE) and len(values) > 1:
                return value
    return None


def _count_days(column: ColumnProfile) -> int:
    return len(find_days(column))


def find_days(column: ColumnProfile) -> pl.Series:
    """Return the days on which a column's times lie, sorted; none where it holds no times."""
    if column.clock is None:
        return pl.Series([], dtype=pl.Date)
    try:
        times = column.values if column.type == "date" else event_times(column.values, column.clock)
    except DataError:
        return pl.Series([], dtype=pl.Date)
    return times.drop_nulls().dt.date().unique().sort()


def _mean(column: ColumnProfile) -> float:
    value = column.values.cast(pl.Float64).mean()
    return value if isinstance(value, float) else 0.0


def _source_names(columns: Iterable[ColumnProfile]) -> tuple[str, ...]:
    return tuple(column.source for column in columns)[:_MAX_ALTERNATIVES]
