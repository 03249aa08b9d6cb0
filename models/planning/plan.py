"""What a DLRM costs: bytes, floating-point operations, memory of a step, and the speed no device can exceed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from models.planning.accelerators import ACCELERATORS, Accelerator, Precision
from models.planning.plan_inputs import Shape, Table

FLOAT: Final = 4
"""Bytes of a float32: embedding rows, accumulators, weights and gradients."""
_LEAST_PRECISE: Final[dict[Precision, int]] = {"bf16": 2, "tf32": 4, "fp32": 4}


@dataclass(frozen=True)
class Costs:
    """What one sample costs, and what must be in memory."""

    forward_flops: int
    training_flops: int
    forward_bytes: int
    training_bytes: int
    table_bytes: int
    state_bytes: int
    perceptron_weights: int


def table_bytes(table: Table, width: int) -> int:
    """Return the bytes of a table's rows."""
    return table.rows * width * FLOAT


def state_bytes(table: Table) -> int:
    """Return the bytes of row-wise Adagrad's state: one accumulator per row (Mudigere et al., 2022)."""
    return table.rows * FLOAT


def forward_flops(shape: Shape) -> int:
    """Return the operations of one sample's score: two per multiply-add (Naumov et al., 2019, figure 1).

    Every linear layer multiplies inputs by outputs; the interaction multiplies all N vectors by all N, as a batched
    product does, though half of the products are used.
    """
    layers = sum(before * after for widths in (shape.bottom, shape.top) for before, after in pairwise(widths))
    return 2 * (layers + shape.vectors**2 * shape.width)


def training_flops(shape: Shape) -> int:
    """Return the operations of one sample's step: the backward pass costs twice the forward (Kaplan et al., 2020)."""
    return 3 * forward_flops(shape)


def forward_bytes(shape: Shape) -> int:
    """Return the table traffic of one sample's score: every looked-up row is read once."""
    return shape.lookups * shape.width * FLOAT


def training_bytes(shape: Shape) -> int:
    """Return the table traffic of one sample's step.

    A looked-up row is read, its gradient written, and in the update the row is read and written again; its accumulator
    is read and written. Rows that several samples of a batch share are counted for each: an upper bound, which caches
    and `summed_by_row` improve on.
    """
    return 4 * forward_bytes(shape) + 2 * shape.lookups * FLOAT


def costs(shape: Shape) -> Costs:
    """Return all of these at once."""
    return Costs(
        forward_flops(shape),
        training_flops(shape),
        forward_bytes(shape),
        training_bytes(shape),
        sum(table_bytes(table, shape.width) for table in shape.tables),
        sum(state_bytes(table) for table in shape.tables),
        sum((before + 1) * after for widths in (shape.bottom, shape.top) for before, after in pairwise(widths)),
    )


def activation_bytes(shape: Shape, rows: int, precision: Precision) -> int:
    """Return what the forward pass of some rows keeps for the backward pass.

    The pooled slots and their copy among the interacting vectors, the products of the interaction, and every layer's
    input in the precision of the perceptrons.
    """
    vectors = shape.vectors
    interaction = (shape.lookups + vectors) * shape.width + vectors**2 + shape.top[0]
    layers = sum(shape.bottom) + sum(shape.top)
    return rows * (FLOAT * (interaction + shape.floats) + _LEAST_PRECISE[precision] * layers)


def step_bytes(shape: Shape, rows: int, precision: Precision) -> int:
    """Return the memory of a step besides the tables and their state.

    Activations; as much again for their gradients; what the row-wise update of fixed shapes holds at once, each as
    large as all looked-up rows: sums of pieces and of segments, their squares, the rows' moves with and without what
    stays; weights, gradients and two moments of Adam (Kingma and Ba, 2015).
    """
    update = 5 * rows * shape.lookups * shape.width * FLOAT
    return 2 * activation_bytes(shape, rows, precision) + update + 4 * FLOAT * costs(shape).perceptron_weights


def exchange_bytes(shape: Shape, devices: int) -> float:
    """Return what one sample's step sends over the links when tables are in pieces on several devices.

    A looked-up row comes from its owner, and its gradient goes back, but for those that lie where the sample is: one
    in `devices`. Rows that several samples of a batch share are counted for each, an upper bound.
    """
    return 2 * forward_bytes(shape) * (devices - 1) / devices


@dataclass(frozen=True)
class Roofline:
    """Most samples per second of one device (Williams, Waterman and Patterson, 2009), and what is to be expected.

    Attributes:
        memory: By the tables' traffic; activations are left out, they may stay in caches.
        compute: By the operations.
        expected: The published rate, scaled; None where nothing comparable is published.
    """

    memory: float
    compute: float
    expected: float | None

    @property
    def samples_per_s(self) -> float:
        """The lower roof."""
        return min(self.memory, self.compute)


PUBLISHED: Final = Shape(
    tuple(Table(f"C{i}", 1, 1, "given") for i in range(1, 27)), 13, 128,
    (13, 512, 256, 128), (479, 1024, 1024, 512, 256, 1), 65_536,
)  # fmt: skip
"""NVIDIA's DLRM for PyTorch (DeepLearningExamples); row counts do not matter for speed."""
_PUBLISHED_RATES: Final[dict[Precision, float]] = {"tf32": 2.88e6, "bf16": 4.02e6}
"""Samples per second that it reaches in training on one A100-80; mixed precision with CUDA graphs is the second."""


def roofline(shape: Shape, device: Accelerator, precision: Precision) -> Roofline | None:
    """Return the roofs of training on a device; None when it has no such precision.

    What is expected is the published rate times how much higher the device's roof over this shape is than the A100's
    over the published one; of the two roofs, the one that grows less.
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
