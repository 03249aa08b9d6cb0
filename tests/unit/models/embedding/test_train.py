from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from models.dlrm.network import DLRM, DLRMRanker
from models.dlrm.section import DLRMModel
from models.embedding.reading.batches import BatchLoader, ChunkStore
from models.embedding.reading.chunks import Batch
from models.embedding.reading.layout import Layout
from models.embedding.table.precision import precision_of
from models.embedding.training.train import Loaders, Training, TrainingError
from shortlist.ranking.inputs import LearningTable, features_matching
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable

SECTION = DLRMModel(features=("*",), embedding_dim=4, bottom_mlp=(8,), top_mlp=(8,), batch_size=100, epochs=3)


class PoisonedLoader(BatchLoader):
    """A loader whose labels are NaN from one step of an epoch on."""

    epoch, step = 2, 4

    def shuffled(self, epoch: int) -> Iterator[Batch]:
        for step, batch in enumerate(super().shuffled(epoch), start=1):
            poisoned = epoch == self.epoch and step >= self.step
            yield batch._replace(labels_B=batch.labels_B * float("nan")) if poisoned else batch


def training(table: DayTable, kind: type[BatchLoader], section: DLRMModel = SECTION) -> tuple[DLRM, Training, Loaders]:
    learning = LearningTable(table, features_matching(table, section.features))
    layout = Layout.from_features(learning.features)
    store = ChunkStore(learning, layout, 2**30)
    train = kind(store, learning.paths("train"), section.batch_size, 10_000, seed=1)
    validation = BatchLoader(store, learning.paths("validation"), 1_000, 10_000, seed=1)
    torch.manual_seed(0)
    model = DLRM(layout, section)
    return model, Training(model, section, "cpu"), Loaders(train, validation)


def copied(model: DLRM) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_a_loss_that_is_nan_stops_at_its_step_and_the_best_epoch_stays(table: DayTable) -> None:
    model, run, loaders = training(table, PoisonedLoader)
    after_epoch: list[dict[str, torch.Tensor]] = []
    message = (
        r"the loss is nan at step 4 of epoch 2 \(300 rows into it\); wanted a finite number\. Lower models\.dlrm\.learn"
    )
    with pytest.raises(TrainingError, match=message):
        run.run(loaders, lambda line: after_epoch.append(copied(model)))
    assert len(after_epoch) == 1
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, after_epoch[0][name])


def test_rates_that_are_too_high_stop_the_run_with_what_to_lower(table: DayTable, runtime: Runtime) -> None:
    section = SECTION.model_copy(update={"learning_rate": 1e30, "embedding_learning_rate": 1e30})
    ranker = DLRMRanker(section)
    with pytest.raises(TrainingError, match=r"learning_rate \(now 1e\+30\) or embedding_learning_rate \(now 1e\+30\)"):
        ranker.fit(table, runtime)


def test_early_stopping_keeps_the_weights_of_the_best_epoch(table: DayTable) -> None:
    overfitting = SECTION.model_copy(update={"epochs": 40, "patience": 2, "embedding_learning_rate": 0.5})
    model, run, loaders = training(table, BatchLoader, overfitting)
    after_epoch: list[dict[str, torch.Tensor]] = []
    history, best = run.run(loaders, lambda line: after_epoch.append(copied(model)))
    losses = [line["validation_log_loss"] for line in history]
    assert best == int(np.argmin(losses)) + 1
    assert len(history) == best + 2 < 40
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, after_epoch[best - 1][name])
    assert not torch.equal(model.table.weight_RD, after_epoch[-1]["table.weight_RD"])


def test_every_epoch_is_a_line_of_the_history(table: DayTable, runtime: Runtime) -> None:
    lines: list[dict[str, Any]] = []
    record = DLRMRanker(SECTION).fit(table, runtime, on_epoch=lines.append)
    assert lines == list(record.history)
    assert [line["epoch"] for line in lines] == [1, 2, 3][: record.epochs]
    keys = {"epoch", "train_log_loss", "validation_log_loss", "validation_auc", "rows_per_s", "seconds"}
    assert set(lines[0]) == keys
    assert lines[-1]["train_log_loss"] < lines[0]["train_log_loss"]


def test_the_recorded_quality_is_that_of_the_scores(table: DayTable, runtime: Runtime) -> None:
    ranker = DLRMRanker(SECTION)
    record = ranker.fit(table, runtime)
    validation = table.scan({table.days[3].day}).collect()
    scores, labels = ranker.predict(validation).astype(np.float64), validation["label"].to_numpy()
    log_loss = -np.log(np.where(labels == 1, scores, 1 - scores)).mean()
    assert record.best_epoch is not None
    assert record.history[record.best_epoch - 1]["validation_log_loss"] == pytest.approx(log_loss, rel=1e-6)


def test_the_memory_budget_does_not_change_the_model(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame
) -> None:
    scores = []
    for budget in (2_048, 0):
        ranker = DLRMRanker(SECTION)
        ranker.fit(table, runtime.model_copy(update={"memory_budget_mib": budget}))
        scores.append(ranker.predict(test_rows))
    assert np.array_equal(scores[0], scores[1])


def test_the_seed_draws_the_weights(table: DayTable, runtime: Runtime, test_rows: pl.DataFrame) -> None:
    motionless = SECTION.model_copy(update={"epochs": 1, "learning_rate": 1e-12, "embedding_learning_rate": 1e-12})
    scores = []
    for seed in (1, 2, 1):
        ranker = DLRMRanker(motionless)
        ranker.fit(table, runtime.model_copy(update={"seed": seed}))
        scores.append(ranker.predict(test_rows))
    assert np.abs(scores[0] - scores[1]).max() > 0.01  # nothing was learnt, so they differ by what was drawn
    assert np.array_equal(scores[0], scores[2])


def test_training_leaves_the_random_numbers_of_others_alone(table: DayTable, runtime: Runtime) -> None:
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    DLRMRanker(SECTION.model_copy(update={"epochs": 1, "dropout": 0.5})).fit(table, runtime)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("precision", "abilities", "expected"),
    [
        ("auto", {"avx512_bf16": True}, True),
        ("auto", {"amx_bf16": True}, True),
        ("auto", {"avx2": True}, False),  # torch would emulate it, slower than float32
        ("fp32", {"avx512_bf16": True}, False),
        ("bf16", {}, True),
    ],
)
def test_auto_takes_bf16_on_processors_with_bf16_products(
    precision: str, abilities: dict[str, bool], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: abilities)
    assert (precision_of(SECTION.model_copy(update={"precision": precision}), "cpu") == "bf16") is expected
