"""The look-up in one kernel against torch's, bit by bit, on a GPU.

Without one, Triton's interpreter runs the same kernel where `TRITON_INTERPRET=1` is set.
"""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton")

from models.embedding.table.fused_look_up import look_up_rows

pytestmark = pytest.mark.gpu
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


@pytest.mark.parametrize("width", [1, 4, 13, 100, 128, 1_500])
@pytest.mark.parametrize("lookups", [0, 1, 700])
def test_rows_are_those_of_torch(width: int, lookups: int) -> None:
    random = torch.Generator().manual_seed(width)
    weight = torch.randn(50, width, generator=random).to(DEVICE)
    rows = torch.randint(0, 50, (lookups,), generator=random).int().to(DEVICE)
    vectors = look_up_rows(weight, rows)
    assert vectors.shape == (lookups, width) and torch.equal(vectors, weight.index_select(0, rows))
