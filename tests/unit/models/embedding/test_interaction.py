from __future__ import annotations

import pytest
import torch

from models.embedding.network.interaction import Interaction

ROWS, VECTORS, WIDTH = 5, 4, 8


@pytest.fixture
def vectors_BND() -> torch.Tensor:  # noqa: N802
    return torch.randn(ROWS, VECTORS, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float32)


def test_the_pairs_are_the_products_below_the_diagonal(vectors_BND: torch.Tensor) -> None:  # noqa: N803
    pairs = Interaction(VECTORS)(vectors_BND)
    expected = [[(row[i] * row[j]).sum() for i in range(VECTORS) for j in range(i)] for row in vectors_BND]
    torch.testing.assert_close(pairs, torch.tensor(expected))


def test_the_derivative_is_that_of_autograd(vectors_BND: torch.Tensor) -> None:  # noqa: N803
    fused_input, plain = vectors_BND.clone().requires_grad_(), vectors_BND.clone().requires_grad_()
    weights = torch.arange(1.0, 1 + VECTORS * (VECTORS - 1) // 2)
    (Interaction(VECTORS)(fused_input) * weights).sum().backward()
    i, j = torch.tril_indices(VECTORS, VECTORS, offset=-1)
    (torch.bmm(plain, plain.transpose(1, 2))[:, i, j] * weights).sum().backward()
    torch.testing.assert_close(fused_input.grad, plain.grad)


def test_bf16_rounds_only_the_factors_to_three_digits(vectors_BND: torch.Tensor) -> None:  # noqa: N803
    exact = vectors_BND.clone().requires_grad_()
    rounded = vectors_BND.clone().requires_grad_()
    interaction = Interaction(VECTORS)
    pairs = interaction(rounded.to(torch.bfloat16))
    assert pairs.dtype == torch.float32
    torch.testing.assert_close(pairs, interaction(exact), rtol=0.02, atol=0.1)
    interaction(exact).sum().backward()
    pairs.sum().backward()
    assert rounded.grad is not None
    assert rounded.grad.dtype == torch.float32
    torch.testing.assert_close(rounded.grad, exact.grad, rtol=0.02, atol=0.1)


def test_nothing_of_it_is_saved_with_a_model() -> None:
    assert Interaction(VECTORS).state_dict() == {}


def test_a_single_vector_has_no_pairs_and_learns_all_the_same() -> None:
    """A network whose features are all numbers."""
    vectors = torch.ones(3, 1, 4, requires_grad=True)
    dots = Interaction(1)(vectors)
    assert dots.shape == (3, 0)
    torch.cat([vectors.sum(dim=(1, 2))[:, None], dots], dim=1).sum().backward()
    assert vectors.grad is not None and torch.equal(vectors.grad, torch.ones(3, 1, 4))
