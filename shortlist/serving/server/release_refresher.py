"""Keeps the stages around the model current: a thread looks for a refreshed release and puts it in place."""

from __future__ import annotations

import logging
import threading

from shortlist.contracts import ShortlistError
from shortlist.features.feast_store_location import FeastStoreLocation
from shortlist.recommending.recommender import Recommender
from shortlist.recommending.refreshed import announced_releases, open_refreshed
from shortlist.spec.data import Data

_log = logging.getLogger(__name__)


class ReleaseRefresher:
    """The newest release that could be read: the version's own, or one that brings it up to date."""

    def __init__(self, blessed: Recommender, data: Data, place: FeastStoreLocation | None, seconds: float) -> None:
        """Prepare; nothing is looked for yet.

        Args:
            blessed: The version's own, from its training.
            data: Declaration of the log that the version was trained with.
            place: Where refreshed ones are announced; None: nowhere.
            seconds: How often to look.
        """
        self._blessed, self._data, self._place, self._seconds = blessed.digest, data, place, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="releases", daemon=True)
        self.current = blessed
        """Replaced as a whole; a request keeps to the one it began with."""
        self.problem: str | None = None
        """Why the newest release is not in place."""
        self.has_looked = place is None

    def start(self) -> None:
        """Begin to look."""
        if self._place is not None:
            self._thread.start()

    def stop(self) -> None:
        """Stop looking; a read under way is left to end by itself."""
        self._stop.set()

    def _run(self) -> None:
        self.poll()
        while not self._stop.wait(self._seconds):
            self.poll()

    def poll(self) -> None:
        """Put a newer release in place, if there is one; what cannot be read leaves the one before."""
        try:
            self._look()
        # A thread that ends would leave a server with old candidates and nobody who says so.
        except Exception as error:
            self._fail(str(error) if isinstance(error, ShortlistError) else f"{type(error).__name__}: {error}")
        self.has_looked = True

    def _look(self) -> None:
        newest = announced_releases(self._place).get(self._blessed) if self._place is not None else None
        if newest is not None and newest.digest != self.current.digest:
            self.current = open_refreshed(newest, self._blessed, self._data)
            _log.info("release %s (%d items, up to %s) is in place", newest.digest, newest.items, newest.last_day)
        self.problem = None

    def _fail(self, problem: str) -> None:
        if self.problem != problem:
            _log.warning("the candidates are not up to date: %s", problem)
        self.problem = problem
