"""Keeps the stages around the model current: a thread polls for a refreshed release and loads it."""

from __future__ import annotations

import logging

from shortlist.features.feast.feast_store_location import FeastStoreLocation
from shortlist.serving.server.features.refresher import Refresher
from shortlist.slates.recommender import Recommender
from shortlist.slates.refreshed_releases import announced_releases, open_refreshed
from shortlist.spec.data import Data

_log = logging.getLogger(__name__)


class ReleaseRefresher(Refresher):
    """The newest release that could be read: the blessed one, or a refresh of it."""

    def __init__(
        self, blessed: Recommender, data: Data, location: FeastStoreLocation | None, poll_seconds: float
    ) -> None:
        """Prepare; nothing is polled yet.

        Args:
            blessed: The release that the version was trained with.
            data: Declared columns of the log that the version was trained with.
            location: Where refreshed releases are announced; None when they are not.
            poll_seconds: Time between two polls.
        """
        super().__init__("candidates", poll_seconds)
        self._blessed_digest, self._data, self._location = blessed.digest, data, location
        self.current = blessed
        """The newest release. It is replaced as a whole; a request uses the one it began with."""
        self.has_polled = location is None

    def start(self) -> None:
        """Start polling, if releases are announced."""
        if self._location is not None:
            super().start()

    def poll(self) -> None:
        """Load a newer release, if there is one; a failed read leaves the loaded release unchanged."""
        super().poll()
        self.has_polled = True

    def _refresh(self) -> None:
        newest = announced_releases(self._location).get(self._blessed_digest) if self._location is not None else None
        if newest is not None and newest.digest != self.current.digest:
            self.current = open_refreshed(newest, self._blessed_digest, self._data)
            _log.info("loaded release %s (%d items, up to %s)", newest.digest, newest.items, newest.last_day)
        self.problem = None
