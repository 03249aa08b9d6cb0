"""From a path to a first spec: look, choose, ask, write, check, and loosen what the log itself rules out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import polars as pl

from shortlist.contracts import DataError
from shortlist.data.log_notices import AHEAD_AFTER
from shortlist.data.rules.day_rules import fill_missing_days, unusual_label_rates, unusual_volumes
from shortlist.data.rules.log_facts import LogFacts
from shortlist.data.sample_check import check_sample
from shortlist.first_spec import roles
from shortlist.first_spec.columns import ColumnProfile
from shortlist.first_spec.compose import compose_spec
from shortlist.first_spec.draft import SideTableDraft, SpecDraft
from shortlist.first_spec.key_behaviour import KeyBehaviour
from shortlist.first_spec.roles import RoleChoice
from shortlist.first_spec.tables import TableSample, find_tables
from shortlist.spec.data import Data
from shortlist.spec.load import parse_spec

Ask = Callable[[str, RoleChoice], str | None]
"""Gets what is asked for and the likeliest answer; returns the source name of a column, or None."""

_MAX_TRIES: Final = 5
_MIN_DAYS_TO_SKIP: Final = 6
_MIN_USER_ROWS, _MAX_USER_ROWS = 5, 20
"""Rows per user with which a rate can do without the newest day, and of which that day is a large part."""
_MIN_CONSTANT_SHARE: Final = 0.98
_MIN_SLATE_ROWS: Final = 2.0
"""Fewest rows per request, on average, that are worth comparing."""
_LEAK_PATTERN: Final = re.compile(r"column '(?P<name>\w+)' alone orders the labels")
_MIN_EQUAL_SHARE: Final = 0.99
_MIN_COPY_SHARE: Final = 0.8
"""Share of equal values from which on two columns of one name are copies."""
_MIN_UNUSUAL_DAYS: Final = 3
_MIN_UNUSUAL_SHARE: Final = 0.15
_LEAST_MAX_RATIO: Final = 5.0
_COPIES_PATTERN: Final = re.compile(
    r"\((?P<percent>[0-9.]+)%\) rows copy an earlier one, on (?P<copied_days>\d+) of (?P<days>\d+) days"
)


class WrittenSpec(NamedTuple):
    """A first spec, and what the log under it is like."""

    text: str
    problems: tuple[str, ...]
    """What is still wrong with the log."""
    notices: tuple[str, ...]
    """What is valid and should be known."""


def draft_spec(location: Path, ask: Ask, max_left_out: float = 0.2) -> SpecDraft:
    """Return the decisions about the log at a path.

    Args:
        location: A file, or a folder with the log and tables about users and items.
        ask: Decides what names and values only suggest.
        max_left_out: Largest share of the bytes that may be in files that are no part of the spec.

    Raises:
        DataError: There is no log, no label, too little of either, or more would be left out.
    """
    log, *side_tables = _sort_log_first(find_tables(location))
    clock_choice = roles.choose_clock(log)
    clock = ask("clock: the time of the impression", clock_choice)
    time = clock or next(iter(clock_choice.alternatives), None)
    label_choice = roles.choose_label(log)
    label = ask("label: what to predict", label_choice)
    if label is None:
        raise DataError(
            f"{log.path or location}: {label_choice.reason}; a log needs a column of 0 and 1, ratings, or names of"
            f" events. It has {', '.join(column.source for column in log.columns)}"
        )
    column = log.column(label)
    draft = SpecDraft(location, log, label, roles.choose_positive(column), clock)
    behaviour = KeyBehaviour(log, time)
    if clock is None and time is not None:
        draft.unused.add(time)
        draft.comments[time] = "when, on too few days for a split by days: no feature"
    draft.user = ask("user: who it was shown to", roles.choose_user(log, draft.roles, behaviour))
    if not draft.is_paired:
        draft.item = ask("item: what was shown", roles.choose_item(log, draft.roles, behaviour, draft.user))
    request = roles.choose_request(log, draft.roles, behaviour, draft.user, draft.is_paired)
    draft.request = ask("request: shared by the rows of one answer", request)
    draft.impression = None if draft.is_paired else roles.choose_impression(log, draft.roles).value
    labels = roles.label_values(column, draft.positive)
    draft.outcomes = roles.find_outcomes(log, label, labels, draft.roles, draft.request)
    draft.user_returns = _returns(draft, behaviour)
    if draft.item is not None and draft.clock is not None:
        draft.young_share = behaviour.young_share(log.column(draft.item))
    draft.has_slates = draft.request is not None and _rows_per_request(draft) >= _MIN_SLATE_ROWS
    _add_behaviour(draft, behaviour)
    _add_sides(draft, side_tables)
    _check_left_out([log, *side_tables], draft, max_left_out)
    return draft


def write_spec(draft: SpecDraft, name: str) -> WrittenSpec:
    """Return the spec's text, what is still wrong with the log under it, and what should be known.

    A rule that the log breaks on many of its days is loosened, with the figures beside it; a day that stands apart from
    the others is a problem and loosens nothing. A column that alone orders the labels is declared an outcome.
    """
    for _ in range(_MAX_TRIES):
        text = compose_spec(draft, name)
        data = parse_spec(text, name).data
        report = check_sample(data, draft.location)
        days = tuple((day, profile.rows) for day, profile in report.facts.days) if report.facts is not None else ()
        has_new_days = bool(days) and days != draft.days
        draft.days = days or draft.days
        has_loosened = [_loosen_rule(problem, draft, data, report.facts) for problem in report.problems]
        if not any(has_loosened) and not has_new_days:
            break
    return WrittenSpec(text, report.problems, report.notices)


def _add_behaviour(draft: SpecDraft, behaviour: KeyBehaviour) -> None:
    """Add the position, what visits are, and which columns the item alone determines."""
    if found_position := roles.find_position(draft.log, draft.roles, behaviour, draft.request, draft.user):
        column, begins_at_one = found_position
        if begins_at_one:
            draft.position = column.source
            draft.outcomes.pop(column.source, None)
            draft.comments[column.source] = "the place at which it was shown: no feature; docs/spec.md#positions"
        else:
            draft.outcomes[column.source] = "its place in the answer; as data.position, places begin at 1"
    keys = {"user": draft.user, "item": draft.item}
    for column in draft.columns:
        if column.source in draft.roles or column.source in draft.outcomes:
            continue
        if column.type not in ("integer", "string", "number") or _is_nearly_constant(column):
            continue
        lifetime = behaviour.lifetime(column) if column.type != "number" and column.rows_per_value > 1 else None
        if lifetime is not None and lifetime.is_session and column.distinct * 50 > column.rows:
            draft.unused.add(column.source)
            draft.comments[column.source] = f"a visit, no feature: half of its values live {lifetime} at most"
            continue
        for role, source in keys.items():
            if source is not None and column.distinct > 1 and behaviour.determines(draft.log.column(source), column):
                draft.determined_by[column.source] = source
                draft.comments[column.source] = (
                    f"the {role} alone determines it: in a table of {role}s (side_tables), no request needs to send it"
                )
    draft.item_columns = _columns_of_items(draft, behaviour)


def _columns_of_items(draft: SpecDraft, behaviour: KeyBehaviour) -> set[str]:
    """Return the columns that the item determines, for ever or for a while, as a price."""
    if draft.item is None:
        return set()
    request, user = (None if source is None else draft.log.column(source) for source in (draft.request, draft.user))
    return {
        column.source
        for column in draft.feature_columns
        if draft.determined_by.get(column.source) == draft.item
        or (column.source not in draft.determined_by and behaviour.differs_within_requests(column, request, user))
    }


def _is_nearly_constant(column: ColumnProfile) -> bool:
    """Whether hardly a row has another value than the most frequent one, so that any key seems to determine it."""
    counts = column.values.drop_nulls().value_counts(name="rows")["rows"].to_list()
    return not counts or max(counts) >= _MIN_CONSTANT_SHARE * column.rows


def _returns(draft: SpecDraft, behaviour: KeyBehaviour) -> bool:
    """Whether half of the users come back on other days, with few rows each."""
    if draft.user is None or draft.clock is None or len(draft.day_rows) < _MIN_DAYS_TO_SKIP:
        return False
    user = draft.log.column(draft.user)
    lifetime = behaviour.lifetime(user)
    has_few_rows = _MIN_USER_ROWS <= user.rows_per_value <= _MAX_USER_ROWS
    return lifetime is not None and lifetime.is_lasting and has_few_rows


def _rows_per_request(draft: SpecDraft) -> float:
    if draft.is_paired:
        return float(draft.log.column(draft.label).values.str.split(" ").list.len().mean() or 0)  # type: ignore[arg-type]
    return draft.log.column(draft.request or "").rows_per_value


def choose_likeliest(_: str, choice: RoleChoice) -> str | None:
    """Answer every question with the likeliest choice."""
    return choice.value


def _sort_log_first(tables: list[TableSample]) -> list[TableSample]:
    """Return the log, then the other tables: it has a label and most often a clock; a table about items has neither."""

    def is_log(table: TableSample) -> tuple[bool, bool, int]:
        label = roles.choose_label(table).value is not None
        return label and roles.choose_clock(table).value is not None, label, table.rows.height

    return sorted(tables, key=is_log, reverse=True)


def _add_sides(draft: SpecDraft, side_tables: list[TableSample]) -> None:
    for table in side_tables:
        key_and_coverage = roles.find_side_key(table, draft.log, (draft.user, draft.item))
        if key_and_coverage is None:
            draft.left_out[table.path] = "no column of it, unique there, is one of the log"
            continue
        source, coverage = key_and_coverage
        key = next(column for column in table.columns if column.source == source)
        log_column = next(column for column in draft.columns if column.name == key.name)
        if log_column.source not in draft.roles and draft.outcomes.get(log_column.source):
            draft.left_out[table.path] = f"its key {source} is known only after the impression"
            continue
        draft.sides.append(SideTableDraft(table, _table_name(table, draft), source, coverage))
    for side in draft.sides:
        if draft.log.form.header and side.table.form.header:
            _keep_one_copy(draft, side)


def _keep_one_copy(draft: SpecDraft, side: SideTableDraft) -> None:
    """Take a column that both the log and a table hold from one of them.

    It is the table where the values are the same and all rows find theirs: requests need not send it, and items without
    rows have it. It is the log where some values differ: these are of the time of the row. Columns whose values mostly
    differ have the same name and another meaning, and both are kept.
    """
    keys = {draft_side.table.column(draft_side.key).name for draft_side in draft.sides}
    log_columns = {column.name: column for column in draft.columns}
    key = side.table.column(side.key)
    for column in side.table.columns:
        log_column = log_columns.get(column.name)
        if log_column is None or column.name in keys or log_column.source in draft.roles | draft.outcomes.keys():
            continue
        equal_share = _equal_share((log_columns[key.name], log_column), (key, column))
        if equal_share < _MIN_COPY_SHARE:
            continue
        comparison = f"also in {side.name}, with the same value in {equal_share:.0%} of the rows that find it"
        if min(equal_share, side.coverage) >= _MIN_EQUAL_SHARE:
            draft.in_tables.add(log_column.source)
            draft.comments[log_column.source] = f"{comparison}: taken from there"
            _set_rule(draft, "undeclared_columns", "ignore", "columns of the log that are read from tables")
        else:
            columns = tuple(kept_column for kept_column in side.table.columns if kept_column is not column)
            side.table = replace(side.table, columns=columns)
            draft.comments[log_column.source] = f"{comparison}: taken from the log"


def _equal_share(
    log_columns: tuple[ColumnProfile, ColumnProfile], side_columns: tuple[ColumnProfile, ColumnProfile]
) -> float:
    """Return the share of equal values of a log and of a table, of the rows that find theirs; 0 for other types.

    Args:
        log_columns: Key and column of the log.
        side_columns: Key and column of the table.
    """
    if log_columns[1].type != side_columns[1].type or log_columns[1].values.dtype.is_nested():
        return 0.0
    log, side = (
        pl.DataFrame({"key": key.values.cast(pl.String), "value": column.values.cast(pl.String)})
        for key, column in (log_columns, side_columns)
    )
    pairs = log.join(side.unique("key", keep="any"), on="key")
    return float(pairs["value"].eq_missing(pairs["value_right"]).mean() or 0)  # type: ignore[arg-type]


def _check_left_out(tables: Sequence[TableSample], draft: SpecDraft, limit: float) -> None:
    left_out = [table for table in tables if table.path in draft.left_out]
    share = sum(table.bytes for table in left_out) / max(1, sum(table.bytes for table in tables))
    if share > limit:
        names = "; ".join(
            f"{table.path} ({len(table.files)} files with {', '.join(column.source for column in table.columns[:12])}):"
            f" {draft.left_out[table.path]}"
            for table in left_out
        )
        raise DataError(
            f"{draft.location}: {share:.0%} of the bytes would be left out, --max-left-out is {limit:.0%}. The log is"
            f" {draft.log.path or draft.location} ({len(draft.log.files)} files). Left out: {names}. Give the files of"
            " the log the same columns, or move other files away"
        )


def _table_name(table: TableSample, draft: SpecDraft) -> str:
    stem = re.sub(r"[^a-z0-9]+", "_", Path(table.path).name.split(".")[0].replace("*", "").lower()).strip("_")
    stem = stem if stem and stem[0].isalpha() else f"table_{stem}".strip("_")
    ending = Path(table.path).suffix.lstrip(".")
    names = {side.name for side in draft.sides}
    if ending in ("user", "item"):
        stem = f"{ending}s"
    return stem if stem not in names else f"{stem}_{len(names) + 1}"


def _loosen_rule(problem: str, draft: SpecDraft, data: Data, facts: LogFacts | None) -> bool:
    """Make one problem of the log an exception of its spec; whether there was a way."""
    if problem.startswith(("volume:", "label rate:")):
        return facts is not None and _loosen_day_rule(problem, draft, data, facts)
    if copied := _COPIES_PATTERN.search(problem):
        if not _is_spread(int(copied["copied_days"]), int(copied["days"])):
            return False
        copies = float(copied["percent"])
        reason = f"{copies:g} % of the rows looked at are exact copies of earlier ones"
        return _set_rule(draft, "max_duplicate_share", f"{min(1.0, copies / 50):.2f}", reason)
    if problem.startswith("only ") and "valid rows; data.rules.min_rows" in problem:
        return _set_rule(draft, "min_rows", str(max(1, draft.total_rows // 2)), f"{draft.total_rows:,} rows are there")
    if leak := _LEAK_PATTERN.search(problem):
        for column in draft.columns:
            if draft.name_of(column) == leak["name"] and column.source not in draft.roles:
                draft.outcomes[column.source] = "alone it orders the labels almost perfectly, as only outcomes do"
                return True
    return False


def _loosen_day_rule(problem: str, draft: SpecDraft, data: Data, facts: LogFacts) -> bool:
    if problem.startswith("label rate:"):
        rates = [profile.rate for _, profile in facts.days]
        reason = f"label rates of days are {min(rates):.2%} to {max(rates):.2%}, half of them above {median(rates):.2%}"
        is_spread = _is_spread(len(unusual_label_rates(facts, data)), len(facts.days))
        return is_spread and _set_rule(draft, "max_label_rate_change", "1.0", reason)
    newest = facts.profile.newest
    is_ahead = newest is not None and newest - facts.now > AHEAD_AFTER
    if is_ahead or not _is_spread(len(unusual_volumes(facts, data)), len(facts.days)):
        return False
    counts = [rows for _, rows in fill_missing_days(facts.days)]
    usual = median(count for count in counts if count)
    reason = f"days of this log have {min(counts):,} to {max(counts):,} rows, half of them above {usual:,.0f}"
    return _set_rule(draft, "min_volume_ratio", f"{min(counts) / usual / 2:.2g}", reason) | _set_rule(
        draft, "max_volume_ratio", f"{max(_LEAST_MAX_RATIO, max(counts) / usual * 2):.3g}", "the same"
    )


def _is_spread(unusual_days: int, days: int) -> bool:
    """Whether so many days are unusual that they are as usual as the others; fewer are faults."""
    return unusual_days >= max(_MIN_UNUSUAL_DAYS, _MIN_UNUSUAL_SHARE * days)


def _set_rule(draft: SpecDraft, name: str, value: str, reason: str) -> bool:
    is_new = name not in draft.rules
    draft.rules[name] = (value, reason)
    return is_new
