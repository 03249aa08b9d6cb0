"""Training of the encoder of sessions: every event predicts the next one, by a sampled softmax.

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

from models.embedding.table.optimizer import sum_by_row
from models.modalities import ItemModalities
from models.sequence.network import Encoder
from models.two_tower.entities import Entities, make_lookups
from shortlist.contracts import Columns, DataError
from shortlist.slates.retrieval.item_content import ItemContent, NumberScale
from shortlist.slates.retrieval.source import ROW, FitInputs
from shortlist.slates.retrieval.sources.sequence import LearntSequences, SequenceSource
from shortlist.system.progress import progress

Items = NDArray[np.int64]

_INITIAL_DEVIATION = 0.02
"""Deviation of the initial embeddings: small compared to a step, so that the first scores are about equal."""
_CHUNK_ITEMS = 65_536
"""Items whose vectors are computed at once."""
_SORTED_TOGETHER = 50
"""Steps whose sessions are sorted by length together, so that there is little padding and batches stay mixed."""


class TrainingSessions(NamedTuple):
    """Every session's items, oldest first, one session after the other."""

    users: Items
    """Number of each event's user, sorted."""
    items: Items
    ends: Items
    """End of each session."""
    lengths: Items
    """Length of each session, at least 2."""

    @classmethod
    def from_events(cls, users: Items, items: Items, last: int) -> TrainingSessions:
        """Return the last `last + 1` items of every user with two or more.

        Args:
            users: Number of each event's user, sorted; events of a user in order of time.
            items: Row of each event's item.
            last: Most events that are encoded.
        """
        counts = np.bincount(users)
        has_two_events = counts > 1
        return cls(users, items, np.cumsum(counts)[has_two_events], np.minimum(counts, last + 1)[has_two_events])


class Occurrences:
    """The places of each item in all users' events, and the start of each place's user.

    Args:
        users: Number of each event's user, sorted.
        items: Row of each event's item.
    """

    def __init__(self, users: Items, items: Items) -> None:
        self._order = np.argsort(items, kind="stable")
        self._firsts = np.searchsorted(items[self._order], np.arange(int(items.max()) + 2))
        self._begins = np.searchsorted(users, users)

    def draw(self, items: Items, random: np.random.Generator) -> tuple[Items, Items]:
        """Return for each item a random place at which it occurs, and the place at which that user's events begin."""
        low, high = self._firsts[items], self._firsts[items + 1]
        places = self._order[random.integers(low, high)]
        return places, self._begins[places]


def train(section: SequenceSource, fit_data: FitInputs) -> LearntSequences:
    """Return the encoder and the vectors of all items after training on the positive rows.

    Memory: 24 bytes per positive row, 40 where sessions are joined, and three times the items' vectors.

    Raises:
        DataError: No user has two positive rows.
    """
    users_P, items_P = _positives(section, fit_data)
    if not len(TrainingSessions.from_events(users_P, items_P, section.last).ends):
        raise DataError("no user has two positive rows, so nothing follows anything; declare a longer window")
    return learn(section, fit_data.catalogue.items, users_P, items_P, fit_data.seed)


def learn(section: SequenceSource, items: pl.DataFrame, users_P: Items, items_P: Items, seed: int) -> LearntSequences:
    """Return the encoder and the vectors of all items after training on events.

    Args:
        section: The source's section.
        items: One row per item.
        users_P: Number of each event's user, sorted; events of a user in order of time. A user has two or more.
        items_P: Row of each event's item.
        seed: Seed of the random generators.
    """
    sessions = TrainingSessions.from_events(users_P, items_P, section.last)
    trainer = SequenceTrainer(section, items, np.bincount(items_P, minlength=items.height), seed)
    history: list[dict[str, Any]] = []
    with progress("sequence", section.epochs * len(sessions.ends)) as advance:
        for epoch in range(section.epochs):
            started = time.perf_counter()
            losses = [trainer.step(batch) for batch in trainer.batches(sessions)]
            advance(len(sessions.ends), "")
            loss = float(torch.stack(losses).mean())
            seconds = time.perf_counter() - started
            history.append({"epoch": epoch, "loss": loss, "events_per_s": float(sessions.lengths.sum()) / seconds})
    return LearntSequences(trainer.encoder.eval(), trainer.item_vectors(), trainer.content(), history)


