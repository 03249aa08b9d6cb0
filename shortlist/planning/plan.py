"""Costs of a DLRM: bytes, floating-point operations, memory of a step, and the roofline of a device."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from shortlist.planning.accelerators import ACCELERATORS, Accelerator, Precision
from shortlist.planning.model_shape import EmbeddingTable, ModelShape

FLOAT: Final = 4
"""Bytes of a float32: embedding rows, accumulators, weights and gradients."""
_LEAST_PRECISE: Final[dict[Precision, int]] = {"bf16": 2, "tf32": 4, "fp32": 4}


@dataclass(frozen=True)
class Costs:
    """Costs per sample, and bytes in memory."""

    forward_flops: int
    training_flops: int
    forward_bytes: int
    training_bytes: int
    table_bytes: int
    state_bytes: int
    perceptron_weights: int


def table_bytes(table: EmbeddingTable, width: int) -> int:
    """Return the bytes of a table's rows."""
    return table.rows * width * FLOAT


def state_bytes(table: EmbeddingTable) -> int:
    """Return the bytes of row-wise Adagrad's state: one accumulator per row (Mudigere et al., 2022)."""
    return table.rows * FLOAT


def forward_flops(shape: ModelShape) -> int:
    """Return the operations of one sample's score: two per multiply-add (Naumov et al., 2019, figure 1).

    Every linear layer multiplies inputs by outputs; the interaction multiplies all N vectors by all N, as a batched
    product does, though half of the products are used.
    """
    layers = sum(inputs * outputs for widths in (shape.bottom, shape.top) for inputs, outputs in pairwise(widths))
    return 2 * (layers + shape.vectors**2 * shape.width)


def training_flops(shape: ModelShape) -> int:
    """Return the operations of one sample's step: the backward pass costs twice the forward (Kaplan et al., 2020)."""
    return 3 * forward_flops(shape)


def forward_bytes(shape: ModelShape) -> int:
    """Return the table traffic of one sample's score: every looked-up row is read once."""
    return shape.lookups * shape.width * FLOAT


def training_bytes(shape: ModelShape) -> int:
    """Return the table traffic of one sample's step.

    A looked-up row is read, its gradient written, and in the update the row is read and written again; its accumulator
    is read and written. Rows that several samples of a batch share are counted for each: an upper bound, which caches
    and `sum_by_row` improve on.
    """
    return 4 * forward_bytes(shape) + 2 * shape.lookups * FLOAT


def model_costs(shape: ModelShape) -> Costs:
    """Return all costs of a model."""
    return Costs(
        forward_flops(shape),
        training_flops(shape),
        forward_bytes(shape),
        training_bytes(shape),
        sum(table_bytes(table, shape.width) for table in shape.tables),
        sum(state_bytes(table) for table in shape.tables),
        sum((inputs + 1) * outputs for widths in (shape.bottom, shape.top) for inputs, outputs in pairwise(widths)),
    )


def activation_bytes(shape: ModelShape, rows: int, precision: Precision) -> int:
    """Return the bytes that the forward pass of some rows keeps for the backward pass.

    The pooled slots and their copy among the interacting vectors, the products of the interaction, and every layer's
    input in the precision of the perceptrons.
    """
    vectors = shape.vectors
    interaction = (shape.lookups + vectors) * shape.width + vectors**2 + shape.top[0]
    layers = sum(shape.bottom) + sum(shape.top)
    return rows * (FLOAT * (interaction + shape.floats) + _LEAST_PRECISE[precision] * layers)


def step_bytes(shape: ModelShape, rows: int, precision: Precision) -> int:
    """Return the memory of a step besides the tables and their state.

    Activations and their gradients; five buffers of the row-wise update with fixed shapes, each as large as all
    looked-up rows: sums of pieces and of segments, their squares, and the updates with and without unchanged rows;
    weights, gradients and two moments of Adam (Kingma and Ba, 2015).
    """
    update = 5 * rows * shape.lookups * shape.width * FLOAT
    return 2 * activation_bytes(shape, rows, precision) + update + 4 * FLOAT * model_costs(shape).perceptron_weights


def exchange_bytes(shape: ModelShape, devices: int) -> float:
    """Return the bytes that one sample's step sends over the links when tables are sharded over several devices.

    A looked-up row is received from its device and its gradient sent back, except for one row in `devices`, which is
    local. Rows that several samples of a batch share are counted for each, an upper bound.
    """
    return 2 * forward_bytes(shape) * (devices - 1) / devices


@dataclass(frozen=True)
class Roofline:
    """Upper bounds of the samples per second of one device (Williams, Waterman and Patterson, 2009), and an estimate.

    Attributes:
        memory: Bound by the tables' traffic; activations are left out, as they may stay in caches.
        compute: Bound by the operations.
        expected: The published rate, scaled; None where nothing comparable is published.
    """

    memory: float
    compute: float
    expected: float | None

    @property
    def samples_per_s(self) -> float:
        """The lower bound of the two."""
        return min(self.memory, self.compute)


PUBLISHED: Final = ModelShape(
    tuple(EmbeddingTable(f"C{i}", 1, 1, "given") for i in range(1, 27)), 13, 128,
    (13, 512, 256, 128), (479, 1024, 1024, 512, 256, 1), 65_536,
)  # fmt: skip
"""NVIDIA's DLRM for PyTorch (DeepLearningExamples); row counts do not matter for speed."""
_PUBLISHED_RATES: Final[dict[Precision, float]] = {"tf32": 2.88e6, "bf16": 4.02e6}
"""Published samples per second in training on one A100-80; `bf16`: mixed precision with CUDA graphs."""


def roofline(shape: ModelShape, device: Accelerator, precision: Precision) -> Roofline | None:
    """Return the roofline of training on a device; None when it lacks the precision.

    The expected rate is the published rate, scaled by the smaller of the two ratios between this device's bounds for
    this shape and the A100's bounds for the published shape.
    """
    if precision not in device.peaks:
        return None
    memory = device.bandwidth / training_bytes(shape)
    compute = device.peaks[precision] / training_flops(shape)
    published = _PUBLISHED_RATES.get(precision) if device.name != "cpu" else None
    if published is None:
        return Roofline(memory, compute, None)
    reference = ACCELERATORS["A100-80"]
    gain = min(
        memory / (reference.bandwidth / training_bytes(PUBLISHED)),
        compute / (reference.peaks[precision] / training_flops(PUBLISHED)),
    )
    return Roofline(memory, compute, published * gain)
