"""Random logs for any declaration, fitted features, and models trained on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest

import models  # noqa: F401 - says how OpenMP threads wait, which torch reads once
from shortlist.contracts import Columns, Files
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.features.rows.transform import Transformer
from shortlist.features.values.columns import DeclaredColumns
from shortlist.spec.data import Column, Data, EventClock, Split
from shortlist.spec.features import Features
from shortlist.spec.load import load_spec
from shortlist.spec.models import ModelSection
from shortlist.spec.runtime import Runtime
from shortlist.storage import artefacts
from shortlist.storage.tables import DayTable, DayTableWriter
from shortlist.training.export import pack
from shortlist.training.train import train

DAYS = [date(2026, 3, 5) + timedelta(days=number) for number in range(5)]  # a change to summer time among them
ROWS = 300
TEXTS = ["", "a", "b", "Zürich, 漢字", "a" * 200, None]
HUGE = [2**63 - 1, -(2**63) + 2, -1, 0, 7, -(2**31), 2**53 + 1, None]

ALL_FEATURES: dict[str, Any] = {
    "source": {"kind": "files"},
    "columns": [
        {"name": "user_id", "type": "integer", "nullable": False},
        {"name": "item_id", "type": "string", "nullable": False},
        {"name": "page", "type": "string"},
        {"name": "number", "type": "integer"},
        {"name": "code", "type": "hex"},
        {"name": "price", "type": "number"},
        {"name": "words", "type": "tags"},
        {"name": "places", "type": "tags", "tag_type": "integer"},
        {"name": "made", "type": "date"},
        {"name": "query", "type": "vector"},
        {"name": "seconds", "type": "number", "known": "after"},
        {"name": "clicked", "type": "integer"},
    ],
    "label": "clicked",
    "labels": {
        "long": {"column": "seconds", "positive": {"at_least": 1}},
        "read": {"column": "seconds", "positive": {"at_most": 0}},
    },
    "clock": {"kind": "column", "column": "time", "unit": "s", "timezone": "America/New_York"},
    "user": "user_id",
    "item": "item_id",
    "side_tables": [
        {
            "name": "users",
            "path": "users.csv",
            "key": "user_id",
            "columns": [
                {"name": "user_id", "type": "integer"},
                {"name": "watched", "type": "tags"},
                {"name": "city", "type": "string"},
            ],
        },
        {
            "name": "items",
            "path": "items.csv",
            "key": "item_id",
            "columns": [
                {"name": "item_id", "type": "string"},
                {"name": "maker", "type": "integer"},
                {"name": "weight", "type": "number"},
                {"name": "topics", "type": "tags"},
                {"name": "released", "type": "date"},
                {"name": "picture", "type": "vector"},
            ],
        },
    ],
    "split": {"warmup_days": 1, "validation_days": 1, "test_days": 1},
}
FEATURES: list[dict[str, Any]] = [
    {"kind": "numeric", "each": ["price", "number", "weight", "code"]},
    {"kind": "numeric", "each": "price", "suffix": "standard", "fill": -3, "standardise": True},
    {"kind": "numeric", "each": ["price", "weight"], "suffix": "log", "clip": [-1, 5], "log": True},
    {"kind": "numeric", "each": "weight", "suffix": "low", "clip": [0.5, 1], "log": True, "standardise": True},
    {"kind": "age", "each": ["made", "released"]},
    {"kind": "cyclic", "period": "day", "name": "hour"},
    {"kind": "cyclic", "period": "week", "name": "weekday"},
    {"kind": "target", "key": "user_id", "name": "user_rate"},
    {"kind": "target", "key": "topics", "name": "topics_rate", "prior": 3, "window_days": 2},
    {"kind": "target", "key": ["user_id", "words"], "of": "seconds", "name": "user_words_seconds"},
    {"kind": "target", "key": ["user_id", "page"], "prior_key": "user_id", "name": "user_page_rate", "prior": 4},
    {"kind": "target", "key": ["user_id", "topics"], "prior_key": "topics", "skip_days": 1, "name": "topics_user_rate"},
    {"kind": "count", "key": "item_id", "name": "item_seen"},
    {"kind": "count", "key": "maker", "name": "maker_seen_2d", "window_days": 2},
    {"kind": "count", "key": "topics", "name": "topics_before", "skip_days": 1},
    {"kind": "target", "key": "words", "of": "seconds", "name": "words_before", "window_days": 1, "skip_days": 1},
    {"kind": "count", "key": ["user_id", "topics"], "of": "watched", "name": "user_topics_watched"},
    {"kind": "time_since", "key": "user_id", "name": "user_away", "cap_hours": 30},
    {"kind": "time_since", "key": ["user_id", "topics"], "name": "user_topics_away"},
    {"kind": "lag", "key": "user_id", "column": "seconds", "name": "last_seconds"},
    {"kind": "lag", "key": "item_id", "column": "seconds", "name": "item_last_seconds", "fill": -1},
    {"kind": "vocabulary", "each": ["page", "number", "user_id", "code", "city"], "min_rows": 3},
    {"kind": "vocabulary", "each": ["words", "places", "topics"], "max_values": 2},
    {"kind": "vocabulary", "each": "words", "suffix": "more_id", "max_values": 3},
    {"kind": "hash", "each": ["page", "number", "code"], "buckets": 17},
    {"kind": "hash", "each": "price", "suffix": "cut", "buckets": 2},
    {"kind": "hash", "each": "places", "buckets": 5},
    {"kind": "cross", "columns": ["page", "number"], "name": "page_x_number", "buckets": 5_003},
    {"kind": "cross", "columns": ["number", "page"], "name": "number_x_page", "buckets": 50},
    {"kind": "cross", "columns": ["city", "number", "made"], "name": "city_x_number_x_made", "buckets": 50},
    {"kind": "sequence", "of": "number", "key": "user_id", "last": 6, "name": "user_numbers", "min_rows": 3},
    {"kind": "sequence_score", "of": "item_id", "key": "user_id", "last": 6, "counts": "rows", "name": "follows",
     "refit_days": 1, "epochs": 1, "embedding_dim": 4},
    {"kind": "vector", "each": ["query", "picture"]},
    {"kind": "vector", "each": "query", "suffix": "plain", "normalise": False},
    {"kind": "similarity", "list": "watched", "vector": "picture", "name": "fit"},
]  # fmt: skip


@dataclass(frozen=True)
class Fitted:
    """A declaration, a random log of it, and its fitted features."""

    data: Data
    features: Features
    folder: Path

    @cached_property
    def transformer(self) -> Transformer:
        return Transformer.load(self.folder / "fitted", "cpu")

    @cached_property
    def looked_up(self) -> pl.DataFrame:
        """Rows of the last day, as serving looks them up: without label and outcomes."""
        log = DayTable.open(self.folder / "log", Files.LOG)
        rows = pl.concat([frame for part, frame in log.frames() if part == DAYS[-1]])
        column_names = self.transformer.plan.log_columns(self.transformer.plan.read)
        request_columns = [name for name in column_names if name not in (Columns.LABEL, "seconds")]
        return self.transformer.look_up(rows.select(request_columns), DAYS[-1])

    @cached_property
    def table(self) -> DayTable:
        fitted, out = self.folder / "fitted", self.folder / "table"
        return build_table(self.data, self.features, None, Runtime(engine="cpu"), self.folder / "log", fitted, out)

    def trained(self, kind: str, section: ModelSection, name: str) -> Path:
        """Return the folder of a packed model."""
        out = self.folder / name
        train(kind, section, self.table, Runtime(engine="cpu", seed=1), out / "model", out / "scores")
        pack(out / "model", self.folder / "fitted")
        return out / "model"


FitRandom = Callable[..., Fitted]


@pytest.fixture(scope="session")
def fit_random(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that fits features on a random log."""
    with pytest.MonkeyPatch.context() as patch:
        # Syncing hundreds of tiny files takes longer than everything else.
        patch.setattr(artefacts, "_sync", lambda path: None)

        def make(data: Data, features: Features) -> Fitted:
            folder = tmp_path_factory.mktemp("fitted")
            _write_log(folder / "log", data)
            fit(data, features, None, Runtime(engine="cpu"), folder / "log", folder / "fitted")
            return Fitted(data, features, folder)

        yield make


