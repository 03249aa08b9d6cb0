"""The encoder of a session: a causal transformer over its events, whose positions are distances in time order.

Shapes: B sessions, L events of the longest one, D width, H heads. Events stand newest first, as in a sequence feature.
An attention weight depends on the distance of two events and not on the start of the session, so that the states of
older events do not change when a new event is added.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

_MASKED_SCORE = -1e9
"""Added to the score of a masked event; finite, as a padded event attends to no event."""


class Cache(NamedTuple):
    """Keys and values of a block for the events so far, newest first, shape (B, H, events, D / H)."""

    keys: Tensor
    values: Tensor


class Block(nn.Module):
    """Attention and a perceptron, each after a layer norm and with a residual connection."""

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
        return self.add_residuals(events_BLD, functional.scaled_dot_product_attention(queries, keys, values, scores))

    def step(self, event_B1D: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """Return the state of one new event and the new cache, given the cache of older events."""
        normed = self.before_attention(event_B1D)
        query, key, value = (self.by_head(part(normed)) for part in (self.queries, self.keys, self.values))
        last = self.distances_HL.shape[1]
        cached = (key[:, :, :0], value[:, :, :0]) if cache is None else cache
        new_cache = Cache(
            *(torch.cat([new, old], 2)[:, :, :last] for new, old in zip((key, value), cached, strict=True))
        )
        scores = self.distances_HL[None, :, None, : new_cache.keys.shape[2]]
        return self.add_residuals(
            event_B1D, functional.scaled_dot_product_attention(query, *new_cache, scores)
        ), new_cache

    def distances(self, length: int) -> Tensor:
        """Return the score terms of the events' distances, shape (H, L, L)."""
        places = torch.arange(length)
        distances_LL = (places[None, :] - places[:, None]).clamp(0, self.distances_HL.shape[1] - 1)
        return self.distances_HL[:, distances_LL]

    def by_head(self, vectors_BLD: Tensor) -> Tensor:
        """Return vectors by head, shape (B, H, L, D / H)."""
        sessions, events, _ = vectors_BLD.shape
        return vectors_BLD.view(sessions, events, self.distances_HL.shape[0], -1).transpose(1, 2)

    def add_residuals(self, events_BLD: Tensor, attended_BHLd: Tensor) -> Tensor:
        """Return the output of a block, given the output of its heads."""
        events_BLD = events_BLD + self.dropout(self.out(attended_BHLd.transpose(1, 2).flatten(2)))
        inner = functional.relu(self.inner(self.before_perceptron(events_BLD)))
        states_BLD: Tensor = events_BLD + self.dropout(self.outer(self.dropout(inner)))
        return states_BLD


class Encoder(nn.Module):
    """Encodes sessions; the inner product of an event's state with an item's vector scores the item as the next one."""

    def __init__(self, width: int, heads: int, blocks: int, last: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, last, dropout) for _ in range(blocks))
        self.final_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.last = last

    def forward(self, events_BLD: Tensor, lengths_B: Tensor) -> Tensor:
        """Return the state of every event, shape (B, L, D); states of padding are arbitrary.

        Args:
            events_BLD: Vectors of the events, newest first.
            lengths_B: Number of events of each session; later places are padding.
        """
        mask = attention_mask(lengths_B, events_BLD.shape[1])
        states = self.dropout(events_BLD)
        for block in self.blocks:
            states = block(states, mask)
        normed_states: Tensor = self.final_norm(states)
        return normed_states

    def step(self, event_BD: Tensor, caches: list[Cache] | None = None) -> tuple[Tensor, list[Cache]]:
        """Return the state after one more event, shape (B, D), and the caches for the next step.

        For a session of at most `last` events the state is that of `forward` over all of them.
        """
        state, new_caches = event_BD[:, None], []
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            state, cache = block.step(state, None if caches is None else caches[number])
            new_caches.append(cache)
        normed_state: Tensor = self.final_norm(state)[:, 0]
        return normed_state, new_caches


def attention_mask(lengths_B: Tensor, length: int) -> Tensor:
    """Return score terms with which an event attends to itself and older events only; shape (B, 1, L, L)."""
    places = torch.arange(length)
    is_older_LL = places[None, :] >= places[:, None]
    is_event_BL = places[None, :] < lengths_B[:, None]
    is_visible_B1LL = is_older_LL[None, None] & is_event_BL[:, None, None, :]
    return torch.where(is_visible_B1LL, 0.0, _MASKED_SCORE)
