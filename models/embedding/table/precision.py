"""The precision of a training step's products: declared, or chosen by what the device multiplies natively."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

import torch

from models.embedding_section import EmbeddingSection
from shortlist.contracts import ShortlistError

Precision = Literal["fp32", "tf32", "bf16", "fp16"]

_NARROW: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NEEDS_GPU: Final = ("tf32", "fp16")


def precision_of(section: EmbeddingSection, device: str) -> Precision:
    """Return the declared precision; for `auto`, bf16 where the device multiplies it natively, else float32.

    Raises:
        ShortlistError: The device has no such arithmetic.
    """
    if section.precision == "auto":
        return "bf16" if _has_bf16(device) else "fp32"
    if section.precision in _NEEDS_GPU and device != "cuda":
        raise ShortlistError(
            f"precision is {section.precision}, which only NVIDIA GPUs compute; this training runs on the"
            f" {device}. Declare auto, fp32 or bf16, or runtime.engine: gpu on a machine with a GPU."
        )
    return section.precision


def narrow_dtype(precision: Precision) -> torch.dtype | None:
    """Return the narrow type of perceptrons; None: float32."""
    return _NARROW.get(precision)


@contextmanager
def matmul_precision(precision: Precision) -> Iterator[None]:
    """Multiply float32 matrices in TF32 if that is the precision, else in full float32; restore the setting after."""
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)


def _has_bf16(device: str) -> bool:
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