class SessionBatch(NamedTuple):
    """The sessions of a step, newest event first."""

    inputs_BL: Items
    """Item rows; -1 is padding, and the number of items is a masked event."""
    lengths_B: Items
    targets_T: Items
    """The next item of each event that is no padding, session by session."""


class SequenceTrainer:
    """Trains the encoder and the items' embeddings, step by step."""

    def __init__(self, section: SequenceSource, items: pl.DataFrame, counts: Items, seed: int) -> None:
        """Create the initial weights.

        Args:
            section: The source's section.
            items: The catalogue.
            counts: Number of positive rows of every item.
            seed: Seed of the random generators.
        """
        torch.manual_seed(seed)
        width = section.embedding_dim
        self._section = section
        self.items = Entities.from_table(items, section.item_columns, 0)
        self._scale = NumberScale.from_table(items, section.item_numbers)
        self._numbers_IN = torch.from_numpy(self._scale.standardise(items))
        # The last row is the embedding of a masked event.
        initial_rows = torch.empty(self.items.table_rows + 1, width).normal_(std=_INITIAL_DEVIATION)
        self.table_RD = nn.Parameter(initial_rows)
        self.weight_ND = nn.Parameter(torch.zeros(len(section.item_numbers), width))
        self._content = ItemModalities.from_catalogue(section.item_vectors, items, width)
        self._negatives = np.arange(self.items.count)
        if self._content is not None:  # see `TwoTowers`: new items are no negatives, and their ids learn nothing
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

    def batches(self, sessions: TrainingSessions) -> Iterator[SessionBatch]:
        """Yield all sessions once, in a new random order, with batches of sessions of about the same length."""
        order = self._random.permutation(len(sessions.ends))
        per_step = max(1, round(self._section.batch_events / (float(sessions.lengths.mean()) - 1)))
        for first in range(0, len(order), per_step * _SORTED_TOGETHER):
            sessions_together = order[first : first + per_step * _SORTED_TOGETHER]
            sessions_together = sessions_together[np.argsort(sessions.lengths[sessions_together], kind="stable")]
            starts = np.arange(0, len(sessions_together), per_step)
            for start in self._random.permutation(starts):
                yield self._make_batch(sessions, sessions_together[start : start + per_step])

    def step(self, batch: SessionBatch) -> Tensor:
        """Train on a batch; return the mean loss of its events before the step, no dimensions."""
        count = self.items.count
        negative_indices = self._random.integers(0, len(self._negatives), self._section.sampled_negatives)
        sampled = torch.from_numpy(self._negatives[negative_indices])
        columns_C = torch.unique(torch.cat([torch.from_numpy(batch.targets_T), sampled]))
        items, places = np.unique(np.concatenate([columns_C.numpy(), batch.inputs_BL.ravel()]), return_inverse=True)
        is_item = (items >= 0) & (items < count)
        lookups = make_lookups((self.items, torch.from_numpy(items[is_item])))
        pooled_UD = self._pooled(lookups).requires_grad_()
        masked_1D = self.table_RD[-1:].detach().requires_grad_()
        vectors_UD = self._with_numbers(pooled_UD, torch.from_numpy(items[is_item]))
        padding_and_vectors = [torch.zeros(1, vectors_UD.shape[1])] * int(items[0] < 0) + [vectors_UD]
        table = torch.cat([*padding_and_vectors, masked_1D])[torch.from_numpy(places)]
        columns_CD, events = table[: len(columns_C)], table[len(columns_C) :]
        states = self.encoder(events.view(*batch.inputs_BL.shape, -1), torch.from_numpy(batch.lengths_B))
        states_TD = states[torch.from_numpy(batch.inputs_BL >= 0)]
        loss = self._loss(states_TD @ columns_CD.T, torch.from_numpy(batch.targets_T), columns_C)
        loss.backward()  # type: ignore[no-untyped-call]
        self._update_weights(lookups, pooled_UD, masked_1D)
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

    def _update_weights(self, lookups: Any, pooled_UD: Tensor, masked_1D: Tensor) -> None:
        assert pooled_UD.grad is not None
        rows, gradient = sum_by_row(lookups, pooled_UD.grad)
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
        vector_chunks = []
        for first in range(0, self.items.count, _CHUNK_ITEMS):
            items = torch.arange(first, min(first + _CHUNK_ITEMS, self.items.count))
            vector_chunks.append(self._with_numbers(self._pooled(make_lookups((self.items, items))), items).numpy())
        vectors: NDArray[np.float32] = np.concatenate(vector_chunks)
        return vectors

    def content(self) -> ItemContent:
        """Return the learnt vectors of items' columns."""
        return self.items.content(self.table_RD, 0, self._scale, self.weight_ND, self._content)

    def _with_numbers(self, pooled_UD: Tensor, items: Tensor) -> Tensor:
        with_numbers = pooled_UD + self._numbers_IN[items] @ self.weight_ND if self._numbers_IN.shape[1] else pooled_UD
        return with_numbers if self._content is None else with_numbers + self._content(items)

    @torch.no_grad()
    def _pooled(self, lookups: Any) -> Tensor:
        return functional.embedding_bag(
            lookups.rows_L, self.table_RD, lookups.starts, mode="sum", per_sample_weights=lookups.shares_L,
            include_last_offset=True,
        )  # fmt: skip

    def _make_batch(self, sessions: TrainingSessions, session_numbers: Items) -> SessionBatch:
        """Return sessions with random crops, joins, reversals and masks."""
        ends, lengths = sessions.ends[session_numbers], sessions.lengths[session_numbers]
        section, random = self._section, self._random
        if section.crops:
            is_cropped = (random.random(len(session_numbers)) < section.crops) & (lengths > 2)
            cropped_lengths = random.integers(2, lengths + 1)
            cropped_events = random.integers(0, lengths - cropped_lengths + 1)
            ends, lengths = (
                np.where(is_cropped, ends - cropped_events, ends),
                np.where(is_cropped, cropped_lengths, lengths),
            )
        total_lengths, joined_ends = lengths, np.zeros_like(ends)
        if section.joined:
            joined_ends, joined_lengths = self._draw_joined_parts(sessions, ends - lengths, section.last + 1 - lengths)
            total_lengths = lengths + joined_lengths
        places = np.arange(int(total_lengths.max()))
        is_own, is_event = places < lengths[:, None], places < total_lengths[:, None]
        event_places = np.where(
            is_own, ends[:, None] - 1 - places, np.where(is_event, (joined_ends + lengths)[:, None] - 1 - places, 0)
        )
        if section.reversed:
            is_reversed = random.random(len(session_numbers)) < section.reversed
            reversed_places = np.where(is_event, total_lengths[:, None] - 1 - places, 0)
            event_places = np.where(
                is_reversed[:, None] & is_event, np.take_along_axis(event_places, reversed_places, 1), event_places
            )
        items = np.where(is_event, sessions.items[event_places], -1)
        inputs, targets = items[:, 1:].copy(), items[:, :-1]
        is_item = inputs >= 0
        if section.masked:
            inputs[is_item & (random.random(inputs.shape) < section.masked)] = self.items.count
        return SessionBatch(inputs, total_lengths - 1, targets[is_item])

    def _draw_joined_parts(self, sessions: TrainingSessions, begins: Items, max_lengths: Items) -> tuple[Items, Items]:
        """Return, for each session, the end and the length of another session's part that is put before it."""
        if self._occurrences is None:
            self._occurrences = Occurrences(sessions.users, sessions.items)
        places, firsts = self._occurrences.draw(sessions.items[begins], self._random)
        is_joined = self._random.random(len(begins)) < self._section.joined
        # The session's own place adds nothing new: the events before it were cropped, or there are none.
        joined_lengths = np.where(is_joined & (places != begins), np.minimum(places - firsts, max_lengths), 0)
        return places, joined_lengths


def _positives(section: SequenceSource, fit_data: FitInputs) -> tuple[Items, Items]:
    """Return the user's number and the item's row of every positive row, by user and time."""
    user = fit_data.data.user
    assert user
    positive_frames = list(fit_data.positives(fit_data.last_days(section.window_days)))
    if not positive_frames:
        raise DataError("there is no positive row to learn from; declare a longer window")
    positives = pl.concat(positive_frames).select(user, ROW, Columns.TIME)
    numbered = positives.select(pl.col(user).rank("dense").cast(pl.Int64) - 1, ROW, Columns.TIME)
    ordered = numbered.sort(user, Columns.TIME, maintain_order=True)
    return ordered[user].to_numpy(), ordered[ROW].cast(pl.Int64).to_numpy()
