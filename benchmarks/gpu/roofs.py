"""What the device does at most with what a DLRM asks of it: rows gathered and scattered, products of its perceptrons.

Every training figure is held against these, measured in the same process: a data sheet's bandwidth is that of long
copies, its peak that of large square products, and a DLRM has neither.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.bench import Line
from benchmarks.gpu.published import published
from benchmarks.gpu.setting import Findings, Setting
from benchmarks.gpu.timing import seconds
from models.embedding.table.precision import Precision, matmul_precision
from shortlist.planning.accelerators import ACCELERATORS
from shortlist.planning.model_shape import ModelShape
from shortlist.planning.plan import FLOAT, training_bytes, training_flops

TITLE: Final = "Roofs: gathered and scattered rows, products of the perceptrons"
DTYPES: Final[dict[Precision, torch.dtype]] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
"""What products are computed in, by precision; tf32 is a setting of float32's."""
CPU_PRECISIONS: Final = ("fp32", "bf16")
_TABLE_ROWS: Final = 2**25
_ALIGNED: Final = 8


class Roofs(NamedTuple):
    """What was measured on this device."""

    copied: float
    """Bytes per second of a long copy, read and written."""
    rows: float
    """Bytes per second of embedding rows gathered at random and scattered at random, read and written."""
    flops: dict[Precision, float]
    """Operations per second of all products of a step, by precision."""

    def shares(self, rate: float, shape: ModelShape, precision: Precision) -> dict[str, float]:
        """Return which share of each roof so many samples per second are, by the published costs of a sample."""
        memory, compute = rate * training_bytes(shape) / self.rows, rate * training_flops(shape) / self.flops[precision]
        return {"memory": round(memory, 3), "compute": round(compute, 3)}


def run(setting: Setting) -> Findings:
    """Measure the roofs of the published configuration, and check the products first."""
    findings = Findings(setting)
    configuration = published(setting)
    with findings.attempt("products"):
        check(setting, findings)
    with findings.attempt("roofs"):
        roofs = measured(setting, configuration.shape, precisions(findings))
        peak = ACCELERATORS.get(device_name(setting))
        bandwidth = peak.bandwidth if peak else None
        findings.lines += [
            _line("copy, read and written", roofs.copied / 1e9, "GB/s", bandwidth and bandwidth / 1e9),
            _line(
                f"{row_bytes(configuration.shape)}-byte rows, gathered and scattered at random",
                roofs.rows / 1e9, "GB/s", bandwidth and bandwidth / 1e9,
            ),
        ]  # fmt: skip
        for precision, flops in roofs.flops.items():
            peak_rate = peak.peaks.get("bf16" if precision == "fp16" else precision) if peak else None
            name = f"products of a step of {configuration.shape.batch:,}, {precision}"
            findings.lines.append(_line(name, flops / 1e12, "TFLOP/s", peak_rate and peak_rate / 1e12))
    return findings


def precisions(findings: Findings) -> list[Precision]:
    """Return the precisions that the device has; note the others."""
    return [name for name in DTYPES if name in CPU_PRECISIONS or not findings.needs_cuda(f"precision {name}")]


def measured(setting: Setting, shape: ModelShape, precisions_to_measure: list[Precision]) -> Roofs:
    """Measure; the memory that it takes is free again afterwards."""
    return Roofs(
        copied=_copied(setting, setting.pick(2**30, 2**16)),
        rows=_rows(setting, setting.pick(_TABLE_ROWS, 2**10), shape),
        flops={name: _flops(setting, shape, name) for name in precisions_to_measure},
    )


def check(setting: Setting, findings: Findings) -> None:
    """See that products in each precision are as near to float64's as its mantissa allows."""
    random = torch.Generator(setting.device).manual_seed(3)
    x, w = (torch.randn(256, 256, generator=random, device=setting.device) for _ in range(2))
    exact = x.double() @ w.double().t()
    allowed = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 2e-2, "fp16": 2e-3}
    for name in precisions(Findings(setting)):
        with matmul_precision(name):
            product = (x.to(DTYPES[name]) @ w.to(DTYPES[name]).t()).double()
        error = float((product - exact).norm() / exact.norm())
        finding = f"relative error {error:.1e} of {allowed[name]:.0e}"
        findings.expect(f"product, {name}", error <= allowed[name], finding)


