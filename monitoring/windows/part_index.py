"""What the parts of a log are about, quarter hour by quarter hour: each part is looked into once, and then known."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final, Self

import polars as pl
import pyarrow as pa
from polars.exceptions import PolarsError

from shortlist.serving.log.log_reader import LogPartError, parts, read_parts

QUARTER: Final = "quarter"
_TIME: Final = pl.Datetime("us", "UTC")
SUMMARY: Final = pl.Schema({QUARTER: _TIME, "requests": pl.Int64(), "rows": pl.Int64(), "first": _TIME, "last": _TIME})
"""Start of the quarter hour, requests and rows that are about it, first and last moment of writing.

A quarter, because every timezone's midnight is at one."""
_KEPT: Final = pl.Schema({"file": pl.String(), "size": pl.Int64(), "changed": pl.Int64(), **SUMMARY})
_MOST_ROWS: Final = 200_000
"""Rows read at once, about; a part is never cut."""


class PartIndex:
    """The parts below a folder; none of them ever changes, so that only new ones are looked into."""

    def __init__(
        self, folder: Path, schema: pa.Schema, columns: Sequence[str],
        summary: Callable[[pl.DataFrame], pl.DataFrame], kept: Path,
    ) -> None:  # fmt: skip
        """Begin with what an earlier process knew.

        Args:
            folder: Of the log; it need not be there yet.
            schema: Of the log.
            columns: Those that the summary reads.
            summary: Gives the `SUMMARY` of a part's rows.
            kept: File in which the index outlives the process; a lost or foreign one is only made again.
        """
        self._folder, self._schema, self._columns = folder, schema, columns
        self._summary, self._kept = summary, kept
        self._unreadable: dict[str, str] = {}
        self.known = self._read_kept()
        """One row per part and quarter hour: file, size, changed and `SUMMARY`; a part about nothing has one row."""

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Parts that cannot be read: why, and what to do."""
        return tuple(self._unreadable.values())

    def refresh(self) -> None:
        """Look into the parts that are new, and forget those that are gone."""
        listed = dict(self._listed())
        known = {file: (size, changed) for file, size, changed in self._files().iter_rows()}
        self._unreadable = {name: said for name, said in self._unreadable.items() if name in listed}
        frames = [self.known.filter(pl.col("file").is_in([name for name in known if listed.get(name) == known[name]]))]
        frames += self._look([name for name in listed if listed[name] != known.get(name)], listed)
        if len(frames) > 1 or frames[0].height < self.known.height:
            self.known = pl.concat(frames)
            self._keep()

    def refreshed(self) -> Self:
        """Return itself, after a `refresh`."""
        self.refresh()
        return self

    def empty(self) -> pl.DataFrame:
        """Return no rows, with every column."""
        return read_parts([], self._schema)

    def about(self, start: datetime, end: datetime) -> pl.DataFrame:
        """Return the parts that hold requests of a stretch of time; file and rows (of all times), in order."""
        inside = self.known.filter(pl.col(QUARTER) >= start, pl.col(QUARTER) < end).select("file").unique()
        return self._with_rows(inside)

    def written(self, since: datetime, until: datetime | None = None) -> pl.DataFrame:
        """Return the parts that hold something written in a stretch of time, or at no known time; as `about` does."""
        inside = self.known.filter((pl.col("last") >= since).fill_null(pl.col("requests") > 0))
        inside = inside if until is None else inside.filter((pl.col("first") <= until).fill_null(value=True))
        return self._with_rows(inside.select("file").unique())

    def read(self, files: pl.DataFrame, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        """Yield the rows of some parts, a bounded number at once; what cannot be read is noted.

        Args:
            files: What `about` or `written` gave.
            columns: Those that are wanted; None for all.
        """
        batch = files["rows"].cum_sum() // _MOST_ROWS
        for (_,), some in files.with_columns(batch=batch).group_by("batch", maintain_order=True):
            yield self._readable(some["file"].to_list(), columns)

    def _readable(self, names: list[str], columns: Sequence[str] | None) -> pl.DataFrame:
        try:
            return read_parts([self._folder / name for name in names], self._schema, columns)
        except LogPartError as error:
            if len(names) == 1:
                self._unreadable[names[0]] = str(error)
                return read_parts([], self._schema, columns)
            return pl.concat(self._readable([name], columns) for name in names)

    def _look(self, names: list[str], listed: dict[str, tuple[int, int]]) -> Iterator[pl.DataFrame]:
        for name in names:
            self._unreadable.pop(name, None)
            summary = self._summary(self._readable([name], self._columns))
            if name in self._unreadable:
                continue
            nothing = pl.DataFrame({QUARTER: [None], "requests": [0], "rows": [0], "first": [None], "last": [None]})
            frame = summary if summary.height else nothing
            size, changed = listed[name]
            own = pl.lit(name).alias("file"), pl.lit(size).alias("size"), pl.lit(changed).alias("changed")
            yield frame.with_columns(own).select(_KEPT.names()).cast(_KEPT)

    def _listed(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for path in parts(self._folder):
            with suppress(FileNotFoundError):  # an old part that its owner removed
                stat = path.stat()
                yield str(path.relative_to(self._folder)), (stat.st_size, stat.st_mtime_ns)

    def _files(self) -> pl.DataFrame:
        return self.known.select("file", "size", "changed").unique()

    def _with_rows(self, files: pl.DataFrame) -> pl.DataFrame:
        rows = self.known.group_by("file").agg(pl.col("requests").sum() + pl.col("rows").sum())
        return files.join(rows.rename({"requests": "rows"}), on="file").sort("file")

    def _read_kept(self) -> pl.DataFrame:
        try:
            kept = pl.read_parquet(self._kept)
        except (PolarsError, OSError):
            return pl.DataFrame(schema=_KEPT)
        return kept if kept.schema == _KEPT else pl.DataFrame(schema=_KEPT)

    def _keep(self) -> None:
        staging = self._kept.with_name(f"{self._kept.name}.{os.getpid()}.partial")
        with suppress(PolarsError, OSError):  # without it, the next process looks into every part again
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            self.known.write_parquet(staging, compression="zstd")
            staging.replace(self._kept)
