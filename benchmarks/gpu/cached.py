"""Embeddings whose rows lie in host memory, some of them on the device, against all of them there.

Every share of cached rows first learns the same batches as the table that is on the device as a whole: the losses, and
the rows that they moved, must be the same. The published configuration is taken with an eighth of its rows: a host
draws 2 GiB for every share, and even 5 % of them hold what a batch of 65 536 looks up (163 000 distinct rows).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import islice
from typing import Final, NamedTuple

import torch

from benchmarks.bench import Line
from benchmarks.gpu.published import Configuration, published
from benchmarks.gpu.setting import Findings, Setting
from benchmarks.gpu.variants import declared, sustained
from benchmarks.gpu.world import SEED, World
from models.dlrm.network import DLRM
from models.embedding.reading.chunks import Batch
from models.embedding.table.cached_embeddings import CachedTable
from models.embedding.table.fused_table import FusedTable
from models.embedding.training.train import Training

TITLE: Final = "DLRM training with cached embeddings, bf16, loader included"
SHARES: Final = (1.0, 0.5, 0.2, 0.1, 0.05)
_TOLERANCE: Final = 1e-3
"""A row that was lost, or is another's, is off by a step of its optimizer, 0.02."""
_CHECKED_STEPS: Final = 6
_STEPS, _ROUNDS = 16, 2
_SMALLER: Final = 8
"""Times fewer rows than published."""


class _Reached(NamedTuple):
    losses: list[float]
    rows: torch.Tensor
    """Some of the rows afterwards."""
    rate: float
    hit_rate: float | None


def run(setting: Setting) -> Findings:
    """Check and time every share."""
    findings = Findings(setting)
    configuration = published(setting)
    configuration = Configuration(
        tuple(max(4, size // _SMALLER) for size in configuration.sizes), configuration.floats, configuration.section
    )
    batch = configuration.section.batch_size
    # The host looks after a cache, so its batches stay there, as they do in a run.
    with (
        findings.attempt("cached"),
        World(setting, configuration, setting.pick(_STEPS, 6) * batch, batch, reading="cpu") as world,
    ):
        with closing(world.batches(batch)) as batches:
            first = list(islice(batches, _CHECKED_STEPS))
        whole = _reached(world, lambda: FusedTable(world.layout, configuration.section.embedding_dim), first)
        findings.lines.append(_line("all on the device", whole, whole))
        distinct = max(len(batch.lookups.rows_L.unique()) for batch in first)
        for share in SHARES:
            name = f"{share:.0%} cached"
            slots = max(int(share * world.layout.rows), distinct if setting.small else 0)
            if findings.out_of_time(name):
                continue
            with findings.attempt(name):
                cached_outcome = _reached(world, _cached(world, slots), first)
                _check(findings, name, cached_outcome, whole)
                findings.lines.append(_line(name, cached_outcome, whole))
                assert cached_outcome.hit_rate is not None
                findings.lines.append(
                    Line("cached", f"{name}, hit rate", round(cached_outcome.hit_rate, 4), "of look-ups")
                )
    return findings


def _cached(world: World, slots: int) -> Callable[[], FusedTable]:
    return lambda: CachedTable(world.layout, world.configuration.section.embedding_dim, slots)


def _reached(world: World, table: Callable[[], FusedTable], first: list[Batch]) -> _Reached:
    setting, section = world.setting, world.configuration.section
    options = declared(setting, "bf16")
    torch.manual_seed(SEED)  # in host memory: the device would draw others
    model = DLRM(world.layout, section, table=table())
    model.network.set_base_rates(world.learning.base_rate)
    model.to(setting.device).train()
    training = Training(model, section, setting.device, options)
    losses = [float(training.train_batch(batch)) for batch in first]
    looked_up = first[0].lookups.rows_L[:4_096].long().cpu()
    rows = model.table.state_dict()["weight_RD"][looked_up].cpu()
    cache = model.table if isinstance(model.table, CachedTable) else None
    # In the first round every row is brought for the first time: its hits are forgotten.
    forget = cache.hit_rate if cache else lambda: None
    with closing(world.batches(section.batch_size)) as batches:
        rate = sustained(training, batches, setting, setting.pick(_STEPS, 3), setting.pick(_ROUNDS, 1), forget)
    return _Reached(losses, rows, rate, cache.hit_rate() if cache else None)


def _check(findings: Findings, name: str, cached_outcome: _Reached, whole: _Reached) -> None:
    off = max(abs(a - b) for a, b in zip(cached_outcome.losses, whole.losses, strict=True))
    apart = float((cached_outcome.rows - whole.rows).abs().max())
    finding = f"losses {off:.1e} apart, rows {apart:.1e}"
    findings.expect(f"{name} as all on the device", max(off, apart) <= _TOLERANCE, finding)


def _line(name: str, cached_outcome: _Reached, whole: _Reached) -> Line:
    ratio = round(cached_outcome.rate / whole.rate, 3)
    return Line("cached", name, round(cached_outcome.rate), "samples/s", "all on the device", ratio)
