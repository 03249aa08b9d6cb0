"""Rows of the prediction log and the outcome log, as servers and applications append them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from shortlist.serving.log.log_rows import encode_rows
from shortlist.serving.log.logs import RECEIVED
from shortlist.serving.log.serving_log import ServingLog, stream_folder
from shortlist.serving.log.table_committer import TableCommitter
from shortlist.storage.append_log.writer import AppendLog


def append_rows(folder: Path, schema: pa.Schema, rows: Sequence[Mapping[str, Any]], stream: int = 0) -> None:
    """Append rows to a stream of a log, as one record; an outcome is received when it happens, unless it says more."""
    own = {RECEIVED: None} if RECEIVED in schema.names else {}
    full = [{**own, **row} for row in rows]
    if own:
        full = [{**row, RECEIVED: row[RECEIVED] or row.get("time")} for row in full]
    log = AppendLog(stream_folder(folder) / f"stream-{stream:03d}")
    log.append([encode_rows(pa.Table.from_pylist(full, schema=schema))]).result()
    log.close()


def write_rows(
    folder: Path, schema: pa.Schema, rows: Sequence[Mapping[str, Any]], stream: int = 0, table: str = ""
) -> Path:
    """Append rows and commit them; return the newest file of the table."""
    append_rows(folder, schema, rows, stream)
    TableCommitter(stream_folder(folder), table or str(folder)).commit()
    return max(folder.rglob("day=*/*.parquet"), key=lambda path: path.stat().st_mtime_ns, default=folder)


def logged_rows(folder: Path, schema: pa.Schema) -> Any:
    """Return all rows of a log, without their places."""
    return ServingLog.on_disk(folder, schema).read_all(schema.names)
