"""Planted values of lists in a generated world: expected clicks per request."""

from __future__ import annotations

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.data.world.answering_world import AnsweringWorld, Requests, rows_by_day
from shortlist.data.world.random_streams import Ints
from shortlist.spec.data import GeneratedSource

CONTEXT = ("user_id", "surface", "device", Columns.TIME)
"""Columns of requests that the click function reads."""


class TrueValues:
    """The planted click function, applied to lists that the log never showed.

    Args:
        source: Declaration of the world.
        requests: Columns `CONTEXT` of the requests, by generated users.
    """

    def __init__(self, source: GeneratedSource, requests: pl.DataFrame) -> None:
        self._world = AnsweringWorld(source, slates_per_day=1)
        self._requests = Requests.read(requests, source)

    def of_lists(self, items: Ints) -> float:
        """Return the mean over requests of the expected clicks on a list, seen down to a random depth.

        Args:
            items: Ids of the items of each request in order, -1 where a list is shorter, shape (requests, places).
        """
        return float(self._world.expected_rewards(self._requests, items).sum()) / max(len(items), 1)

    def best_lists(self, places: int) -> Ints:
        """Return the lists with the most expected clicks, ids of published items, shape (requests, places)."""
        return self._world.best_slates(self._requests, places)

    def random_lists(self, places: int, seed: int) -> Ints:
        """Return lists of random published items, shape (requests, places)."""
        random = np.random.default_rng(seed)
        items = np.empty((self._requests.user.size, places), np.int64)
        for day, requests in rows_by_day(self._requests.time_us):
            items[requests] = random.choice(self._world.published(day), (requests.size, places))
        return items
