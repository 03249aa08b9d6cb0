"""Training of two towers: sampled softmax over the items of the batch and further ones, corrected for their frequency.

Shapes: B positive rows of a step, S sampled items, D embedding width, C = B + S columns of the softmax.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from models.embedding.table.fused_table import FusedTable
from models.embedding.table.optimizer import RowWiseAdagrad
from models.modalities import ItemModalities
from models.two_tower.entities import Entities, make_lookups
from shortlist.contracts import DataError
from shortlist.slates.retrieval.item_content import NumberScale
from shortlist.slates.retrieval.source import ROW, FitInputs
from shortlist.slates.retrieval.sources.two_tower import Towers, TwoTower
from shortlist.system.progress import progress

_CHUNK_ENTITIES = 65_536
"""Entities whose vectors are computed at once."""
_MIN_PROBABILITY = 1e-38
"""Least probability of a row in the loss."""


def train(section: TwoTower, fit_data: FitInputs) -> Towers:
    """Return the vectors of all users and items after training on the positive rows.

    Memory: 16 bytes per positive row, and the embedding table.

    Raises:
        DataError: There are too few positive rows.
    """
    users, rows_P, items_P = _positives(section, fit_data)
    counts = np.bincount(items_P, minlength=fit_data.catalogue.size)
    towers = TwoTowers(section, users, fit_data.catalogue.items, counts, fit_data.seed)
    trainer = TowerTrainer(towers, section, counts / counts.sum(), fit_data.seed)
    order = np.random.default_rng(fit_data.seed)
    history: list[dict[str, Any]] = []
    with progress("two_tower", section.epochs * len(rows_P)) as advance:
        for epoch in range(section.epochs):
            started, losses = time.perf_counter(), []
            shuffled = order.permutation(len(rows_P))
            for first in range(0, len(shuffled), section.batch_size):
                batch_rows = shuffled[first : first + section.batch_size]
                losses.append(trainer.step(torch.from_numpy(rows_P[batch_rows]), torch.from_numpy(items_P[batch_rows])))
                advance(len(batch_rows), "")
            loss = float(torch.stack(losses).mean())
            history.append({"epoch": epoch, "loss": loss, "rows_per_s": len(rows_P) / (time.perf_counter() - started)})
    return towers.vectors(users[fit_data.data.user or ""], history)


class TwoTowers(nn.Module):
    """One embedding table for both towers; a tower is the sum of its entity's rows, normalised to length 1."""

    numbers_IN: Tensor
    popularity_I: Tensor
    """Popularity term of an item's score, in units of the softmax."""

    def __init__(
        self, section: TwoTower, users: pl.DataFrame, items: pl.DataFrame, counts: NDArray[np.int64], seed: int
    ) -> None:
        """Create the initial table.

        Args:
            section: The source's section.
            users: One line per user, with the declared columns.
            items: The catalogue.
            counts: Number of positive rows of every item.
            seed: Seed of the initial values.
        """
        super().__init__()
        width = section.embedding_dim
        self.users = Entities.from_table(users, section.user_columns, 0)
        self.items = Entities.from_table(items, section.item_columns, self.users.table_rows)
        rows = self.users.table_rows + self.items.table_rows
        random = torch.Generator().manual_seed(seed)
        initial_rows = torch.empty(rows, width).normal_(std=width**-0.5, generator=random)
        self.table = FusedTable.from_rows(initial_rows, torch.zeros(rows))
        self._scale = NumberScale.from_table(items, section.item_numbers)
        self.register_buffer("numbers_IN", torch.from_numpy(self._scale.standardise(items)))
        self.content = ItemModalities.from_catalogue(section.item_vectors, items, width)
        self.negatives = torch.arange(len(counts))
        if self.content is not None:
            self.items, counts = self._without_cold_items(counts)
        self.register_buffer("popularity_I", torch.from_numpy(section.popularity_logits(counts)).float())
        self._temperature = section.temperature
        self.weight_ND = nn.Parameter(torch.zeros(len(section.item_numbers), width))

    def _without_cold_items(self, counts: NDArray[np.int64]) -> tuple[Entities, NDArray[np.int64]]:
        """Return the items and their counts; items without positives have only their columns and vectors.

        They are no negatives, which would teach that new items are never taken; their ids have weight 0, as nothing
        else could be learnt of them; and their popularity is the median of the other items.
        """
        has_positives = counts > 0
        self.negatives = torch.from_numpy(np.flatnonzero(has_positives))
        return self.items.without_ids(~has_positives), np.where(
            has_positives, counts, int(np.median(counts[has_positives]))
        )

    @property
    def dense(self) -> list[nn.Parameter]:
        """Dense weights, which every step updates."""
        numbers = [self.weight_ND] if len(self.weight_ND) else []
        return [*numbers, *(self.content.parameters() if self.content is not None else ())]

    def item_vectors(self, pooled_ID: Tensor, items: Tensor) -> Tensor:
        """Return the vectors of items whose rows are summed already."""
        if self.numbers_IN.shape[1]:
            pooled_ID = pooled_ID + self.numbers_IN[items] @ self.weight_ND
        if self.content is not None:
            pooled_ID = pooled_ID + self.content(items)
        return functional.normalize(pooled_ID, dim=1)

    @torch.no_grad()
    def vectors(self, ids: pl.Series, history: list[dict[str, Any]]) -> Towers:
        """Return the vectors of all users and items; rows that were never updated count as zeros."""
        self.table.weight_RD[self.table.squares_R == 0] = 0.0
        user_chunks, item_chunks = [], []
        added = (self._temperature * self.popularity_I).numpy()[:, None]
        for first in range(0, self.users.count, _CHUNK_ENTITIES):
            numbers = torch.arange(first, min(first + _CHUNK_ENTITIES, self.users.count))
            user_chunks.append(functional.normalize(self.table(make_lookups((self.users, numbers))), dim=1).numpy())
        for first in range(0, self.items.count, _CHUNK_ENTITIES):
            numbers = torch.arange(first, min(first + _CHUNK_ENTITIES, self.items.count))
            item_chunks.append(self.item_vectors(self.table(make_lookups((self.items, numbers))), numbers).numpy())
        user_vectors = np.concatenate(user_chunks)
        is_learnt = user_vectors.any(axis=1, keepdims=True).astype(np.float32)
        item_vectors = np.concatenate([np.concatenate(item_chunks), added], axis=1)
        content = self.items.content(
            self.table.weight_RD, self.users.table_rows, self._scale, self.weight_ND, self.content
        )
        return Towers(ids, np.concatenate([user_vectors, is_learnt], axis=1), item_vectors, content, history)


