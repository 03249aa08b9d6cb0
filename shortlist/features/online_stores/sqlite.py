"""Online features in a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from shortlist.spec.runtime import FileOf, OnlineStore

_FILE: Final = "online.db"
_LONGEST_LOCK_SECONDS: Final = 0.02
"""How long reading waits for a lock; SQLite would wait 5 s by default. Our writers use a write-ahead log and
never block readers."""


class SQLiteOnline(OnlineStore):
    """Online features in a file."""

    kind: Literal["sqlite"] = "sqlite"
    """No server."""

    is_shared: ClassVar[bool] = False

    def configuration(self, file: FileOf) -> dict[str, Any]:
        """Return Feast's configuration of the store."""
        return {"type": "sqlite", "path": str(file(_FILE))}

    def files(self, file: FileOf) -> tuple[Path, ...]:
        """Return the database."""
        return (file(_FILE),)

    def prepare(self, file: FileOf) -> None:
        """Switch the file to a write-ahead log for good, so that servers do not wait while a nightly run writes."""
        with closing(sqlite3.connect(file(_FILE))) as connection:
            connection.execute("PRAGMA journal_mode=WAL")

    def probe(self, file: FileOf) -> Callable[[], None]:
        """Return a check by a connection of its own, because Feast's waits as long as SQLite does."""
        connection = sqlite3.connect(file(_FILE), timeout=_LONGEST_LOCK_SECONDS, check_same_thread=False)

        def check() -> None:
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()

        return check
