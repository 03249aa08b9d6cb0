"""A generated world in which the last item of a session tells what is clicked next: a live sequence learns it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from models.din.network import DINRanker
from models.din.section import DINModel
from models.dlrm.network import DLRMRanker
from models.dlrm.section import DLRMModel
from shortlist.contracts import Columns, Files
from shortlist.data.world.generate import generate_log
from shortlist.evaluation.metrics.pointwise import auc
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.spec.data import Data, GeneratedChapters, GeneratedSource
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTableWriter

WORLD = GeneratedSource(
    kind="generated", rows=40_000, users=400, items=20, days=5, seed=5,
    chapters=GeneratedChapters(count=4, follow=0.3, effect=4.0, within_session=True),
)  # fmt: skip
DATA_SECTION = Data.model_validate(
    {
        "source": {"kind": "files"},
        "columns": [
            {"name": "user_id", "type": "integer"},
            {"name": "item_id", "type": "integer"},
            {"name": "position", "type": "integer"},
            {"name": "is_click", "type": "integer"},
        ],
        "label": "is_click",
        "clock": {"kind": "column", "column": "event_time", "unit": "iso"},
        "user": "user_id",
        "item": "item_id",
        "split": {"warmup_days": 0, "validation_days": 1, "test_days": 1},
    }
)
FEATURES = Features.model_validate(
    {
        "columns": [
            {"kind": "numeric", "each": "position"},
            {"kind": "vocabulary", "each": "item_id"},
            {"kind": "sequence", "of": "item_id", "key": "user_id", "last": 3, "live": True, "name": "past"},
        ],
        "streaming": True,
    }
)
SECTION: dict[str, Any] = {
    "features": ("position_number", "item_id_id"), "embedding_dim": 8, "batch_size": 500, "epochs": 4,
    "learning_rate": 0.01, "embedding_learning_rate": 0.1,
}  # fmt: skip


@pytest.mark.long
def test_a_model_gains_from_the_sequence(tmp_path: Path) -> None:
    generate_log(WORLD, tmp_path / "raw")
    raw = pl.read_parquet(tmp_path / "raw/impressions/*.parquet").rename({"is_click": Columns.LABEL})
    writer = DayTableWriter(tmp_path / "log", Files.LOG, 250_000)
    writer.append(raw.with_columns(pl.col(Columns.TIME).dt.date().alias(Columns.DAY)))
    writer.close()
    runtime = Runtime(engine="cpu", seed=3)
    sections = DATA_SECTION, FEATURES, None, runtime, tmp_path / "log", tmp_path / "fitted"
    fit(*sections)
    table = build_table(*sections, tmp_path / "table")
    plain = DLRMRanker(DLRMModel.model_validate(SECTION))
    having = DINRanker(DINModel.model_validate({**SECTION, "history": "past", "target": "item_id_id"}))
    rows = pl.concat([frame for day, frame in table.frames() if day == table.days[-1].day])
    labels, scores = rows[Columns.LABEL].to_numpy().astype(float), []
    for ranker in (plain, having):
        ranker.fit(table, runtime)
        scores.append(auc(labels, ranker.predict(rows).astype(float)))
    best = auc(labels, rows[Columns.BEST].to_numpy())
    assert scores[0] + 0.05 < scores[1] < best
