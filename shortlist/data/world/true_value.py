"""Planted values of lists in a generated world: expected clicks per request."""

from __future__ import annotations

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.data.world.answering_world import AnsweringWorld, examination
from shortlist.data.world.generate import FIRST_ITEM, FIRST_USER
from shortlist.data.world.random_streams import Floats, Ints
from shortlist.spec.data import GeneratedSource

CONTEXT = ("user_id", "surface", "device", Columns.TIME)
"""Columns of requests that the click function reads."""
_MAX_PAIRS = 2_000_000


class TrueValues:
    """The planted click function, applied to lists that the log never showed.

    Args:
        source: Declaration of the world.
        requests: Columns `CONTEXT` of the requests, by generated users.
    """

    def __init__(self, source: GeneratedSource, requests: pl.DataFrame) -> None:
        self._world = AnsweringWorld(source, slates_per_day=1)
        self._requests = requests
        midnight = pl.lit(source.start).cast(pl.Datetime("us", "UTC"))
        self._day: Ints = requests.select((pl.col(Columns.TIME) - midnight).dt.total_days()).to_series().to_numpy()

    def of_lists(self, items: Ints) -> float:
        """Return the mean over requests of the expected clicks on a list, seen down to a random depth.

        Args:
            items: Ids of the items of each request in order, -1 where a list is shorter, shape (requests, places).
        """
        request, place = np.nonzero(items >= 0)
        rows = self._requests[request].with_columns(
            pl.Series("item_id", items[request, place]), pl.Series("position", place + 1)
        )
        clicks = self._world.click_probability(rows) * examination(items.shape[1])[place]
        return float(clicks.sum()) / max(len(items), 1)

    def best_lists(self, places: int) -> Ints:
        """Return the lists with the most expected clicks, ids of published items, shape (requests, places)."""
        world, click_model = self._world.world, self._world.click_model
        best = np.empty((self._requests.height, places), np.int64)
        users = self._requests["user_id"].to_numpy() - FIRST_USER
        step = max(1, _MAX_PAIRS // world.items.published.size)
        for day in np.unique(self._day):
            published = world.items.published <= day
            requests = np.flatnonzero(self._day == day)
            day_users, user_of_request = np.unique(users[requests], return_inverse=True)
            lists = np.empty((day_users.size, places), np.int64)
            for first in range(0, day_users.size, step):
                block = day_users[first : first + step]
                # Position and context change the log-odds of all items alike: the best order does not depend on them.
                appeal: Floats = click_model.expected_clicks(block, np.full(block.size, -1), np.zeros(1), int(day))
                order = np.argsort(-np.where(published, appeal, 0.0), axis=1, kind="stable")
                lists[first : first + step] = order[:, :places]
            best[requests] = FIRST_ITEM + lists[user_of_request]
        return best

    def random_lists(self, places: int, seed: int) -> Ints:
        """Return lists of random published items, shape (requests, places)."""
        random = np.random.default_rng(seed)
        items = np.empty((self._requests.height, places), np.int64)
        for day in np.unique(self._day):
            requests = np.flatnonzero(self._day == day)
            items[requests] = random.choice(self._world.published(int(day)), (requests.size, places))
        return items