class TowerTrainer:
    """Trains the towers, step by step."""

    def __init__(self, towers: TwoTowers, section: TwoTower, frequency: NDArray[np.float64], seed: int) -> None:
        """Create the trainer of towers, changed in place.

        Args:
            towers: The initial towers.
            section: The source's section.
            frequency: Share of every item among the positive rows, sums to 1.
            seed: Seed of the sampled items.
        """
        self._towers, self._section = towers, section
        self._adagrad = RowWiseAdagrad(towers.table.weight_RD, towers.table.squares_R, section.learning_rate)
        self._adam = torch.optim.Adam(towers.dense, lr=0.01) if towers.dense else None
        self._random = torch.Generator().manual_seed(seed)
        self._frequency = torch.from_numpy(frequency)

    def step(self, users_B: Tensor, items_B: Tensor) -> Tensor:
        """Train on positive rows; return their mean loss before the step, no dimensions."""
        towers, sampled = self._towers, self._section.sampled_negatives
        negative_indices = torch.randint(len(towers.negatives), (sampled,), generator=self._random)
        items_C = torch.cat([items_B, towers.negatives[negative_indices]])
        lookups = make_lookups((towers.users, users_B), (towers.items, items_C))
        pooled = towers.table(lookups).requires_grad_()
        users_BD = functional.normalize(pooled[: len(users_B)], dim=1) / self._section.temperature
        items_CD = towers.item_vectors(pooled[len(users_B) :], items_C)
        added_C = towers.popularity_I[items_C] - self._log_expected(len(items_B), items_C)
        loss = softmax_loss(users_BD, items_CD, added_C, items_C)
        loss.backward()  # type: ignore[no-untyped-call]
        assert pooled.grad is not None
        if self._adam is not None:
            self._adam.step()
            self._adam.zero_grad()
        self._adagrad.step(lookups, pooled.grad)
        return loss.detach()

    def _log_expected(self, rows: int, items_C: Tensor) -> Tensor:
        """Return the logarithm of each item's expected count among the columns of a step's softmax."""
        uniform = self._section.sampled_negatives / len(self._towers.negatives)
        return (rows * self._frequency[items_C] + uniform).log().float()


