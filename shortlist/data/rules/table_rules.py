"""The rules of the whole log: functions that yield problems, with the number and the limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, NamedTuple, get_args

from shortlist.data.rules.day_rules import enough_days, label_rate, null_share, volume
from shortlist.data.rules.log_facts import LogFacts, Problems, format_count, format_share
from shortlist.data.rules.placement_rules import propensities_sum_to_one, randomized_rows_vary
from shortlist.data.rules.row_rules import DUPLICATE_ROW, FUTURE
from shortlist.spec.data import Data, SideTable, TableRule

HINTS: Final = {
    "duplicate_impression": "`impression` names one row: a key that several rows share is data.request",
    "label_is_binary": "a label that is not 0 or 1 needs data.positive, e.g. {at_least: 4} or {any_of: [buy]}",
}
"""Most frequent cause of many rows that break a rule."""


def quarantined_share(facts: LogFacts, data: Data) -> Problems:
    """The share of quarantined rows is at most the declared one."""
    rows_by_rule = {rule: rows for rule, rows in facts.by_rule.items() if rule not in (DUPLICATE_ROW, FUTURE)}
    rows, limit = sum(rows_by_rule.values()), data.rules.max_quarantined_share
    if rows > limit * facts.read_rows:
        rules = ", ".join(
            f"{rule} {format_count(n)}" for rule, n in sorted(rows_by_rule.items(), key=lambda pair: -pair[1])
        )
        quarantined = format_share(rows, facts.read_rows)
        hints = "".join(f"; {HINTS[rule]}" for rule in rows_by_rule if rule in HINTS)
        yield f"{quarantined} rows are quarantined ({rules}); data.rules.max_quarantined_share is {limit:.2%}{hints}"


def duplicate_share(facts: LogFacts, data: Data) -> Problems:
    """The share of exact copies of earlier rows is at most the declared one."""
    rows, limit = facts.by_rule.get(DUPLICATE_ROW, 0), data.rules.max_duplicate_share
    if rows > limit * facts.read_rows:
        copies = format_share(rows, facts.read_rows)
        copies_by_day = {day: profile.copies for day, profile in facts.days if profile.copies > limit * profile.rows}
        most = max(copies_by_day, key=lambda day: copies_by_day[day], default=None)
        on_days = "" if most is None else f", on {len(copies_by_day)} of {len(facts.days)} days, most of them on {most}"
        yield f"{copies} rows copy an earlier one{on_days}; data.rules.max_duplicate_share is {limit:.2%}"


def any_rows(facts: LogFacts, data: Data) -> Problems:
    """The log has a valid row."""
    if not facts.profile.rows and facts.until is not None and facts.future_rows:
        yield f"no row is valid before {facts.until.isoformat()}, {format_count(facts.future_rows)} lie at or after it"
    elif not facts.profile.rows:
        yield "no row is valid"


def enough_rows(facts: LogFacts, data: Data) -> Problems:
    """The log has at least the declared number of valid rows."""
    if 0 < facts.profile.rows < data.rules.min_rows:
        rows, limit = format_count(facts.profile.rows), format_count(data.rules.min_rows)
        yield f"only {rows} valid rows; data.rules.min_rows is {limit}"


def label_varies(facts: LogFacts, data: Data) -> Problems:
    """The label takes both values."""
    rows, positives = facts.profile.rows, facts.profile.positives
    if rows and positives in (0, rows):
        yield f"label '{data.label}' is {positives // rows} in all {format_count(rows)} rows; there is nothing to learn"


def freshness(facts: LogFacts, data: Data) -> Problems:
    """The newest row is not too old, measured from the end of the readable time."""
    limit, newest = data.rules.max_age_hours, facts.profile.newest
    now = facts.now if facts.until is None else min(facts.now, facts.until)
    if limit is not None and newest is not None and now - newest > timedelta(hours=limit):
        age = (now - newest) / timedelta(hours=1)
        yield (
            f"the newest row is of {newest:%Y-%m-%d %H:%M} UTC, {age:.1f} hours old;"
            f" data.rules.max_age_hours is {limit:g}"
        )


def leakage(facts: LogFacts, data: Data) -> Problems:
    """No single column known before the impression predicts the label almost perfectly."""
    limit = data.rules.max_column_auc
    for name, auc in facts.column_aucs.items():
        if auc > limit and name not in data.rules.allow_leak:
            yield (
                f"column '{name}' alone orders the labels with an AUC of {auc:.4f};"
                f" data.rules.max_column_auc is {limit:g}."
                " If it is an outcome, declare `known: after`; if you know why, list it in data.rules.allow_leak"
            )


def side_tables(facts: LogFacts, data: Data) -> Problems:
    """Side tables have unique keys, few bad rows, and cover the log's keys."""
    for table in data.side_tables:
        for problem in _side_table(facts, data, table):
            yield f"side table '{table.name}': {problem}"


