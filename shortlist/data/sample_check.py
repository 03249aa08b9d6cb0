"""A look at a log before it is run: everything that is wrong with its first rows, at once."""

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
from shortlist.data.clock import check_time_unit, event_times
from shortlist.data.convert import convert, wanted
from shortlist.data.day_rules import enough_days, label_rate, volume
from shortlist.data.failures import failure
from shortlist.data.ingest import ingest
from shortlist.data.layout import Block, Layout
from shortlist.data.log_facts import LogFacts
from shortlist.data.log_rows import LogRows, log_layout
from shortlist.data.profile import DayProfile, Profile
from shortlist.data.reading import fields_of, read_blocks
from shortlist.data.side_tables import side_layout
from shortlist.data.sources import InputFile, log_files, side_files
from shortlist.data.validate import LogRefusedError, validate
from shortlist.spec.data import Data, FileSource
from shortlist.spec.runtime import Runtime

_PEEK_ROWS: Final = 10_000
_MOST_FILES: Final = 5
"""Files of a table whose columns are compared with the spec."""
_COUNTED_BYTES: Final = 2**31
"""A larger log is not read to its end for its days."""
_COUNTED_ROWS: Final = 250_000
_MOST_FAILED_SHARE: Final = 0.9


class SampleReport(NamedTuple):
    """What a look at a log found."""

    problems: tuple[str, ...]
    rows: int
    """Rows of the log that were read and judged; 0 when it could not be read."""
    whole: bool
    """Whether these are all rows of the log."""


def check_sample(data: Data, location: Path, most_rows: int = 100_000) -> SampleReport:
    """Read the first rows of a log and its side tables, and return everything that is wrong with them.

    Args:
        data: The spec's section; its source is files.
        location: The data path that a run would be given.
        most_rows: Rows of the log that are read; side tables are read whole. Of a longer log, rules about days and
            totals are left out, but for the number of days that the split needs.
    """
    tables = list(_tables(data, location))
    problems = [problem for table in tables for problem in table.problems()]
    if any(not table.readable for table in tables):
        return SampleReport(tuple(problems), 0, whole=False)
    lenient = data.model_copy(update={"rules": data.rules.model_copy(update={"undeclared_columns": "ignore"})})
    report = _judged(lenient, location, most_rows)
    if not report.whole:
        problems += _days_of_the_whole(data, tables[0])
    return SampleReport((*problems, *report.problems), report.rows, report.whole)


class _Table:
    """A table of the log as its files show it."""

    def __init__(self, layout: Layout, files: list[InputFile], problem: str = "") -> None:
        self.layout, self.files, self._problem = layout, files, problem
        self.readable = not problem

    def problems(self) -> Iterator[str]:
        """Give what is wrong with its columns; afterwards `readable` says whether its rows can be judged."""
        if self._problem:
            yield self._problem
            return
        for file in self.files[:_MOST_FILES]:
            try:
                fields_of([file], self.layout)
            except DataError as error:
                yield str(error)
                # Columns that are only undeclared keep nobody from reading the others.
                self.readable &= _opens(file, replace(self.layout, undeclared="ignore"))
        if self.readable:
            yield from self._values()

    def _values(self) -> Iterator[str]:
        """Give the columns of which values are not of their type."""
        try:
            _, block = next(read_blocks(self.files[:1], replace(self.layout, undeclared="ignore"), _PEEK_ROWS))
        except (DataError, StopIteration) as error:
            yield str(error) or f"{self.layout.table}: its files hold no rows"
            self.readable = False
            return
        yield from self._clock(block)
        nulls = () if self.files[0].format in ("csv", "tsv") else self.layout.null_values
        columns = self.layout.row_columns
        for name, flags in convert(block.columns, columns, nulls).failed.items():
            column = next(column for column in columns if column.name == name)
            raw, failed = block.columns[column.source_name], int(flags.sum())
            values = len(raw) - raw.null_count()
            (found,) = failure("type", flags, column.source_name, raw, wanted(column))
            yield (
                f"{self.files[0].name} ({self.layout.table}): {failed:,} of {values:,} values are not of type"
                f" {column.type}: {found.detail[0]}"
            )
            self.readable &= failed <= _MOST_FAILED_SHARE * values

    def _clock(self, block: Block) -> Iterator[str]:
        clock = self.layout.clock
        if clock is None:
            return
        raw = block.columns[clock.column]
        try:
            check_time_unit(raw, event_times(raw, clock), clock, self.files[0].name)
        except DataError as error:
            yield str(error)
            self.readable = False


