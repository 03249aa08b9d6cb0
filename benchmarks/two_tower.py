"""Positive rows per second that two towers learn from: ours, and a plain torch two-tower.

The plain one is what tutorials show: `nn.Embedding` per column with dense gradients, Adam over all of them, batches by
a `DataLoader`, the same in-batch and sampled softmax of the same size. A second peer takes batches by slices of memory
and sparse gradients, so that the loader's share is seen. All three take turns on the same two million rows, one thread
each; rates are per second of processor time, which other programs on the machine do not change much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.bench import Line, in_turn, record, show
from models.two_tower.train import TowerTrainer, TwoTowers
from shortlist.slates.retrieval.sources.two_tower import TwoTower

USERS: Final = 50_000
ITEMS: Final = 20_000
ROWS: Final = 2_000_000
TURNS: Final = 20
SECTION: Final = TwoTower(kind="two_tower", user_columns=("country",), item_columns=("creator",))


class PlainTowers(nn.Module):
    """Two towers of `nn.Embedding`."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        width = SECTION.embedding_dim
        self.user, self.country = nn.Embedding(USERS, width, sparse=sparse), nn.Embedding(50, width, sparse=sparse)
        self.item, self.creator = nn.Embedding(ITEMS, width, sparse=sparse), nn.Embedding(800, width, sparse=sparse)
        kind: Any = torch.optim.SparseAdam if sparse else torch.optim.Adam
        self.optimizer = kind(list(self.parameters()), lr=0.01)

    def step(self, log_expected: Tensor, users_B: Tensor, countries_B: Tensor, items_B: Tensor) -> None:
        """Learn from a batch."""
        items_C = torch.cat([items_B, torch.randint(ITEMS, (SECTION.sampled_negatives,))])
        users_BD = functional.normalize(self.user(users_B) + self.country(countries_B), dim=1)
        items_CD = functional.normalize(self.item(items_C) + self.creator(items_C % 800), dim=1)
        scores_BC = users_BD @ items_CD.T / SECTION.temperature
        self.optimizer.zero_grad()
        plain_loss(scores_BC - log_expected[items_C], items_B, items_C).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def plain_loss(scores_BC: Tensor, items_B: Tensor, items_C: Tensor) -> Tensor:
    """Return the mean cross-entropy of the rows' own items; other columns with the same item are left out."""
    is_same_item = items_B[:, None] == items_C[None, :]
    is_same_item.fill_diagonal_(fill_value=False)
    return functional.cross_entropy(scores_BC.masked_fill(is_same_item, -torch.inf), torch.arange(len(items_B)))


def main() -> None:
    """Measure, print and record."""
    torch.set_num_threads(1)
    random = np.random.default_rng(1)
    users, items = random.integers(0, USERS, ROWS), (ITEMS * random.random(ROWS) ** 2).astype(np.int64)
    frequency = np.bincount(items, minlength=ITEMS) / ROWS
    people = pl.DataFrame({"user_id": np.arange(USERS), "country": np.arange(USERS) % 50})
    item_table = pl.DataFrame({"item_id": np.arange(ITEMS), "creator": np.arange(ITEMS) % 800})
    trainer = TowerTrainer(
        TwoTowers(SECTION, people, item_table, np.bincount(items, minlength=ITEMS), 1), SECTION, frequency, 1
    )
    users_P, items_P = torch.from_numpy(users), torch.from_numpy(items)
    countries_P, size = users_P % 50, SECTION.batch_size
    expected = (size * torch.from_numpy(frequency) + SECTION.sampled_negatives / ITEMS).log().float()
    dense, sparse = PlainTowers(sparse=False), PlainTowers(sparse=True)
    loader = DataLoader(TensorDataset(users_P, countries_P, items_P), batch_size=size, shuffle=True)

    def slices(*columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
        order = torch.randperm(ROWS)
        return (tuple(column[order[first : first + size]] for column in columns) for first in range(0, ROWS, size))

    batches_per_turn = ROWS // size // (TURNS + 1)

    def turns(step: Callable[..., object], batches: Iterator[Sequence[Tensor]]) -> Callable[[], None]:
        def work() -> None:
            for batch in islice(batches, batches_per_turn):
                step(*batch)

        return work

    works = {
        "ours": turns(trainer.step, slices(users_P, items_P)),
        "plain torch": turns(partial(dense.step, expected), iter(loader)),
        "plain torch, sparse, no loader": turns(partial(sparse.step, expected), slices(users_P, countries_P, items_P)),
    }
    in_turn(works, rounds=1)  # that does not count
    costs = in_turn(works, rounds=TURNS)
    rates = {name: batches_per_turn * size / cost.cpu_s / 1_000 for name, cost in costs.items()}
    lines = [
        Line("two_tower", "ours", rates["ours"], "k rows/cpu-s", name, rates["ours"] / rates[name])
        if name == "plain torch"
        else Line(
            "two_tower", f"ours, against {name}", rates["ours"], "k rows/cpu-s", name, rates["ours"] / rates[name]
        )
        for name in rates
        if name != "ours"
    ]
    show("Two towers: positive rows per processor second", lines)
    record(lines)


if __name__ == "__main__":
    main()
