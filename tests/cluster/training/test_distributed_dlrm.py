"""Two processes train a DLRM as one does: step by step the same loss, in the end the same scores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from threading import Thread

import numpy as np
import polars as pl
import pytest
import torch

from models.dlrm.network import DLRM, DLRMRanker
from models.dlrm.section import DLRMModel
from models.embedding.reading.batches import BatchLoader, ChunkStore, pool_rows
from models.embedding.reading.chunks import Batch, Lookups
from models.embedding.reading.layout import Layout
from models.embedding.reading.lists import FileLists
from models.embedding.training.train import Loaders, Training
from models.moments import standardisation
from models.objectives import learning_lists
from shortlist.contracts import Files, ShortlistError
from shortlist.ranking.inputs import features_matching
from shortlist.ranking.saved_models import load_ranker
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.training.distributed.job import DistributedJob
from shortlist.training.distributed.local_workers import torchrun, train_locally
from shortlist.training.train import DistributedLaunch, train

SECTION = DLRMModel(
    features=("user_id", "item_id", "age", "text"), embedding_dim=8, bottom_mlp=(16,), top_mlp=(16,),
    batch_size=256, epochs=3, patience=3, precision="fp32",
)  # fmt: skip
# Processes that wait for each other must not hold up all other tests.
pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

STEPS = Path(__file__).parent / "distributed_steps.py"


class Joined:
    """A loader that joins the batches of two processes for the same step into one batch."""

    def __init__(self, first: BatchLoader, second: BatchLoader) -> None:
        self._loaders = (first, second)
        self.rows = first.rows + second.rows

    def shuffled(self, epoch: int) -> Iterator[Batch]:
        for pair in zip_longest(*(loader.shuffled(epoch) for loader in self._loaders)):
            batches = [batch for batch in pair if batch is not None]
            looked_up = torch.cat([batch.lookups.rows_L for batch in batches])
            lookups = Lookups(looked_up, torch.arange(len(looked_up) + 1, dtype=torch.int32), None)
            dense = torch.cat([batch.dense_BF for batch in batches])
            lists = [batch.lists_B for batch in batches if batch.lists_B is not None]
            apart = [numbers + 1_000 * place for place, numbers in enumerate(lists)]
            numbers = torch.unique(torch.cat(apart), return_inverse=True)[1] if lists else None
            yield Batch(torch.cat([batch.labels_B for batch in batches]), dense, lookups, numbers)


def one_process(
    job: DistributedJob, table: DayTable, runtime: Runtime, section: DLRMModel
) -> tuple[list[float], list[dict[str, float]], DLRM]:
    """Train on the batches that the job's processes take together; return losses by step, history, model."""
    learning = learning_lists(table, features_matching(table, section.features), section)
    lists = FileLists.read(learning)
    layout = Layout.from_features(learning.features)
    store, pool = ChunkStore(learning, layout, 2**30), pool_rows(layout, runtime.chunk_rows)
    paths_of_ranks = [[path for path in learning.paths("train") if path in job.files(rank)] for rank in (0, 1)]
    halves = [BatchLoader(store, paths, section.batch_size // 2, pool, runtime.seed, lists) for paths in paths_of_ranks]
    validation = BatchLoader(store, learning.paths("validation"), 8_192, pool, runtime.seed, lists)
    torch.manual_seed(runtime.seed)
    model = DLRM(layout, section)
    mean, scale = standardisation(store.chunk(path).dense for path in learning.paths("train"))
    model.network.mean_F.copy_(torch.from_numpy(mean))
    model.network.scale_F.copy_(torch.from_numpy(scale))
    model.network.set_base_rates(learning.base_rate)
    training = Training(model, section, "cpu")
    losses: list[float] = []
    train_batch = training.train_batch

    def recorded(batch: Batch) -> torch.Tensor:
        loss = train_batch(batch)
        losses.append(float(loss))
        return loss

    training.train_batch = recorded  # type: ignore[method-assign]
    history, _ = training.run(Loaders(Joined(*halves), validation), lambda line: None)  # type: ignore[arg-type]
    return losses, history, model


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory, write_table: Callable[..., DayTable]) -> DayTable:
    """Return a table whose training days have five files of different lengths."""
    return write_table(tmp_path_factory.mktemp("uneven") / "table", rows_per_day=2_300)


@pytest.mark.parametrize("objective", ["pointwise", "listwise"])
def test_every_step_has_the_loss_of_one_process(uneven: DayTable, tmp_path: Path, objective: str) -> None:
    runtime = Runtime(engine="cpu", seed=3)
    calibration = "none" if objective == "pointwise" else "platt"
    section = DLRMModel.model_validate({**SECTION.model_dump(), "objective": objective, "calibration": calibration})
    job = DistributedJob.plan("dlrm", section, uneven, runtime, None, 2)
    rows = [sum(pl.scan_parquet(path).select(pl.len()).collect().item() for path in job.files(r)) for r in (0, 1)]
    assert rows[0] != rows[1]  # one process runs out of rows before the other
    ran = subprocess.run(
        [*torchrun(2), str(STEPS), str(job.write(tmp_path))], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    together = json.loads((tmp_path / "losses.json").read_text())
    losses, history, model = one_process(job, uneven, runtime, section)
    np.testing.assert_allclose(together, losses, rtol=0, atol=1e-5)
    ranker = load_ranker(tmp_path / "model")
    assert isinstance(ranker, DLRMRanker)
    for distributed_line, local_line in zip(ranker.record.history, history, strict=True):
        learnt, judged = ("log_loss", "auc") if objective == "pointwise" else ("listwise_loss", "ndcg_at_10")
        assert distributed_line[f"train_{learnt}"] == pytest.approx(local_line[f"train_{learnt}"], abs=1e-5)
        assert distributed_line[f"validation_{judged}"] == pytest.approx(local_line[f"validation_{judged}"], abs=1e-3)
    torch.testing.assert_close(ranker._model.table.weight_RD, model.table.weight_RD, rtol=1e-3, atol=1e-4)


def test_workers_go_on_from_a_champion_and_their_model_scores(table: DayTable, tmp_path: Path) -> None:
    runtime = Runtime(engine="cpu", seed=3)
    section = DLRMModel(features=("*",), embedding_dim=8, batch_size=128, epochs=2, precision="fp32")
    alone = train("dlrm", section, table, runtime, tmp_path / "alone", tmp_path / "scores")
    warm = DLRMModel(**{**section.model_dump(), "retrain": "warm", "retrain_epochs": 1, "retrain_days": 0})
    outputs = tmp_path / "model", tmp_path / "new_scores"
    record = train("dlrm", warm, table, runtime, *outputs, tmp_path / "alone", DistributedLaunch(2, train_locally))
    assert (record.champion, record.epochs) == ("alone", 1)
    assert record.train_rows == alone.train_rows and record.base_rate == alone.base_rate
    # It began where the champion had ended, its tables and their accumulators dealt out to the processes.
    assert record.history[0]["train_log_loss"] < alone.history[1]["train_log_loss"]
    assert pl.read_parquet(tmp_path / "new_scores" / Files.SCORES).height == 3_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "model", "new_scores", "scores"]


def test_a_killed_worker_stops_all_and_leaves_no_files(table: DayTable, tmp_path: Path) -> None:
    section = SECTION.model_copy(update={"epochs": 100_000, "patience": 100_000})
    job = DistributedJob.plan("dlrm", section, table, Runtime(engine="cpu", seed=3), None, 2)
    killed: list[int] = []

    def kill_rank_1() -> None:
        while not killed:
            time.sleep(0.05)
            for folder in Path("/proc").glob("[0-9]*"):
                killed.extend(_is_rank_1(folder, tmp_path))
        os.kill(killed[0], signal.SIGKILL)

    killer = Thread(target=kill_rank_1, daemon=True)
    killer.start()
    with pytest.raises(ShortlistError, match=r"training by 2 processes stopped: process 1 of 2 was killed by SIGKILL"):
        train_locally(job, tmp_path / "model")
    killer.join()
    assert list(tmp_path.iterdir()) == []
    assert not any(_is_worker(folder, tmp_path) for folder in Path("/proc").glob("[0-9]*"))


def test_a_users_mistake_in_one_process_is_the_message(table: DayTable, tmp_path: Path) -> None:
    section = SECTION.model_copy(update={"learning_rate": 1e30})
    with pytest.raises(ShortlistError, match=r"models\.dlrm: the loss is .* at step \d+ of epoch 1"):
        train_locally(DistributedJob.plan("dlrm", section, table, Runtime(engine="cpu"), None, 2), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_more_workers_than_files_are_refused(table: DayTable) -> None:
    with pytest.raises(ShortlistError, match="cannot be shared among 99 workers"):
        DistributedJob.plan("dlrm", SECTION, table, Runtime(), None, 99)


def _is_worker(folder: Path, job: Path) -> bool:
    try:
        command = (folder / "cmdline").read_bytes()
    except OSError:
        return False
    return b"shortlist.training.distributed.worker" in command and str(job).encode() in command


def _is_rank_1(folder: Path, job: Path) -> list[int]:
    """Return the process's id if it is the second worker of the job."""
    try:
        is_it = _is_worker(folder, job) and b"\0RANK=1\0" in (folder / "environ").read_bytes()
    except OSError:
        return []
    return [int(folder.name)] if is_it else []
