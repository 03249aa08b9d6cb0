"""Notices about a valid log: unread files, lacking columns, allowed leaks, a short newest day, an old newest row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

from shortlist.contracts import DataError
from shortlist.data.reading.sources import has_known_format, log_files, side_files, visible_files
from shortlist.data.rules.day_rules import unusual_volumes
from shortlist.data.rules.log_facts import LogFacts
from shortlist.spec.data import Data, FileSource, LogFiles, Rules
from shortlist.spec.split import fewest_rows_of_day, split_days
from shortlist.system.progress import emit

LACKING: Final = "lacking_files"
"""Number of files without a declared column, by the column's name in the files; in the raw log's notes where there are
any."""
ALLOWED_LEAKS: Final = "allowed_leaks"
"""Sentences on columns that order the labels almost perfectly and that models may read, in the valid log's notes."""
AHEAD_AFTER: Final = timedelta(days=1)
"""Time after now from which a row's clock was wrong."""
STALE_AFTER: Final = timedelta(days=7)
"""Age of the newest row from which a log without `rules.max_age_hours` is called old."""
_MAX_FILES_SHOWN: Final = 3
_WHOLE_DAY_SHARE: Final = 0.7
"""Share of the usual rows below which a newest day may have been cut short."""


def emit_notices(sentences: Iterable[str]) -> None:
    """Emit sentences that are printed below a run's results."""
    for sentence in sentences:
        emit({"event": "note", "text": sentence})


def lacking_column_notices(notes: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each declared column that some files lack, from the notes of a raw log."""
    for column, files in notes.get(LACKING, {}).items():
        yield f"The log: column '{column}' is not in {files} of its files; it is null in their rows."


def unread_file_notices(data: Data, location: Path) -> Iterator[str]:
    """Yield a sentence on the files of a data folder that no declared path reads, if there are any."""
    if not isinstance(data.source, FileSource) or not location.is_dir():
        return
    try:
        files = [
            *log_files(data.source, location),
            *(f for table in data.side_tables for f in side_files(table, location)),
        ]
    except DataError:
        return
    read_paths = {file.path for file in files}
    unread = [path for path in visible_files(location) if has_known_format(path) and path not in read_paths]
    if unread:
        names = ", ".join(path.relative_to(location).as_posix() for path in unread[:_MAX_FILES_SHOWN])
        more = f" and {len(unread) - _MAX_FILES_SHOWN} more" if len(unread) > _MAX_FILES_SHOWN else ""
        yield f"{location}: nothing reads {names}{more}; the log's path is '{data.source.path or '.'}' (data.source)."


def short_day_notices(facts: LogFacts, data: Data) -> Iterator[str]:
    """Yield a sentence on a newest day with a part of the usual rows, as of an export in the middle of a day.

    With fewer still it breaks the rule `volume`; a run that may not read later rows cuts it by itself.
    """
    if not facts.days or data.clock.kind != "column" or facts.cut_day is not None:
        return
    newest, _ = facts.days[-1]
    is_unusual, is_refused = (
        newest in unusual_volumes(facts, data.model_copy(update={"rules": rules}))
        for rules in (data.rules.model_copy(update={"min_volume_ratio": _WHOLE_DAY_SHARE}), data.rules)
    )
    rows = facts.profile.days[newest].rows
    usual = median(profile.rows for _, profile in facts.days)
    if is_unusual and not is_refused and rows < usual:
        yield (
            f"The log: its newest day, {newest}, has {rows:,} rows, other days {usual:,.0f}. If an export cut it short,"
            " outcomes of its last rows are missing too: leave it out until it is whole."
        )


def allowed_leak_notices(column_aucs: Mapping[str, float], rules: Rules) -> Iterator[str]:
    """Yield a sentence on each column that would be refused as a leak if `rules.allow_leak` did not list it."""
    for name in rules.allow_leak:
        if column_aucs.get(name, 0.0) > rules.max_column_auc:
            yield (
                f"The log: column '{name}' alone orders the labels with an AUC of {column_aucs[name]:.4f}, and"
                " data.rules.allow_leak lets models read it. If it is not known when an item is shown, every measured"
                " quality is too good."
            )


def short_part_notices(
    rows_by_day: Mapping[date, int], declaration: Data, collected: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a sentence for each validation or test day that is joined with others, for it has too few rows.

    Args:
        rows_by_day: Valid rows of every day of the log.
        declaration: The log's declaration.
        collected: The raw log's note on the rows of live traffic; empty without any.
    """
    try:
        split = split_days(rows_by_day, declaration)
    except DataError:  # too few days, where the rule that refuses them is off
        return
    declared_days = declaration.split.validation_days, declaration.split.test_days
    for part, days, usual in zip(("validation", "test"), (split.validation, split.test), declared_days, strict=True):
        for day in days if len(days) > usual else ():
            rows, batches = rows_by_day[day], collected.get("batches_by_day", {}).get(day.isoformat(), [])
            if rows >= fewest_rows_of_day(day, rows_by_day, declaration.rules):
                continue
            names = ", ".join(str(number) for number in batches)
            origin = f", of live traffic (batch {names} of the collected rows)" if batches else ""
            advice = (
                f" If they are no rows of users, .venv/bin/shortlist collect {collected['spec']} --withdraw"
                f" {batches[-1]} leaves a batch out of later runs for good."
                if batches
                else ""
            )
            yield (
                f"The {part} days: {day} has {rows:,} row(s){origin}, fewer than {declaration.rules.min_volume_ratio:g}"
                f" (data.rules.min_volume_ratio) of the {median(rows_by_day.values()):,.0f} of a usual day. Few"
                f" rows say little by themselves: {part} is on {', '.join(map(str, days))},"
                f" {sum(rows_by_day[joined_day] for joined_day in days):,} rows.{advice}"
            )


def age_notices(newest: datetime | None, data: Data, now: datetime) -> Iterator[str]:
    """Yield a sentence on a newest row that is yet to come, or old where `rules.max_age_hours` does not judge it."""
    if newest is None or data.clock.kind != "column" or not isinstance(data.source, LogFiles):
        return
    is_judged = data.rules.max_age_hours is not None or "freshness" in data.rules.off
    if newest - now > AHEAD_AFTER:
        yield (
            f"The log: its newest row is of {newest:%Y-%m-%d}, and today is {now:%Y-%m-%d}; a clock was ahead. Declare"
            " data.clock.latest: rows from then on are quarantined."
        )
    elif not is_judged and now - newest > STALE_AFTER:
        yield (
            f"The log: its newest row is of {newest:%Y-%m-%d}, {(now - newest).days} days ago; declare"
            " data.rules.max_age_hours to refuse a log that is too old, or `off: [freshness]` in data.rules if its age"
            " does not matter."
        )
