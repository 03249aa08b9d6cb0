"""The interaction in one kernel, and its derivative, against torch's operations in float64, on a GPU.

Without one, Triton's interpreter runs the same kernels where `TRITON_INTERPRET=1` is set.
"""

from __future__ import annotations

import os

import pytest
import torch

from models.embedding.network.interaction import Interaction

pytest.importorskip("triton")

pytestmark = pytest.mark.gpu
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Of the norm: what rounding a gradient to the type of the vectors costs. The products themselves are exact to 1e-6."""


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "vectors", "width"), [(5, 2, 4), (3, 9, 16), (7, 27, 128), (2, 33, 100), (4, 1, 8)])
def test_pairs_and_gradients_are_those_of_torch(dtype: torch.dtype, rows: int, vectors: int, width: int) -> None:
    if DEVICE == "cpu" and dtype is torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies no bf16")
    random = torch.Generator().manual_seed(vectors)
    values = torch.randn(rows, vectors, width, generator=random).to(dtype)
    exact, fused = values.double().requires_grad_(), values.to(DEVICE).requires_grad_()
    interaction = Interaction(vectors)
    expected = interaction(exact)
    pairs = interaction.to(DEVICE)(fused, True)
    assert pairs.dtype is torch.float32 and pairs.shape == (rows, vectors * (vectors - 1) // 2)
    torch.testing.assert_close(pairs.cpu().double(), expected.detach().double(), rtol=1e-5, atol=1e-4)
    weights = torch.randn(pairs.shape, generator=random)
    (expected * weights).sum().backward()
    (pairs * weights.to(DEVICE)).sum().backward()
    assert exact.grad is not None and fused.grad is not None and fused.grad.dtype is dtype
    off = float((fused.grad.cpu().double() - exact.grad).norm())
    assert off <= TOLERANCE[dtype] * float(exact.grad.norm())
