"""A thread that polls for newer data of a server and reports why it cannot be read."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

from polars.exceptions import PanicException

from shortlist.contracts import ShortlistError

_log = logging.getLogger(__name__)


class Refresher(ABC):
    """Polls at once and then at an interval, in a thread of its own, until it is stopped."""

    def __init__(self, subject: str, poll_seconds: float) -> None:
        """Prepare; nothing is read yet.

        Args:
            subject: What is polled, in the plural: name of the thread, used in messages.
            poll_seconds: Time between two polls.
        """
        self._subject, self._poll_seconds = subject, poll_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=subject, daemon=True)
        self.problem: str | None = None
        """Why the newest data is not loaded, or not completely; None when it is."""

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling; a read in progress finishes by itself."""
        self._stop.set()

    def _run(self) -> None:
        self.poll()
        while not self._stop.wait(self._poll_seconds):
            self.poll()

    def poll(self) -> None:
        """Load newer data, if there is any; a failed read leaves the loaded data unchanged."""
        try:
            self._refresh()
        # If the thread ended, the server would keep old data without reporting it.
        except (Exception, PanicException) as error:
            self._fail(str(error) if isinstance(error, ShortlistError) else f"{type(error).__name__}: {error}")

    @abstractmethod
    def _refresh(self) -> None: ...

    def _fail(self, problem: str) -> None:
        if self.problem != problem:
            _log.warning("the %s are not up to date: %s", self._subject, problem)
        self.problem = problem
