"""Check a log before a run: rows of every file, and the days and keys of all rows; report all problems at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import polars as pl

from shortlist.contracts import Columns, DataError, Files
from shortlist.data.ingest import ingest
from shortlist.data.log_notices import age_notices, lacking_column_notices, short_day_notices, unread_file_notices
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
from shortlist.data.rules.table_rules import find_problems
from shortlist.data.side_tables.ingest import side_layout
from shortlist.data.validate import LogRefusedError, validate
from shortlist.spec.data import Column, Data, LogFiles
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.system.row_expressions import compile_expression

_PEEK_ROWS: Final = 10_000
_MAX_COUNTED_BYTES: Final = 2**31
"""Largest log whose days are all counted."""
_COUNT_BLOCK_ROWS: Final = 250_000
_MAX_FAILED_SHARE: Final = 0.9
_MAX_SPELLINGS: Final = 1_000
_MAX_VALUES: Final = 5
_HEAVY_USER_SHARE: Final = 0.03
_MIN_ROWS_OF_USERS, _MIN_USERS = 1_000, 100
"""Fewest rows and users with which a share of the rows says something."""
_WHOLE_FLOAT: Final = r"^-?\d+\.0+$"


class SampleReport(NamedTuple):
    """Problems of a log."""

    problems: tuple[str, ...]
    rows: int
    """Rows of the log that were read and validated; 0 when it could not be read."""
    is_complete: bool
    """Whether these are all rows of the log."""
    notices: tuple[str, ...] = ()
    """What is valid and should be known: columns that files lack, files that nothing reads, an old newest row."""
    facts: LogFacts | None = None
    """Days of the whole log; None where they were not counted."""
    quarantined_rows: int = 0
    """Rows of those read that do not match the spec, few enough to be left out."""


def check_sample(data: Data, location: Path, max_rows: int = 100_000, conditions: Sequence[str] = ()) -> SampleReport:
    """Read rows of every file of a log and its whole side tables, and return all their problems.

    Args:
        data: The spec's section; its source is files.
        location: Data path of a run.
        max_rows: Rows of the log that are validated. Of a longer log, the first rows of every file are, rules about
            totals are not checked, and those about days and keys by reading the clock, the label and the keys alone.
        conditions: SQL conditions that some rows should fulfil, such as those of slices; one that reads other columns
            than the log's is passed over.
    """
    tables = list(_open_tables(data, location))
    problems = [problem for table in tables for problem in table.find_problems()]
    if any(not table.readable for table in tables):
        return SampleReport(tuple(problems), 0, is_complete=False)
    lenient_data = data.model_copy(update={"rules": data.rules.model_copy(update={"undeclared_columns": "ignore"})})
    report = _validate_sample(lenient_data, location, max_rows, conditions)
    problems += report.problems
    facts, warnings, heavy_users = None, [], []
    if report.rows:
        scan = _KeyScan(data, tables[0])
        facts = scan.read()
        heavy_users = list(scan.find_heavy_users())
        problems += scan.find_key_problems()
        if facts is not None and not report.is_complete:
            found_problems = find_problems(facts, data, (enough_days, volume, label_rate))
            problems += [problem.sentence for problem in found_problems if problem.rule not in data.rules.warn]
            warnings = [problem.warning for problem in found_problems if problem.rule in data.rules.warn]
    newest = facts.profile.newest if facts is not None else None
    notices = (
        *report.notices,
        *warnings,
        *heavy_users,
        *unread_file_notices(data, location),
        *(short_day_notices(facts, data) if facts is not None else ()),
        *age_notices(newest, data, datetime.now(UTC)),
    )
    return report._replace(problems=tuple(problems), notices=notices, facts=facts)


class _SampledTable:
    """The files of the log or of a side table, with their problems."""

    def __init__(
        self, layout: FileLayout, files: list[InputFile], max_quarantined_share: float, problem: str = ""
    ) -> None:
        self.layout, self.files, self._problem = layout, files, problem
        self._max_quarantined_share = max_quarantined_share
        self.readable = not problem

    def find_problems(self) -> Iterator[str]:
        """Yield the problems of its columns; afterwards `readable` is whether its rows can be validated."""
        if self._problem:
            yield self._problem
            return
        try:
            check_shared_fields(self.files, self.layout)
        except DataError as error:
            yield str(error)
            # Undeclared columns do not prevent reading the others.
            self.readable = _is_readable(self.files, replace(self.layout, undeclared="ignore"))
        if self.readable:
            yield from self._find_type_problems()

    def _find_type_problems(self) -> Iterator[str]:
        """Yield a problem for each column of the first file with many values that are not of its type."""
        layout = replace(self.layout, undeclared="ignore")
        try:
            _, block = next(read_blocks(self.files, layout, _PEEK_ROWS))
        except (DataError, StopIteration) as error:
            yield str(error) or f"{self.layout.table}: its files hold no rows"
            self.readable = False
            return
        yield from self._find_clock_problems(block)
        nulls = () if self.files[0].format in ("csv", "tsv") else self.layout.null_values
        columns = self.layout.row_columns
        for name, flags in convert_columns(block.columns, columns, nulls, layout.keys).failed.items():
            column = next(column for column in columns if column.name == name)
            raw, failed = block.columns[column.source_name], int(flags.sum())
            values = len(raw) - raw.null_count()
            if failed <= self._max_quarantined_share * values:
                continue  # a few rows for the quarantine
            (failure,) = find_failures("type", flags, column.source_name, raw, describe_type(column, layout.keys))
            yield (
                f"{self.files[0].name} ({self.layout.table}): {failed:,} of {values:,} values are not of type"
                f" {column.type}: {failure.detail[0]}{_suggest_decimal_comma(column, block.columns, failed)}"
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


def _suggest_decimal_comma(column: Column, raw: pl.DataFrame, failed: int) -> str:
    """Return the declaration with which fewer values of a column of numbers fail, as the end of a message."""
    if column.type != "number" or column.decimal_comma or raw.schema[column.source_name] != pl.String():
        return ""
    with_comma = column.model_copy(update={"decimal_comma": True})
    flags = convert_columns(raw, [with_comma], ()).failed.get(column.name)
    is_better = flags is None or int(flags.sum()) < failed
    return "; they have a decimal comma: declare decimal_comma: true" if is_better else ""


def _is_readable(files: list[InputFile], layout: FileLayout) -> bool:
    try:
        check_shared_fields(files, layout)
    except DataError:
        return False
    return True


def _open_tables(data: Data, location: Path) -> Iterator[_SampledTable]:
    """Yield the log, then its side tables."""
    assert isinstance(data.source, LogFiles)
    layout = log_layout(data, data.source)
    share = data.rules.max_quarantined_share
    yield _open_table(layout, lambda: log_files(data.source, location), share)
    for table in data.side_tables:
        yield _open_table(side_layout(table, data), lambda table=table: side_files(table, location), share)


def _open_table(layout: FileLayout, find_files: Any, max_quarantined_share: float) -> _SampledTable:
    try:
        return _SampledTable(layout, find_files(), max_quarantined_share)
    except DataError as error:
        return _SampledTable(layout, [], max_quarantined_share, f"{layout.table}: {error}")


def _validate_sample(data: Data, location: Path, max_rows: int, conditions: Sequence[str]) -> SampleReport:
    """Ingest and validate rows as in a run, without rules that need all rows."""
    runtime = Runtime(engine="cpu")
    with TemporaryDirectory(prefix="shortlist-check-") as scratch:
        raw, valid, quarantine = (Path(scratch) / name for name in ("raw", "valid", "quarantine"))
        try:
            notes = ingest(data, location, raw, runtime, max_rows).notes
        except DataError as error:
            return SampleReport((str(error),), 0, is_complete=False)
        read_rows, is_complete = notes["raw_rows"], notes["whole"]
        notices = tuple(lacking_column_notices(notes))
        try:
            declared = data if is_complete else _relax_total_rules(data)
            valid_log = validate(declared, raw, valid, quarantine, runtime, datetime.now(UTC))
        except LogRefusedError as error:
            return SampleReport((*error.problems, *_describe_broken_rules(quarantine)), read_rows, is_complete, notices)
        except DataError as error:
            return SampleReport((str(error),), read_rows, is_complete, notices)
        notices = (*notices, *valid_log.notes["warnings"], *_describe_quarantine(quarantine))
        notices += tuple(_describe_unmet_conditions(conditions, valid_log))
        quarantined_rows = valid_log.notes["quarantined_rows"]
        return SampleReport((), read_rows, is_complete, notices, quarantined_rows=quarantined_rows)


def _describe_unmet_conditions(conditions: Sequence[str], valid_log: DayTable) -> Iterator[str]:
    """Yield a sentence on each condition that no row fulfils, with the usual values of the columns that it reads."""
    names = valid_log.scan().collect_schema().names()
    for condition in conditions:
        columns = compile_expression(condition).columns
        if not columns or not {*columns} <= {*names}:
            continue
        rows = valid_log.scan().select(columns).collect()
        if compile_expression(condition).evaluate_condition(rows).any():
            continue
        usual_values = (
            f"{name} has {', '.join(map(str, rows[name].drop_nulls().value_counts(sort=True)[name][:_MAX_VALUES]))}"
            for name in columns
        )
        yield f'No row of the {rows.height:,} that were read fulfils "{condition}": {"; ".join(usual_values)}.'


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


def _describe_quarantine(quarantine: Path) -> Iterator[str]:
    """Yield a sentence for every rule that a tolerated number of rows broke."""
    for sentence in _describe_broken_rules(quarantine):
        yield f"Quarantine: {sentence}"


class _KeyScan:
    """One pass over all rows of a log that reads only its clock, its label and its keys."""

    def __init__(self, data: Data, log: _SampledTable) -> None:
        exploded = data.explode.columns if data.explode is not None else ()
        names = {data.label, data.impression, *exploded, *log.layout.keys}
        columns = tuple(column for column in log.layout.columns if column.name in names)
        self._data, self._files = data, log.files
        self._layout = replace(log.layout, columns=columns, undeclared="ignore")
        self._whole_floats: dict[str, set[str]] = {
            column.name: set() for column in columns if column.name in log.layout.keys and column.type == "string"
        }

        self._rows_by_user: pl.DataFrame | None = None

    @property
    def _is_possible(self) -> bool:
        size = sum(file.path.stat().st_size for file in self._files)
        return self._layout.clock is not None and self._layout.header and size <= _MAX_COUNTED_BYTES

    def read(self) -> LogFacts | None:
        """Return rows and labels of every day; None where they cannot be counted."""
        if not self._is_possible:
            return None
        profile, rows = LogProfile(self._data, {}), 0
        try:
            for block in self._read_rows():
                rows += block.height
                counts = block.filter(pl.col(Columns.LABEL).is_between(0, 1)).group_by(Columns.DAY)
                for day, n, positives in counts.agg(pl.len(), pl.col(Columns.LABEL).cast(pl.Int64).sum()).rows():
                    day_profile = profile.days.setdefault(day, DayProfile())
                    day_profile.rows += n
                    day_profile.positives += positives
                newest = block[Columns.TIME].max()
                if isinstance(newest, datetime):
                    profile.newest = max(newest, profile.newest or newest)
                self._count_users(block)
                for name, values in self._whole_floats.items():
                    if len(values) < _MAX_SPELLINGS:
                        is_whole_float = block[name].str.contains(_WHOLE_FLOAT).fill_null(False)
                        values |= set(block[name].filter(is_whole_float).unique().to_list())
        except DataError:
            return None  # problems in later rows are reported by a run
        return LogFacts(rows, {}, profile, {}, {}, datetime.now(UTC))

    def _count_users(self, block: pl.DataFrame) -> None:
        if (user := self._data.user) is None or user not in block.columns:
            return
        is_positive = (pl.col(Columns.LABEL) == 1).sum().alias("positives")
        counts = block.drop_nulls(user).group_by(user).agg(pl.len().cast(pl.Int64).alias("rows"), is_positive)
        counted = [counts] if self._rows_by_user is None else [self._rows_by_user, counts]
        self._rows_by_user = pl.concat(counted, how="vertical_relaxed").group_by(user).sum()

    def find_heavy_users(self) -> Iterator[str]:
        """Yield a sentence for each user with so many rows that it may be no person."""
        if self._rows_by_user is None:
            return
        total = int(self._rows_by_user["rows"].sum())
        heavy = self._rows_by_user.filter(pl.col("rows") > _HEAVY_USER_SHARE * total).sort("rows", descending=True)
        if total < _MIN_ROWS_OF_USERS or self._rows_by_user.height < _MIN_USERS:
            return
        for user, rows, positives in heavy.head(3).rows():
            yield (
                f"The log: user {user} has {rows / total:.1%} of the rows, {positives / rows:.1%} positive; a crawler's"
                " rows are best left out."
            )

    def find_key_problems(self) -> Iterator[str]:
        """Yield a problem for each key of texts that writes one key in two ways: `101` and `101.0`."""
        for name, values in self._whole_floats.items():
            if not values:
                continue
            integers = sorted(value.partition(".")[0] for value in values)
            for block in self._read_rows():
                both = block[name].filter(block[name].is_in(integers)).unique()
                if len(both):
                    yield (
                        f"key '{name}' is written in two ways: '{both[0]}' and '{both[0]}.0' are one key; write it in"
                        " one way in all files, or declare type: integer, which reads both"
                    )
                    break

    def _read_rows(self) -> Iterator[pl.DataFrame]:
        rows = LogRows(self._data, self._layout, 0)
        for file, block in read_blocks(self._files, self._layout, _COUNT_BLOCK_ROWS):
            yield rows.convert_block(file, block)[0]
