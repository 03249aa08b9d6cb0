"""Validate a raw log: split its rows into valid and quarantined ones, and check the rules of the whole log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import polars as pl

from shortlist.contracts import Columns, DataError, Files
from shortlist.data.ingest import COLLECTED, RAW_INDEX, REJECTED
from shortlist.data.log_notices import (
    ALLOWED_LEAKS,
    age_notices,
    allowed_leak_notices,
    emit_notices,
    short_day_notices,
    short_part_notices,
)
from shortlist.data.rules.failures import flag_failed_rows, split_failures
from shortlist.data.rules.leakage import column_aucs
from shortlist.data.rules.log_facts import LogFacts
from shortlist.data.rules.profile import LogProfile
from shortlist.data.rules.quarantine import QuarantineWriter
from shortlist.data.rules.row_rules import DUPLICATE_ROW, DayRules, RowCheck, build_log_checks, find_broken_checks
from shortlist.data.rules.side_rules import SideFacts, validate_side_table
from shortlist.data.rules.table_rules import CAN_WARN, LogProblem, find_log_problems
from shortlist.data.until import find_cut_day
from shortlist.spec.data import Data
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import atomic_folder
from shortlist.storage.row_digest import DIGESTS, Hashes, row_hashes
from shortlist.storage.side_tables import SIDE_FOLDER
from shortlist.storage.tables import QUARANTINED_BY_DAY, DayTable, DayTableWriter, iter_row_groups
from shortlist.system.progress import progress


class LogRefusedError(DataError):
    """The log as a whole breaks rules."""

    def __init__(self, message: str, problems: Sequence[str]) -> None:
        super().__init__(message)
        self.problems = tuple(problems)
        """One sentence per rule."""


def validate(
    data: Data, raw: Path, valid: Path, quarantine: Path, runtime: Runtime, now: datetime, until: datetime | None = None
) -> DayTable:
    """Split a raw log into valid and quarantined rows, then check the rules of the whole log.

    Args:
        data: The spec's data section.
        raw: Folder that ingest wrote.
        valid: Folder to write; written only when the log passes all table rules.
        quarantine: Folder to write, with one `quarantine.parquet` (source_file, source_line, rule, detail) that holds
            the bad rows of the log and of the side tables; also written when the log is refused.
        runtime: Bounds the rows in memory.
        now: The present time, with a timezone; freshness is measured against it.
        until: Rows at or after this time, with a timezone, are quarantined as `future`, against no tolerance, so that
            later steps cannot read them.

    Returns:
        The valid log (index `Files.LOG`). Its notes: until (ISO 8601; null without), raw_rows, valid_rows,
        quarantined_rows and by_rule of the log; quarantined_by_day: quarantined rows per day (ISO 8601), without those
        that could not be parsed; collected_rows: valid rows collected from live traffic; side: raw_rows, valid_rows,
        quarantined_rows and coverage of each side table; column_aucs: AUC of each single column known before the
        impression; digests: digest of the rows of each day; warnings: sentences of broken rules that stop nothing;
        rules_off: rules that were not checked.

    Raises:
        DataError: More rows of the files are bad than tolerated, or the log as a whole breaks rules; names every
            number, its limit and the quarantine. Rows of live traffic never are the reason.
    """
    source = DayTable.open(raw, RAW_INDEX)
    with atomic_folder(valid) as staging:
        writer = DayTableWriter(staging, Files.LOG, runtime.chunk_rows)
        with (
            atomic_folder(quarantine) as quarantine_staging,
            QuarantineWriter(quarantine_staging / Files.QUARANTINE) as quarantine_writer,
        ):
            quarantine_writer.copy_uncounted(source.folder / REJECTED)
            side_facts = _validate_side_tables(data, source, staging, quarantine_writer, runtime)
            quarantine_writer.by_rule.clear()
            files, live = _write_rows(data, source, side_facts, writer, quarantine_writer, until)
        aucs = column_aucs(files.profile.sample.rows(), data, staging) if files.profile.rows else {}
        facts = file_facts = LogFacts(
            files.raw_rows, files.by_rule, files.profile, side_facts, aucs, now, until, find_cut_day(until, data)
        )
        if live.raw_rows:
            # Live traffic goes on where the files end: their last day may be short.
            file_facts = replace(facts, cut_day=max(files.profile.days, default=None))
            every_row = files.with_rows_of(live)
            facts = replace(facts, raw_rows=every_row.raw_rows, by_rule=every_row.by_rule, profile=every_row.profile)
        problems, live_problems = find_log_problems(facts, file_facts, data)
        refusals = [problem for problem in problems if problem.rule not in data.rules.warn]
        if refusals:
            message = _refusal_message(refusals, quarantine, sum(facts.by_rule.values()))
            raise LogRefusedError(message, [problem.sentence for problem in refusals])
        leaks = list(allowed_leak_notices(facts.column_aucs, data.rules))
        warnings = [*(problem.warning for problem in problems), *live_problems, *leaks]
        warnings += short_part_notices(facts.profile.rows_by_day, data, source.notes.get(COLLECTED, {}))
        notes = _build_notes(facts, source) | {"collected_rows": live.profile.rows, "warnings": warnings}
        notes[ALLOWED_LEAKS] = leaks
        writer.close(notes | {"rules_off": list(data.rules.off)})
    emit_notices((*warnings, *short_day_notices(file_facts, data), *age_notices(facts.profile.newest, data, now)))
    return DayTable.open(valid, Files.LOG)


def _validate_side_tables(
    data: Data, source: DayTable, staging: Path, quarantine_writer: QuarantineWriter, runtime: Runtime
) -> dict[str, SideFacts]:
    (staging / SIDE_FOLDER).mkdir()
    return {
        table.name: validate_side_table(
            table, source.folder, staging, quarantine_writer, source.notes["side"][table.name], runtime.chunk_rows
        )
        for table in data.side_tables
    }


@dataclass
class _PartOfLog:
    """The rows of the files of a log, or those of live traffic."""

    raw_rows: int
    by_rule: Counter[str]
    """Quarantined rows by the rule that they broke."""
    profile: LogProfile
    """Profile of the valid rows."""

    def with_rows_of(self, other: _PartOfLog) -> _PartOfLog:
        """Return the rows of both; this part is left as it is."""
        profile = self.profile.empty_copy()
        for part in (self.profile, other.profile):
            profile.add_profile(part)
        return _PartOfLog(self.raw_rows + other.raw_rows, self.by_rule + other.by_rule, profile)


def _write_rows(
    data: Data,
    source: DayTable,
    side_facts: dict[str, SideFacts],
    writer: DayTableWriter,
    quarantine_writer: QuarantineWriter,
    until: datetime | None,
) -> tuple[_PartOfLog, _PartOfLog]:
    """Write the valid rows, and quarantine the others; return those of the files, and those of live traffic."""
    side_keys = {name: facts.keys for name, facts in side_facts.items()}
    counts = source.notes, source.notes.get(COLLECTED, {"raw_rows": 0, "by_rule": {}})
    files, live = (
        _PartOfLog(count["raw_rows"], Counter(count["by_rule"]), LogProfile(data, side_keys)) for count in counts
    )
    checks, rules, current_day = build_log_checks(data, until), DayRules(data), None
    with progress("validate", sum(part.rows for part in source.days)) as advance:
        pieces_by_file = groupby(source.pieces(), itemgetter(0, 1))
        for (day, path), pieces in pieces_by_file:
            if day != current_day:
                writer.flush()
                rules, current_day = DayRules(data), day
            file_rows, part = _ValidatedFile(), files
            for number, (*_, rows) in enumerate(pieces):
                part = live if _is_live(rows) else files
                good_rows, refused = _split_rows(rows, checks, rules, partial(part.profile.add, day))
                if refused.height and not file_rows.refused:
                    for earlier_piece in islice(iter_row_groups(path), number):  # read again instead of kept in memory
                        writer.append(earlier_piece)
                file_rows.add(good_rows, refused)
                if file_rows.refused:
                    writer.append(good_rows)
                advance(rows.height, f"{quarantine_writer.rows + file_rows.bad_rows} quarantined")
            if file_rows.refused:
                refused = pl.concat(file_rows.refused).sort(Columns.SOURCE_FILE, Columns.SOURCE_LINE)
                quarantine_writer.append(refused)
                part.by_rule.update(dict(refused.group_by(Columns.RULE).len().iter_rows()))
                if day in part.profile.days:
                    part.profile.days[day].copies += int((refused[Columns.RULE] == DUPLICATE_ROW).sum())
            else:
                writer.link(day, path, file_rows.rows, file_rows.positives)
    return files, live


def _is_live(rows: pl.DataFrame) -> bool:
    """Whether rows are of live traffic; no file holds rows of both."""
    return Columns.SERVED_VERSION in rows.columns and rows[Columns.SERVED_VERSION].null_count() < rows.height


@dataclass
class _ValidatedFile:
    """Counts and quarantined rows of a file, as far as it was validated."""

    rows: int = 0
    """Valid rows."""
    positives: int = 0
    """Valid rows with label 1."""
    refused: list[pl.DataFrame] = field(default_factory=list)
    """Frames of quarantine rows."""

    def add(self, good: pl.DataFrame, refused: pl.DataFrame) -> None:
        """Add the rows of a piece."""
        self.rows += good.height
        self.positives += int((good[Columns.LABEL] == 1).sum())
        self.refused += [refused] if refused.height else []

    @property
    def bad_rows(self) -> int:
        """Number of quarantined rows."""
        return sum(rows.height for rows in self.refused)


def _split_rows(
    rows: pl.DataFrame, checks: list[RowCheck], rules: DayRules, add_good: Callable[[pl.DataFrame, Hashes], None]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split rows of one day, after those of earlier calls, into good ones and quarantine rows.

    `add_good` is called with the good rows and their hashes.
    """
    hashes = row_hashes(rows.select(rules.columns))
    failures = find_broken_checks(rows, checks)
    failures += rules.find_repeated(rows, failures, hashes)
    good_rows, refused = split_failures(rows, failures)
    add_good(good_rows, hashes[~flag_failed_rows(rows.height, failures).to_numpy()] if failures else hashes)
    return good_rows, refused


