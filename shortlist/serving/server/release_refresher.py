"""Keeps the stages around the model current: a thread looks for a refreshed release and puts it in place."""

from __future__ import annotations

import logging

from shortlist.features.feast_store_location import FeastStoreLocation
from shortlist.recommending.recommender import Recommender
from shortlist.recommending.refreshed import announced_releases, open_refreshed
from shortlist.serving.server.refresher import Refresher
from shortlist.spec.data import Data

_log = logging.getLogger(__name__)


class ReleaseRefresher(Refresher):
    """The newest release that could be read: the version's own, or one that brings it up to date."""

    def __init__(self, blessed: Recommender, data: Data, place: FeastStoreLocation | None, seconds: float) -> None:
        """Prepare; nothing is looked for yet.

        Args:
            blessed: The version's own, from its training.
            data: Declaration of the log that the version was trained with.
            place: Where refreshed ones are announced; None: nowhere.
            seconds: How often to look.
        """
        super().__init__("candidates", seconds)
        self._blessed, self._data, self._place = blessed.digest, data, place
        self.current = blessed
        """Replaced as a whole; a request keeps to the one it began with."""
        self.has_looked = place is None

    def start(self) -> None:
        """Begin to poll, where releases are announced."""
        if self._place is not None:
            super().start()

    def poll(self) -> None:
        """Put a newer release in place, if there is one; what cannot be read leaves the one before."""
        super().poll()
        self.has_looked = True

    def _refresh(self) -> None:
        newest = announced_releases(self._place).get(self._blessed) if self._place is not None else None
        if newest is not None and newest.digest != self.current.digest:
            self.current = open_refreshed(newest, self._blessed, self._data)
            _log.info("release %s (%d items, up to %s) is in place", newest.digest, newest.items, newest.last_day)
        self.problem = None
