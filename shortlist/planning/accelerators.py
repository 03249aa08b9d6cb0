"""Published speeds and memory sizes of the processors that a plan supports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from shortlist.contracts import ShortlistError, did_you_mean

Precision = Literal["bf16", "tf32", "fp32"]


@dataclass(frozen=True)
class Accelerator:
    """Peak figures of one device, by its maker's data sheet, without structured sparsity.

    Attributes:
        name: Value of `--gpu`.
        memory_bytes: Device memory; for a CPU, the most that a socket supports.
        bandwidth: Bytes per second to that memory.
        peaks: Floating-point operations per second by precision.
        link: Bytes per second to the other devices of a node, one direction; 0: there is no such link.
        source: Source of the numbers.
    """

    name: str
    memory_bytes: float
    bandwidth: float
    peaks: dict[Precision, float]
    link: float
    source: str


_TERA = 1e12

ACCELERATORS: Final = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator(
            "H200", 141e9, 4.8e12, {"bf16": 989 * _TERA, "tf32": 494 * _TERA, "fp32": 67 * _TERA}, 450e9,
            "NVIDIA H200 data sheet (SXM): 141 GB, 4.8 TB/s, NVLink 900 GB/s both ways",
        ),
        Accelerator(
            "H100", 80e9, 3.35e12, {"bf16": 989 * _TERA, "tf32": 494 * _TERA, "fp32": 67 * _TERA}, 450e9,
            "NVIDIA H100 data sheet (SXM): 80 GB, 3.35 TB/s, NVLink 900 GB/s both ways",
        ),
        Accelerator(
            "A100-80", 80e9, 2.039e12, {"bf16": 312 * _TERA, "tf32": 156 * _TERA, "fp32": 19.5 * _TERA}, 300e9,
            "NVIDIA A100 80GB data sheet (SXM): 2 039 GB/s, NVLink 600 GB/s both ways",
        ),
        Accelerator(
            "L4", 24e9, 0.3e12, {"bf16": 121 * _TERA, "tf32": 60 * _TERA, "fp32": 30.3 * _TERA}, 32e9,
            "NVIDIA L4 data sheet: 24 GB, 300 GB/s, PCIe 4.0 x16, 64 GB/s both ways; half of its peaks with sparsity",
        ),
        Accelerator(
            # 64 float32 operations per core and cycle (two AVX-512 units that multiply and add), 2 048 in bf16 (AMX).
            "cpu", 4e12, 307.2e9, {"bf16": 56 * 2e9 * 2048, "fp32": 56 * 2e9 * 64}, 0,
            "Intel Xeon Platinum 8480+ (ARK): 56 cores, 2.0 GHz base, eight channels of DDR5-4800, 4 TB at most",
        ),
    )
}  # fmt: skip
"""Accelerators by name."""


def find_accelerator(name: str) -> Accelerator:
    """Return the accelerator with a name.

    Raises:
        ShortlistError: There is no such accelerator in the table.
    """
    if name not in ACCELERATORS:
        raise ShortlistError(
            f"--gpu: no '{name}'{did_you_mean(name, ACCELERATORS)}; there are {', '.join(ACCELERATORS)}"
        )
    return ACCELERATORS[name]
