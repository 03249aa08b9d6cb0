"""The quarantine: rows that failed a rule, with file, line, rule and reason."""

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
_BATCH_ROWS = 100_000


class ParquetFileWriter:
    """Writes one Parquet file frame by frame; without any frame, the file has no rows."""

    def __init__(self, path: Path, schema: pl.Schema) -> None:
        self._schema = schema
        self._arrow = pl.DataFrame(schema=schema).to_arrow().schema
        self._writer = pq.ParquetWriter(path, self._arrow, compression="zstd")

    def append(self, frame: pl.DataFrame) -> None:
        """Append rows, with columns matched by name."""
        if frame.height:
            rows = frame.select(self._schema.names()).cast(self._schema)
            self._writer.write_table(rows.to_arrow().cast(self._arrow))

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
        """Append rows with the columns of `QUARANTINE_SCHEMA`."""
        super().append(frame)
        self.by_rule.update(dict(frame.group_by(Columns.RULE).len().iter_rows()))

    def copy_uncounted(self, path: Path) -> None:
        """Append the rows of another quarantine file without counting them."""
        for batch in pq.ParquetFile(path).iter_batches(_BATCH_ROWS):
            super().append(pl.DataFrame(pl.from_arrow(pa.Table.from_batches([batch]))))
