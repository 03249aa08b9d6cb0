"""The rows of a raw log that may stay; the others in quarantine, each with the rule it broke."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import polars as pl

from shortlist.contracts import Columns, DataError, Files
from shortlist.data.failures import flagged, split_failures
from shortlist.data.ingest import RAW_INDEX, REJECTED
from shortlist.data.leakage import column_aucs
from shortlist.data.log_facts import LogFacts
from shortlist.data.profile import Profile
from shortlist.data.quarantine import QuarantineWriter
from shortlist.data.rules import Check, DayRules, broken_checks, log_checks
from shortlist.data.side_rules import SideFacts, validate_side_table
from shortlist.data.side_tables import SIDE_FOLDER
from shortlist.data.table_rules import problems_of
from shortlist.data.until import cut_day
from shortlist.spec.data import Data
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import atomic_folder
from shortlist.storage.groups import check_all_days_grouped
from shortlist.storage.row_digest import DIGESTS, Hashes, row_hashes
from shortlist.storage.tables import QUARANTINED_BY_DAY, DayTable, DayTableWriter, pieces_of
from shortlist.system.progress import progress

_PROFILE: Final = "profile"
"""Folder of what the valid rows of a group of days are like."""


class LogRefusedError(DataError):
    """The log as a whole breaks rules."""

    def __init__(self, message: str, problems: Sequence[str]) -> None:
        super().__init__(message)
        self.problems = tuple(problems)
        """One sentence per rule."""


def validate(
    data: Data, raw: Path, valid: Path, quarantine: Path, runtime: Runtime, now: datetime, until: datetime | None = None
) -> DayTable:
    """Split a raw log into valid rows and quarantined ones, then judge the log as a whole.

    Args:
        data: The spec's data section.
        raw: Folder that ingest wrote.
        valid: Folder to write; it appears only when the log passes every rule of the table.
        quarantine: Folder to write, with one `quarantine.parquet` (source_file, source_line, rule, detail) that holds
            the bad rows of the log and of the side tables; it stays also when the log is refused.
        runtime: Bounds the rows held at once.
        now: The present moment, with a timezone; freshness is measured against it.
        until: Rows at or after this moment, with a timezone, are quarantined as `future`, against no tolerance: nothing
            that comes after this step can read them.

    Returns:
        The valid log (index `Files.LOG`). Its notes: until (ISO 8601; null without), raw_rows, valid_rows,
        quarantined_rows and by_rule of the log; quarantined_by_day: of days (ISO 8601) with such rows, without those
        that could not be parsed; collected_rows: valid rows that come from live traffic;
        side: for each side table its raw_rows, valid_rows, quarantined_rows and coverage; column_aucs: what each column
        known before the impression reaches alone; digests: of the rows of each day.

    Raises:
        DataError: More rows are bad than tolerated, or the log as a whole breaks rules; names every number, its limit
            and the quarantine.
    """
    source = DayTable.open(raw, RAW_INDEX)

    def judge(side: dict[str, SideFacts], writer: DayTableWriter, bad: QuarantineWriter) -> Profile:
        return _rows(data, source, None, side, writer, bad, until)

    return _split(data, source, valid, quarantine, runtime, now, until, judge)


def validate_days(
    data: Data, raw: Path, days: Collection[date], out: Path, runtime: Runtime, until: datetime | None = None
) -> int:
    """Split the rows of some days of a raw log into valid and quarantined ones; return how many are valid.

    Args:
        data: The spec's data section.
        raw: Folder that ingest wrote.
        days: The days.
        out: Folder to write, which `join_valid_log` reads; it appears whole or not at all.
        runtime: Bounds the rows held at once.
        until: As for `validate`.
    """
    source = DayTable.open(raw, RAW_INDEX)
    with atomic_folder(out) as staging:
        with TemporaryDirectory() as scratch, QuarantineWriter(Path(scratch) / REJECTED) as unread:
            side = _side_tables(data, source, Path(scratch), unread, runtime)  # only their keys are needed
        writer = DayTableWriter(staging, Files.LOG, runtime.chunk_rows)
        with QuarantineWriter(staging / Files.QUARANTINE) as bad:
            profile = _rows(data, source, days, side, writer, bad, until)
        profile.save(staging / _PROFILE)
        writer.close({"by_rule": dict(bad.by_rule), "days": sorted(day.isoformat() for day in days)})
    return profile.rows


def join_valid_log(
    data: Data,
    raw: Path,
    groups: Sequence[Path],
    valid: Path,
    quarantine: Path,
    runtime: Runtime,
    now: datetime,
    until: datetime | None = None,
) -> DayTable:
    """Join days of a raw log that were judged in groups, and judge the log as a whole; no row of the log is read.

    Args:
        data: See `validate`; likewise those not named here.
        raw: Likewise.
        groups: What `validate_days` wrote, in any order.
        valid: Likewise.
        quarantine: Likewise.
        runtime: Likewise.
        now: Likewise.
        until: Likewise.

    Returns:
        What `validate` returns, byte for byte.

    Raises:
        DataError: As `validate`; or a day is in two groups, or a day of the raw log in none.
    """
    source = DayTable.open(raw, RAW_INDEX)
    tables = sorted((DayTable.open(group, Files.LOG) for group in groups), key=lambda table: str(table.notes["days"]))
    judged = {str(table.folder): [date.fromisoformat(day) for day in table.notes["days"]] for table in tables}
    check_all_days_grouped(judged, source)

    def judge(side: dict[str, SideFacts], writer: DayTableWriter, bad: QuarantineWriter) -> Profile:
        profile = Profile(data, {name: facts.keys for name, facts in side.items()})
        for table in tables:
            for part in table.days:
                writer.link_day(table.folder, part)
            bad.join(table.folder / Files.QUARANTINE)
            profile.add_saved(table.folder / _PROFILE)
        return profile

    return _split(data, source, valid, quarantine, runtime, now, until, judge)


def _split(
    data: Data,
    source: DayTable,
    valid: Path,
    quarantine: Path,
    runtime: Runtime,
    now: datetime,
    until: datetime | None,
    judge: Callable[[dict[str, SideFacts], DayTableWriter, QuarantineWriter], Profile],
) -> DayTable:
    """Write the valid log and the quarantine; `judge` writes the rows of the log, and says what valid ones are like."""
    with atomic_folder(valid) as staging:
        writer = DayTableWriter(staging, Files.LOG, runtime.chunk_rows)
        with atomic_folder(quarantine) as apart, QuarantineWriter(apart / Files.QUARANTINE) as bad:
            bad.copy(source.folder / REJECTED)
            side = _side_tables(data, source, staging, bad, runtime)
            bad.by_rule.clear()
            profile = judge(side, writer, bad)
        by_rule = Counter(source.notes["by_rule"]) + bad.by_rule
        aucs = column_aucs(profile.sample.rows(), data, staging) if profile.rows else {}
        counts = dict(sorted(by_rule.items()))
        cut = cut_day(until, data)
        facts = LogFacts(source.notes["raw_rows"], counts, profile, side, aucs, now, until, cut)
        problems = problems_of(facts, data)
        if problems:
            raise LogRefusedError(_refusal(problems, quarantine, by_rule.total()), problems)
        writer.close(_notes(facts, source))
    return DayTable.open(valid, Files.LOG)


def _side_tables(
    data: Data, source: DayTable, staging: Path, bad: QuarantineWriter, runtime: Runtime
) -> dict[str, SideFacts]:
    (staging / SIDE_FOLDER).mkdir()
    return {
        table.name: validate_side_table(
            table, source.folder, staging, bad, source.notes["side"][table.name], runtime.chunk_rows
        )
        for table in data.side_tables
    }


def _rows(
    data: Data,
    source: DayTable,
    days: Collection[date] | None,
    side: dict[str, SideFacts],
    writer: DayTableWriter,
    bad: QuarantineWriter,
    until: datetime | None,
) -> Profile:
    """Write the valid rows of some days, or of all, and quarantine the others; return what the valid ones look like."""
    profile = Profile(data, {name: facts.keys for name, facts in side.items()})
    checks, rules, today = log_checks(data, until), DayRules(data), None
    wanted = [part for part in source.days if days is None or part.day in days]
    with progress("validate", sum(part.rows for part in wanted)) as advance:
        pieces_by_file = groupby(source.pieces({part.day for part in wanted}), itemgetter(0, 1))
        for (day, path), pieces in pieces_by_file:
            if day != today:
                writer.flush()
                rules, today = DayRules(data), day
            found = _Found()
            for number, (*_, rows) in enumerate(pieces):
                good, refused = _judge(rows, checks, rules, partial(profile.add, day))
                if refused.height and not found.refused:
                    for earlier in islice(pieces_of(path), number):  # without a bad row: read again, not held
                        writer.append(earlier)
                found.add(good, refused)
                if found.refused:
                    writer.append(good)
                advance(rows.height, f"{bad.rows + found.bad_rows} quarantined")
            if found.refused:
                bad.append(pl.concat(found.refused).sort(Columns.SOURCE_FILE, Columns.SOURCE_LINE))
            else:
                writer.link(day, path, found.rows, found.positives)
    return profile


@dataclass
class _Found:
    """What a file holds, as far as it was judged."""

    rows: int = 0
    """That may stay."""
    positives: int = 0
    """Of these."""
    refused: list[pl.DataFrame] = field(default_factory=list)
    """Quarantine rows."""

    def add(self, good: pl.DataFrame, refused: pl.DataFrame) -> None:
        """Take the rows of a piece."""
        self.rows += good.height
        self.positives += int((good[Columns.LABEL] == 1).sum())
        self.refused += [refused] if refused.height else []

    @property
    def bad_rows(self) -> int:
        """Rows that may not stay."""
        return sum(rows.height for rows in self.refused)


def _judge(
    rows: pl.DataFrame, checks: list[Check], rules: DayRules, take: Callable[[pl.DataFrame, Hashes], None]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the good rows and, as quarantine rows, the others; `take` gets the good ones and their hashes.

    They are of one day, after those of earlier calls.
    """
    hashed = row_hashes(rows.select(rules.columns))
    failures = broken_checks(rows, checks)
    failures += rules.broken(rows, failures, hashed)
    good, refused = split_failures(rows, failures)
    take(good, hashed[~flagged(rows.height, failures).to_numpy()] if failures else hashed)
    return good, refused


