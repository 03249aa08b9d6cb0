"""The optimizer in two fused kernels gives the updates of the plain optimizer, on a GPU.

Without one, Triton's interpreter runs the same kernels where `TRITON_INTERPRET=1` is set, in minutes.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch.nn import functional

from models.embedding.reading.chunks import Lookups
from models.embedding.table.optimizer import RowWiseAdagrad

pytest.importorskip("triton")

from models.embedding.table import fused_adagrad
from models.embedding.table.fused_adagrad import FusedAdagrad

pytestmark = pytest.mark.gpu
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
ROWS, RATE = 23, 0.1


def looked_up(random: torch.Generator, shares: bool, slots: int, max_length: int) -> Lookups:
    """Slots over the first rows of a table; with shares, slots of 0 to 3 rows."""
    lengths = torch.randint(0, 4, (slots,), generator=random) if shares else torch.ones(slots, dtype=torch.int64)
    starts = functional.pad(lengths.cumsum(0), (1, 0)).int()
    rows = torch.randint(0, max_length, (int(starts[-1]),), generator=random).int()
    return Lookups(rows, starts, torch.rand(len(rows), generator=random) if shares else None)


def on_gpu(lookups: Lookups) -> Lookups:
    return Lookups(*(None if tensor is None else tensor.to(DEVICE) for tensor in lookups))  # type: ignore[arg-type]


@pytest.mark.parametrize(("seed", "width"), [(0, 4), (1, 13), (2, 16), (3, 100), (4, 128)])
@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("piece", [2, 64])
@pytest.mark.parametrize("masked", [False, True])
def test_it_moves_what_the_plain_one_moves(
    seed: int, width: int, shares: bool, decay: float, piece: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_adagrad, "_PIECE", piece)  # many pieces to a row, without thousands of lookups
    monkeypatch.setattr(fused_adagrad, "_WINDOW", 8)
    monkeypatch.setattr(fused_adagrad, "_CHUNK", 4)
    random = torch.Generator().manual_seed(seed)
    plain_weight, plain_squares = torch.randn(ROWS, width, generator=random), torch.rand(ROWS, generator=random)
    weight, squares = plain_weight.to(DEVICE, copy=True), plain_squares.to(DEVICE, copy=True)
    plain = RowWiseAdagrad(plain_weight, plain_squares, RATE, decay)
    fused = FusedAdagrad(weight, squares, RATE, decay)
    for slots, max_length in ((1, ROWS), (40, 1), (40, 3), (60, ROWS), (130, 2), (64, 1)):
        lookups = looked_up(random, shares, slots, max_length)
        learns = torch.rand(ROWS, generator=random) < 0.5 if masked else None
        admitted = None if learns is None else learns[lookups.rows_L.long()]
        gradient = torch.randn(slots, width, generator=random)
        plain.step(lookups, gradient, admitted)
        fused.step(on_gpu(lookups), gradient.to(DEVICE), None if admitted is None else admitted.to(DEVICE))
        torch.testing.assert_close(weight.cpu(), plain_weight, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(squares.cpu(), plain_squares, rtol=1e-5, atol=1e-5)


def test_rows_that_may_not_move_stay_bit_by_bit() -> None:
    weight = torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    squares, old_weight = torch.ones(ROWS, device=DEVICE), weight.clone()
    lookups = on_gpu(Lookups(torch.tensor([4, 7, 4, 0]).int(), torch.arange(5).int(), None))
    admitted = torch.tensor([False, True, False, False], device=DEVICE)
    FusedAdagrad(weight, squares, RATE, 0.5).step(lookups, torch.ones(4, 16, device=DEVICE), admitted)
    moved = (weight != old_weight).any(1)
    assert moved.nonzero().flatten().tolist() == [7]
    assert squares[7] != 1.0 and (squares[torch.arange(ROWS, device=DEVICE) != 7] == 1.0).all()


@pytest.mark.parametrize("lookups", [2, 200])
def test_a_skipped_step_moves_no_weight(lookups: int) -> None:
    weight, squares = torch.ones(ROWS, 16, device=DEVICE), torch.zeros(ROWS, device=DEVICE)
    rows = on_gpu(Lookups(torch.arange(lookups).int() % 2, torch.arange(lookups + 1).int(), None))
    nowhere = torch.full((lookups, 16), float("inf"), device=DEVICE)
    step = FusedAdagrad(weight, squares, RATE)
    step.step(rows, nowhere, None, torch.tensor(1.0, device=DEVICE))
    assert (weight == 1).all() and (squares == 0).all()
    step.step(rows, nowhere.clamp(max=1.0), None, torch.tensor(0.0, device=DEVICE))
    assert (weight[:2] != 1).all() and (squares[:2] != 0).all()


def test_a_row_gets_the_same_bits_wherever_it_is_sorted_to() -> None:
    random = torch.Generator().manual_seed(3)
    lookups = looked_up(random, False, 3_000, 5)
    gradient = torch.randn(3_000, 16, generator=random).to(DEVICE)
    weights = []
    for renamed in (torch.arange(5), torch.tensor([17, 3, 22, 9, 0])):
        weight, squares = torch.zeros(ROWS, 16, device=DEVICE), torch.zeros(ROWS, device=DEVICE)
        rows = renamed[lookups.rows_L.long()].int()
        FusedAdagrad(weight, squares, RATE).step(on_gpu(lookups._replace(rows_L=rows)), gradient)
        weights.append(weight[renamed.to(DEVICE)])
    assert torch.equal(*weights) and weights[0].all()
