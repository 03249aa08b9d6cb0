"""Rows of the prediction log that are in no batch yet, and whose outcomes are due."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import polars as pl
from deltalake import DeltaTable

from shortlist.data.collected import CollectedBatch, LogSpan
from shortlist.serving.log.log_rows import LINE, OFFSET, STREAM
from shortlist.serving.log.log_tables import file_column
from shortlist.serving.log.serving_log import ServingLog

PART: Final = ":part"
PART_LINE: Final = ":line"
_RECORD: Final = (STREAM, OFFSET)
_PATH: Final = ":path"
_TAKEN_COLUMN: Final = ":taken"
_TIME: Final = pl.Datetime("us", "UTC")
_PIECE: Final = pl.Schema(
    {STREAM: pl.String(), OFFSET: pl.Int64(), _PATH: pl.String(), "oldest": _TIME, "newest": _TIME,
     "answers": pl.Int64(), "rows": pl.Int64()}
)  # fmt: skip
_RANGE: Final = pl.Schema({STREAM: pl.String(), "first": pl.Int64(), "last": pl.Int64()})
AnswerTimes = tuple[datetime, datetime]
"""Times of answers, first and last included."""


@dataclass
class MatureAnswers:
    """Whole records of the prediction log whose outcomes are due."""

    frames: list[pl.DataFrame] = field(default_factory=list)
    """Rows of the records, with `PART`, the stream and the end of the record, and `PART_LINE`, the row's number in it
    from 1."""
    spans: list[LogSpan] = field(default_factory=list)
    """Ranges of records, by stream."""
    waiting: int = 0
    """Number of answers whose outcomes are not all due, or cannot be read."""
    problems: list[str] = field(default_factory=list)
    """Messages about files that cannot be read, whose rows wait, and about records left out."""
    collected_files: frozenset[str] = frozenset()
    """Files of the table whose rows are all in batches, with this one."""


def mature_answers(
    log: ServingLog,
    covered: pl.DataFrame,
    due: datetime,
    most_rows: int,
    collected_files: frozenset[str],
    waiting_times: Collection[AnswerTimes] = (),
) -> MatureAnswers:
    """Return the records of a prediction log that are in no batch, and whose answers are all old enough.

    A file that cannot be read is passed over; its records are taken once it can be read again.

    Args:
        log: The prediction log.
        covered: See `covered_records`.
        due: Outcomes of answers before this moment are due.
        most_rows: Number of rows after which no further record is added.
        collected_files: Files of the table whose rows are all covered; they are not read again.
        waiting_times: Records with answers of these times wait.

    Raises:
        ShortlistError: The table cannot be read.
    """
    table = log.open_table()
    if table is None:
        return MatureAnswers()
    every_file = frozenset(file_column(table, "size_bytes"))
    records = _uncovered_records(log, table, every_file - collected_files, covered)
    records = _mark_taken_records(records, due, most_rows, waiting_times)
    taken_records = records.filter(_TAKEN_COLUMN)
    mature = MatureAnswers(problems=list(log.problems))
    mature.waiting = int(records["answers"].sum() or 0) - int(taken_records["answers"].sum() or 0)
    mature.collected_files = every_file - _files(records.filter(~pl.col(_TAKEN_COLUMN))) - log.unreadable.keys()
    if taken_records.is_empty():
        return mature
    names = taken_records.select(*_RECORD)
    for rows in log.read_files(table, None, None, _files(taken_records)):
        of_batch = rows.join(names, on=_RECORD, how="semi", maintain_order="left")
        part = pl.concat_str(STREAM, pl.lit("-"), OFFSET).alias(PART)
        mature.frames.append(of_batch.with_columns(part, (pl.col(LINE).cast(pl.Int64) + 1).alias(PART_LINE)))
    mature.spans = _spans(records, _blocked_ranges(log, table))
    return mature


def covered_records(batches: Iterable[CollectedBatch]) -> pl.DataFrame:
    """Return the ranges of records in some batches, which do not overlap: stream, first and last end of a record."""
    spans = [(span.writer, span.first, span.last) for batch in batches for span in batch.spans]
    ranges: list[tuple[str, int, int]] = []
    for writer, first, last in sorted(spans):
        if ranges and ranges[-1][0] == writer and first <= ranges[-1][2]:
            ranges[-1] = (writer, ranges[-1][1], max(last, ranges[-1][2]))
        else:
            ranges.append((writer, first, last))
    return pl.DataFrame(ranges, schema=_RANGE, orient="row")


def _uncovered_records(
    log: ServingLog, table: DeltaTable, files: frozenset[str], covered: pl.DataFrame
) -> pl.DataFrame:
    """Return stream, end, files, answer times, answers and rows of the records in some files that are in no batch."""
    frames = [pl.DataFrame(schema=_PIECE)]
    for path, rows in log.iter_files(table, [*_RECORD, "time", "scores"], None, set(files)):
        pieces = _drop_covered(rows, covered).group_by(*_RECORD).agg(
            pl.lit(path).alias(_PATH), pl.col("time").min().alias("oldest"), pl.col("time").max().alias("newest"),
            pl.len().alias("answers"), pl.col("scores").list.len().fill_null(0).sum().alias("rows"),
        )  # fmt: skip
        frames.append(pieces.cast(_PIECE))
    # A record that was written at midnight is in the files of two days.
    return pl.concat(frames).group_by(*_RECORD).agg(
        pl.col(_PATH), pl.col("oldest").min(), pl.col("newest").max(), pl.col("answers").sum(), pl.col("rows").sum()
    ).sort(*_RECORD)  # fmt: skip


def _drop_covered(rows: pl.DataFrame, covered: pl.DataFrame) -> pl.DataFrame:
    ranges = covered.sort("first")
    joined = rows.sort(OFFSET).join_asof(
        ranges, left_on=OFFSET, right_on="first", by=STREAM, strategy="backward", check_sortedness=False
    )
    return joined.filter((pl.col(OFFSET) > pl.col("last")).fill_null(value=True))


def _files(records: pl.DataFrame) -> set[str]:
    return set(records[_PATH].explode().drop_nulls().to_list())


def _blocked_ranges(log: ServingLog, table: DeltaTable) -> list[tuple[str, str, int, int]]:
    """Return first and last stream, and smallest and largest end of a record, of each file that cannot be read."""
    columns = (f"min.{STREAM}", f"max.{STREAM}", f"min.{OFFSET}", f"max.{OFFSET}")
    first, last, begin, end = (file_column(table, name) for name in columns)
    return [(first[path], last[path], begin[path], end[path]) for path in log.unreadable if path in end]


def _mark_taken_records(
    records: pl.DataFrame, due: datetime, most_rows: int, waiting_times: Collection[AnswerTimes]
) -> pl.DataFrame:
    """Mark the records to take: of each stream those before the first that is not due, as many as fit."""
    is_due = (pl.col("newest") <= due).fill_null(value=True).cum_min().over(STREAM)
    is_free = pl.lit(value=True)
    for first, last in waiting_times:
        is_free = is_free & ~((pl.col("oldest") <= last) & (pl.col("newest") >= first)).fill_null(value=False)
    may_be_taken = records.select(is_due & is_free).to_series().alias("may")
    counted = pl.when("may").then("rows").otherwise(0)
    rows_before = counted.cum_sum() - counted
    return records.with_columns(may_be_taken).with_columns(
        (pl.col("may") & (rows_before < most_rows)).alias(_TAKEN_COLUMN)
    )


def _spans(records: pl.DataFrame, blocked: Sequence[tuple[str, str, int, int]]) -> list[LogSpan]:
    """Return ranges of the taken records that hold no other record, be it known or in a file that cannot be read."""
    passed, inside = pl.lit(0), pl.lit(value=False)
    for first, last, begin, end in blocked:
        is_of_stream = pl.col(STREAM).is_between(pl.lit(first), pl.lit(last))
        passed = passed + (is_of_stream & (pl.col(OFFSET) > end)).cast(pl.Int32)
        inside = inside | (is_of_stream & pl.col(OFFSET).is_between(begin, end))
    alone = pl.when(inside).then(OFFSET)
    runs = records.with_columns(
        run=pl.struct(STREAM, _TAKEN_COLUMN, passed.alias("passed"), alone.alias("alone")).rle_id()
    )
    ends = runs.filter(_TAKEN_COLUMN).group_by("run", maintain_order=True).agg(
        pl.col(STREAM).first(), pl.col(OFFSET).first().alias("first"), pl.col(OFFSET).last().alias("last")
    )  # fmt: skip
    columns = ends.select(STREAM, "first", "last")
    return [LogSpan(writer=stream, first=first, last=last) for stream, first, last in columns.rows()]
