"""A small feature table with planted click probabilities, shared by the tests of the models."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import models  # noqa: F401 - says how OpenMP threads wait, which torch reads once, when a test module imports it
from shortlist.contracts import Columns, Files
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable, DayTableWriter

FIRST_DAY = date(2026, 1, 5)
USERS, ITEMS, TAGS = 40, 30, 10
COLUMNS = [
    {"name": "user_id", "kind": "id", "size": USERS, "width": None},
    {"name": "item_id", "kind": "id", "size": ITEMS, "width": None},
    {"name": "tags_id", "kind": "ids", "size": TAGS, "width": None},
    {"name": "age", "kind": "dense", "size": None, "width": None},
    {"name": "text", "kind": "vector", "size": None, "width": 3},
]
MakeTable = Callable[..., DayTable]


@pytest.fixture
def make_table(tmp_path: Path) -> MakeTable:
    """Return a function that writes a table: one warm-up day, `train_days` days, one to validate, one to test."""
    return lambda name="table", **options: _write(tmp_path / name, **options)


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> DayTable:
    """Return a table with two training days, only to be read."""
    return _write(tmp_path_factory.mktemp("table") / "table")


@pytest.fixture
def test_rows(table: DayTable) -> pl.DataFrame:
    """Return the rows of the test day."""
    return pl.concat([frame for day, frame in table.frames() if day == table.days[-1].day])


@pytest.fixture
def runtime() -> Runtime:
    """Return a runtime on the CPU with a fixed seed."""
    return Runtime(engine="cpu", seed=3)


def _write(folder: Path, rows_per_day: int = 1_500, train_days: int = 2, seed: int = 1) -> DayTable:
    days = [FIRST_DAY + timedelta(days=i) for i in range(train_days + 3)]
    writer = DayTableWriter(folder, Files.TABLE, chunk_rows=1_000)
    world = np.random.default_rng(0)
    effects = {
        "user": world.normal(0, 1.5, USERS),
        "item": world.normal(0, 1.0, ITEMS),
        "tag": world.normal(0, 1, TAGS),
    }
    random = np.random.default_rng(seed)
    for i, day in enumerate(days):
        writer.append(_day(day, i * rows_per_day, rows_per_day, effects, random))
    named = [str(day) for day in days]
    split = {"warmup": named[:1], "train": named[1:-2], "validation": named[-2:-1], "test": named[-1:]}
    return writer.close({"columns": COLUMNS, "split": split})


def _day(day: date, first: int, rows: int, effects: dict[str, np.ndarray], random: np.random.Generator) -> pl.DataFrame:
    user = random.integers(0, USERS, rows)
    item = random.integers(0, ITEMS, rows)
    tags = [random.integers(0, TAGS, random.integers(0, 4)) for _ in range(rows)]
    age = random.normal(40, 10, rows)
    text = random.normal(0, 1, (rows, 3)).astype(np.float32)
    tag_effect = np.array([effects["tag"][row].mean() if len(row) else 0.0 for row in tags])
    logit = -1 + effects["user"][user] + effects["item"][item] + tag_effect + (age - 40) / 20 + text[:, 0] / 2
    probability = 1 / (1 + np.exp(-logit))
    return pl.DataFrame(
        {
            Columns.LABEL: pl.Series((random.random(rows) < probability).astype(np.int8)),
            Columns.TIME: pl.Series([datetime.combine(day, time(), UTC)] * rows, dtype=pl.Datetime("us", "UTC")),
            Columns.DAY: [day] * rows,
            Columns.IMPRESSION: np.arange(first, first + rows),
            Columns.USER: user,
            Columns.ITEM: [f"item-{i}" for i in item],
            "cold_user": [False] * rows,
            "cold_item": [False] * rows,
            "slice_tab": ["home"] * rows,
            Columns.BEST: probability,
            # Of a stream of its own: it depends on the item alone, and is rarer.
            "label_like": (effects["item"][item] + np.random.default_rng(first).logistic(0, 1, rows) > 1.5).astype(
                np.int8
            ),
            "label_never": np.zeros(rows, np.int8),
            "user_id": pl.Series(user, dtype=pl.UInt32),
            "item_id": pl.Series(item, dtype=pl.UInt32),
            "tags_id": pl.Series([row.tolist() for row in tags], dtype=pl.List(pl.UInt32)),
            "age": pl.Series([None if i % 50 == 0 else value for i, value in enumerate(age)], dtype=pl.Float32),
            "text": pl.Series(text, dtype=pl.Array(pl.Float32, 3)),
        }
    )


def _likes(effect: np.ndarray, first: int) -> np.ndarray:
    noise = np.random.default_rng(first).logistic(0, 1, effect.size)
    likes: np.ndarray = (effect + noise > 1.5).astype(np.int8)
    return likes
