"""What a variant of training learns from the first batches, and how many samples per second it reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from statistics import median
from typing import Final, NamedTuple

from torch import Tensor

from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import ROUNDS, wall_s
from benchmarks.gpu.world import World
from models.dlrm.section import DLRMModel
from models.embedding.reading.chunks import Batch
from models.embedding.table.precision import Precision
from models.embedding.training.step import StepOptions, compile_obstacle
from models.embedding.training.train import Training

LOSS_TOLERANCE: Final = {"fp32": 1e-3, "tf32": 5e-3, "bf16": 4e-2, "fp16": 5e-3}
"""Of the mean loss of a batch, over the first steps. bf16 has three bits less than fp16: eight times its tolerance."""
ROW_TOLERANCE: Final = {"fp32": 1e-2, "tf32": 2e-1, "bf16": 5e-1, "fp16": 2e-1}
"""Largest error of the rows that a first step moves, relative to the movement. A row that stays, or moves like another,
is off by 1 or more. One whose gradients nearly cancel moves as far as any, by Adagrad's rule, and few bits of bf16 say
where: by 0.11 with the published perceptrons and 1 024 rows."""
CHECKED_STEPS: Final = 12
_MOST_SKIPPED: Final = 8


def declared(setting: Setting, precision: Precision) -> StepOptions:
    """Return the options that a section gets which declares nothing but its precision: see `step_options`."""
    on_gpu = setting.on_gpu
    fused = on_gpu and not compile_obstacle(setting.device)
    return StepOptions(precision, graphs=on_gpu, fixed_shapes=True, fused=fused, multiple=8)


class Learnt(NamedTuple):
    """What a variant did with the first batches."""

    losses: list[float]
    moved: Tensor
    """How far the first step moved some of its rows, float64, in host memory."""

    def difference(self, reference: Learnt, precision: str) -> tuple[bool, str]:
        """Return whether this is the same as a reference up to a precision's rounding, and by how much it differs."""
        off = max(abs(a - b) for a, b in zip(self.losses, reference.losses, strict=True))
        error = float((self.moved - reference.moved).norm() / reference.moved.norm())
        holds = off <= LOSS_TOLERANCE[precision] and error <= ROW_TOLERANCE[precision]
        return holds, f"losses {off:.1e} apart, moved rows {error:.1e}"


def first_batches(world: World) -> list[Batch]:
    """Return the batches that every variant learns from before it is timed."""
    with closing(world.batches(world.configuration.section.batch_size)) as batches:
        return list(islice(batches, CHECKED_STEPS))


def learnt(world: World, section: DLRMModel, options: StepOptions, batches: list[Batch]) -> Learnt:
    """Let a fresh model learn from some batches; the memory that it takes is free again afterwards."""
    model = world.model(section)
    training = Training(model, section, world.setting.device, options)
    rows = batches[0].lookups.rows_L[:: max(1, len(batches[0].lookups.rows_L) // 4_096)].long()
    rows_before = model.table.weight_RD.index_select(0, rows).double().cpu()
    for _ in range(_MOST_SKIPPED):  # a first scale that is too large for fp16 moves nothing, and is halved
        losses = [float(training.train_batch(batches[0]))]
        moved = model.table.weight_RD.index_select(0, rows).double().cpu() - rows_before
        if moved.any():
            break
    losses += [float(loss) for loss in [training.train_batch(batch).clone() for batch in batches[1:]]]
    return Learnt(losses, moved)


def rate(world: World, section: DLRMModel, options: StepOptions) -> float:
    """Return the samples per second of a fresh model with our loader: the median of some rounds of an epoch each."""
    setting = world.setting
    training = Training(world.model(section), section, setting.device, options)
    with closing(world.batches(section.batch_size)) as batches:
        # The first time it compiles, captures, and decodes the table.
        return sustained(training, batches, setting, steps=setting.pick(48, 3), rounds=setting.pick(ROUNDS, 1))


def sustained(
    training: Training, batches: Iterator[Batch], setting: Setting, steps: int, rounds: int,
    warmed: Callable[[], object] = lambda: None,
) -> float:  # fmt: skip
    """Return the samples per second of a training: the median of some rounds, after one that does not count.

    Args:
        training: Takes the steps.
        batches: Of the loader, endless.
        setting: Where.
        steps: Of a round.
        rounds: That count.
        warmed: Called after the one that does not.
    """
    rates = []
    for _ in range(1 + rounds):
        rows = 0

        def take() -> None:
            nonlocal rows
            for batch in islice(batches, steps):
                training.train_batch(batch)
                rows += batch.rows  # of two batches of a pool, one may have a row more

        spent = wall_s(take, setting)
        rates.append(rows / spent)
        if len(rates) == 1:
            warmed()
    return median(rates[1:])
