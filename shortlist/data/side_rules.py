"""The rows of a side table judged, and what the rules of the table need to know of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from shortlist.contracts import Columns
from shortlist.data.failures import split_failures
from shortlist.data.keys import KeySet
from shortlist.data.quarantine import ParquetFileWriter, QuarantineWriter
from shortlist.data.rules import broken_checks, side_checks
from shortlist.data.side_tables import side_path
from shortlist.spec.data import SideTable
from shortlist.storage.row_digest import row_hashes


@dataclass
class SideFacts:
    """A side table in numbers."""

    raw_rows: int
    """Rows of its files, rejected ones included."""
    quarantined: int
    """Rejected or quarantined rows."""
    rows: int = 0
    """Valid rows."""
    nulls: Counter[str] = field(default_factory=Counter)
    """Column -> valid rows without a value."""
    repeated_keys: int = 0
    """Rows whose key an earlier row has."""
    example: object = None
    """The first repeated key."""
    keys: KeySet = field(default_factory=KeySet)


def validate_side_table(
    table: SideTable, raw: Path, valid: Path, bad: QuarantineWriter, counts: dict[str, int], chunk_rows: int
) -> SideFacts:
    """Write the valid rows of a side table, quarantine the others, and return its facts.

    Args:
        table: What is declared.
        raw: The folder that ingest wrote.
        valid: The folder of the valid log.
        bad: Takes the quarantined rows.
        counts: What ingest noted: raw_rows and rejected_rows.
        chunk_rows: Rows held at once.
    """
    facts = SideFacts(counts["raw_rows"], counts["rejected_rows"])
    source = pq.ParquetFile(side_path(raw, table))
    checks = side_checks(table)
    schema = pl.Schema(
        pl.DataFrame(source.schema_arrow.empty_table()).drop(Columns.SOURCE_FILE, Columns.SOURCE_LINE).schema
    )
    with source, ParquetFileWriter(side_path(valid, table), schema) as writer:
        for batch in source.iter_batches(chunk_rows):
            rows = pl.DataFrame(pl.from_arrow(batch))
            good, refused = split_failures(rows, broken_checks(rows, checks))
            bad.append(refused)
            facts.quarantined += refused.height
            writer.append(good)
            _count(facts, table, good)
    return facts


def _count(facts: SideFacts, table: SideTable, rows: pl.DataFrame) -> None:
    facts.rows += rows.height
    facts.nulls.update({column.name: rows[column.name].null_count() for column in table.columns})
    repeated = rows[table.key].filter(~pl.Series(facts.keys.add(row_hashes(rows.select(table.key)))))
    if len(repeated):
        facts.example = repeated[0] if facts.example is None else facts.example
        facts.repeated_keys += len(repeated)
