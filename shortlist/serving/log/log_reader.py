"""Reading a log that others are still writing."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from polars.exceptions import PanicException, PolarsError

from shortlist.contracts import ShortlistError
from shortlist.serving.log.logs import PART, REQUIRED_COLUMNS

_ADVICE = "restore the file, or move it out of the log, and run again"
_BROKEN = (pa.ArrowException, OSError, UnicodeError, MemoryError, PolarsError, PanicException)
_PARTS = PART.replace("{number:06d}", "*")


class LogPartError(ShortlistError):
    """A file of a log that is torn, or holds other columns."""


def parts(folder: Path) -> list[Path]:
    """Return the whole files of a log, those of one process in the order in which they were written."""
    return sorted([*files_of(folder, _PARTS), *files_of(folder, f"*/{_PARTS}")])


def files_of(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder that match a pattern, in no order; a folder that is gone has none.

    `Path.glob` raises FileNotFoundError when a folder is removed while it is listed, as writers' folders are.
    """
    return [folder / name for name in glob.iglob(pattern, root_dir=folder, recursive=True)]  # noqa: PTH207  (see above)


def read_log(folder: Path, schema: pa.Schema) -> pl.DataFrame:
    """Return all rows of a log.

    Raises:
        LogPartError: A file is torn, or holds other columns.
    """
    return read_parts(parts(folder), schema)


def read_parts(paths: Iterable[Path], schema: pa.Schema, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Return the rows of some files of a log, in their order.

    Versions of a spec may declare other columns, and so does an earlier Shortlist: an input that a file does not hold
    is null, and a column that is not in the schema is left out.

    Args:
        paths: The files.
        schema: Of the log.
        columns: Those that are wanted; None for all.

    Raises:
        LogPartError: A file is torn, lacks a column without which its rows say nothing, or holds one of another type.
    """
    every = _as_polars(schema)
    wanted = every if columns is None else pl.Schema({name: every[name] for name in columns})
    return pl.concat([pl.DataFrame(schema=wanted), *(_read(path, every, wanted) for path in paths)])


def _read(path: Path, every: pl.Schema, wanted: pl.Schema) -> pl.DataFrame:
    try:
        # Not Polars: it ends the whole process on some of the files that are spoilt.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            found = _as_polars(file.schema_arrow.remove_metadata())
            _check(path, found, every)
            # Threads are slower: most parts are small.
            table = file.read([name for name in wanted if name in found], use_threads=False)
            rows = pl.from_arrow(table)
        assert isinstance(rows, pl.DataFrame)
        missing = [pl.lit(None, kind).alias(name) for name, kind in wanted.items() if name not in found]
        return rows.with_columns(missing).select(wanted.names()).cast(wanted)
    except _BROKEN as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LogPartError(f"{path}: cannot be read ({said}); wanted a whole Parquet file; {_ADVICE}") from None


def _check(path: Path, found: pl.Schema, every: pl.Schema) -> None:
    for name, kind in every.items():
        if name not in found and name in REQUIRED_COLUMNS:
            raise LogPartError(f"{path}: got no column '{name}' ({', '.join(found)}); {_ADVICE}")
        if name in found and not _fits(found[name], kind):
            raise LogPartError(f"{path}: column '{name}': got {found[name]}; wanted {kind}; {_ADVICE}")


@cache
def _as_polars(schema: pa.Schema) -> pl.Schema:
    empty = pl.from_arrow(schema.empty_table())
    assert isinstance(empty, pl.DataFrame)
    return empty.schema


def _fits(got: Any, wanted: Any) -> bool:
    if isinstance(got, pl.List) and isinstance(wanted, pl.List):
        return _fits(got.inner, wanted.inner)
    if isinstance(got, pl.Datetime) and isinstance(wanted, pl.Datetime):
        return got.time_zone is not None
    whole = got.is_integer() or got == pl.Boolean
    return bool(got in (wanted, pl.Null)) or (wanted.is_integer() and whole) or (wanted.is_float() and got.is_float())