def _opens(file: InputFile, layout: Layout) -> bool:
    try:
        fields_of([file], layout)
    except DataError:
        return False
    return True


def _tables(data: Data, location: Path) -> Iterator[_Table]:
    """Give the log, then its side tables."""
    assert isinstance(data.source, FileSource)
    layout = log_layout(data, data.source)
    yield _found(layout, lambda: log_files(data.source, location))
    for table in data.side_tables:
        yield _found(side_layout(table, data), lambda table=table: side_files(table, location))


def _found(layout: Layout, files: Any) -> _Table:
    try:
        return _Table(layout, files())
    except DataError as error:
        return _Table(layout, [], f"{layout.table}: {error}")


def _judged(data: Data, location: Path, most_rows: int) -> SampleReport:
    """Ingest and validate the first rows as a run would, apart from rules that need all of them."""
    runtime = Runtime(engine="cpu")
    with TemporaryDirectory(prefix="shortlist-check-") as scratch:
        raw, valid, quarantine = (Path(scratch) / name for name in ("raw", "valid", "quarantine"))
        try:
            notes = ingest(data, location, raw, runtime, most_rows).notes
        except DataError as error:
            return SampleReport((str(error),), 0, whole=False)
        read, whole = notes["raw_rows"], notes["whole"]
        try:
            validate(data if whole else _of_a_part(data), raw, valid, quarantine, runtime, datetime.now(UTC))
        except LogRefusedError as error:
            return SampleReport((*error.problems, *_broken_rules(quarantine)), read, whole)
        except DataError as error:
            return SampleReport((str(error),), read, whole)
        return SampleReport((), read, whole)


def _of_a_part(data: Data) -> Data:
    """Return the section without the rules that rows of the beginning cannot keep."""
    whole = {"min_rows": 1, "min_volume_ratio": 0.0, "max_volume_ratio": 1e12, "max_label_rate_change": 1e12}
    rules = data.rules.model_copy(update={**whole, "max_age_hours": None})
    split = data.split.model_copy(update={"warmup_days": 0, "validation_days": 0, "test_days": 0})
    return data.model_copy(update={"rules": rules, "split": split})


def _broken_rules(quarantine: Path) -> Iterator[str]:
    """Give an example of every rule that rows broke."""
    bad = pl.read_parquet(quarantine / Files.QUARANTINE)
    counts: Counter[str] = Counter(bad[Columns.RULE].to_list())
    for rule, rows in counts.most_common():
        first = bad.filter(pl.col(Columns.RULE) == rule).row(0, named=True)
        where = f"{first[Columns.SOURCE_FILE]}, line {first[Columns.SOURCE_LINE]}"
        yield f"{rows:,} rows break '{rule}', e.g. {where}: {first[Columns.DETAIL]}"


def _days_of_the_whole(data: Data, log: _Table) -> Iterator[str]:
    """Judge the days of a longer log: are they enough, and do their rows and label rates vary within the rules.

    Only its clock and its label are read.
    """
    clock = log.layout.clock
    size = sum(file.path.stat().st_size for file in log.files)
    if clock is None or not log.layout.header or size > _COUNTED_BYTES:
        return
    exploded = data.explode.columns if data.explode is not None else ()
    kept = tuple(column for column in log.layout.columns if column.name in (data.label, *exploded))
    narrow = replace(log.layout, columns=kept, undeclared="ignore")
    profile, rows = Profile(data, {}), LogRows(data, narrow, 0)
    try:
        for file, block in read_blocks(log.files, narrow, _COUNTED_ROWS):
            good, _ = rows.take(file, block)
            counts = good.filter(pl.col(Columns.LABEL).is_between(0, 1)).group_by(Columns.DAY)
            for day, n, positives in counts.agg(pl.len(), pl.col(Columns.LABEL).cast(pl.Int64).sum()).rows():
                found = profile.days.setdefault(day, DayProfile())
                found.rows += n
                found.positives += positives
    except DataError:
        return  # what is wrong in later rows is a run's to say; the first ones were judged
    facts = LogFacts(rows.rows, {}, profile, {}, {}, datetime.now(UTC))
    for rule in (enough_days, volume, label_rate):
        yield from rule(facts, data)
