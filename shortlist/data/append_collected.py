"""Appends the rows collected from live traffic to those of the log; each is judged by itself.

Clients send these rows. One that is not as declared goes into the quarantine with its reason, and so does what one
request, one user or one sender contributes beyond its share of a day; none of them stops a run.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Final

import polars as pl

from shortlist.contracts import Columns
from shortlist.data.base_rows import BaseRows, as_of_answer, clock_failures
from shortlist.data.collected import CollectedRows
from shortlist.data.rules.contributions import AMOUNT, CONTRIBUTORS, ROW_ID, find_excesses
from shortlist.data.rules.failures import RowFailure, find_failures, flag_failed_rows, split_failures
from shortlist.data.rules.quarantine import QuarantineWriter
from shortlist.data.rules.row_rules import build_log_checks, find_broken_checks
from shortlist.spec.data import Data
from shortlist.storage.tables import DayPart, DayTable, DayTableWriter, iter_row_groups

AFTER_LOG: Final = "after_log"
"""Rule of collected rows: they are later than all rows of the declared source, and would count twice otherwise."""
SHARE: Final = "share"
"""Rule of collected rows: nobody contributes more than a share of a day (`data.live.max_share`)."""
_INDEX: Final = "collected.json"
_BROKEN: Final = ":broken"


@dataclass
class LogCounts:
    """Numbers of the rows of the files of a log, or of live traffic."""

    rows: int = 0
    """All of them, with those in quarantine."""
    by_rule: Counter[str] = field(default_factory=Counter)
    """Quarantined rows by the rule that they broke."""
    batches_by_day: dict[date, list[int]] = field(default_factory=dict)
    """Numbers of the batches of live traffic with rows of a day."""


class CollectedAppender:
    """Appends collected rows to a raw log.

    Args:
        data: The log's declaration.
        base: The rows of the declared source, all of which are written.
        writer: Writer of the raw log.
        rejected: Writer of its quarantine.
        scratch: Folder to make, for the rows by day; it is removed.
        chunk_rows: Rows in memory at once, but for the contributors of a day's rows.
    """

    def __init__(
        self, data: Data, base: BaseRows, writer: DayTableWriter, rejected: QuarantineWriter, scratch: Path,
        chunk_rows: int,
    ) -> None:  # fmt: skip
        self._data, self._base, self._writer, self._rejected = data, base, writer, rejected
        self._scratch, self._chunk_rows = scratch, chunk_rows
        self._checks = build_log_checks(data)

    def append(self, collected: CollectedRows) -> LogCounts:
        """Append the rows of all batches, which validation checks like all others, and return their numbers.

        Raises:
            DataError: A batch is missing or changed.
        """
        self._writer.flush()  # no file holds rows of both
        self._scratch.mkdir()  # also where there is no row yet
        counts, file_rules = LogCounts(), Counter(self._rejected.by_rule)
        by_day = DayTableWriter(self._scratch, _INDEX, self._chunk_rows)
        for number, batch_rows, lost_rows in collected.iter_frames():
            self._rejected.append(lost_rows)
            counts.rows += lost_rows.height
            if not batch_rows.height:
                continue
            rows = self._drop_before_since(as_of_answer(batch_rows, self._data))
            counts.rows += rows.height
            accepted_rows = self._judge(rows)
            by_day.append(accepted_rows)
            for day in accepted_rows[Columns.DAY].unique():
                counts.batches_by_day.setdefault(day, []).append(number)
        table = by_day.close()
        for part in table.days:
            for rows in self._within_shares(table, part):
                self._writer.append(rows)
        shutil.rmtree(self._scratch, ignore_errors=True)
        counts.by_rule = self._rejected.by_rule - file_rules
        return counts

    def _drop_before_since(self, rows: pl.DataFrame) -> pl.DataFrame:
        since = self._data.live.since
        return rows if since is None else rows.filter(pl.col(Columns.TIME) >= since)

    def _judge(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Quarantine rows that are not of the log; return the others as it stores them, and who contributed them."""
        assert self._base.schema is not None
        rows = rows.with_columns(
            # Planted columns of a generated log are unknown for live traffic; columns declared later are null.
            pl.lit(None, kind).alias(name)
            for name, kind in self._base.schema.items()
            if name not in rows.columns
        ).with_columns(
            pl.lit(None, kind).alias(name) for name, kind in CONTRIBUTORS.items() if name not in rows.columns
        )
        failures = [*clock_failures(rows, self._data), *self._order_failures(rows), *self._type_failures(rows)]
        rows, refused = split_failures(rows, failures)
        self._rejected.append(refused)
        schema = pl.Schema({**self._base.schema, **CONTRIBUTORS})
        rows = rows.select(schema.names()).cast(schema)
        # Validation quarantines them; they are of nobody's share.
        is_broken = flag_failed_rows(rows.height, find_broken_checks(rows, self._checks))
        return rows.with_columns(is_broken.alias(_BROKEN))

    def _order_failures(self, rows: pl.DataFrame) -> list[RowFailure]:
        newest = self._base.newest
        if newest is None:
            return []
        expected = (
            f"a time after the newest row of the log, {newest:%Y-%m-%d %H:%M:%S} UTC; the log must end before live"
            " traffic begins, or live.since says from which moment on rows are collected"
        )
        return find_failures(AFTER_LOG, rows[Columns.TIME] <= newest, Columns.TIME, rows[Columns.TIME], expected)

    def _type_failures(self, rows: pl.DataFrame) -> Iterator[RowFailure]:
        """Yield failures of values that had another type when they were served, and cannot be converted."""
        assert self._base.schema is not None
        for name, kind in self._base.schema.items():
            values = rows[name]
            if values.dtype != kind:
                is_lost = values.is_not_null() & values.cast(kind, strict=False).is_null()
                yield from find_failures("type", is_lost, name, values, f"a value of type {kind}, as declared now")

    def _within_shares(self, table: DayTable, part: DayPart) -> Iterator[pl.DataFrame]:
        """Yield a day's rows without those beyond a share, which are quarantined."""
        item = () if self._data.item is None else (self._data.item,)
        # Hashes, so that memory does not grow with the lengths of names.
        names = pl.col(*item, *CONTRIBUTORS)
        hashes = pl.when(names.is_not_null()).then(names.hash())
        keys = table.scan({part.day}).select(Columns.IMPRESSION, _BROKEN, hashes.name.keep()).collect()
        judged = keys.with_row_index("place").filter(~pl.col(_BROKEN))
        judged = judged.with_columns(pl.col(Columns.IMPRESSION).alias(ROW_ID), pl.lit(1).alias(AMOUNT))
        excess = find_excesses(judged, self._data.live.max_share, *item)
        reasons = pl.repeat(None, keys.height, dtype=pl.String(), eager=True).scatter(judged["place"], excess)
        start, limit = 0, f" (live.max_share {self._data.live.max_share:.2%})"
        for rows in (piece for path in table.paths({part.day}) for piece in iter_row_groups(path)):
            detail = reasons.slice(start, rows.height)
            start += rows.height
            failures = [RowFailure(SHARE, detail.is_not_null(), detail.drop_nulls() + limit)] if detail.count() else []
            accepted_rows, refused = split_failures(rows.drop(*CONTRIBUTORS, _BROKEN), failures)
            self._rejected.append(refused)
            yield accepted_rows
