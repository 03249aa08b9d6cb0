"""The rules of the whole log: each is a function that says what is wrong, with the number and the limit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from shortlist.data.day_rules import enough_days, label_rate, null_share, volume
from shortlist.data.log_facts import LogFacts, Problems, grouped, share
from shortlist.data.rules import DUPLICATE_ROW, FUTURE
from shortlist.spec.data import Data, SideTable

HINTS: Final = {
    "duplicate_impression": "`impression` names one row: a key that several rows share is data.request",
    "label_is_binary": "a label that is not 0 or 1 needs data.positive, e.g. {at_least: 4} or {any_of: [buy]}",
}
"""What most often lies behind many rows that break a rule."""


def quarantined_share(facts: LogFacts, data: Data) -> Problems:
    """Few rows break a rule."""
    bad = {rule: rows for rule, rows in facts.by_rule.items() if rule not in (DUPLICATE_ROW, FUTURE)}
    rows, limit = sum(bad.values()), data.rules.max_quarantined_share
    if rows > limit * facts.read_rows:
        rules = ", ".join(f"{rule} {grouped(n)}" for rule, n in sorted(bad.items(), key=lambda pair: -pair[1]))
        got = share(rows, facts.read_rows)
        hints = "".join(f"; {HINTS[rule]}" for rule in bad if rule in HINTS)
        yield f"{got} rows are quarantined ({rules}); rules.max_quarantined_share is {limit:.2%}{hints}"


def duplicate_share(facts: LogFacts, data: Data) -> Problems:
    """Few rows are exact copies of earlier ones."""
    rows, limit = facts.by_rule.get(DUPLICATE_ROW, 0), data.rules.max_duplicate_share
    if rows > limit * facts.read_rows:
        yield f"{share(rows, facts.read_rows)} rows copy an earlier one; rules.max_duplicate_share is {limit:.2%}"


def enough_rows(facts: LogFacts, data: Data) -> Problems:
    """The log has rows, and as many as wanted."""
    if not facts.profile.rows and facts.until is not None and facts.future_rows:
        yield f"no row is valid before {facts.until.isoformat()}, {grouped(facts.future_rows)} lie at or after it"
    elif not facts.profile.rows:
        yield "no row is valid"
    elif facts.profile.rows < data.rules.min_rows:
        yield f"only {grouped(facts.profile.rows)} valid rows; rules.min_rows is {grouped(data.rules.min_rows)}"


def label_varies(facts: LogFacts, data: Data) -> Problems:
    """The label takes both values."""
    rows, positives = facts.profile.rows, facts.profile.positives
    if rows and positives in (0, rows):
        yield f"label '{data.label}' is {positives // rows} in all {grouped(rows)} rows; there is nothing to learn"


def freshness(facts: LogFacts, data: Data) -> Problems:
    """The newest row is not too old, seen from the moment until which rows may be read."""
    limit, newest = data.rules.max_age_hours, facts.profile.newest
    now = facts.now if facts.until is None else min(facts.now, facts.until)
    if limit is not None and newest is not None and now - newest > timedelta(hours=limit):
        age = (now - newest) / timedelta(hours=1)
        yield f"the newest row is of {newest:%Y-%m-%d %H:%M} UTC, {age:.1f} hours old; rules.max_age_hours is {limit:g}"


def leakage(facts: LogFacts, data: Data) -> Problems:
    """No column known before the impression tells the label nearly alone."""
    limit = data.rules.max_column_auc
    for name, auc in facts.column_aucs.items():
        if auc > limit and name not in data.rules.allow_leak:
            yield (
                f"column '{name}' alone orders the labels with an AUC of {auc:.4f}; rules.max_column_auc is {limit:g}."
                " If it is an outcome, declare `known: after`; if you know why, list it in rules.allow_leak"
            )


def side_tables(facts: LogFacts, data: Data) -> Problems:
    """Side tables have each key once, few bad rows, and most keys of the log."""
    for table in data.side_tables:
        for problem in _side_table(facts, data, table):
            yield f"side table '{table.name}': {problem}"


def _side_table(facts: LogFacts, data: Data, table: SideTable) -> Problems:
    side, limit = facts.side[table.name], data.rules.max_quarantined_share
    if side.repeated_keys:
        example = f"{table.key} = {side.example}"
        yield f"{grouped(side.repeated_keys)} rows repeat a key, e.g. {example}; keep one row per key"
    if side.quarantined > limit * side.raw_rows:
        got = share(side.quarantined, side.raw_rows)
        yield f"{got} rows are quarantined; rules.max_quarantined_share is {limit:.2%}"
    for column in table.columns:
        if side.nulls[column.name] > column.max_null_share * side.rows:
            got = share(side.nulls[column.name], side.rows)
            yield f"column '{column.name}' is null in {got} rows; its max_null_share is {column.max_null_share:.1%}"
    covered, rows = facts.profile.covered[table.name], facts.profile.rows
    if covered < table.min_coverage * rows:
        got = share(covered, rows)
        yield f"{got} rows of the log find their {table.key}; its min_coverage is {table.min_coverage:.1%}"


TABLE_RULES: tuple[Callable[[LogFacts, Data], Problems], ...] = (
    quarantined_share,
    duplicate_share,
    enough_rows,
    label_varies,
    enough_days,
    null_share,
    volume,
    label_rate,
    freshness,
    leakage,
    side_tables,
)


def problems_of(facts: LogFacts, data: Data) -> list[str]:
    """Return everything that is wrong with a log as a whole."""
    return [problem for rule in TABLE_RULES for problem in rule(facts, data)]
