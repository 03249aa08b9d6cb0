"""Handling of SIGINT and SIGTERM: a signal ends waits at once and everything else at the next safe point."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal ended a wait. It is no `Exception`, so that no handler of exceptions catches it."""


class Interruption:
    """Remembers a signal and ends interruptible waits."""

    def __init__(self) -> None:
        self.reason = ""
        """The signal, in words; empty before one arrived."""
        self._waiting = False

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle both signals inside the block; does nothing outside the main thread, where Python forbids it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        old_handlers = {number: signal.signal(number, self._handle_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in old_handlers.items():
                signal.signal(number, handler)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal end the block, which must only wait.

        Raises:
            Interrupted: A signal arrived, now or earlier.
        """
        self._waiting = True
        try:
            if self.reason:
                raise Interrupted
            yield
        finally:
            self._waiting = False

    def _handle_signal(self, number: int, _: FrameType | None) -> None:
        self.interrupt(f"interrupted by {signal.Signals(number).name}")

    def interrupt(self, reason: str) -> None:
        """Remember why the rollout must end, and end an interruptible wait.

        Raises:
            Interrupted: An interruptible wait was running.
        """
        self.reason = reason
        if self._waiting:
            self._waiting = False  # once: what follows is the rollback, which cannot be interrupted
            raise Interrupted