def _build_notes(facts: LogFacts, source: DayTable) -> dict[str, Any]:
    side_notes = {
        name: {
            "raw_rows": side_facts.raw_rows,
            "valid_rows": side_facts.rows,
            "quarantined_rows": side_facts.quarantined,
            "coverage": facts.profile.covered[name] / facts.profile.rows,
        }
        for name, side_facts in facts.side.items()
    }
    valid_rows = {day: day_profile.rows for day, day_profile in facts.days}
    refused = {part.day.isoformat(): part.rows - valid_rows.get(part.day, 0) for part in source.days}
    return {
        "until": facts.until.isoformat() if facts.until else None,
        "raw_rows": facts.raw_rows,
        "valid_rows": facts.profile.rows,
        "quarantined_rows": sum(facts.by_rule.values()),
        "by_rule": dict(sorted(facts.by_rule.items())),
        QUARANTINED_BY_DAY: {day: rows for day, rows in refused.items() if rows},
        "side": side_notes,
        "column_aucs": facts.column_aucs,
        DIGESTS: {day.isoformat(): str(day_profile.digest) for day, day_profile in facts.days},
    }


def _refusal_message(problems: Sequence[LogProblem], quarantine: Path, rows: int) -> str:
    numbered = "".join(f"\n  {place}. {problem.sentence}." for place, problem in enumerate(problems, 1))
    rules = list(dict.fromkeys(problem.rule for problem in problems if problem.rule in CAN_WARN))
    numbered += f"\nIf that is right, make it a warning: data.rules.warn: [{', '.join(rules)}]." if rules else ""
    quarantine_note = f"\nThe {rows} quarantined rows are in {quarantine / Files.QUARANTINE}." if rows else ""
    return f"the log breaks {len(problems)} rule(s) and goes no further:{numbered}{quarantine_note}"