def softmax_loss(users_BD: Tensor, items_CD: Tensor, added_C: Tensor, items_C: Tensor) -> Tensor:
    """Return the mean cross-entropy of every row's item, which is in the column of the row's number.

    An item that is often among the columns is often a negative. Subtracting the logarithm of its expected count (logQ
    correction; Bengio and Senecal, 2008; Yi et al., 2019) makes the optimum the same as with all items as columns.
    Other columns with the row's item are masked, as they are no negatives.

    Args:
        users_BD: User vectors of the rows.
        items_CD: Item vectors of the columns.
        added_C: Term added to every score of a column, the correction included.
        items_C: Numbers of the columns' items.
    """
    loss: Tensor = _SampledSoftmax.apply(users_BD, items_CD, added_C, items_C)  # type: ignore[no-untyped-call]
    return loss


class _SampledSoftmax(torch.autograd.Function):
    """The loss and its gradient in one function, as separate operations on all scores take 1.5 times as long."""

    @staticmethod
    def forward(ctx: FunctionCtx, users_BD: Tensor, items_CD: Tensor, added_C: Tensor, items_C: Tensor) -> Tensor:
        rows = len(users_BD)
        scores_BC = torch.addmm(added_C, users_BD, items_CD.T)
        target_scores_B = scores_BC.diagonal()
        target_copies_B = target_scores_B.clone()
        scores_BC.masked_fill_(items_C[:rows, None] == items_C, -torch.inf)
        target_scores_B.copy_(target_copies_B)
        torch.softmax(scores_BC, 1, out=scores_BC)
        loss = -target_scores_B.clamp_min(_MIN_PROBABILITY).log().mean()
        target_scores_B.sub_(1)
        ctx.save_for_backward(scores_BC @ items_CD / rows, (users_BD.T @ scores_BC).T / rows)
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_users_BD, grad_items_CD = ctx.saved_tensors
        return grad_loss * grad_users_BD, grad_loss * grad_items_CD, None, None


def _positives(section: TwoTower, fit_data: FitInputs) -> tuple[pl.DataFrame, NDArray[np.int64], NDArray[np.int64]]:
    """Return all users with their columns, and the user's line and the item's row of every positive row."""
    user = fit_data.data.user
    assert user
    positive_frames = list(fit_data.positives(fit_data.last_days(section.window_days)))
    positives = pl.concat(positive_frames).select(user, ROW) if positive_frames else pl.DataFrame()
    if positives.height < 2:
        raise DataError(f"{positives.height} positive rows; two towers learn from 2 or more. Declare a longer window")
    ids = positives[user]
    if section.user_columns:
        ids = pl.concat([ids, fit_data.users[user].cast(ids.dtype)])
    users = ids.drop_nulls().unique().sort().to_frame()
    if section.user_columns:
        users = users.join(
            fit_data.users.select(user, *section.user_columns), on=user, how="left", maintain_order="left"
        )
    lines = positives.join(users.select(user).with_row_index("line"), on=user, how="left", maintain_order="left")
    return users, lines["line"].cast(pl.Int64).to_numpy(), lines[ROW].cast(pl.Int64).to_numpy()
