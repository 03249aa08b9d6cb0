"""The encoder of a session: a causal transformer over its events, whose positions are distances in time order.

Shapes: B sessions, L events of the longest one, D width, H heads. Events stand newest first, as in a sequence feature.
An attention weight depends on how many events lie between two of them and not on where the session begins, so that
the states of older events stay what they are when a new event comes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

_NOWHERE = -1e9
"""Added to the score of an event that may not be attended to; finite, since a padded event sees nothing at all."""


class Cache(NamedTuple):
    """What a block keeps of the events so far, newest first: keys and values, shape (B, H, events, D / H)."""

    keys: Tensor
    values: Tensor


class Block(nn.Module):
    """Attention and a perceptron, each behind a layer norm and added to what comes in."""

    def __init__(self, width: int, heads: int, last: int, dropout: float) -> None:
        super().__init__()
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.keys, self.values = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.distances_HL = nn.Parameter(torch.zeros(heads, last))
        self.dropout = nn.Dropout(dropout)

    def forward(self, events_BLD: Tensor, mask_B1LL: Tensor) -> Tensor:
        """Return the events' states, shape (B, L, D)."""
        normed = self.before_attention(events_BLD)
        queries, keys, values = (self.by_head(part(normed)) for part in (self.queries, self.keys, self.values))
        scores = mask_B1LL + self.distances(events_BLD.shape[1])
        return self.finished(events_BLD, functional.scaled_dot_product_attention(queries, keys, values, scores))

    def step(self, event_B1D: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """Return the state of one new event, given what is kept of the older ones, and what is to be kept."""
        normed = self.before_attention(event_B1D)
        query, key, value = (self.by_head(part(normed)) for part in (self.queries, self.keys, self.values))
        last = self.distances_HL.shape[1]
        older = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        kept = Cache(*(torch.cat([new, old], 2)[:, :, :last] for new, old in zip((key, value), older, strict=True)))
        scores = self.distances_HL[None, :, None, : kept.keys.shape[2]]
        return self.finished(event_B1D, functional.scaled_dot_product_attention(query, *kept, scores)), kept

    def distances(self, length: int) -> Tensor:
        """Return what the distance of two events adds to a score, shape (H, L, L)."""
        places = torch.arange(length)
        apart_LL = (places[None, :] - places[:, None]).clamp(0, self.distances_HL.shape[1] - 1)
        return self.distances_HL[:, apart_LL]

    def by_head(self, vectors_BLD: Tensor) -> Tensor:
        """Return vectors by head, shape (B, H, L, D / H)."""
        sessions, events, _ = vectors_BLD.shape
        return vectors_BLD.view(sessions, events, self.distances_HL.shape[0], -1).transpose(1, 2)

    def finished(self, events_BLD: Tensor, attended_BHLd: Tensor) -> Tensor:
        """Return what comes out of a block, given what its heads attended to."""
        events_BLD = events_BLD + self.dropout(self.out(attended_BHLd.transpose(1, 2).flatten(2)))
        inner = functional.relu(self.inner(self.before_perceptron(events_BLD)))
        states_BLD: Tensor = events_BLD + self.dropout(self.outer(self.dropout(inner)))
        return states_BLD


class Encoder(nn.Module):
    """Sessions to vectors: the state of an event says what comes next, by its inner product with items' vectors."""

    def __init__(self, width: int, heads: int, blocks: int, last: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, last, dropout) for _ in range(blocks))
        self.after = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.last = last

    def forward(self, events_BLD: Tensor, lengths_B: Tensor) -> Tensor:
        """Return the state of every event, shape (B, L, D); of padding, whatever it may be.

        Args:
            events_BLD: Vectors of the events, newest first.
            lengths_B: Events of each session; what stands behind is padding.
        """
        mask = attention_mask(lengths_B, events_BLD.shape[1])
        states = self.dropout(events_BLD)
        for block in self.blocks:
            states = block(states, mask)
        found: Tensor = self.after(states)
        return found

    def step(self, event_BD: Tensor, caches: list[Cache] | None = None) -> tuple[Tensor, list[Cache]]:
        """Return the state after one more event, shape (B, D), and what to give to the next step.

        For a session of at most `last` events the state is that of `forward` over all of them.
        """
        state, kept = event_BD[:, None], []
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            state, cache = block.step(state, None if caches is None else caches[number])
            kept.append(cache)
        found: Tensor = self.after(state)[:, 0]
        return found, kept


def attention_mask(lengths_B: Tensor, length: int) -> Tensor:
    """Return what is added to scores: an event sees itself and older ones, and no padding; shape (B, 1, L, L)."""
    places = torch.arange(length)
    older_LL = places[None, :] >= places[:, None]
    there_BL = places[None, :] < lengths_B[:, None]
    seen_B1LL = older_LL[None, None] & there_BL[:, None, None, :]
    return torch.where(seen_B1LL, 0.0, _NOWHERE)