def _side_table(facts: LogFacts, data: Data, table: SideTable) -> Problems:
    side, limit = facts.side[table.name], data.rules.max_quarantined_share
    if side.repeated_keys:
        example = f"{table.key} = {side.example}"
        yield f"{format_count(side.repeated_keys)} rows repeat a key, e.g. {example}; keep one row per key"
    if side.quarantined > limit * side.raw_rows:
        row_share = format_share(side.quarantined, side.raw_rows)
        yield f"{row_share} rows are quarantined; data.rules.max_quarantined_share is {limit:.2%}"
    for column in table.columns:
        if side.nulls[column.name] > column.max_null_share * side.rows:
            nulls, limit = format_share(side.nulls[column.name], side.rows), column.max_null_share
            yield f"column '{column.name}' is null in {nulls} rows; its max_null_share is {limit:.1%}"
    covered, rows = facts.profile.covered[table.name], facts.profile.rows
    if covered < table.min_coverage * rows:
        row_share = format_share(covered, rows)
        yield f"{row_share} rows of the log find their {table.key}; its min_coverage is {table.min_coverage:.1%}"


TABLE_RULES: tuple[Callable[[LogFacts, Data], Problems], ...] = (
    quarantined_share,
    duplicate_share,
    any_rows,
    enough_rows,
    label_varies,
    enough_days,
    null_share,
    volume,
    label_rate,
    freshness,
    leakage,
    randomized_rows_vary,
    propensities_sum_to_one,
    side_tables,
)


_RULES_OF_ALL_ROWS: Final = (any_rows, enough_rows, label_varies, enough_days, freshness)
"""Rules that live traffic helps to keep. The others judge the files of the log alone: clients could break them."""


_RULES_OF_FILES: Final = (propensities_sum_to_one,)
"""Rules that hold for the files of the log, and not for slates that our servers made for each user."""


CAN_WARN: Final[tuple[str, ...]] = get_args(TableRule)
"""Names of the rules that a spec may turn into warnings or off."""


class LogProblem(NamedTuple):
    """A rule of the log as a whole that is broken."""

    rule: str
    """Name of the rule, as `data.rules.warn` and `off` list it."""
    sentence: str

    @property
    def warning(self) -> str:
        """The sentence of a rule that only warns."""
        return f"Rule {self.rule} only warns: {self.sentence}."


def find_problems(
    facts: LogFacts, data: Data, rules: Sequence[Callable[[LogFacts, Data], Problems]] = TABLE_RULES
) -> list[LogProblem]:
    """Return all problems of a log as a whole, without those of rules that are off."""
    checked_rules = [rule for rule in rules if rule.__name__ not in data.rules.off]
    return [LogProblem(rule.__name__, sentence) for rule in checked_rules for sentence in rule(facts, data)]


def find_log_problems(facts: LogFacts, file_facts: LogFacts, data: Data) -> tuple[list[LogProblem], list[str]]:
    """Return the problems of a log, and sentences about rules that only its rows of live traffic break.

    Args:
        facts: Facts of all rows.
        file_facts: Facts of the rows of the files alone.
        data: The log's declaration.
    """
    problems, sentences = [], []
    for rule in TABLE_RULES:
        if rule in _RULES_OF_FILES:
            problems += find_problems(file_facts, data, [rule])
            continue
        of_all = find_problems(facts, data, [rule])
        if rule in _RULES_OF_ALL_ROWS or facts is file_facts:
            problems += of_all
            continue
        of_files = find_problems(file_facts, data, [rule])
        problems += of_files
        sentences += [
            f"Rows of live traffic break rule {problem.rule}, and stop nothing: {problem.sentence}."
            for problem in of_all
            if problem not in of_files
        ]
    return problems, sentences
