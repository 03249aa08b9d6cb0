"""Training speed by the width of an embedding row, with and without padding of what the perceptrons read."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.bench import Line
from benchmarks.gpu.published import published
from benchmarks.gpu.roofs import measured
from benchmarks.gpu.setting import Findings, Setting
from benchmarks.gpu.variants import declared, first_batches, learnt, rate
from benchmarks.gpu.world import World
from models.embedding.training.step import StepOptions
from shortlist.planning.model_shape import ModelShape

TITLE: Final = "DLRM training by the width of an embedding row, bf16"
WIDTHS: Final = (16, 32, 64, 96, 100, 104, 128)
"""Every declared width ends on a 16-byte border, 100 too; as bf16 among the perceptrons' inputs only 104 does, and only
multiples of 32 fill whole lines of the caches."""
_PEER: Final = "the widest, padded"


def run(setting: Setting) -> Findings:
    """Check and time a training of every width on the same rows, padded and not."""
    findings = Findings(setting)
    configuration = published(setting)
    batch = configuration.section.batch_size
    best = declared(setting, "bf16")
    with findings.attempt("widths"), World(setting, configuration, setting.pick(48, 6) * batch, batch) as world:
        first = first_batches(world)
        roofs = measured(setting, configuration.shape, [best.precision])
        widest = 0.0
        for width in setting.pick(sorted(WIDTHS, reverse=True), [16, 12]):
            section = configuration.section.model_copy(update={"embedding_dim": width})
            reference = learnt(world, section, StepOptions(), first)
            for padded, options in (("", best), (", inputs not padded", best._replace(multiple=1))):
                name = f"width {width}{padded}"
                if findings.out_of_time(name):
                    continue
                with findings.attempt(name):
                    outcome = learnt(world, section, options, first)
                    findings.expect(f"{name} as eager fp32", *outcome.difference(reference, options.precision))
                    reached = rate(world, section, options)
                    widest = widest or reached
                    shares = roofs.shares(reached, _of_width(configuration.shape, width), options.precision)
                    ratio, bound = round(reached / widest, 3), max(shares.values())
                    line = Line("width", name, round(reached), "samples/s", _PEER, ratio, bound, shares)
                    findings.lines.append(line)
    return findings


def _of_width(shape: ModelShape, width: int) -> ModelShape:
    bottom, top = (*shape.bottom[:-1], width), (shape.top[0] - shape.width + width, *shape.top[1:])
    return replace(shape, width=width, bottom=bottom, top=top)
