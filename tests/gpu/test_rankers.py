"""Both models trained on the GPU: as good as those of the CPU; a stopped training resumes from its checkpoint."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from sklearn.metrics import roc_auc_score

from models.dlrm.network import DLRMRanker
from models.embedding.reading.batches import BatchLoader
from models.embedding.reading.chunks import Batch
from models.embedding.training import train as training_module
from shortlist.contracts import Columns
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.ranking.checkpoints import CheckpointLocation, checkpoint_to
from shortlist.ranking.saved_models import ranker_class
from shortlist.spec.runtime import Runtime
from shortlist.spec.spec import Spec
from shortlist.storage.objects import ObjectStore
from shortlist.storage.tables import DayTable
from shortlist.system.execution import EXECUTION
from shortlist.system.query_engine import Engine

ENGINE: Engine = "gpu" if find_spec("cudf") else "auto"
"""Of the DLRM: without cuDF the host decodes its rows, which only `auto` allows."""


@pytest.fixture(scope="module")
def table(demo: Spec, log: Path, tmp_path_factory: pytest.TempPathFactory) -> DayTable:
    out, runtime = tmp_path_factory.mktemp("table"), Runtime(engine="cpu")
    fit(demo.data, demo.features, demo.gates, runtime, log, out / "fitted")
    return build_table(demo.data, demo.features, demo.gates, runtime, log, out / "fitted", out / "table")


def auc(kind: str, section: Any, table: DayTable, engine: Engine) -> float:
    ranker = ranker_class(kind)(section)
    ranker.fit(table, Runtime(engine=engine))
    days = {date.fromisoformat(day) for day in table.notes["split"]["test"]}
    rows = pl.concat([rows for _, rows in table.frames(days)])
    return float(roc_auc_score(rows[Columns.LABEL], ranker.predict(rows)))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "changes", "tolerance"),
    [
        ("dlrm", {"epochs": 2, "precision": "fp32"}, 1e-3),
        ("dlrm", {"epochs": 2, "precision": "bf16"}, 5e-3),
        ("xgboost", {"rounds": 100}, 5e-3),  # other sums make other splits of a noisy log
    ],
)
def test_a_model_ranks_as_well_on_both_devices(
    kind: str, changes: dict[str, Any], tolerance: float, demo: Spec, table: DayTable
) -> None:
    if kind == "xgboost" and not pytest.importorskip("xgboost").build_info()["USE_CUDA"]:
        pytest.skip("this XGBoost is built without CUDA")
    section = demo.models[kind].model_copy(update=changes)
    on_cpu = auc(kind, section.model_copy(update={"precision": "fp32"} if kind == "dlrm" else {}), table, "cpu")
    EXECUTION.clear()
    assert auc(kind, section, table, ENGINE if kind == "dlrm" else "gpu") == pytest.approx(on_cpu, abs=tolerance)
    record = EXECUTION.record()
    assert record is not None and record["name"] == "gpu"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_resumed_training_gives_the_same_weights_bit_by_bit(
    precision: str, demo: Spec, table: DayTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"epochs": 3, "patience": 3, "dropout": 0.2, "precision": precision, "batch_size": 1_024}
    section = demo.models["dlrm"].model_copy(update=changes)
    place = CheckpointLocation(ObjectStore.in_folder(tmp_path / "objects"), "checkpoints/demo/abc.safetensors")
    monkeypatch.setattr(training_module, "MIN_EPOCH_S", 0.0)

    def fitted() -> DLRMRanker:
        ranker = DLRMRanker(section)
        ranker.fit(table, Runtime(engine=ENGINE))
        return ranker

    whole = fitted()
    shuffled = BatchLoader.shuffled

    def stopping(self: BatchLoader, epoch: int) -> Iterator[Batch]:
        for number, batch in enumerate(shuffled(self, epoch)):
            if (epoch, number) == (2, 4):
                raise KeyboardInterrupt
            yield batch

    with monkeypatch.context() as patched:
        patched.setattr(BatchLoader, "shuffled", stopping)
        with pytest.raises(KeyboardInterrupt), checkpoint_to(place):
            fitted()
    with checkpoint_to(place):
        resumed = fitted()
    for name, tensor in whole._model.state_dict().items():
        assert torch.equal(tensor, resumed._model.state_dict()[name]), name


LOSING = """
import torch
from models.embedding.training.train import gpu_failure
from models.embedding.training.training_progress import TrainingProgress
try:
    torch.zeros(3, device="cuda")[torch.tensor([7], device="cuda")]
    torch.cuda.synchronize()
except RuntimeError as error:
    print(gpu_failure(error, "cuda", 7, TrainingProgress(3)))
"""


@pytest.mark.gpu
def test_what_torch_raises_of_a_broken_device_is_a_lost_gpu() -> None:
    ran = subprocess.run([sys.executable, "-c", LOSING], capture_output=True, text=True, timeout=120, check=False)
    assert "cuda was lost at or shortly before step 7 of epoch 1 (CUDA error: device-side assert" in ran.stdout
