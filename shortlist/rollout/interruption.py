"""Ctrl-C and SIGTERM as a wish that the controller obeys where nothing is left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A wait was cut short; not an `Exception`, so that nobody swallows it on the way."""


class Interruption:
    """Remembers a signal, and cuts waits short."""

    def __init__(self) -> None:
        self.reason = ""
        """What came, in words; empty before."""
        self._waiting = False

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Listen to both signals inside the block; elsewhere than in the main thread nobody can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._heard) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal end the block, which only waits.

        Raises:
            Interrupted: One came, now or before.
        """
        self._waiting = True
        try:
            if self.reason:
                raise Interrupted
            yield
        finally:
            self._waiting = False

    def _heard(self, number: int, _: FrameType | None) -> None:
        self.interrupt(f"interrupted by {signal.Signals(number).name}")

    def interrupt(self, reason: str) -> None:
        """Take note that somebody wants the rollout to end, and end a wait that may be cut short.

        Raises:
            Interrupted: There is such a wait.
        """
        self.reason = reason
        if self._waiting:
            self._waiting = False  # once: what follows is the rollback, which cannot be interrupted
            raise Interrupted
