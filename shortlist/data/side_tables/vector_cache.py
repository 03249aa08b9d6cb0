"""Disk cache of text vectors, by digest of model and text."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from shortlist.contracts import DataError
from shortlist.data.side_tables.text_model import Vectors
from shortlist.storage.objects import CACHE_VARIABLE, cache_folder

RETENTION_DAYS: Final = 90
"""Days after its last use when a vector is deleted."""
_FOLDER: Final = "text-vectors"
_DIGESTS_PER_QUERY: Final = 500
_WAIT_SECONDS: Final = 60.0
_DAY_SECONDS: Final = 86_400


class VectorCache:
    """Cached vectors of one model in a SQLite file that several processes may share and that may be deleted any time.

    Args:
        model: Digest of the model.
    """

    def __init__(self, model: str) -> None:
        folder = cache_folder() / _FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        self._path = folder / f"{model}.sqlite"
        self._today = int(time.time() // _DAY_SECONDS)
        try:
            self._connection = self._open()
        except sqlite3.OperationalError as error:
            raise self._unusable_error(error) from None
        except sqlite3.DatabaseError:  # not a database: it is created again
            self._path.unlink()
            self._connection = self._open()

    def read_vectors(self, digests: Sequence[bytes]) -> dict[bytes, Vectors]:
        """Return the cached vectors by digest of the text."""
        vector_by_digest: dict[bytes, Vectors] = {}
        with self._transaction():
            for first in range(0, len(digests), _DIGESTS_PER_QUERY):
                batch = digests[first : first + _DIGESTS_PER_QUERY]
                placeholders = ",".join("?" * len(batch))
                query = f"SELECT digest, vector FROM vectors WHERE digest IN ({placeholders})"  # noqa: S608 - question marks alone
                rows = self._connection.execute(query, batch)
                vector_by_digest |= {digest: np.frombuffer(vector, np.float32) for digest, vector in rows}
                parameters = (self._today, *batch, self._today)
                update = f"UPDATE vectors SET used = ? WHERE digest IN ({placeholders}) AND used < ?"  # noqa: S608 - as above
                self._connection.execute(update, parameters)
        return vector_by_digest

    def add(self, vectors: Mapping[bytes, Vectors]) -> None:
        """Store vectors by digest of the text."""
        rows = [(digest, vector.astype(np.float32).tobytes(), self._today) for digest, vector in vectors.items()]
        with self._transaction():
            self._connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)

    def close(self) -> None:
        """Delete vectors that were not used for `RETENTION_DAYS`, and close the file."""
        with self._transaction():
            self._connection.execute("DELETE FROM vectors WHERE used < ?", (self._today - RETENTION_DAYS,))
        self._connection.close()

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_WAIT_SECONDS)
        try:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS vectors"
                " (digest BLOB PRIMARY KEY, vector BLOB NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID"
            )
        except sqlite3.DatabaseError:
            connection.close()
            raise
        return connection

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with self._connection:
                yield
        except sqlite3.DatabaseError as error:
            raise self._unusable_error(error) from None

    def _unusable_error(self, error: sqlite3.Error) -> DataError:
        return DataError(
            f"{self._path}: the cache of vectors cannot be used: {error}; delete the file, or let {CACHE_VARIABLE} name"
            " a folder with room"
        )
