"""Check the first rows of a log before a run, and report all problems at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import polars as pl

from shortlist.contracts import Columns, DataError, Files
from shortlist.data.ingest import ingest
from shortlist.data.reading.blocks import check_shared_fields, read_blocks
from shortlist.data.reading.clock import check_time_unit, event_times
from shortlist.data.reading.convert import convert_columns, describe_type
from shortlist.data.reading.layout import FileLayout, RowBlock
from shortlist.data.reading.log_rows import LogRows, log_layout
from shortlist.data.reading.sources import InputFile, log_files, side_files
from shortlist.data.rules.day_rules import enough_days, label_rate, volume
from shortlist.data.rules.failures import find_failures
from shortlist.data.rules.log_facts import LogFacts
from shortlist.data.rules.profile import DayProfile, LogProfile
from shortlist.data.side_tables.ingest import side_layout
from shortlist.data.validate import LogRefusedError, validate
from shortlist.spec.data import Data, FileSource
from shortlist.spec.runtime import Runtime

_PEEK_ROWS: Final = 10_000
_MAX_FILES: Final = 5
"""Most files of a table whose columns are compared with the spec."""
_MAX_COUNTED_BYTES: Final = 2**31
"""Largest log whose days are all counted."""
_COUNT_BLOCK_ROWS: Final = 250_000
_MAX_FAILED_SHARE: Final = 0.9


class SampleReport(NamedTuple):
    """Problems of a log's first rows."""

    problems: tuple[str, ...]
    rows: int
    """Rows of the log that were read and validated; 0 when it could not be read."""
    is_complete: bool
    """Whether these are all rows of the log."""


def check_sample(data: Data, location: Path, max_rows: int = 100_000) -> SampleReport:
    """Read the first rows of a log and its whole side tables, and return all their problems.

    Args:
        data: The spec's section; its source is files.
        location: Data path of a run.
        max_rows: Rows of the log that are read. For a longer log, rules about totals are not checked, and those about
            days only by counting the days' labels.
    """
    tables = list(_open_tables(data, location))
    problems = [problem for table in tables for problem in table.find_problems()]
    if any(not table.readable for table in tables):
        return SampleReport(tuple(problems), 0, is_complete=False)
    lenient_data = data.model_copy(update={"rules": data.rules.model_copy(update={"undeclared_columns": "ignore"})})
    report = _validate_first_rows(lenient_data, location, max_rows)
    if not report.is_complete:
        problems += _find_day_problems(data, tables[0])
    return SampleReport((*problems, *report.problems), report.rows, report.is_complete)


class _SampledTable:
    """The files of the log or of a side table, with their problems."""

    def __init__(self, layout: FileLayout, files: list[InputFile], problem: str = "") -> None:
        self.layout, self.files, self._problem = layout, files, problem
        self.readable = not problem

    def find_problems(self) -> Iterator[str]:
        """Yield the problems of its columns; afterwards `readable` is whether its rows can be validated."""
        if self._problem:
            yield self._problem
            return
        for file in self.files[:_MAX_FILES]:
            try:
                check_shared_fields([file], self.layout)
            except DataError as error:
                yield str(error)
                # Undeclared columns do not prevent reading the others.
                self.readable &= _is_readable(file, replace(self.layout, undeclared="ignore"))
        if self.readable:
            yield from self._find_type_problems()

    def _find_type_problems(self) -> Iterator[str]:
        """Yield a problem for each column with values that are not of its type."""
        try:
            _, block = next(read_blocks(self.files[:1], replace(self.layout, undeclared="ignore"), _PEEK_ROWS))
        except (DataError, StopIteration) as error:
            yield str(error) or f"{self.layout.table}: its files hold no rows"
            self.readable = False
            return
        yield from self._find_clock_problems(block)
        nulls = () if self.files[0].format in ("csv", "tsv") else self.layout.null_values
        columns = self.layout.row_columns
        for name, flags in convert_columns(block.columns, columns, nulls).failed.items():
            column = next(column for column in columns if column.name == name)
            raw, failed = block.columns[column.source_name], int(flags.sum())
            values = len(raw) - raw.null_count()
            (failure,) = find_failures("type", flags, column.source_name, raw, describe_type(column))
            yield (
                f"{self.files[0].name} ({self.layout.table}): {failed:,} of {values:,} values are not of type"
                f" {column.type}: {failure.detail[0]}"
            )
            self.readable &= failed <= _MAX_FAILED_SHARE * values

    def _find_clock_problems(self, block: RowBlock) -> Iterator[str]:
        clock = self.layout.clock
        if clock is None:
            return
        raw = block.columns[clock.column]
        try:
            check_time_unit(raw, event_times(raw, clock), clock, self.files[0].name)
        except DataError as error:
            yield str(error)
            self.readable = False


