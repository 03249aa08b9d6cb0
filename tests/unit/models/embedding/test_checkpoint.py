"""A training that is stopped goes on from its checkpoint as if nothing had happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from models.dlrm.network import DLRMRanker
from models.dlrm.section import DLRMModel
from models.embedding.reading.batches import BatchLoader
from models.embedding.reading.chunks import Batch
from models.embedding.training import train as training_module
from models.embedding.training.checkpoint import Checkpoint
from models.embedding.training.train import GpuFailureError, LossMonitor, NonFiniteLossError, Training, TrainingError
from shortlist.ranking.checkpoints import CheckpointLocation, checkpoint_location, checkpoint_to
from shortlist.spec.runtime import Runtime
from shortlist.storage.objects import ObjectStore
from shortlist.storage.tables import DayTable

SECTION = DLRMModel(
    features=("*",), embedding_dim=4, bottom_mlp=(8,), top_mlp=(8,), batch_size=300, epochs=4, patience=4, dropout=0.3,
    embedding_learning_rate=0.3,
)  # fmt: skip
LOST = torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA")


@pytest.fixture
def place(tmp_path: Path) -> CheckpointLocation:
    return CheckpointLocation(ObjectStore.in_folder(tmp_path / "objects"), "checkpoints/demo/abc.safetensors")


@pytest.fixture
def every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_module, "MIN_EPOCH_S", 0.0)


def fail_in(epoch: int, step: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    shuffled = BatchLoader.shuffled

    def failing(self: BatchLoader, number: int) -> Iterator[Batch]:
        for i, batch in enumerate(shuffled(self, number), start=1):
            if (number, i) == (epoch, step):
                raise error
            yield batch

    monkeypatch.setattr(BatchLoader, "shuffled", failing)


def fitted(table: DayTable, runtime: Runtime, section: DLRMModel = SECTION) -> DLRMRanker:
    ranker = DLRMRanker(section)
    ranker.fit(table, runtime)
    return ranker


@pytest.mark.usefixtures("every_epoch")
@pytest.mark.parametrize("epoch", [2, 4])
def test_a_resumed_training_gives_the_same_weights_bit_by_bit(
    epoch: int, table: DayTable, runtime: Runtime, place: CheckpointLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fitted(table, runtime)
    with monkeypatch.context() as patched:
        fail_in(epoch, 4, KeyboardInterrupt(), patched)
        with pytest.raises(KeyboardInterrupt), checkpoint_to(place):
            fitted(table, runtime)
    content = place.load()
    assert content is not None
    checkpoint = Checkpoint.load(place)
    assert checkpoint is not None and len(checkpoint.history) == epoch - 1
    lines: list[dict[str, Any]] = []
    resumed = DLRMRanker(SECTION)
    with checkpoint_to(place):
        resumed.fit(table, runtime, on_epoch=lines.append)
    assert [line["epoch"] for line in lines] == list(range(epoch, 5))  # what was learnt is not learnt again
    assert resumed.record.best_epoch == whole.record.best_epoch
    for name, tensor in whole._model.state_dict().items():
        assert torch.equal(tensor, resumed._model.state_dict()[name]), name
    timeless = [
        [{key: line[key] for key in line if key not in ("seconds", "rows_per_s")} for line in ranker.record.history]
        for ranker in (whole, resumed)
    ]
    assert timeless[0] == timeless[1]
    assert place.load() is None  # the training is done: nobody goes on from here


@pytest.mark.usefixtures("every_epoch")
def test_a_lost_gpu_is_told_with_the_checkpoint_to_go_on_from(
    table: DayTable,
    runtime: Runtime,
    place: CheckpointLocation,
    monkeypatch: pytest.MonkeyPatch,
    test_rows: pl.DataFrame,
) -> None:
    with monkeypatch.context() as patched:
        fail_in(3, 5, LOST, patched)
        message = (
            r"lost at or shortly before step 4 of epoch 3 \(CUDA error: an illegal memory access was encountered\)\."
            r" The checkpoint of epoch 2 is kept: start the same run again, and it goes on from there"
        )
        with pytest.raises(GpuFailureError, match=message), checkpoint_to(place):
            fitted(table, runtime)
    with checkpoint_to(place):
        resumed = fitted(table, runtime)
    np.testing.assert_array_equal(resumed.predict(test_rows), fitted(table, runtime).predict(test_rows))


@pytest.mark.parametrize("error", [LOST, RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling gemm")])
def test_a_lost_gpu_without_a_checkpoint_starts_from_the_beginning(
    error: RuntimeError, table: DayTable, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_in(2, 2, error, monkeypatch)
    with pytest.raises(GpuFailureError, match=r"No checkpoint was left yet: start the same run again, and it begins"):
        fitted(table, runtime)


def test_other_errors_are_no_lost_gpu(table: DayTable, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_in(2, 2, RuntimeError("shapes cannot be multiplied"), monkeypatch)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fitted(table, runtime)


def test_short_epochs_leave_no_checkpoint(
    table: DayTable, runtime: Runtime, place: CheckpointLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_in(3, 1, KeyboardInterrupt(), monkeypatch)
    with pytest.raises(KeyboardInterrupt), checkpoint_to(place):
        fitted(table, runtime)
    assert place.load() is None
    assert checkpoint_location() is None


def test_losses_that_wait_name_the_very_step() -> None:
    losses = LossMonitor(check_steps=5, device="cpu")
    for step in range(1, 10):
        losses.add(torch.tensor(float("nan") if step in (8, 9) else 0.5), rows=10)
    assert losses.mean == 0.5 and losses.rows == 50  # checked after the fifth step
    with pytest.raises(NonFiniteLossError) as raised:
        losses.add(torch.tensor(0.5), rows=10)
    assert (raised.value.step, raised.value.rows) == (8, 70)


def test_losses_that_are_left_are_looked_at_in_the_end() -> None:
    losses = LossMonitor(check_steps=5, device="cpu")
    losses.add(torch.tensor(1.0), rows=1)
    losses.add(torch.tensor(4.0), rows=2)
    losses.check_finite()
    assert losses.mean == pytest.approx((1.0 + 2 * 4.0) / 3)


def test_a_nan_found_late_brings_the_best_epoch_back(table: DayTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_module, "LossMonitor", lambda check_steps, device: LossMonitor(4, device))
    states: list[dict[str, torch.Tensor]] = []
    step = Training.train_batch
    models: list[torch.nn.Module] = []

    def poisoned(self: Training, batch: Batch) -> torch.Tensor:
        models.append(self._model)
        return step(self, batch._replace(labels_B=batch.labels_B * float("nan")) if len(models) >= 16 else batch)

    monkeypatch.setattr(Training, "train_batch", poisoned)
    ranker = DLRMRanker(SECTION.model_copy(update={"epochs": 2}))
    steps = -(-3_000 // 300)
    with pytest.raises(TrainingError, match=rf"the loss is nan at step {16 - steps} of epoch 2"):
        ranker.fit(
            table,
            Runtime(engine="cpu", seed=3),
            on_epoch=lambda line: states.append({k: v.clone() for k, v in models[0].state_dict().items()}),
        )
    for name, tensor in models[0].state_dict().items():
        assert torch.equal(tensor, states[0][name])
