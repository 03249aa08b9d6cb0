"""Recommendations ordered by a session score: as in training, part of the release, reproducible."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from recommending_shop import Shop, outputs, places_of

from shortlist.contracts import Columns, Files
from shortlist.deployment.slate_explanation import explain
from shortlist.features.declared.training_log import LEARNT
from shortlist.features.feast.store import apply
from shortlist.features.fits.fit import fit
from shortlist.features.fits.publish import announce_views
from shortlist.features.online_stores.sqlite import SQLiteOnline
from shortlist.features.rows.transform import Transformer
from shortlist.serving.export.graph import FeatureGraph
from shortlist.serving.export.graph_builder import save
from shortlist.serving.export.onnx_session import create_session
from shortlist.serving.export.signature import FOLDER, MODEL_FILE, SCORE
from shortlist.slates.retrieval.retriever import fit_retrieval
from shortlist.spec.features import Features
from shortlist.spec.retrieval import Retrieval
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import IntegrityError, verify_manifest
from shortlist.storage.tables import DayTable
from shortlist.training.export import pack

FOLLOWS = {
    "kind": "sequence_score", "of": "item_id", "key": "user_id", "last": 4, "counts": "rows", "name": "follows",
    "sent": "words", "refit_days": 1, "epochs": 2, "embedding_dim": 8,
}  # fmt: skip
RETRIEVAL = {"candidates": 8, "sources": {"popular": {"kind": "popular", "min_positives": 1}}}


class Scored(Shop):
    """A server whose score is the session score of an item."""

    async def scores(self, tensors: Any, rows: int, place: Any = None) -> Any:
        return create_session(self._model / FOLDER).run([SCORE], dict(tensors))[0].ravel()


@pytest.fixture(scope="module")
def fitted(shop: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scored") / "fitted"
    features = Features.model_validate({"columns": [FOLLOWS]})
    fit(shop.plan.declared.data, features, None, Runtime(engine="cpu"), shop.folder / "log", folder)
    return folder


@pytest.fixture(scope="module")
def model(fitted: Path) -> Path:
    folder = fitted.with_name("model")
    (folder / FOLDER).mkdir(parents=True)
    graph = FeatureGraph(Transformer.load(fitted, "cpu").preprocessing)
    whole, signature = graph.finished(graph.floats(["follows"]), SCORE, 1, "shop", "score")
    save(whole, folder / FOLDER / MODEL_FILE)
    signature.write(folder / FOLDER)
    pack(folder, fitted)
    return folder


@pytest.fixture
def local(shop: Any, fitted: Path, model: Path, tmp_path: Path) -> Scored:
    data, store = shop.plan.declared.data, tmp_path / "store"
    apply(fitted / "views", store, "shop", SQLiteOnline(), "user_id").materialize(shop.until)
    announce_views(fitted / "views", store, shop.until, shop.folder / "log")
    log = DayTable.open(shop.folder / "log", Files.LOG)
    days = frozenset(part.day for part in log.days)
    fit_retrieval(Retrieval.model_validate(RETRIEVAL), data, log, days, tmp_path / "sources", 1)
    published = SimpleNamespace(plan=Transformer.load(fitted, "cpu").plan, store=store, folder=shop.folder)
    return Scored(published, model, tmp_path / "sources", tmp_path)


def trained(fitted: Path, row: dict[str, Any], recent_words: list[str] | None) -> list[float]:
    """Return the training table's feature of the items of a logged slate."""
    rows = pl.DataFrame(
        {
            "user_id": (row["user_id"] or [None]) * len(row["items"]),
            "item_id": row["items"],
            "words": [recent_words] * len(row["items"]),
            Columns.TIME: [row["time"]] * len(row["items"]),
        },
        schema={
            "user_id": pl.Int64, "item_id": pl.String, "words": pl.List(pl.String),
            Columns.TIME: pl.Datetime("us", "UTC"),
        },
    )  # fmt: skip
    transformer = Transformer.load(fitted, "cpu")
    day = row["time"].date()
    looked_up = transformer.look_up(rows.with_columns(pl.lit(day).alias(Columns.DAY)), day)
    return transformer.compute(looked_up)["follows"].to_list()


def test_slates_are_ordered_by_scores_of_sessions_that_are_stored_or_sent(local: Scored, fitted: Path) -> None:
    parts = local.parts()
    sent = ["item 2", "in no table", "item 1"]
    answers = local.ask(parts, {"user_id": 2}, {"recent_items": sent}, {"recent_items": ["item 7"]}, {})
    stored, brought, other_slate, anonymous_slate = (outputs(answer) for answer in answers)
    rows = local.logged(parts)
    for row, answer, recent_words in zip(
        rows, (stored, brought, other_slate, anonymous_slate), (None, sent, ["item 7"], None), strict=True
    ):
        np.testing.assert_allclose(answer["score"], trained(fitted, row, recent_words), rtol=0, atol=1e-5)
        assert answer["score"] == sorted(answer["score"], reverse=True)
    assert anonymous_slate["score"] == [0.0] * 3
    assert len({tuple(slate["score"]) for slate in (stored, brought, other_slate)}) == 3
    version = local.folder / "versions" / "v3"
    shutil.copytree(local._model, version / "model")
    shutil.copytree(local.folder / "release", version / "release")
    for number in range(4):
        text = "\n".join(explain(places_of(local), f"r{number}"))
        assert "candidates, filters, order and propensities are the same, bit by bit" in text
        (largest,) = re.findall(r"from the logged features differ by at most (\S+)", text)
        assert float(largest) <= 1e-5


def test_the_models_of_scores_are_files_of_the_release(model: Path, tmp_path: Path) -> None:
    """A file that was changed after training is found by its digest."""
    copy = tmp_path / "model"
    shutil.copytree(model, copy)
    digests = verify_manifest(copy)
    learnt = sorted(name for name in digests if name.startswith(f"{Files.PREPROCESSING}/{LEARNT}/follows/"))
    assert {name.rsplit("/", 1)[1] for name in learnt} == {
        "encoder.onnx", "facts.json", "items.parquet", "models.json", "vectors.npy",
    }  # fmt: skip
    changed = next(copy / name for name in learnt if name.endswith("vectors.npy"))
    np.save(changed, np.load(changed) + 1)
    with pytest.raises(IntegrityError, match=r"vectors\.npy"):
        verify_manifest(copy)
