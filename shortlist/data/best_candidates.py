"""The best list of items that a generated world allows: those that the user is most likely to click on some days."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.data.click_model import ClickModel
from shortlist.data.generate import FIRST_ITEM, FIRST_USER
from shortlist.data.synthetic_world import SyntheticWorld, build_world
from shortlist.data.traffic import exposure, shares_shown_to
from shortlist.spec.data import GeneratedSource

_PAIRS_AT_ONCE = 2_000_000


def best_candidates(source: GeneratedSource, users: pl.Series, days: Iterable[date], most: int) -> NDArray[np.int64]:
    """Return the ids of the items that users click most in expectation, best first, shape (users, most).

    An item is clicked as often as it is shown, times the planted probability of a click. No list is better on average
    by what the log records, for clicks on what is not shown are not recorded.

    Args:
        source: What the log was generated from.
        users: Ids.
        days: Over which clicks are expected.
        most: Items per user; fewer where the world has fewer.
    """
    world = build_world(source)
    truth = ClickModel.of(source, world)
    numbers = users.cast(pl.Int64).to_numpy() - FIRST_USER
    found = np.empty((len(numbers), min(most, world.items.creator.size)), np.int64)
    ordinals = [(day - source.start).days for day in days]
    contexts = {day: truth.usual_context(source, day) for day in ordinals}
    step = max(1, _PAIRS_AT_ONCE // world.items.creator.size)
    for first in range(0, len(numbers), step):
        some = numbers[first : first + step]
        clicks = sum(
            chance * shares_shown_to(source, world, chapter, day) * truth.clicks_expected(some, chapter, context, day)
            for day, context in contexts.items()
            for chance, chapter in _chapters(world, some, day)
        )
        found[first : first + step] = np.argsort(-np.asarray(clicks), axis=1, kind="stable")[:, : found.shape[1]]
    return found + FIRST_ITEM


def _chapters(world: SyntheticWorld, users: NDArray[np.int64], day: int) -> list[tuple[float, NDArray[np.int64]]]:
    """Return the chapters that users may be in, each with its probability; -1 is none."""
    if world.chapters is None:
        return [(1.0, np.full(users.size, -1))]
    return world.chapters.likely(users, day, exposure(world, day))
