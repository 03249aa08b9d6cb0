"""A thread that keeps something of a server current, and says why where it cannot."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

from polars.exceptions import PanicException

from shortlist.contracts import ShortlistError

_log = logging.getLogger(__name__)


class Refresher(ABC):
    """Polls at once and then at an interval, in a thread of its own, until it is stopped."""

    def __init__(self, subject: str, seconds: float) -> None:
        """Prepare; nothing is read yet.

        Args:
            subject: What is kept current, in the plural; names the thread and stands in messages.
            seconds: Between two polls.
        """
        self._subject, self._seconds = subject, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=subject, daemon=True)
        self.problem: str | None = None
        """Why the newest is not, or not all, in place."""

    def start(self) -> None:
        """Begin to poll."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling; a read under way is left to end by itself."""
        self._stop.set()

    def _run(self) -> None:
        self.poll()
        while not self._stop.wait(self._seconds):
            self.poll()

    def poll(self) -> None:
        """Put what is newer in place, if there is anything; what cannot be read leaves what was there before."""
        try:
            self._refresh()
        # A thread that ends would leave a server with old data and nobody who says so.
        except (Exception, PanicException) as error:
            self._fail(str(error) if isinstance(error, ShortlistError) else f"{type(error).__name__}: {error}")

    @abstractmethod
    def _refresh(self) -> None: ...

    def _fail(self, problem: str) -> None:
        if self.problem != problem:
            _log.warning("the %s are not up to date: %s", self._subject, problem)
        self.problem = problem
