"""Samples per second of NVIDIA's published DLRM configuration, our loader included, with every switch on and off.

Before a variant is timed it learns the first batches, as eager float32 does from the same weights: its losses and the
rows it moves must be theirs, up to the rounding of its products. Every figure gives its share of the two roofs that
were measured in the same process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from benchmarks.bench import Line
from benchmarks.gpu.published import published
from benchmarks.gpu.roofs import Roofs, device_name, measured, precisions
from benchmarks.gpu.setting import Findings, Setting, release
from benchmarks.gpu.stages import stages
from benchmarks.gpu.variants import Learnt, declared, first_batches, learnt, rate
from benchmarks.gpu.world import World
from models.embedding.reading.chunks import Batch
from models.embedding.table.precision import Precision
from models.embedding.training.step import StepOptions

TITLE: Final = "DLRM training, loader included"
A100: Final = {"fp32": 2.88e6, "tf32": 2.88e6, "bf16": 4.02e6, "fp16": 4.02e6}
"""Published samples per second on one A100-80: TF32, and mixed precision with CUDA graphs (DeepLearningExamples)."""
MUST_REACH: Final = 12e6
"""Samples per second of the fastest variant on one H200: nine tenths of what was measured."""


_PRECISIONS: Final[tuple[Precision, ...]] = ("bf16", "tf32", "fp16", "fp32")


class Variant(NamedTuple):
    """Switches, and what they are called."""

    name: str
    options: StepOptions


def run(setting: Setting) -> Findings:
    """Measure the roofs, check and time all variants, and say where the time of a step goes."""
    findings = Findings(setting)
    configuration = published(setting)
    batch = configuration.section.batch_size
    with findings.attempt("roofs"), World(setting, configuration, setting.pick(48, 6) * batch, batch) as world:
        measured_precisions = precisions(findings)
        roofs = measured(setting, configuration.shape, measured_precisions)
        first = first_batches(world)
        reference = learnt(world, configuration.section, StepOptions(), first)
        findings.expect("loss falls", reference.losses[-1] < reference.losses[0], f"{reference.losses[-1]:.4f}")
        for variant in variants(findings, measured_precisions):
            if not findings.out_of_time(variant.name):
                with findings.attempt(variant.name):
                    _checked(findings, world, variant, first, reference)
                    release()
                    findings.lines.append(
                        _line(variant, rate(world, configuration.section, variant.options), roofs, world)
                    )
        with findings.attempt("stages"):
            findings.lines += stages(world, first[0], roofs)
    _judge(findings)
    return findings


def variants(findings: Findings, precisions_to_measure: list[Precision]) -> Iterator[Variant]:
    """Give the variants that the device has, those that tell most first; note the others."""
    best = declared(findings.setting, "bf16")
    compiled = best._replace(compiled=True)
    modes = [
        ("graphs", best, _PRECISIONS),
        ("graphs, not fused", best._replace(fused=False), _PRECISIONS[:1]),
        ("compiled, graphs", compiled, _PRECISIONS[:1]),  # compiling takes a third of a minute each
        ("eager", best._replace(graphs=False), _PRECISIONS),
        ("widths not padded", best._replace(multiple=1), _PRECISIONS[:1]),
        ("eager, shapes by ids", StepOptions(multiple=best.multiple), _PRECISIONS[:1]),
        ("compiled", compiled._replace(graphs=False), _PRECISIONS[:1]),
        ("compiled, graphs", compiled, _PRECISIONS[1:]),
    ]
    for mode, options, precisions_of_mode in modes:
        if (options.compiled or mode.startswith("graphs")) and findings.needs_cuda(mode):
            continue
        for precision in precisions_of_mode:
            if precision in precisions_to_measure:
                yield Variant(f"{precision}, {mode}", options._replace(precision=precision))


def _checked(findings: Findings, world: World, variant: Variant, first: list[Batch], reference: Learnt) -> None:
    outcome = learnt(world, world.configuration.section, variant.options, first)
    findings.expect(f"{variant.name} as eager fp32", *outcome.difference(reference, variant.options.precision))


def _line(variant: Variant, reached: float, roofs: Roofs, world: World) -> Line:
    precision = variant.options.precision
    shares = roofs.shares(reached, world.configuration.shape, precision)
    peer = f"one A100-80, published, {'TF32' if precision in ('fp32', 'tf32') else 'AMP and graphs'}"
    ratio = round(reached / A100[precision], 3)
    return Line("training", variant.name, round(reached), "samples/s", peer, ratio, max(shares.values()), shares)


def _judge(findings: Findings) -> None:
    """Fail when the fastest variant is slower than one H200 must be."""
    rates = [line.value for line in findings.lines if line.unit == "samples/s"]
    if device_name(findings.setting) == "H200" and not findings.setting.small:
        best = max(rates, default=0.0)
        finding = f"{best / 1e6:.2f} M samples/s of {MUST_REACH / 1e6:.0f} M"
        findings.expect("fastest variant", best >= MUST_REACH, finding)
