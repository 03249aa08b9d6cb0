from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from shortlist.contracts import Files
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.features.rows.transform import Transformer
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Runtime
from shortlist.storage import artefacts
from shortlist.storage.tables import DayTable, DayTableWriter

FIRST_DAY = date(2026, 3, 2)  # a Monday

SCHEMA = {
    "user_id": pl.Int64,
    "item_id": pl.Int64,
    "page": pl.String,
    "price": pl.Float64,
    "words": pl.List(pl.String),
    "made": pl.Date,
    "query": pl.List(pl.Float32),
    "seconds": pl.Float64,
    "likes": pl.Int64,
    "basket": pl.List(pl.Int64),
    "basket_times": pl.List(pl.Int64),
    "label": pl.Int8,
    "event_time": pl.Datetime("us", "UTC"),
    "day": pl.Date,
    "impression_id": pl.Int64,
}

DECLARED = {
    "source": {"kind": "files"},
    "columns": [
        {"name": "user_id", "type": "integer"},
        {"name": "item_id", "type": "integer"},
        {"name": "page", "type": "string"},
        {"name": "price", "type": "number"},
        {"name": "words", "type": "tags"},
        {"name": "made", "type": "date"},
        {"name": "query", "type": "vector"},
        {"name": "seconds", "type": "number", "known": "after"},
        {"name": "likes", "type": "integer", "known": "after", "nullable": False},
        {"name": "basket", "type": "tags", "tag_type": "integer"},
        {"name": "basket_times", "type": "tags", "tag_type": "integer"},
        {"name": "clicked", "type": "integer"},
    ],
    "label": "clicked",
    "clock": {"kind": "column", "column": "time", "unit": "s", "timezone": "UTC"},
    "user": "user_id",
    "item": "item_id",
    "side_tables": [
        {
            "name": "users",
            "path": "users.csv",
            "key": "user_id",
            "columns": [
                {"name": "user_id", "type": "integer"},
                {"name": "watched", "type": "tags", "tag_type": "integer"},
            ],
        },
        {
            "name": "homes",
            "path": "homes.csv",
            "key": "user_id",
            "columns": [{"name": "user_id", "type": "integer"}, {"name": "city", "type": "string"}],
        },
        {
            "name": "items",
            "path": "items.csv",
            "key": "item_id",
            "columns": [
                {"name": "item_id", "type": "integer"},
                {"name": "maker", "type": "integer"},
                {"name": "topics", "type": "tags"},
                {"name": "released", "type": "date"},
                {"name": "vector", "type": "vector"},
            ],
        },
    ],
    "split": {"warmup_days": 0, "validation_days": 1, "test_days": 1},
}

USERS = pl.DataFrame(
    {"user_id": [1, 2, 3, 4], "watched": [[10, 10, 20], [], [30, 99], [10]]},
    schema={"user_id": pl.Int64, "watched": pl.List(pl.Int64)},
)
HOMES = pl.DataFrame({"user_id": [1, 2, 3], "city": ["Oslo", "Rome", None]})
ITEMS = pl.DataFrame(
    {
        "item_id": [10, 20, 30],
        "maker": [7, 7, 8],
        "topics": [["a", "b"], ["b", "b"], None],
        "released": [date(2026, 3, 1), date(2026, 3, 3), None],
        "vector": [[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]],
    },
    schema={
        "item_id": pl.Int64,
        "maker": pl.Int64,
        "topics": pl.List(pl.String),
        "released": pl.Date,
        "vector": pl.Array(pl.Float32, 2),
    },
)

Row = dict[str, Any]


@dataclass(frozen=True)
class World:
    """A small shop: users 1-3 (watched lists), items 10, 20, 30 (makers, topics, vectors), and any log."""

    folder: Path
    clock: dict[str, Any]
    split: dict[str, int]

    @property
    def data(self) -> Data:
        return Data.model_validate({**DECLARED, "clock": {**DECLARED["clock"], **self.clock}, "split": self.split})

    def row(self, day: int = 0, hour: float = 12.0, **values: Any) -> Row:
        """Return an impression; day 0 is a Monday."""
        zone = ZoneInfo(self.data.clock.timezone)
        midnight = datetime.combine(FIRST_DAY + timedelta(days=day), datetime.min.time(), zone)
        default = {"user_id": 1, "item_id": 10, "label": 0, "likes": 0}
        return {**default, "event_time": midnight + timedelta(hours=hour), "day": midnight.date(), **values}

    def log(self, rows: Sequence[Row], name: str = "log", chunk_rows: int = 250_000) -> Path:
        """Write a valid log."""
        folder = self.folder / name
        (folder / "side").mkdir(parents=True)
        USERS.write_parquet(folder / "side" / "users.parquet")
        HOMES.write_parquet(folder / "side" / "homes.parquet")
        ITEMS.write_parquet(folder / "side" / "items.parquet")
        writer = DayTableWriter(folder, Files.LOG, chunk_rows)
        numbered = [{"impression_id": number, **row} for number, row in enumerate(rows)]
        frame = pl.DataFrame(numbered, schema_overrides=SCHEMA)
        missing = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in SCHEMA.items() if name not in frame.columns]
        writer.append(frame.with_columns(missing).select(*dict.fromkeys((*SCHEMA, *frame.columns))).cast(SCHEMA))
        writer.close()
        return folder

    def fit(
        self,
        log: Path,
        columns: Sequence[dict[str, Any]],
        name: str = "fitted",
        slices: Sequence[str] = (),
        previous: str | None = None,
        runtime: Runtime | None = None,
    ) -> Path:
        """Fit features on a log."""
        previous_folder = self.folder / previous if previous else None
        features, gates = Features.model_validate({"columns": list(columns)}), Gates(slices=tuple(slices))
        fit(self.data, features, gates, runtime or Runtime(engine="cpu"), log, self.folder / name, previous_folder)
        return self.folder / name

    def table(
        self, log: Path, columns: Sequence[dict[str, Any]], slices: Sequence[str] = (), name: str = "table"
    ) -> DayTable:
        """Fit features on a log and build its table."""
        fitted = self.fit(log, columns, f"{name}-fitted", slices)
        features, gates = Features.model_validate({"columns": list(columns)}), Gates(slices=tuple(slices))
        return build_table(self.data, features, gates, Runtime(engine="cpu"), log, fitted, self.folder / name)

    def features(self, rows: Sequence[Row], *columns: dict[str, Any], name: str = "world") -> pl.DataFrame:
        """Return the table's rows, in order of time."""
        table = self.table(self.log(rows, f"{name}-log"), columns, name=name)
        return table.scan().sort("impression_id").collect()

    def transformer(self, log: Path, *columns: dict[str, Any]) -> Transformer:
        """Return the transformer of a fit."""
        return Transformer.load(self.fit(log, columns), "cpu")


@pytest.fixture
def no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: syncing hundreds of small files takes longer than the tests."""
    monkeypatch.setattr(artefacts, "_sync", lambda path: None)


@pytest.fixture
def world(tmp_path: Path, no_power_cut: None) -> World:
    return World(tmp_path, {}, {"warmup_days": 0, "validation_days": 1, "test_days": 1})


@pytest.fixture
def world_in(tmp_path: Path, no_power_cut: None) -> Callable[[str], World]:
    """Return a world whose days begin at midnight of a timezone."""

    def make(timezone: str) -> World:
        return World(tmp_path, {"timezone": timezone}, {"warmup_days": 0, "validation_days": 1, "test_days": 1})

    return make
