"""Rows scored per second by the published configuration, look-ups and network, at the batch sizes of a server.

Rates: batches on the device, one after the other. Latency: from a batch in pinned host memory to its scores there. The
scores of every variant are first compared with those of eager float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Final, NamedTuple

import torch
from torch import Tensor

from benchmarks.bench import Line
from benchmarks.gpu.onnx_peer import onnx_lines
from benchmarks.gpu.published import Configuration, drawn_batch, published
from benchmarks.gpu.roofs import device_name, precisions
from benchmarks.gpu.scorer import Scorer
from benchmarks.gpu.setting import Findings, Setting
from benchmarks.gpu.timing import latency_p50, seconds
from benchmarks.gpu.variants import declared
from benchmarks.gpu.world import untrained
from models.dlrm.network import DLRM
from models.embedding.reading.chunks import Batch, Lookups
from models.embedding.training.step import StepOptions

TITLE: Final = "DLRM scoring, look-ups and network"
SIZES: Final = (1_024, 8_192, 32_768, 65_536)
A100: Final = {1_024: 5.05e6, 32_768: 14.8e6}
"""Published rows per second without a server on one A100-80, with CUDA graphs (DeepLearningExamples)."""
MUST_REACH: Final = {1_024: 7e6, 32_768: 19e6}
"""Rows per second of the fastest variant on one H200: nine tenths of what was measured."""
TOLERANCE: Final = {"fp32": 1e-5, "tf32": 5e-3, "bf16": 2e-2, "fp16": 5e-3}
"""Of a probability."""
_DIFFERENT: Final = 16
"""Batches in turn: the rows of a single one would stay in the cache."""


class _Case(NamedTuple):
    """A variant at a size."""

    name: str
    configuration: Configuration
    options: StepOptions
    batches: list[Batch]
    reference: Tensor
    """Scores of the first batch."""


def run(setting: Setting) -> Findings:
    """Check and time every variant at every size."""
    findings = Findings(setting)
    configuration = published(setting)
    sizes = setting.pick(SIZES, (64, 256))
    measured_precisions = precisions(findings)
    random = torch.Generator(setting.device).manual_seed(19)
    with findings.attempt("scoring"):
        batches = {
            size: [drawn_batch(configuration, size, random) for _ in range(setting.pick(_DIFFERENT, 2))]
            for size in sizes
        }
        reference = {
            size: Scorer(_model(configuration, setting), size_batches[0], StepOptions())(size_batches[0]).clone()
            for size, size_batches in batches.items()
        }
        for mode, options in _modes(findings):
            for size, size_batches in batches.items():
                for precision in measured_precisions:
                    name = f"{size:,} rows, {precision}, {mode}"
                    # Compiling takes a quarter of a minute each.
                    if (options.compiled and precision != "bf16") or findings.out_of_time(name):
                        continue
                    with findings.attempt(name):
                        case = _Case(
                            name, configuration, options._replace(precision=precision), size_batches, reference[size]
                        )
                        findings.lines += _measured(findings, case)
    with findings.attempt("ONNX Runtime"):
        findings.lines += onnx_lines(findings, sizes)
    _judge(findings, sizes)
    return findings


def _modes(findings: Findings) -> Iterator[tuple[str, StepOptions]]:
    fused = declared(findings.setting, "fp32").fused
    if not findings.needs_cuda("graphs"):
        yield "graphs", StepOptions(graphs=True, fused=fused)
    yield "eager", StepOptions()
    if not findings.needs_cuda("compiled, graphs"):
        yield "compiled, graphs", StepOptions(graphs=True, compiled=True, fused=fused)


def _model(configuration: Configuration, setting: Setting) -> DLRM:
    return untrained(configuration.layout, configuration.section, setting.device)


def _measured(findings: Findings, case: _Case) -> list[Line]:
    """Check and time a variant; the memory that it takes is free again afterwards."""
    setting, size, precision = findings.setting, case.batches[0].rows, case.options.precision
    scorer = Scorer(_model(case.configuration, setting), case.batches[0], case.options)
    off = float((scorer(case.batches[0]) - case.reference).abs().max())
    finding = f"{off:.1e} from eager fp32's, of {TOLERANCE[precision]:.0e}"
    findings.expect(f"{case.name}, scores", off <= TOLERANCE[precision], finding)
    on_device, on_host = cycle(case.batches), cycle([_pinned(batch, setting) for batch in case.batches])
    rate = size / seconds(lambda: scorer(next(on_device)), setting, 20)
    p50 = latency_p50(lambda: scorer(next(on_host)).cpu(), setting, 100)
    published_rate = A100.get(size)
    peer = "one A100-80, published, graphs" if published_rate else ""
    ratio = round(rate / published_rate, 3) if published_rate else None
    return [
        Line("inference", case.name, round(rate), "rows/s", peer, ratio),
        Line("inference", f"{case.name}, p50", float(f"{p50 * 1e3:.4g}"), "ms"),
    ]


def _pinned(batch: Batch, setting: Setting) -> Batch:
    def copy_to_device(tensor: Tensor) -> Tensor:
        return tensor.cpu().pin_memory() if setting.on_gpu else tensor

    return Batch(
        copy_to_device(batch.labels_B),
        copy_to_device(batch.dense_BF),
        Lookups(copy_to_device(batch.lookups.rows_L), batch.lookups.starts, None),
    )


def _judge(findings: Findings, sizes: tuple[int, ...]) -> None:
    """Fail when the fastest variant of a size is slower than one H200 must be."""
    if device_name(findings.setting) != "H200" or findings.setting.small:
        return
    for size in sizes:
        if size in MUST_REACH:
            size_lines = [
                line for line in findings.lines if line.unit == "rows/s" and line.name.startswith(f"{size:,} rows")
            ]
            best, required_rate = max((line.value for line in size_lines), default=0.0), MUST_REACH[size]
            findings.expect(
                f"{size:,} rows", best >= required_rate, f"{best / 1e6:.2f} M rows/s of {required_rate / 1e6:.0f} M"
            )
