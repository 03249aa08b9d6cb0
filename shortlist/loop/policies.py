"""The policies whose reward a loop compares on the same requests."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import polars as pl

from shortlist.data.world.answering_world import NO_ITEM, AnsweringWorld, Requests
from shortlist.data.world.random_streams import Ints
from shortlist.slates.retrieval.evaluate import item_popularity
from shortlist.slates.retrieval.retriever import Retriever

Policy = Literal["best_possible", "loop", "frozen", "popularity", "chance"]
BEST_POSSIBLE: Final[Policy] = "best_possible"
LOOP: Final[Policy] = "loop"
FROZEN: Final[Policy] = "frozen"
POPULARITY: Final[Policy] = "popularity"
CHANCE: Final[Policy] = "chance"
POLICIES: Final[tuple[Policy, ...]] = (BEST_POSSIBLE, LOOP, FROZEN, POPULARITY, CHANCE)


def popular_slates(world: AnsweringWorld, requests: Requests, day: int, retriever: Retriever, places: int) -> Ints:
    """Return the published items that most users took last, the same for every request, shape (requests, places)."""
    in_order = retriever.catalogue.ids.gather(np.argsort(-item_popularity(retriever), kind="stable"))
    published = in_order.filter(in_order.is_in(pl.Series(world.published(day)).implode()))
    return np.tile(published[:places].to_numpy(), (requests.user.size, 1))


def random_slates(
    world: AnsweringWorld, requests: Requests, day: int, random: np.random.Generator, places: int
) -> Ints:
    """Return different published items in random order, shape (requests, places)."""
    published = world.published(day)
    keys = random.random((requests.user.size, published.size))
    return published[np.argpartition(keys, places - 1, axis=1)[:, :places]]


def slate_matrix(slates: list[pl.Series], places: int) -> Ints:
    """Return the items of slates as a matrix, `NO_ITEM` where one is shorter, shape (slates, places)."""
    matrix = np.full((len(slates), places), NO_ITEM, np.int64)
    for row, items in zip(matrix, slates, strict=True):
        row[: len(items)] = items.to_numpy()
    return matrix
