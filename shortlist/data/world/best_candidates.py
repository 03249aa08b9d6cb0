"""The best possible candidates in a generated world: the items with the most expected clicks of a user."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.data.world.click_model import ClickModel
from shortlist.data.world.generate import FIRST_ITEM, FIRST_USER
from shortlist.data.world.synthetic_world import SyntheticWorld, build_world
from shortlist.data.world.traffic import impression_shares_by_user, item_exposure
from shortlist.spec.data import GeneratedSource

_MAX_PAIRS = 2_000_000


def best_candidates(
    source: GeneratedSource, users: pl.Series, days: Iterable[date], max_items: int
) -> NDArray[np.int64]:
    """Return the ids of the items with the most expected clicks per user, best first, shape (users, max_items).

    The expected clicks of an item are its share of impressions times the planted probability of a click. No list is
    better on average by the log's clicks, because clicks on items that are not shown are not recorded.

    Args:
        source: Declaration of the generated log.
        users: Ids of the users.
        days: Days over which clicks are summed.
        max_items: Items per user; fewer where the world has fewer.
    """
    world = build_world(source)
    click_model = ClickModel.calibrate(source, world)
    numbers = users.cast(pl.Int64).to_numpy() - FIRST_USER
    best_items = np.empty((len(numbers), min(max_items, world.items.creator.size)), np.int64)
    ordinals = [(day - source.start).days for day in days]
    contexts = {day: click_model.context_quantiles(source, day) for day in ordinals}
    step = max(1, _MAX_PAIRS // world.items.creator.size)
    for first in range(0, len(numbers), step):
        user_block = numbers[first : first + step]
        clicks = sum(
            chance
            * impression_shares_by_user(source, world, chapter, day)
            * click_model.expected_clicks(user_block, chapter, context, day)
            for day, context in contexts.items()
            for chance, chapter in _chapters(world, user_block, day)
        )
        best_items[first : first + step] = np.argsort(-np.asarray(clicks), axis=1, kind="stable")[
            :, : best_items.shape[1]
        ]
    return best_items + FIRST_ITEM


def _chapters(world: SyntheticWorld, users: NDArray[np.int64], day: int) -> list[tuple[float, NDArray[np.int64]]]:
    """Return the possible chapters of users with their probabilities; -1: no chapter."""
    if world.chapters is None:
        return [(1.0, np.full(users.size, -1))]
    return world.chapters.chapter_probabilities(users, day, item_exposure(world, day))
