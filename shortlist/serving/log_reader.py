"""Reading a log that others are still writing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from shortlist.serving.logs import PART

_PARTS = PART.replace("{number:06d}", "*")


def parts(folder: Path) -> list[Path]:
    """Return the whole files of a log, those of one process in the order in which they were written."""
    return sorted([*folder.glob(_PARTS), *folder.glob(f"*/{_PARTS}")])


def read_new(folder: Path, seen: set[str], schema: pa.Schema) -> pl.DataFrame:
    """Return the rows of the files that are new, and note those files.

    Args:
        folder: Of the log; it need not be there yet.
        seen: Names of files that were read before; the new ones are added.
        schema: Of the log.
    """
    new = [path for path in parts(folder) if str(path.relative_to(folder)) not in seen]
    rows = _read(new, schema)
    seen.update(str(path.relative_to(folder)) for path in new)
    return rows


def read_log(folder: Path, schema: pa.Schema) -> pl.DataFrame:
    """Return all rows of a log."""
    return _read(parts(folder), schema)


def _read(paths: Iterable[Path], schema: pa.Schema) -> pl.DataFrame:
    tables = [pq.read_table(path, schema=schema, partitioning=None) for path in paths]
    rows = pl.from_arrow(pa.concat_tables([schema.empty_table(), *tables]))
    assert isinstance(rows, pl.DataFrame)
    return rows
