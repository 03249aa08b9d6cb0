"""Where the time of a training step goes, stage by stage, and how near the table's stages come to the rows' roof."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch

from benchmarks.bench import Line
from benchmarks.gpu.roofs import Roofs
from benchmarks.gpu.timing import seconds
from benchmarks.gpu.variants import declared
from benchmarks.gpu.world import World
from models.embedding.reading.chunks import Batch
from models.embedding.training.losses import batch_loss
from models.embedding.training.step import StepOptions, row_optimizer
from shortlist.planning.plan import forward_bytes

_UPDATES: Final = {
    "fused": StepOptions(fixed_shapes=True, fused=True),
    "torch": StepOptions(fixed_shapes=True),
    "torch, shapes by ids": StepOptions(),
}


def stages(world: World, batch: Batch, roofs: Roofs) -> list[Line]:
    """Time the stages of an eager bf16 step on one batch, each alone, many times in a row; fused where there is Triton.

    Of the table's stages, what they must move at least is counted: looking up reads a row and writes it to its slot;
    the update reads the slots' gradients, writes their sums, and reads and writes the rows. Rows that a batch looks up
    more than once are counted as often, so what moves them once may seem faster than the roof.
    """
    device, section = world.setting.device, world.configuration.section
    model = world.model(section)
    table, network = model.table, model.network
    network.narrow, network.multiple = torch.bfloat16, 8
    pooled = table(batch.lookups).requires_grad_()

    def look_up(fused: bool) -> None:
        table.fused = fused
        table(batch.lookups)

    def learn(fused: bool) -> None:
        network.fused = fused
        network.zero_grad()
        pooled.grad = None  # as in a step; adding to what is there would move it twice
        batch_loss(network, batch.dense_BF, pooled, batch.labels_B, None).backward()

    learn(fused=False)
    assert pooled.grad is not None
    gradient = pooled.grad.clone()
    rate, decay = section.embedding_learning_rate, section.embedding_decay
    adam = torch.optim.AdamW(network.parameters(), fused=True, capturable=device == "cuda")
    row_traffic = 2 * forward_bytes(world.configuration.shape)
    best = declared(world.setting, "bf16").fused
    works: dict[str, tuple[Callable[[], object], float]] = {"Adam": (adam.step, 0)}
    for fused in (True, False) if best else (False,):
        name = "fused" if fused else "torch"
        works[f"look-up, {name}"] = (partial(look_up, fused), row_traffic)
        works[f"network, forward and backward, bf16, {name}"] = (partial(learn, fused), 0)
    for name, options in _UPDATES.items():
        if best or not options.fused:
            update = row_optimizer(options)(table.weight_RD, table.squares_R, rate, decay)
            works[f"row-wise Adagrad, {name}"] = (partial(update.step, batch.lookups, gradient), 2 * row_traffic)
    stage_seconds = {name: seconds(work, world.setting) for name, (work, _) in works.items()}
    taken_by_step = ("Adam", "fused" if best else "torch")
    whole = sum(duration for name, duration in stage_seconds.items() if name.endswith(taken_by_step))
    return [
        Line(
            "stages", name, float(f"{stage_seconds[name] * 1e3:.4g}"), "ms", "all stages of a step",
            round(stage_seconds[name] / whole, 3),
            round(moved * batch.rows / stage_seconds[name] / roofs.rows, 3) if moved else None,
        )
        for name, (_, moved) in works.items()
    ]  # fmt: skip