@pytest.fixture(scope="session")
def all_features(fit_random: FitRandom) -> Fitted:
    """A fitted log with every kind of feature, over every type of column."""
    return fit_random(Data.model_validate(ALL_FEATURES), Features.model_validate({"columns": FEATURES}))


@pytest.fixture(scope="session")
def fitted_spec(fit_random: FitRandom) -> Callable[[str], Fitted]:
    """Return a function that fits a shipped spec."""

    def make(name: str) -> Fitted:
        spec = load_spec(Path(__file__).parents[4] / "pipelines" / "specs" / f"{name}.yaml")
        split = Split(warmup_days=1, validation_days=1, test_days=1)  # the random log has few days
        return fit_random(spec.data.model_copy(update={"split": split}), spec.features)

    return make


def _write_log(folder: Path, data: Data) -> None:
    random = np.random.default_rng(5)
    (folder / "side").mkdir(parents=True)
    keys = {table.key for table in data.side_tables} | {data.user, data.item}
    values = {column.name: _keys_of(column, random) for column in data.columns if column.name in keys}
    writer = DayTableWriter(folder, Files.LOG, 250_000)
    zone = ZoneInfo(data.clock.timezone if isinstance(data.clock, EventClock) else "UTC")
    for number, day in enumerate(DAYS):
        columns = {_in_log(column.name, data): _random(column, ROWS, random, values) for column in data.columns}
        midnight = datetime.combine(day, time(), zone).astimezone(UTC)
        moments = sorted(midnight + timedelta(seconds=s) for s in (0, 21_600, *random.uniform(0, 79_000, ROWS - 2)))
        columns |= {
            Columns.LABEL: _clicks(pl.DataFrame(columns), data, random),
            Columns.TIME: pl.Series(moments, dtype=pl.Datetime("us", "UTC")),
            Columns.DAY: pl.Series([day] * ROWS),
            Columns.IMPRESSION: pl.Series(range(number * ROWS, (number + 1) * ROWS), dtype=pl.Int64),
        }
        writer.append(pl.DataFrame(columns))
    writer.close()
    for table in data.side_tables:
        rows = len(values[table.key]) - 2  # two keys are in no side table
        side = {column.name: _random(column, rows, random, {**values, table.key: []}) for column in table.columns}
        side[table.key] = values[table.key][:rows]
        items = values.get(data.item or "", pl.Series([0]))
        for column in table.columns:  # lists in the users' tables are histories
            if column.type == "tags" and table.key == data.user:
                side[column.name] = pl.Series([random.choice(items.to_numpy(), i % 4).tolist() for i in range(rows)])
        pl.DataFrame(side).write_parquet(folder / "side" / f"{table.name}.parquet")


