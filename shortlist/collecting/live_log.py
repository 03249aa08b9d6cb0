"""Rows of the prediction log that are in no batch yet, and whose outcomes are due."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
_PIECE: Final = pl.Schema(
    {STREAM: pl.String(), OFFSET: pl.Int64(), _PATH: pl.String(), "newest": pl.Datetime("us", "UTC"),
     "answers": pl.Int64(), "rows": pl.Int64()}
)  # fmt: skip


@dataclass
class MatureAnswers:
    """Whole records of the prediction log whose outcomes are due."""

    frames: list[pl.DataFrame] = field(default_factory=list)
    """Rows of the records, with `PART`, the stream and the end of the record, and `PART_LINE`, the row's number in it
    from 1."""
    spans: list[LogSpan] = field(default_factory=list)
    """Ranges of records, by stream."""
    waiting: int = 0
    """Number of answers whose outcomes are not all due."""
    problems: list[str] = field(default_factory=list)
    """Messages about unreadable files, whose rows and later ones of their streams wait, and about records left out."""
    collected_files: frozenset[str] = frozenset()
    """Files of the table whose rows are all in batches, with this one."""


def mature_answers(
    log: ServingLog, covered: Mapping[str, int], due: datetime, most_rows: int, collected_files: frozenset[str]
) -> MatureAnswers:
    """Return the records of a prediction log that are in no batch, and whose answers are all old enough.

    Records of one stream are taken in the order in which they were written, without a gap.

    Args:
        log: The prediction log.
        covered: End of the last collected record, by stream.
        due: Outcomes of answers before this moment are due.
        most_rows: Number of rows after which no further record is added.
        collected_files: Files of the table whose rows are all covered; they are not read again.

    Raises:
        ShortlistError: The table cannot be read.
    """
    table = log.open_table()
    if table is None:
        return MatureAnswers()
    every_file = frozenset(file_column(table, "size_bytes"))
    records = _uncovered_records(log, table, every_file - collected_files, covered)
    readable = _readable_records(records, _blocked_streams(log, table))
    taken = _due_records(readable, due, most_rows)
    mature = MatureAnswers(problems=list(log.problems))
    mature.waiting = int(records["answers"].sum() or 0) - int(taken["answers"].sum() or 0)
    left = records.join(taken, on=_RECORD, how="anti")
    mature.collected_files = every_file - _files(left) - log.unreadable.keys()
    if taken.is_empty():
        return mature
    names = taken.select(*_RECORD)
    for rows in log.read_files(table, None, None, _files(taken)):
        of_batch = rows.join(names, on=_RECORD, how="semi", maintain_order="left")
        part = pl.concat_str(STREAM, pl.lit("-"), OFFSET).alias(PART)
        mature.frames.append(of_batch.with_columns(part, (pl.col(LINE).cast(pl.Int64) + 1).alias(PART_LINE)))
    ends = taken.group_by(STREAM).agg(pl.col(OFFSET).min().alias("first"), pl.col(OFFSET).max().alias("last"))
    mature.spans = [LogSpan(writer=stream, first=first, last=last) for stream, first, last in ends.sort(STREAM).rows()]
    return mature


def covered_records(batches: Iterable[CollectedBatch]) -> dict[str, int]:
    """Return the end of the last record in some batches, by stream."""
    last: dict[str, int] = {}
    for batch in batches:
        for span in batch.spans:
            last[span.writer] = max(span.last, last.get(span.writer, -1))
    return last


def _uncovered_records(
    log: ServingLog, table: DeltaTable, files: frozenset[str], covered: Mapping[str, int]
) -> pl.DataFrame:
    """Return stream, end, files, newest time, answers and rows of the records in some files that are in no batch."""
    frames = [pl.DataFrame(schema=_PIECE)]
    last = pl.col(STREAM).replace_strict(covered, default=-1, return_dtype=pl.Int64) if covered else pl.lit(-1)
    for path, rows in log.iter_files(table, [*_RECORD, "time", "scores"], None, set(files)):
        pieces = rows.filter(pl.col(OFFSET) > last).group_by(*_RECORD).agg(
            pl.lit(path).alias(_PATH), pl.col("time").max().alias("newest"), pl.len().alias("answers"),
            pl.col("scores").list.len().fill_null(0).sum().alias("rows"),
        )  # fmt: skip
        frames.append(pieces.cast(_PIECE))
    # A record that was written at midnight is in the files of two days.
    return pl.concat(frames).group_by(*_RECORD).agg(
        pl.col(_PATH), pl.col("newest").max(), pl.col("answers").sum(), pl.col("rows").sum()
    )  # fmt: skip


def _files(records: pl.DataFrame) -> set[str]:
    return set(records[_PATH].explode().drop_nulls().to_list())


def _blocked_streams(log: ServingLog, table: DeltaTable) -> list[tuple[str, str, int]]:
    """Return first and last stream, and the smallest end of a record, of each file that cannot be read."""
    columns = (f"min.{STREAM}", f"max.{STREAM}", f"min.{OFFSET}")
    first, last, end = (file_column(table, name) for name in columns)
    return [(first[path], last[path], end[path]) for path in log.unreadable if path in end]


def _readable_records(records: pl.DataFrame, blocked: Sequence[tuple[str, str, int]]) -> pl.DataFrame:
    """Return the records before those in files that cannot be read; later ones of the same streams wait."""
    for first, last, end in blocked:
        records = records.filter(~(pl.col(STREAM).is_between(pl.lit(first), pl.lit(last)) & (pl.col(OFFSET) >= end)))
    return records


def _due_records(records: pl.DataFrame, due: datetime, most_rows: int) -> pl.DataFrame:
    """Return the records to take: of each stream those before the first that is not due, as many as fit."""
    ordered = records.sort(*_RECORD)
    is_due = (pl.col("newest") <= due).fill_null(value=True)
    due_records = ordered.filter(is_due.cum_min().over(STREAM))
    before = pl.col("rows").cum_sum() - pl.col("rows")
    return due_records.filter(before < most_rows)
