"""Training of the encoder of sessions: every event predicts the next one, by sampled softmax over shared columns.

Shapes: B sessions of a step, L events of the longest, T events with a next one, C columns of the softmax, D width.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from models.embedding.optimizer import summed_by_row
from models.modalities import ItemModalities
from models.sequence.network import Encoder
from models.two_tower.entities import Entities, looked_up
from shortlist.contracts import Columns, DataError
from shortlist.retrieval.item_content import ItemContent, NumberScale
from shortlist.retrieval.source import ROW, FitData
from shortlist.retrieval.sources.sequence import LearntSequences, SequenceSource
from shortlist.system.progress import progress

Items = NDArray[np.int64]

_SPREAD = 0.02
"""Deviation of the first embeddings: small beside what a step changes, so that the first scores are about equal."""
_AT_ONCE = 65_536
"""Items whose vectors are made at once."""
_SORTED_TOGETHER = 50
"""Steps whose sessions are sorted by length together: so little is padded, and batches stay mixed."""


class Sessions(NamedTuple):
    """Every session's items, oldest first, one session after the other."""

    users: Items
    """Number of each event's user, sorted."""
    items: Items
    ends: Items
    """Where each session ends."""
    lengths: Items
    """At least 2."""

    @classmethod
    def of(cls, users: Items, items: Items, last: int) -> Sessions:
        """Return the last `last + 1` items of every user with two or more.

        Args:
            users: Number of each event's user, sorted; events of a user in order of time.
            items: Row of each event's item.
            last: Events that are encoded, at most.
        """
        counts = np.bincount(users)
        kept = counts > 1
        return cls(users, items, np.cumsum(counts)[kept], np.minimum(counts, last + 1)[kept])


class Occurrences:
    """Where each item stands in all users' events, and where the events of that user begin.

    Args:
        users: Number of each event's user, sorted.
        items: Row of each event's item.
    """

    def __init__(self, users: Items, items: Items) -> None:
        self._order = np.argsort(items, kind="stable")
        self._firsts = np.searchsorted(items[self._order], np.arange(int(items.max()) + 2))
        self._begins = np.searchsorted(users, users)

    def drawn(self, items: Items, random: np.random.Generator) -> tuple[Items, Items]:
        """Return for each item a place at which it stands, and the place at which that user's events begin."""
        low, high = self._firsts[items], self._firsts[items + 1]
        places = self._order[random.integers(low, high)]
        return places, self._begins[places]


def train(section: SequenceSource, given: FitData) -> LearntSequences:
    """Return the encoder and the vectors of all items after training on the positive rows.

    Memory: 24 bytes per positive row, 40 where sessions are joined, and three times the items' vectors.

    Raises:
        DataError: No user has two positive rows.
    """
    users_P, items_P = _positives(section, given)
    if not len(Sessions.of(users_P, items_P, section.last).ends):
        raise DataError("no user has two positive rows, so nothing follows anything; declare a longer window")
    return learn(section, given.catalogue.items, users_P, items_P, given.seed)


def learn(section: SequenceSource, items: pl.DataFrame, users_P: Items, items_P: Items, seed: int) -> LearntSequences:
    """Return the encoder and the vectors of all items after training on events.

    Args:
        section: Settings.
        items: One row per item.
        users_P: Number of each event's user, sorted; events of a user in order of time. A user has two or more.
        items_P: Row of each event's item.
        seed: Of whatever is drawn.
    """
    sessions = Sessions.of(users_P, items_P, section.last)
    trainer = Trainer(section, items, np.bincount(items_P, minlength=items.height), seed)
    history: list[dict[str, Any]] = []
    with progress("sequence", section.epochs * len(sessions.ends)) as advance:
        for epoch in range(section.epochs):
            began = time.perf_counter()
            losses = [trainer.step(batch) for batch in trainer.batches(sessions)]
            advance(len(sessions.ends), "")
            loss = float(torch.stack(losses).mean())
            seconds = time.perf_counter() - began
            history.append({"epoch": epoch, "loss": loss, "events_per_s": float(sessions.lengths.sum()) / seconds})
    return LearntSequences(trainer.encoder.eval(), trainer.item_vectors(), trainer.content(), history)


class Batch(NamedTuple):
    """Sessions of a step, newest event first."""

    inputs_BL: Items
    """Item rows; -1 is padding, and the number of items stands for a masked one."""
    lengths_B: Items
    targets_T: Items
    """What followed each event that is no padding, session by session."""