def _clicks(rows: pl.DataFrame, data: Data, random: np.random.Generator) -> pl.Series:
    """Labels that depend on the user (or the first category) and on the first number."""
    category = data.user or next(column.name for column in data.columns if column.type == "hex")
    request_columns = [column for column in data.columns if column.known == "before" and column.name != data.label]
    number = next(column.name for column in request_columns if column.type in ("number", "integer") and column.nullable)
    liking = rows[category].hash(seed=1).to_numpy() % 97 / 97 - 0.5
    logit = 4 * liking + np.clip(rows[number].cast(pl.Float64).fill_null(0).to_numpy(), -2, 2)
    return pl.Series(random.random(ROWS) < 1 / (1 + np.exp(-logit))).cast(pl.Int8)


def _in_log(name: str, data: Data) -> str:
    return {data.label: Columns.LABEL, data.impression: Columns.IMPRESSION}.get(name, name)


def _keys_of(column: Column, random: np.random.Generator) -> pl.Series:
    if column.type == "string":
        return pl.Series([f"key {number}" for number in range(12)])
    return pl.Series(random.integers(-(2**62), 2**62, 12))


def _random(  # noqa: PLR0911 - one per type
    column: Column, rows: int, random: np.random.Generator, keys: dict[str, Any]
) -> pl.Series:
    if column.name in keys and len(keys[column.name]):
        return pl.Series(random.choice(keys[column.name].to_numpy(), rows))
    match column.type:
        case "string":
            return _draw_values(TEXTS, rows, random, pl.String, column.nullable)
        case "integer" | "hex":
            values = [0, 1, 2, None] if column.known == "after" else HUGE  # outcomes are summed
            return _draw_values(values, rows, random, pl.Int64, column.nullable)
        case "number":
            numbers = [*random.normal(0, 3, 40), -0.0, 0.0, 2.5, -1e15 - 0.5 if column.name == "price" else 1.0, None]
            if column.name == "weight":
                numbers += [math.inf, -math.inf]
            return _draw_values(numbers, rows, random, pl.Float64, column.nullable)
        case "date":
            return _draw_values(
                [*(day - timedelta(days=2) for day in DAYS), None], rows, random, pl.Date, column.nullable
            )
        case "vector":
            vectors = [*random.normal(0, 1, (8, 3)).tolist(), [0.0, 0.0, 0.0], None]
            return _draw_values(vectors, rows, random, pl.List(pl.Float32), column.nullable)
        case _:
            text = column.tag_type == "string"
            values = TEXTS if text else HUGE
            lists = [list(random.permutation(np.array(values, object))[: number % 6]) for number in range(30)]
            return _draw_values([*lists, None], rows, random, pl.List(pl.String if text else pl.Int64), column.nullable)


def _draw_values(values: list[Any], rows: int, random: np.random.Generator, dtype: Any, nullable: bool) -> pl.Series:
    candidates = [value for value in values if nullable or value is not None]
    return pl.Series([candidates[number] for number in random.integers(0, len(candidates), rows)], dtype=dtype)


@pytest.fixture(scope="session")
def declared() -> DeclaredColumns:
    """The declaration of `all_features`."""
    return DeclaredColumns(Data.model_validate(ALL_FEATURES))
