"""What a store of records can do, whoever keeps it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

from shortlist.contracts import ShortlistError, StoreUnavailableError


class LockedError(ShortlistError):
    """Somebody else holds the lock."""


class RecordStoreError(ShortlistError):
    """The store stayed away, or refuses."""


class RecordStoreUnavailableError(RecordStoreError, StoreUnavailableError):
    """The store stayed away for as long as its client waits."""


class RecordStore(Protocol):
    """Texts by name (`decisions/0123.json`), each written whole. A spec's store holds nothing of other specs."""

    def create(self, name: str, text: str) -> bool:
        """Write a text unless there is one; return True for exactly one of all processes that try at once."""

    def replace(self, name: str, text: str) -> None:
        """Write a text in place of what is there, if anything is."""

    def read(self, name: str) -> str | None:
        """Return a text; None when there is none."""

    def remove(self, name: str) -> None:
        """See that there is none."""

    def move(self, name: str, to: str) -> None:
        """Give a text another name, in place of what is there; nothing happens when there is none."""

    def names(self, prefix: str) -> list[str]:
        """Return the names that begin with a prefix such as `decisions/`, sorted."""

    def texts(self, prefix: str) -> dict[str, str]:
        """Return all texts whose names begin with a prefix, by name, sorted."""

    def written(self, name: str) -> datetime | None:
        """Return when a text was written last, by the store's own clock; None when there is none."""

    def lock(self, name: str, seconds: float | None = None) -> AbstractContextManager[None]:
        """Hold a lock while the block runs; the store frees that of a process that dies.

        Args:
            name: Of the lock.
            seconds: How long to wait for another holder; None: for ever.

        Raises:
            LockedError: It was held all the time.
        """

    def is_locked(self, name: str) -> bool:
        """Whether somebody holds it now."""

    def where(self, name: str) -> str:
        """Return what to call a text in a message to a person: a path, or where else it is; never a secret."""
