"""From a path to a first spec: look, choose, ask, write, check, and loosen what the log itself rules out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shortlist.contracts import DataError
from shortlist.data.sample_check import check_sample
from shortlist.first_spec import roles
from shortlist.first_spec.compose import compose_spec
from shortlist.first_spec.draft import SideTableDraft, SpecDraft
from shortlist.first_spec.roles import RoleChoice
from shortlist.first_spec.tables import TableSample, find_tables
from shortlist.spec.load import parse_spec

Ask = Callable[[str, RoleChoice], str | None]
"""Gets what is asked for and the likeliest answer; returns the source name of a column, or None."""

_MAX_TRIES: Final = 5
_LEAK_PATTERN: Final = re.compile(r"column '(?P<name>\w+)' alone orders the labels")
_SHARE_PATTERN: Final = re.compile(r"\((?P<percent>[0-9.]+)%\)")


def draft_spec(location: Path, ask: Ask) -> SpecDraft:
    """Return the decisions about the log at a path.

    Args:
        location: A file, or a folder with the log and tables about users and items.
        ask: Decides what names and values only suggest.

    Raises:
        DataError: There is no log, no label, or too little of either.
    """
    log, *side_tables = _sort_log_first(find_tables(location))
    clock = ask("clock: the time of the impression", roles.choose_clock(log))
    label_choice = roles.choose_label(log)
    label = ask("label: what to predict", label_choice)
    if label is None:
        raise DataError(
            f"{log.path or location}: {label_choice.reason}; a log needs a column of 0 and 1, ratings, or names of"
            f" events. It has {', '.join(column.source for column in log.columns)}"
        )
    column = log.column(label)
    draft = SpecDraft(location, log, label, roles.choose_positive(column), clock)
    draft.user = ask("user: who it was shown to", roles.choose_user(log, draft.roles))
    if not draft.is_paired:
        draft.item = ask("item: what was shown", roles.choose_item(log, draft.roles))
    draft.request = ask("request: shared by the rows of one answer", roles.choose_request(log, draft.roles))
    draft.impression = None if draft.is_paired else roles.choose_impression(log, draft.roles).value
    labels = roles.label_values(column, draft.positive)
    draft.outcomes = roles.find_outcomes(log, label, labels, draft.roles)
    _add_sides(draft, side_tables)
    return draft


def write_spec(draft: SpecDraft, name: str) -> tuple[str, list[str]]:
    """Return the spec's text, and what is still wrong with the log under it.

    Rules that the log breaks as a whole are loosened by what was measured, each with the figure beside it; a column
    that alone orders the labels is declared an outcome.
    """
    problems: list[str] = []
    for _ in range(_MAX_TRIES):
        text = compose_spec(draft, name)
        problems = list(check_sample(parse_spec(text, name).data, draft.location).problems)
        has_loosened = [_loosen_rule(problem, draft) for problem in problems]
        if not any(has_loosened):
            break
    return text, problems


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


def _table_name(table: TableSample, draft: SpecDraft) -> str:
    stem = re.sub(r"[^a-z0-9]+", "_", Path(table.path).name.split(".")[0].replace("*", "").lower()).strip("_")
    stem = stem if stem and stem[0].isalpha() else f"table_{stem}".strip("_")
    ending = Path(table.path).suffix.lstrip(".")
    names = {side.name for side in draft.sides}
    if ending in ("user", "item"):
        stem = f"{ending}s"
    return stem if stem not in names else f"{stem}_{len(names) + 1}"


def _loosen_rule(problem: str, draft: SpecDraft) -> bool:
    """Make one problem of the log an exception of its spec; whether there was a way."""
    if problem.startswith("volume:"):
        return _set_rule(draft, "min_volume_ratio", "0", "days of this log differ much") and _set_rule(
            draft, "max_volume_ratio", "1000", "the same"
        )
    if problem.startswith("label rate:"):
        return _set_rule(draft, "max_label_rate_change", "1.0", "so do their label rates")
    if "rows copy an earlier one" in problem and (share := _SHARE_PATTERN.search(problem)):
        copies = float(share["percent"])
        return _set_rule(draft, "max_duplicate_share", f"{min(1.0, copies / 50):.2f}", f"{copies:g} % are exact copies")
    if problem.startswith("only ") and "valid rows; rules.min_rows" in problem:
        return _set_rule(draft, "min_rows", str(max(1, draft.log.rows.height // 2)), "a short log")
    if leak := _LEAK_PATTERN.search(problem):
        for column in draft.columns:
            if draft.name_of(column) == leak["name"] and column.source not in draft.roles:
                draft.outcomes[column.source] = "alone it orders the labels almost perfectly, as only outcomes do"
                return True
    return False


def _set_rule(draft: SpecDraft, name: str, value: str, reason: str) -> bool:
    is_new = name not in draft.rules
    draft.rules[name] = (value, reason)
    return is_new
