"""Rows that may not stay: where they stood, which rule they broke, and what they held."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from shortlist.contracts import Columns

QUARANTINE_SCHEMA = pl.Schema(
    {
        Columns.SOURCE_FILE: pl.String,
        Columns.SOURCE_LINE: pl.Int64,
        Columns.RULE: pl.String,
        Columns.DETAIL: pl.String,
    }
)
_STEP_ROWS = 100_000


class ParquetFileWriter:
    """Writes one Parquet file piece by piece; the file exists, with no rows, even when nothing is appended."""

    def __init__(self, path: Path, schema: pl.Schema) -> None:
        self._schema = schema
        self._arrow = pl.DataFrame(schema=schema).to_arrow().schema
        self._writer = pq.ParquetWriter(path, self._arrow, compression="zstd")

    def append(self, frame: pl.DataFrame) -> None:
        """Write rows; their columns are matched by name."""
        if frame.height:
            rows = frame.select(self._schema.names()).cast(self._schema)
            self._writer.write_table(rows.to_arrow().cast(self._arrow))

    def close(self) -> None:
        """Write the file's end."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class QuarantineWriter(ParquetFileWriter):
    """Writes quarantined rows and counts them by rule."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, QUARANTINE_SCHEMA)
        self.by_rule: Counter[str] = Counter()

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return self.by_rule.total()

    def append(self, frame: pl.DataFrame) -> None:
        """Write rows with the columns of `QUARANTINE_SCHEMA`."""
        super().append(frame)
        self.by_rule.update(dict(frame.group_by(Columns.RULE).len().iter_rows()))

    def join(self, path: Path) -> None:
        """Write the rows of a quarantine file that was written on its own, as if they were appended here one by one."""
        file = pq.ParquetFile(path)
        with file:
            for group in range(file.num_row_groups):
                self.append(pl.DataFrame(pl.from_arrow(file.read_row_group(group))))

    def copy(self, path: Path) -> None:
        """Write the rows of another quarantine file too, without counting them here."""
        for batch in pq.ParquetFile(path).iter_batches(_STEP_ROWS):
            super().append(pl.DataFrame(pl.from_arrow(pa.Table.from_batches([batch]))))
