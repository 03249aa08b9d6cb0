"""Validate the rows of a side table, and count the facts that table rules check."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from shortlist.contracts import Columns
from shortlist.data.rules.failures import split_failures
from shortlist.data.rules.keys import KeySet
from shortlist.data.rules.quarantine import ParquetFileWriter, QuarantineWriter
from shortlist.data.rules.row_rules import build_side_checks, find_broken_checks
from shortlist.spec.data import SideTable
from shortlist.storage.row_digest import row_hashes
from shortlist.storage.side_tables import side_path


@dataclass
class SideFacts:
    """Counts of a side table."""

    raw_rows: int
    """Rows of its files, including rejected ones."""
    quarantined: int
    """Rejected or quarantined rows."""
    rows: int = 0
    """Valid rows."""
    nulls: Counter[str] = field(default_factory=Counter)
    """Column -> number of valid rows without a value."""
    repeated_keys: int = 0
    """Rows with the key of an earlier row."""
    example: object = None
    """The first repeated key."""
    keys: KeySet = field(default_factory=KeySet)


def validate_side_table(
    table: SideTable, raw: Path, valid: Path, quarantine: QuarantineWriter, counts: dict[str, int], chunk_rows: int
) -> SideFacts:
    """Write the valid rows of a side table, quarantine the others, and return its facts.

    Args:
        table: The declared side table.
        raw: Folder that ingest wrote.
        valid: Folder of the valid log.
        quarantine: Writer of the quarantined rows.
        counts: Notes of ingest: raw_rows and rejected_rows.
        chunk_rows: Rows in memory at once.
    """
    facts = SideFacts(counts["raw_rows"], counts["rejected_rows"])
    source = pq.ParquetFile(side_path(raw, table))
    checks = build_side_checks(table)
    schema = pl.Schema(
        pl.DataFrame(source.schema_arrow.empty_table()).drop(Columns.SOURCE_FILE, Columns.SOURCE_LINE).schema
    )
    with source, ParquetFileWriter(side_path(valid, table), schema) as writer:
        for batch in source.iter_batches(chunk_rows):
            rows = pl.DataFrame(pl.from_arrow(batch))
            good_rows, refused = split_failures(rows, find_broken_checks(rows, checks))
            quarantine.append(refused)
            facts.quarantined += refused.height
            writer.append(good_rows)
            _add_rows(facts, table, good_rows)
    return facts


def _add_rows(facts: SideFacts, table: SideTable, rows: pl.DataFrame) -> None:
    facts.rows += rows.height
    facts.nulls.update({column.name: rows[column.name].null_count() for column in table.columns})
    repeated = rows[table.key].filter(~pl.Series(facts.keys.add(row_hashes(rows.select(table.key)))))
    if len(repeated):
        facts.example = repeated[0] if facts.example is None else facts.example
        facts.repeated_keys += len(repeated)
