"""A served spec with the logs of two servers and their users, and its collector."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from shortlist.collecting.collector import Collector, CollectorRun
from shortlist.data.base_rows import clock_failures
from shortlist.data.collected import ANSWERED, ROWS, CollectedLog
from shortlist.data.rules.contributions import CONTRIBUTORS
from shortlist.data.rules.failures import split_failures
from shortlist.data.rules.row_rules import build_log_checks, find_broken_checks
from shortlist.serving.log.logs import item_type, outcome_columns, outcome_schema, prediction_schema
from shortlist.serving.paths import ServingPaths
from shortlist.spec.data import Data
from shortlist.spec.serving import Serving
from tests.served_log import write_rows

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
DECLARED: dict[str, Any] = {
    "source": {"kind": "files", "path": "log.csv"},
    "columns": [
        {"name": "user_id", "type": "integer", "nullable": False},
        {"name": "item_id", "type": "string"},
        {"name": "page", "type": "string"},
        {"name": "price", "type": "number", "min": 0},
        {"name": "seconds", "type": "number", "known": "after"},
        {"name": "clicked", "type": "integer"},
    ],
    "label": "clicked",
    "user": "user_id",
    "item": "item_id",
    "clock": {"kind": "column", "column": "time", "unit": "iso"},
    "rules": {"min_rows": 1},
    "outcome_delay": "10m",
    "live": {"collect": True, "settle": "1m"},
}


def minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


@dataclass
class Shop:
    """A served spec with its logs."""

    folder: Path
    declared: dict[str, Any] = field(default_factory=lambda: DECLARED)
    serving: Serving = field(default_factory=Serving)

    @property
    def stores(self) -> str:
        return f"{self.folder / 'runs' / 'stores'}#1"

    @property
    def paths(self) -> ServingPaths:
        return ServingPaths.for_spec(self.folder / "runs", "shop")

    @property
    def data(self) -> Data:
        return Data.model_validate(self.declared)

    @property
    def log(self) -> CollectedLog:
        return CollectedLog.open(self.stores, "shop")

    def answer(self, *answers: dict[str, Any], server: int = 0) -> Path:
        """Write a record of the prediction log, and return its file; by default an answer at noon about two items."""
        common = {"time": NOON, "user": "1", "track": "stable", "version": 3, "status": 200, "digest": "0" * 16}
        answer_columns = {
            "items": ["i0", "i1"],
            "scores": [0.25, 0.5],
            "user_id": [1],
            "page": ["home"],
            "price": [1.0, 2.0],
        }
        rows = [{**common, **answer_columns, **answer} for answer in answers]
        return write_rows(self.paths.predictions, prediction_schema(self.data), rows, server)

    def outcome(self, *outcomes: dict[str, Any]) -> Path:
        """Write a record of the outcome log, and return its file; by default a click a minute after noon."""
        schema = outcome_schema(item_type(self.data), outcome_columns(self.data))
        rows = [{"time": NOON + minutes(1), "label": 1, **outcome} for outcome in outcomes]
        return write_rows(self.paths.outcomes, schema, rows)

    def collector(self, log: CollectedLog | None = None, most_rows: int = 500_000) -> Collector:
        return Collector("shop", self.stores, self.data, self.serving, most_rows, log)

    def collect(self, delay: timedelta = timedelta(minutes=12), **options: Any) -> CollectorRun:
        return self.collector(**options).collect(NOON + delay)

    def rows(self) -> pl.DataFrame:
        """Return the collected rows that pass the current rules, in the order of their batches."""
        return self._judged()[0].drop(ANSWERED, *CONTRIBUTORS)

    def quarantine(self) -> pl.DataFrame:
        return self._judged()[1]

    def _judged(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        frames = [pl.read_parquet(files / ROWS) for _, files in self.log.fetch_batches(self.log.batches())]
        rows = pl.concat([frame for frame in frames if frame.height])
        return split_failures(
            rows, clock_failures(rows, self.data) + find_broken_checks(rows, build_log_checks(self.data))
        )