def _notes(facts: LogFacts, source: DayTable) -> dict[str, Any]:
    side = {
        name: {
            "raw_rows": found.raw_rows,
            "valid_rows": found.rows,
            "quarantined_rows": found.quarantined,
            "coverage": facts.profile.covered[name] / facts.profile.rows,
        }
        for name, found in facts.side.items()
    }
    valid = {day: found.rows for day, found in facts.days}
    refused = {part.day.isoformat(): part.rows - valid.get(part.day, 0) for part in source.days}
    return {
        "collected_rows": facts.profile.collected_rows,
        "until": facts.until.isoformat() if facts.until else None,
        "raw_rows": facts.raw_rows,
        "valid_rows": facts.profile.rows,
        "quarantined_rows": sum(facts.by_rule.values()),
        "by_rule": facts.by_rule,
        QUARANTINED_BY_DAY: {day: rows for day, rows in refused.items() if rows},
        "side": side,
        "column_aucs": facts.column_aucs,
        DIGESTS: {day.isoformat(): str(found.digest) for day, found in facts.days},
    }


def _refusal(problems: list[str], quarantine: Path, rows: int) -> str:
    numbered = "".join(f"\n  {place}. {problem}." for place, problem in enumerate(problems, 1))
    where = f"\nThe {rows} quarantined rows are in {quarantine / Files.QUARANTINE}." if rows else ""
    return f"the log breaks {len(problems)} rule(s) and goes no further:{numbered}{where}"
