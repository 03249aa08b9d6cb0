"""Where the time of a training step goes, stage by stage, and how near the table's stages come to the rows' roof."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.bench import Line
from benchmarks.gpu.roofs import Roofs
from benchmarks.gpu.timing import seconds
from benchmarks.gpu.world import World
from models.dlrm.chunks import Batch
from models.dlrm.optimizer import RowWiseAdagrad
from models.dlrm.static_shape_adagrad import StaticShapeAdagrad
from models.dlrm.step import batch_loss
from models.planning.plan import forward_bytes


def stages(world: World, batch: Batch, roofs: Roofs) -> list[Line]:
    """Time the stages of an eager bf16 step on one batch, each alone, many times in a row.

    Of the table's stages, what they must move at least is counted: looking up reads a row and writes it to its slot;
    the update reads the slots' gradients, writes their sums, and reads and writes the rows.
    """
    device, section = world.setting.device, world.made.section
    model = world.model(section)
    table, network = model.table, model.network
    network.narrow, network.multiple = torch.bfloat16, 8
    pooled = table(batch.lookups).requires_grad_()

    def learn() -> None:
        network.zero_grad()
        pooled.grad = None  # as in a step; adding to what is there would move it twice
        batch_loss(network, batch.dense_BF, pooled, batch.labels_B, None).backward()

    learn()
    assert pooled.grad is not None
    gradient = pooled.grad.clone()
    rate, decay = section.embedding_learning_rate, section.embedding_decay
    adam = torch.optim.AdamW(network.parameters(), fused=True, capturable=device == "cuda")
    moves = {
        name: kind(table.weight_RD, table.squares_R, rate, decay)
        for name, kind in (("fixed shapes", StaticShapeAdagrad), ("shapes by ids", RowWiseAdagrad))
    }
    row_traffic = 2 * forward_bytes(world.made.shape)
    works: dict[str, tuple[Callable[[], object], float]] = {
        "look-up": (lambda: table(batch.lookups), row_traffic),
        "network, forward and backward, bf16": (learn, 0),
        "Adam": (adam.step, 0),
    } | {
        f"row-wise Adagrad, {name}": (lambda one=one: one.step(batch.lookups, gradient), 2 * row_traffic)
        for name, one in moves.items()
    }
    taken = {name: seconds(work, world.setting) for name, (work, _) in works.items()}
    whole = sum(taken.values()) - taken["row-wise Adagrad, shapes by ids"]
    return [
        Line(
            "stages", name, float(f"{taken[name] * 1e3:.4g}"), "ms", "all stages", round(taken[name] / whole, 3),
            round(moved * batch.rows / taken[name] / roofs.rows, 3) if moved else None,
        )
        for name, (_, moved) in works.items()
    ]  # fmt: skip