def _is_readable(file: InputFile, layout: FileLayout) -> bool:
    try:
        check_shared_fields([file], layout)
    except DataError:
        return False
    return True


def _open_tables(data: Data, location: Path) -> Iterator[_SampledTable]:
    """Yield the log, then its side tables."""
    assert isinstance(data.source, FileSource)
    layout = log_layout(data, data.source)
    yield _open_table(layout, lambda: log_files(data.source, location))
    for table in data.side_tables:
        yield _open_table(side_layout(table, data), lambda table=table: side_files(table, location))


def _open_table(layout: FileLayout, find_files: Any) -> _SampledTable:
    try:
        return _SampledTable(layout, find_files())
    except DataError as error:
        return _SampledTable(layout, [], f"{layout.table}: {error}")


def _validate_first_rows(data: Data, location: Path, max_rows: int) -> SampleReport:
    """Ingest and validate the first rows as in a run, without rules that need all rows."""
    runtime = Runtime(engine="cpu")
    with TemporaryDirectory(prefix="shortlist-check-") as scratch:
        raw, valid, quarantine = (Path(scratch) / name for name in ("raw", "valid", "quarantine"))
        try:
            notes = ingest(data, location, raw, runtime, max_rows).notes
        except DataError as error:
            return SampleReport((str(error),), 0, is_complete=False)
        read_rows, is_complete = notes["raw_rows"], notes["whole"]
        try:
            validate(
                data if is_complete else _relax_total_rules(data), raw, valid, quarantine, runtime, datetime.now(UTC)
            )
        except LogRefusedError as error:
            return SampleReport((*error.problems, *_describe_broken_rules(quarantine)), read_rows, is_complete)
        except DataError as error:
            return SampleReport((str(error),), read_rows, is_complete)
        return SampleReport((), read_rows, is_complete)


def _relax_total_rules(data: Data) -> Data:
    """Return the section with rules about totals and days relaxed, which the first rows alone cannot meet."""
    relaxed_rules = {"min_rows": 1, "min_volume_ratio": 0.0, "max_volume_ratio": 1e12, "max_label_rate_change": 1e12}
    rules = data.rules.model_copy(update={**relaxed_rules, "max_age_hours": None})
    split = data.split.model_copy(update={"warmup_days": 0, "validation_days": 0, "test_days": 0})
    return data.model_copy(update={"rules": rules, "split": split})


def _describe_broken_rules(quarantine: Path) -> Iterator[str]:
    """Yield an example for every rule that rows broke."""
    quarantined = pl.read_parquet(quarantine / Files.QUARANTINE)
    counts: Counter[str] = Counter(quarantined[Columns.RULE].to_list())
    for rule, rows in counts.most_common():
        first = quarantined.filter(pl.col(Columns.RULE) == rule).row(0, named=True)
        location = f"{first[Columns.SOURCE_FILE]}, line {first[Columns.SOURCE_LINE]}"
        yield f"{rows:,} rows break '{rule}', e.g. {location}: {first[Columns.DETAIL]}"


def _find_day_problems(data: Data, log: _SampledTable) -> Iterator[str]:
    """Yield problems of the days of a log that was not read whole: their number, volumes and label rates.

    Only the clock and the label are read.
    """
    clock = log.layout.clock
    size = sum(file.path.stat().st_size for file in log.files)
    if clock is None or not log.layout.header or size > _MAX_COUNTED_BYTES:
        return
    exploded = data.explode.columns if data.explode is not None else ()
    label_columns = tuple(column for column in log.layout.columns if column.name in (data.label, *exploded))
    label_layout = replace(log.layout, columns=label_columns, undeclared="ignore")
    profile, rows = LogProfile(data, {}), LogRows(data, label_layout, 0)
    try:
        for file, block in read_blocks(log.files, label_layout, _COUNT_BLOCK_ROWS):
            good_rows, _ = rows.convert_block(file, block)
            counts = good_rows.filter(pl.col(Columns.LABEL).is_between(0, 1)).group_by(Columns.DAY)
            for day, n, positives in counts.agg(pl.len(), pl.col(Columns.LABEL).cast(pl.Int64).sum()).rows():
                day_profile = profile.days.setdefault(day, DayProfile())
                day_profile.rows += n
                day_profile.positives += positives
    except DataError:
        return  # problems in later rows are reported by a run
    facts = LogFacts(rows.rows, {}, profile, {}, {}, datetime.now(UTC))
    for rule in (enough_days, volume, label_rate):
        yield from rule(facts, data)