class Trainer:
    """Takes steps, one batch of sessions after the other."""

    def __init__(self, section: SequenceSource, items: pl.DataFrame, counts: Items, seed: int) -> None:
        """Draw the weights.

        Args:
            section: The source's section.
            items: The catalogue.
            counts: Positive rows of every item.
            seed: Of whatever is drawn.
        """
        torch.manual_seed(seed)
        width = section.embedding_dim
        self._section = section
        self.items = Entities.of(items, section.item_columns, 0)
        self._scale = NumberScale.of(items, section.item_numbers)
        self._numbers_IN = torch.from_numpy(self._scale.standardised(items))
        # The last row stands for a masked event.
        drawn = torch.empty(self.items.table_rows + 1, width).normal_(std=_SPREAD)
        self.table_RD = nn.Parameter(drawn)
        self.weight_ND = nn.Parameter(torch.zeros(len(section.item_numbers), width))
        self._content = ItemModalities.of(section.item_vectors, items, width)
        self._negatives = np.arange(self.items.count)
        if self._content is not None:  # see `TwoTowers`: what is new is no negative, and has no id to learn
            self._negatives = np.flatnonzero(counts)
            self.items = self.items.without_ids(counts == 0)
        self.encoder = Encoder(width, section.heads, section.blocks, section.last, section.dropout)
        content = self._content.parameters() if self._content is not None else ()
        dense = [*self.encoder.parameters(), self.weight_ND, *content]
        self._adam = torch.optim.Adam(dense, lr=section.learning_rate, betas=(0.9, 0.98))
        self._rows_adam = torch.optim.SparseAdam([self.table_RD], lr=section.learning_rate, betas=(0.9, 0.98))
        self._share = torch.from_numpy(counts / max(1, counts.sum())).float()
        self._random = np.random.default_rng(seed)
        self._occurrences: Occurrences | None = None

    def batches(self, sessions: Sessions) -> Iterator[Batch]:
        """Give all sessions once, in an order drawn anew, those of a batch of about the same length."""
        order = self._random.permutation(len(sessions.ends))
        per_step = max(1, round(self._section.batch_events / (float(sessions.lengths.mean()) - 1)))
        for first in range(0, len(order), per_step * _SORTED_TOGETHER):
            some = order[first : first + per_step * _SORTED_TOGETHER]
            some = some[np.argsort(sessions.lengths[some], kind="stable")]
            starts = np.arange(0, len(some), per_step)
            for start in self._random.permutation(starts):
                yield self._batch(sessions, some[start : start + per_step])

    def step(self, batch: Batch) -> Tensor:
        """Learn from a batch; return the mean loss of its events before the step, no dimensions."""
        count = self.items.count
        drawn = self._random.integers(0, len(self._negatives), self._section.sampled_negatives)
        sampled = torch.from_numpy(self._negatives[drawn])
        columns_C = torch.unique(torch.cat([torch.from_numpy(batch.targets_T), sampled]))
        wanted, places = np.unique(np.concatenate([columns_C.numpy(), batch.inputs_BL.ravel()]), return_inverse=True)
        there = (wanted >= 0) & (wanted < count)
        lookups = looked_up((self.items, torch.from_numpy(wanted[there])))
        pooled_UD = self._pooled(lookups).requires_grad_()
        masked_1D = self.table_RD[-1:].detach().requires_grad_()
        vectors_UD = self._with_numbers(pooled_UD, torch.from_numpy(wanted[there]))
        every = [torch.zeros(1, vectors_UD.shape[1])] * int(wanted[0] < 0) + [vectors_UD]
        table = torch.cat([*every, masked_1D])[torch.from_numpy(places)]
        columns_CD, events = table[: len(columns_C)], table[len(columns_C) :]
        states = self.encoder(events.view(*batch.inputs_BL.shape, -1), torch.from_numpy(batch.lengths_B))
        states_TD = states[torch.from_numpy(batch.inputs_BL >= 0)]
        loss = self._loss(states_TD @ columns_CD.T, torch.from_numpy(batch.targets_T), columns_C)
        loss.backward()  # type: ignore[no-untyped-call]
        self._move(lookups, pooled_UD, masked_1D)
        return loss.detach()

    def _loss(self, scores_TC: Tensor, targets_T: Tensor, columns_C: Tensor) -> Tensor:
        """Return the mean cross-entropy of the next items.

        An item is a column with a probability that grows with its frequency. Dividing the weight of every other column
        by that probability makes the sum over the columns an unbiased estimate of that over all items (logQ correction;
        Bengio and Senecal, 2008); the next item itself is always a column, and is not corrected.
        """
        expected = len(targets_T) * self._share[columns_C] + self._section.sampled_negatives / len(self._negatives)
        log_probability_C = torch.log(-torch.expm1(-expected))
        own_T = torch.searchsorted(columns_C, targets_T)
        corrected = scores_TC - log_probability_C
        corrected[torch.arange(len(own_T)), own_T] += log_probability_C[own_T]
        return functional.cross_entropy(corrected, own_T)

    def _move(self, lookups: Any, pooled_UD: Tensor, masked_1D: Tensor) -> None:
        assert pooled_UD.grad is not None
        rows, gradient = summed_by_row(lookups, pooled_UD.grad)
        if masked_1D.grad is not None:
            rows = torch.cat([rows, torch.tensor([len(self.table_RD) - 1])])
            gradient = torch.cat([gradient, masked_1D.grad])
        self.table_RD.grad = torch.sparse_coo_tensor(
            rows[None], gradient, self.table_RD.shape, is_coalesced=True, check_invariants=False
        )
        self._rows_adam.step()  # type: ignore[no-untyped-call]
        self._adam.step()
        self._adam.zero_grad()
        self.table_RD.grad = None

    @torch.no_grad()
    def item_vectors(self) -> NDArray[np.float32]:
        """Return the vectors of all items, shape (items, D)."""
        found = []
        for first in range(0, self.items.count, _AT_ONCE):
            wanted = torch.arange(first, min(first + _AT_ONCE, self.items.count))
            found.append(self._with_numbers(self._pooled(looked_up((self.items, wanted))), wanted).numpy())
        vectors: NDArray[np.float32] = np.concatenate(found)
        return vectors

    def content(self) -> ItemContent:
        """Return what was learnt of items' columns."""
        return self.items.content(self.table_RD, 0, self._scale, self.weight_ND, self._content)

    def _with_numbers(self, pooled_UD: Tensor, items: Tensor) -> Tensor:
        added = pooled_UD + self._numbers_IN[items] @ self.weight_ND if self._numbers_IN.shape[1] else pooled_UD
        return added if self._content is None else added + self._content(items)

    @torch.no_grad()
    def _pooled(self, lookups: Any) -> Tensor:
        return functional.embedding_bag(
            lookups.rows_L, self.table_RD, lookups.starts, mode="sum", per_sample_weights=lookups.shares_L,
            include_last_offset=True,
        )  # fmt: skip

    def _batch(self, sessions: Sessions, chosen: Items) -> Batch:
        """Return sessions with what is drawn: where they are cut, turned round or masked."""
        ends, lengths = sessions.ends[chosen], sessions.lengths[chosen]
        section, random = self._section, self._random
        if section.crops:
            cut = (random.random(len(chosen)) < section.crops) & (lengths > 2)
            kept = random.integers(2, lengths + 1)
            later = random.integers(0, lengths - kept + 1)
            ends, lengths = np.where(cut, ends - later, ends), np.where(cut, kept, lengths)
        wholes, before = lengths, np.zeros_like(ends)
        if section.joined:
            before, more = self._joined(sessions, ends - lengths, section.last + 1 - lengths)
            wholes = lengths + more
        places = np.arange(int(wholes.max()))
        own, there = places < lengths[:, None], places < wholes[:, None]
        at = np.where(own, ends[:, None] - 1 - places, np.where(there, (before + lengths)[:, None] - 1 - places, 0))
        if section.reversed:
            turned = random.random(len(chosen)) < section.reversed
            opposite = np.where(there, wholes[:, None] - 1 - places, 0)
            at = np.where(turned[:, None] & there, np.take_along_axis(at, opposite, 1), at)
        items = np.where(there, sessions.items[at], -1)
        inputs, targets = items[:, 1:].copy(), items[:, :-1]
        known = inputs >= 0
        if section.masked:
            inputs[known & (random.random(inputs.shape) < section.masked)] = self.items.count
        return Batch(inputs, wholes - 1, targets[known])

    def _joined(self, sessions: Sessions, begins: Items, most: Items) -> tuple[Items, Items]:
        """Return for each session where another one's part ends that comes before it, and of how many events it is."""
        if self._occurrences is None:
            self._occurrences = Occurrences(sessions.users, sessions.items)
        places, firsts = self._occurrences.drawn(sessions.items[begins], self._random)
        wanted = self._random.random(len(begins)) < self._section.joined
        # At the session's own place there is nothing new: what stands before it was cut off, or is the beginning.
        more = np.where(wanted & (places != begins), np.minimum(places - firsts, most), 0)
        return places, more


def _positives(section: SequenceSource, given: FitData) -> tuple[Items, Items]:
    """Return the user's number and the item's row of every positive row, by user and time."""
    user = given.data.user
    assert user
    found = list(given.positives(given.last_days(section.window_days)))
    if not found:
        raise DataError("there is no positive row to learn from; declare a longer window")
    taken = pl.concat(found).select(user, ROW, Columns.TIME)
    numbered = taken.select(pl.col(user).rank("dense").cast(pl.Int64) - 1, ROW, Columns.TIME)
    ordered = numbered.sort(user, Columns.TIME, maintain_order=True)
    return ordered[user].to_numpy(), ordered[ROW].cast(pl.Int64).to_numpy()
