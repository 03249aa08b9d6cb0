from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from models.dlrm.network import DLRM, DLRMRanker
from models.dlrm.section import DLRMModel
from models.embedding.reading.layout import Layout
from models.embedding.training.warm_start import copy_champion_weights
from shortlist.contracts import ShortlistError
from shortlist.ranking.inputs import TableFeature
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable

SECTION = DLRMModel(features=("*",), embedding_dim=4, bottom_mlp=(8,), top_mlp=(8,), batch_size=100, epochs=2)


@pytest.fixture(scope="module")
def champion(table: DayTable, tmp_path_factory: pytest.TempPathFactory) -> tuple[DLRMRanker, Path]:
    folder = tmp_path_factory.mktemp("models") / "champion"
    ranker = DLRMRanker(SECTION)
    ranker.fit(table, Runtime(engine="cpu"))
    ranker.save(folder)
    return ranker, folder


Champion = tuple[DLRMRanker, Path]


def grown(features: tuple[TableFeature, ...], by: int) -> tuple[TableFeature, ...]:
    return tuple(
        feature.model_copy(update={"size": feature.size + by}) if feature.size else feature for feature in features
    )


def test_old_rows_are_copied_and_new_rows_are_fresh(champion: Champion) -> None:
    ranker, folder = champion
    features = ranker.record.features
    old, new = Layout.from_features(features), Layout.from_features(grown(features, by=5))
    torch.manual_seed(1)
    model = DLRM(new, SECTION)
    initial_weight = model.table.weight_RD.clone()
    copy_champion_weights(model, new, old, folder / "weights.safetensors")
    champion_table = ranker._model.table
    for feature, start, old_start in zip(old.tables, new.starts, old.starts, strict=True):
        size = feature.size or 0
        assert torch.equal(
            model.table.weight_RD[start : start + size], champion_table.weight_RD[old_start : old_start + size]
        )
        assert torch.equal(
            model.table.squares_R[start : start + size], champion_table.squares_R[old_start : old_start + size]
        )
        assert torch.equal(
            model.table.weight_RD[start + size : start + size + 5], initial_weight[start + size : start + size + 5]
        )
        assert model.table.squares_R[start + size : start + size + 5].abs().max() == 0


def test_a_warm_model_scores_known_ids_as_its_champion(champion: Champion, test_rows: pl.DataFrame) -> None:
    ranker, folder = champion
    layout = Layout.from_features(grown(ranker.record.features, by=3))
    model = DLRM(layout, SECTION)
    copy_champion_weights(model, layout, Layout.from_features(ranker.record.features), folder / "weights.safetensors")
    warm = DLRMRanker(SECTION)
    warm._record, warm._model, warm._layout = ranker.record, model, layout
    assert (warm.predict(test_rows) == ranker.predict(test_rows)).all()


def test_training_goes_on_from_the_champion(champion: Champion, table: DayTable, runtime: Runtime) -> None:
    ranker, folder = champion
    columns = [column | ({"size": column["size"] + 7} if column["size"] else {}) for column in table.notes["columns"]]
    grown_table = table.model_copy(update={"notes": {**table.notes, "columns": columns}})
    gentle = SECTION.model_copy(update={"learning_rate": 1e-9, "embedding_learning_rate": 1e-9, "epochs": 1})
    record = DLRMRanker(gentle).fit(grown_table, runtime, champion=folder)
    assert record.champion == "champion"
    assert record.features != ranker.record.features
    assert ranker.record.best_epoch is not None
    best = ranker.record.history[ranker.record.best_epoch - 1]["validation_log_loss"]
    assert record.history[0]["validation_log_loss"] == pytest.approx(
        best, abs=1e-5
    )  # it starts where the champion ended


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding_dim": 8}, r"'bottom\.2\.weight' has shape \(4, 8\), the spec makes it \(8, 8\)"),
        ({"top_mlp": (16,)}, r"'top\.0\.weight' has shape \(8, 10\), the spec makes it \(16, 10\)"),
        ({"features": ("*_id",)}, r"it reads \['age', 'text'\], the spec now says \[\]"),
    ],
)
def test_a_champion_of_another_shape_is_refused(
    champion: Champion, table: DayTable, runtime: Runtime, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShortlistError, match=f"champion: training cannot start from this champion: {message}"):
        DLRMRanker(SECTION.model_copy(update=change)).fit(table, runtime, champion=champion[1])


def test_ids_that_shrank_are_refused(champion: Champion) -> None:
    ranker, folder = champion
    old, new = Layout.from_features(ranker.record.features), Layout.from_features(grown(ranker.record.features, by=-1))
    with pytest.raises(ShortlistError, match="feature 'user_id' has 39 ids and had 40; ids never shrink"):
        copy_champion_weights(DLRM(new, SECTION), new, old, folder / "weights.safetensors")
