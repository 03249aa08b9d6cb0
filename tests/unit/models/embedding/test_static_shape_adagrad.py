"""The optimizer without data-dependent shapes gives the updates of the plain optimizer."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from models.embedding.reading.chunks import Lookups
from models.embedding.table import static_shape_adagrad as fixed_rows
from models.embedding.table.optimizer import RowWiseAdagrad
from models.embedding.table.static_shape_adagrad import StaticShapeAdagrad

ROWS, WIDTH, RATE = 23, 4, 0.1


def looked_up(random: torch.Generator, shares: bool, slots: int, max_length: int) -> Lookups:
    """Slots over the first rows of a table; with shares, slots of 0 to 3 rows."""
    lengths = torch.randint(0, 4, (slots,), generator=random) if shares else torch.ones(slots, dtype=torch.int64)
    starts = functional.pad(lengths.cumsum(0), (1, 0)).int()
    rows = torch.randint(0, max_length, (int(starts[-1]),), generator=random).int()
    return Lookups(rows, starts, torch.rand(len(rows), generator=random) if shares else None)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("piece", [2, 256])
@pytest.mark.parametrize("masked", [False, True])
def test_it_moves_what_the_plain_one_moves(
    seed: int, shares: bool, decay: float, piece: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixed_rows, "_PIECE", piece)  # many pieces to a row, without thousands of lookups
    random = torch.Generator().manual_seed(seed)
    weight, squares = torch.randn(ROWS, WIDTH, generator=random), torch.rand(ROWS, generator=random)
    plain = RowWiseAdagrad(plain_weight := weight.clone(), plain_squares := squares.clone(), RATE, decay)
    fixed = StaticShapeAdagrad(weight, squares, RATE, decay)
    for slots, max_length in ((1, ROWS), (40, 1), (40, 3), (60, ROWS)):
        lookups = looked_up(random, shares, slots, max_length)
        learns = torch.rand(ROWS, generator=random) < 0.5 if masked else None
        admitted = None if learns is None else learns[lookups.rows_L.long()]
        gradient = torch.randn(slots, WIDTH, generator=random)
        plain.step(lookups, gradient, admitted)
        fixed.step(lookups, gradient, admitted)
        torch.testing.assert_close(weight, plain_weight, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(squares, plain_squares, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [RowWiseAdagrad, StaticShapeAdagrad])
def test_rows_that_may_not_move_stay_bit_by_bit(kind: type[RowWiseAdagrad | StaticShapeAdagrad]) -> None:
    weight, squares = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)), torch.ones(ROWS)
    old_weight = weight.clone()
    lookups = Lookups(torch.tensor([4, 7, 4, 0]).int(), torch.arange(5).int(), None)
    kind(weight, squares, RATE, 0.5).step(lookups, torch.ones(4, WIDTH), torch.tensor([False, True, False, False]))
    moved = (weight != old_weight).any(1)
    assert moved.nonzero().flatten().tolist() == [7]
    assert squares[7] != 1.0 and (squares[torch.arange(ROWS) != 7] == 1.0).all()


@pytest.mark.parametrize("kind", [RowWiseAdagrad, StaticShapeAdagrad])
def test_a_skipped_step_moves_no_weight(kind: type[RowWiseAdagrad | StaticShapeAdagrad]) -> None:
    weight, squares = torch.ones(ROWS, WIDTH), torch.zeros(ROWS)
    lookups = Lookups(torch.tensor([4, 7]).int(), torch.arange(3).int(), None)
    nowhere = torch.full((2, WIDTH), float("inf"))
    kind(weight, squares, RATE).step(lookups, nowhere, None, torch.tensor(1.0))
    assert (weight == 1).all() and (squares == 0).all()


def test_the_same_batch_gives_the_same_bits() -> None:
    weights = []
    for _ in range(2):
        random = torch.Generator().manual_seed(3)
        weight, squares = torch.zeros(ROWS, WIDTH), torch.zeros(ROWS)
        lookups = looked_up(random, False, 3_000, 5)
        StaticShapeAdagrad(weight, squares, RATE).step(lookups, torch.randn(3_000, WIDTH, generator=random))
        weights.append(weight)
    assert torch.equal(*weights) and weights[0][:5].all()
