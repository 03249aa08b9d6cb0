"""Program that torchrun starts for test_distributed_dlrm.py: trains with the other processes and writes the losses."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

from models.dlrm.network import DLRMRanker
from models.embedding.reading.batches import ChunkStore
from models.embedding.reading.chunks import Batch
from models.embedding.reading.layout import Layout
from models.embedding.table.fused_table import FusedTable
from models.embedding.table.optimizer import RowWiseAdagrad
from models.embedding.table.sharded import ShardedAdagrad, ShardedTable
from models.embedding.training.distributed_trainer import DistributedTrainer
from shortlist.ranking.inputs import LearningTable, features_matching
from shortlist.ranking.process_group import join_group
from shortlist.training.distributed.job import DistributedJob


def record_steps() -> list[float]:
    """Have every step's mean loss recorded."""
    losses: list[float] = []
    step = DistributedTrainer._distributed_step

    def recorded(self: DistributedTrainer, batch: Batch) -> tuple[float, int]:
        total, rows = step(self, batch)
        if rows:
            losses.append(total / rows)
        return total, rows

    DistributedTrainer._distributed_step = recorded  # type: ignore[method-assign]
    return losses


def check_table(job: DistributedJob, rank: int, world: int) -> None:
    """Compare a sharded table, lists of ids among its features, with the whole one, before and after a step."""
    table = job.day_table
    learning = LearningTable(table, features_matching(table, ("*_id",)))
    layout = Layout.from_features(learning.features)
    chunks = [ChunkStore(learning, layout, 0).chunk(path) for path in learning.paths("train")[:world]]
    batches = [chunk.batch(0, 100 * (number + 1)) for number, chunk in enumerate(chunks)]
    torch.manual_seed(5)
    fused = FusedTable(layout, 8)
    torch.manual_seed(5)
    sharded = ShardedTable(layout, 8, rank, world)
    gradients = [torch.randn(len(batch.lookups.starts) - 1, 8) for batch in batches]
    assert torch.equal(sharded(batches[rank].lookups), fused(batches[rank].lookups))
    ShardedAdagrad(sharded, 0.1, 0.01).step(batches[rank].lookups, gradients[rank])
    alone = RowWiseAdagrad(fused.weight_RD, fused.squares_R, 0.1, 0.01)
    alone.step(*_one_batch(batches, gradients))
    whole = sharded.whole()
    assert (whole is None) == (rank > 0)
    if whole is not None:
        torch.testing.assert_close(whole.weight_RD, fused.weight_RD, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(whole.squares_R, fused.squares_R, rtol=1e-6, atol=1e-7)


def _one_batch(batches: list[Batch], gradients: list[torch.Tensor]):  # type: ignore[no-untyped-def] # noqa: ANN202
    lookups = batches[0].lookups
    ends = np.cumsum([0, *(len(batch.lookups.rows_L) for batch in batches)])
    starts = [batch.lookups.starts[:-1] + int(end) for batch, end in zip(batches, ends, strict=False)]
    shares = [batch.lookups.shares_L for batch in batches if batch.lookups.shares_L is not None]
    joined_lookups = lookups._replace(
        rows_L=torch.cat([batch.lookups.rows_L for batch in batches]),
        starts=torch.cat([*starts, torch.tensor([int(ends[-1])], dtype=torch.int32)]).to(torch.int32),
        shares_L=torch.cat(shares),
    )
    return joined_lookups, torch.cat(gradients)


def main() -> None:
    """Check the table; train; leave losses and model."""
    path = Path(sys.argv[1])
    job = DistributedJob.read(path)
    ranker = DLRMRanker(DLRMRanker.section_type.model_validate(job.section))
    losses = record_steps()
    rank = int(os.environ["RANK"])
    with join_group(job.files(rank), cuda=False, wait_seconds=job.wait_seconds) as group:
        check_table(job, group.rank, group.world)
        ranker.fit(job.day_table, job.runtime)
    if rank == 0:
        ranker.save(path.parent / "model")
        (path.parent / "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