def device_name(setting: Setting) -> str:
    """Return the device's key in `shortlist.planning.accelerators`; empty for any other device, or a part of one."""
    return known_device(torch.cuda.get_device_name()) if setting.on_gpu else ""


def known_device(name: str) -> str:
    """Return the key of a device's name in `shortlist.planning.accelerators`."""
    name_words = re.split(r"[\s-]", name)
    for key in ACCELERATORS:
        chip, _, size = key.partition("-")
        if chip in name_words and "MIG" not in name_words and (not size or f"{size}GB" in name_words):
            return key
    return ""


def row_bytes(shape: ModelShape) -> int:
    """Return the bytes of an embedding row."""
    return shape.width * FLOAT


def _copied(setting: Setting, floats: int) -> float:
    source = torch.randn(floats, device=setting.device)
    target = torch.empty_like(source)
    return 2 * FLOAT * floats / seconds(lambda: target.copy_(source), setting)


def _rows(setting: Setting, table_rows: int, shape: ModelShape) -> float:
    """Gather as many rows as a step looks up, and scatter as many, over a table far larger than any cache."""
    device = setting.device
    table = torch.randn(table_rows, shape.width, device=device)
    looked_up = min(shape.batch * shape.lookups, table_rows)
    # Distinct rows: the order in which one row's values arrived would be chance, and caches would help.
    places = torch.randperm(table_rows, device=device)[:looked_up]
    rows = torch.empty(looked_up, shape.width, device=device)
    # Whichever of torch's kernels is the faster one: a roof is what can be reached.
    gathers = (lambda: torch.index_select(table, 0, places, out=rows), lambda: functional.embedding(places, table))
    scatters = (lambda: table.index_copy_(0, places, rows), lambda: table.index_put_((places,), rows))
    least = sum(min(seconds(work, setting) for work in works) for works in (gathers, scatters))
    return 4 * looked_up * row_bytes(shape) / least


def _flops(setting: Setting, shape: ModelShape, precision: Precision) -> float:
    """Multiply everything that a step multiplies, forward and backward: nothing else happens between products."""
    works = list(_products(setting.device, shape, DTYPES[precision]))

    def step() -> None:
        for work in works:
            work()

    with matmul_precision(precision):
        return training_flops(shape) * shape.batch / seconds(step, setting)


def _products(device: str, shape: ModelShape, dtype: torch.dtype) -> Iterator[Callable[[], Tensor]]:
    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, device=device).to(dtype)

    for inputs, outputs in (*pairwise(shape.bottom), *pairwise(shape.top)):
        # Tensor cores want rows on 16-byte borders; a roof over 479 inputs would be that of a slower kernel.
        width = -(-inputs // _ALIGNED) * _ALIGNED
        x, w, g = random(shape.batch, width), random(outputs, width), random(shape.batch, outputs)
        yield lambda x=x, w=w: x @ w.t()
        yield lambda g=g, x=x: g.t() @ x
        yield lambda g=g, w=w: g @ w
    v = random(shape.batch, shape.vectors, shape.width)
    s = random(shape.batch, shape.vectors, shape.vectors)
    yield lambda: torch.bmm(v, v.transpose(1, 2))
    # Autograd's two products of the interaction's backward pass; ours is one (`models.embedding.network.interaction`).
    yield lambda: torch.bmm(s, v)
    yield lambda: torch.bmm(s.transpose(1, 2), v)


def _line(name: str, value: float, unit: str, peak_rate: float | None) -> Line:
    share = round(value / peak_rate, 3) if peak_rate else None
    return Line("roofs", name, float(f"{value:.4g}"), unit, "the data sheet" if peak_rate else "", share, share)
