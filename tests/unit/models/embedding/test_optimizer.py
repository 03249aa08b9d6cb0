from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from models.embedding.reading.chunks import Lookups
from models.embedding.table.optimizer import RowWiseAdagrad, sum_by_row

RATE, EPSILON = 0.1, 1e-8


def batch(random: torch.Generator, shares: bool) -> Lookups:
    """Six slots over a table of seven rows, rows repeated within and across slots, one slot empty."""
    lengths = torch.tensor([1, 3, 0, 2, 1, 2]) if shares else torch.ones(6, dtype=torch.int64)
    starts = functional.pad(lengths.cumsum(0), (1, 0)).int()
    rows = torch.randint(0, 5, (int(lengths.sum()),), generator=random).int()
    return Lookups(rows, starts, torch.rand(len(rows), generator=random) if shares else None)


def dense_gradient(lookups: Lookups, slots: torch.Tensor, rows: int) -> torch.Tensor:
    """The whole table's gradient, one looked-up row after the other."""
    gradient = torch.zeros(rows, slots.shape[1])
    for slot in range(len(lookups.starts) - 1):
        for place in range(int(lookups.starts[slot]), int(lookups.starts[slot + 1])):
            share = 1.0 if lookups.shares_L is None else lookups.shares_L[place]
            gradient[lookups.rows_L[place]] += share * slots[slot]
    return gradient


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_five_steps_equal_the_dense_reference(shares: bool, decay: float) -> None:
    random = torch.Generator().manual_seed(0)
    weight, squares = torch.randn(7, 4, generator=random), torch.zeros(7)
    reference, accumulator = weight.clone(), squares.clone()
    optimizer = RowWiseAdagrad(weight, squares, RATE, decay)
    for _ in range(5):
        lookups, slots = batch(random, shares), torch.randn(6, 4, generator=random)
        optimizer.step(lookups, slots)
        touched = torch.unique(lookups.rows_L).long()
        gradient = dense_gradient(lookups, slots, 7)[touched] + decay * reference[touched]
        accumulator[touched] += gradient.square().mean(1)
        reference[touched] -= RATE * gradient / (accumulator[touched].sqrt() + EPSILON).unsqueeze(1)
        torch.testing.assert_close(weight, reference)
        torch.testing.assert_close(squares, accumulator)


def test_rows_outside_the_batch_do_not_move() -> None:
    random = torch.Generator().manual_seed(1)
    weight, squares = torch.randn(7, 4, generator=random), torch.rand(7, generator=random)
    old_weight, squares_before = weight.clone(), squares.clone()
    lookups = batch(random, shares=False)
    RowWiseAdagrad(weight, squares, RATE, decay=0.5).step(lookups, torch.randn(6, 4, generator=random))
    touched = set(lookups.rows_L.tolist())
    assert 0 < len(touched) < 7
    for row in range(7):
        assert torch.equal(weight[row], old_weight[row]) == (row not in touched)
        assert (squares[row] == squares_before[row]) == (row not in touched)


def test_the_first_step_of_a_row_is_its_learning_rate_whatever_the_gradients_size() -> None:
    for size in (1e-3, 1e3):
        weight, squares = torch.zeros(1, 4), torch.zeros(1)
        lookups = Lookups(torch.tensor([0]).int(), torch.tensor([0, 1]).int(), None)
        RowWiseAdagrad(weight, squares, RATE).step(lookups, torch.full((1, 4), size))
        assert weight[0].tolist() == pytest.approx([-RATE] * 4, rel=1e-4)


def test_a_row_looked_up_thrice_gets_the_sum_of_three_gradients() -> None:
    lookups = Lookups(torch.tensor([5, 2, 5, 5]).int(), torch.arange(5).int(), None)
    rows, gradient = sum_by_row(lookups, torch.tensor([[1.0], [10.0], [100.0], [1000.0]]))
    assert rows.tolist() == [2, 5]
    assert gradient.tolist() == [[10.0], [1101.0]]


def test_it_is_the_gradient_that_autograd_finds() -> None:
    random = torch.Generator().manual_seed(2)
    lookups, slots = batch(random, shares=True), torch.randn(6, 4, generator=random)
    weight = torch.randn(7, 4, generator=random, requires_grad=True)
    pooled = functional.embedding_bag(
        lookups.rows_L,
        weight,
        lookups.starts,
        mode="sum",
        per_sample_weights=lookups.shares_L,
        include_last_offset=True,
    )
    (pooled * slots).sum().backward()  # type: ignore[no-untyped-call]
    rows, gradient = sum_by_row(lookups, slots)
    assert weight.grad is not None
    torch.testing.assert_close(gradient, weight.grad[rows])
    assert weight.grad.abs().sum() == pytest.approx(gradient.abs().sum().item())  # nothing outside these rows


def test_a_batch_without_ids_changes_no_weight() -> None:
    weight, squares = torch.zeros(0, 4), torch.zeros(0)
    none = Lookups(torch.empty(0).int(), torch.zeros(1).int(), None)
    RowWiseAdagrad(weight, squares, RATE).step(none, torch.empty(0, 4))
    assert weight.shape == (0, 4)
