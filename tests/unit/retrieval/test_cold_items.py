"""Retrieval of items without history by their vectors, measured on a generated world."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from retrieval_log import Log, Row, declared, fit_data
from test_sequence import circles
from test_sequence import section as sequence_section

from models.sequence.train import train as train_sequence
from models.two_tower.train import train
from shortlist.contracts import Columns, DataError, Files
from shortlist.data.world.generate import generate_log
from shortlist.slates.retrieval.retriever import build_catalogue
from shortlist.slates.retrieval.source import FitInputs, Queries
from shortlist.slates.retrieval.sources.two_tower import TwoTower
from shortlist.spec.data import Data, GeneratedSource
from shortlist.spec.retrieval import ItemIndex, Retrieval
from shortlist.storage.side_tables import SIDE_FOLDER
from shortlist.storage.tables import DayTable, DayTableWriter

NEW_FROM = 5
ARRIVALS = {"kind": "new_items", "from_day": NEW_FROM, "strength": 0.5}
SOURCE: dict[str, Any] = {
    "kind": "generated", "rows": 24_000, "users": 250, "items": 300, "days": 6, "taste": 0.3, "drifts": [ARRIVALS],
    "content": {"effect": 3.0, "personal": 0.7},
}  # fmt: skip
FIRST_NEW = 500_001 + 300
VECTORS = {"of": ["text_vector", "image_vector"]}


def data_of_the_world() -> Data:
    vectors = [{"name": name, "type": "vector"} for name in VECTORS["of"]]
    items = {"name": "items", "path": "items.parquet", "key": "item_id",
             "columns": [{"name": "item_id", "type": "integer"}, *vectors]}  # fmt: skip
    columns = [{"name": name, "type": "integer"} for name in ("user_id", "item_id", "is_click")]
    clock = {"kind": "column", "column": "event_time", "unit": "iso"}
    return Data.model_validate({
        "source": SOURCE, "columns": columns, "label": "is_click", "user": "user_id", "item": "item_id",
        "clock": clock, "side_tables": [items],
    })  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> DayTable:
    """The log of a world in which a tenth of the items, on half of the impressions, are new on the last day."""
    folder, source = tmp_path_factory.mktemp("cold"), GeneratedSource.model_validate(SOURCE)
    generate_log(source, folder / "made")
    (folder / "log" / SIDE_FOLDER).mkdir(parents=True)
    items = pl.read_parquet(folder / "made" / "items.parquet").with_columns(pl.col(*VECTORS["of"]).arr.to_list())
    items.write_parquet(folder / "log" / SIDE_FOLDER / "items.parquet")
    rows = pl.read_parquet(folder / "made" / "impressions" / "*.parquet")
    writer = DayTableWriter(folder / "log", Files.LOG, 100_000)
    log_columns = (
        pl.col("event_time").dt.date().alias(Columns.DAY),
        pl.col("is_click").cast(pl.Int8).alias(Columns.LABEL),
    )
    writer.append(rows.select("user_id", "item_id", pl.col("event_time").alias(Columns.TIME), *log_columns))
    return writer.close()


def recall_of_new_items(world: DayTable, folder: Path, **changes: Any) -> float:
    """Return the share of clicks on new items that are among a user's 100 candidates of 330."""
    data = data_of_the_world()
    first = GeneratedSource.model_validate(SOURCE).start
    fitted_days = frozenset(first + timedelta(days=day) for day in range(NEW_FROM))
    inputs = FitInputs(world, data, fitted_days, build_catalogue(data, world, fitted_days), ItemIndex(), 100, 7)
    assert inputs.catalogue.size == 330
    section = TwoTower.model_validate(
        {"kind": "two_tower", "embedding_dim": 16, "epochs": 6, "batch_size": 512, "sampled_negatives": 128, **changes}
    )
    folder.mkdir()
    section.fit(inputs, folder)
    positives = pl.read_parquet(world.paths({first + timedelta(days=NEW_FROM)})).filter(
        pl.col(Columns.LABEL) == 1, pl.col("item_id") >= FIRST_NEW
    )
    assert positives.height > 300
    queries = Queries(positives["user_id"], np.full((positives.height, 1), -1, np.int32), pl.DataFrame())
    retrieved_ids = inputs.catalogue.ids.to_numpy()[section.load(folder).retrieve(queries, 100).items]
    return float((retrieved_ids == positives["item_id"].to_numpy()[:, None]).any(axis=1).mean())


def test_two_towers_with_item_vectors_retrieve_new_items(world: DayTable, tmp_path: Path) -> None:
    recall_without_vectors = recall_of_new_items(world, tmp_path / "without")
    recall = recall_of_new_items(world, tmp_path / "vectors", item_vectors=VECTORS)
    at_par = recall_of_new_items(world, tmp_path / "at par", item_vectors=VECTORS, popularity=0.0)
    chance = 100 / 330
    assert recall_without_vectors < 0.02
    assert recall > recall_without_vectors + 0.1
    assert at_par > chance + 0.1  # where new items compete with the others on taste alone


def new_item(rows: list[Row], vector: list[float] | None) -> dict[str, Any]:
    """Items 0 to 19, with one vector for even and one for odd items, and an item 100 without positives."""
    item_ids = sorted({item for _, item, *_ in rows})
    vectors = [[1.0, 0.0] if item % 2 == 0 else [0.0, 1.0] for item in item_ids]
    count = len(item_ids) + 1
    return {"item_id": [*item_ids, 100], "topic": ["none"] * count, "tags": [[]] * count, "price": [1.0] * count,
            "content": [*vectors, vector]}  # fmt: skip


def test_session_model_places_a_new_item_by_its_vector_column(log: Log) -> None:
    rows = circles()
    inputs = fit_data(log.write(rows, items=new_item(rows, [1.0, 0.0])), declared(), 0)
    learnt = train_sequence(sequence_section(epochs=5, item_vectors={"of": ["content"], "norm": "l2"}), inputs)
    new, *_ = inputs.catalogue.find_rows(pl.Series([100]))
    plain = train_sequence(sequence_section(epochs=5), inputs)
    assert np.linalg.norm(learnt.item_vectors[new]) > 0.05
    even_mean, odd_mean = (learnt.item_vectors[first:10:2].mean(axis=0) for first in (0, 1))
    assert learnt.item_vectors[new] @ (even_mean - odd_mean) > 0
    assert plain.item_vectors[new] @ plain.item_vectors[:10].mean(axis=0) < 0  # a negative and never anything else


def test_vectors_of_unequal_width_or_with_nan_are_refused_with_the_column(log: Log) -> None:
    section = TwoTower.model_validate({"kind": "two_tower", "item_vectors": {"of": ["content"]}})
    rows = circles()
    for vector, message in (
        ([1.0, 0.0, 0.0], "vector column 'content': vectors of 2 and of 3 numbers; wanted one length"),
        ([float("nan"), 0.0], "vector column 'content': the vectors of 1 items hold NaN or infinity, first that of"),
    ):
        with pytest.raises(DataError, match=message):
            train(section, fit_data(log.write(rows, items=new_item(rows, vector)), declared(), 0))


@pytest.mark.parametrize("kind", ["two_tower", "sequence"])
def test_a_column_that_is_no_vector_is_refused(kind: str) -> None:
    sources = {"own": {"kind": kind, "item_vectors": {"of": ["price"]}}}
    with pytest.raises(ValueError, match=r"retrieval\.sources\.own: 'price' is of type number; wanted vector"):
        Retrieval.model_validate({"sources": sources}).check(declared())
