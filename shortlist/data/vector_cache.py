"""Vectors of texts that a model has computed before, on this machine's disk: by digest of model and text."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from shortlist.contracts import DataError
from shortlist.data.text_model import Vectors
from shortlist.storage.objects import CACHE_VARIABLE, cache_folder

KEPT_DAYS: Final = 90
"""A vector that nobody has asked for so long is forgotten."""
_FOLDER: Final = "text-vectors"
_ASKED_AT_ONCE: Final = 500
_WAIT_SECONDS: Final = 60.0
_DAY_SECONDS: Final = 86_400


class VectorCache:
    """The vectors of one model; several processes may use one file. Nothing is missed when it is deleted.

    Args:
        model: Digest of the model.
    """

    def __init__(self, model: str) -> None:
        folder = cache_folder() / _FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        self._path = folder / f"{model}.sqlite"
        self._today = int(time.time() // _DAY_SECONDS)
        try:
            self._vectors = self._opened()
        except sqlite3.OperationalError as error:
            raise self._unusable(error) from None
        except sqlite3.DatabaseError:  # a file that is none: it is made anew
            self._path.unlink()
            self._vectors = self._opened()

    def known(self, digests: Sequence[bytes]) -> dict[bytes, Vectors]:
        """Return the vectors that are there, by digest of the text."""
        found: dict[bytes, Vectors] = {}
        with self._writing():
            for first in range(0, len(digests), _ASKED_AT_ONCE):
                some = digests[first : first + _ASKED_AT_ONCE]
                marks = ",".join("?" * len(some))
                rows = self._vectors.execute(f"SELECT digest, vector FROM vectors WHERE digest IN ({marks})", some)  # noqa: S608 - question marks alone
                found |= {digest: np.frombuffer(vector, np.float32) for digest, vector in rows}
                used = (self._today, *some, self._today)
                self._vectors.execute(f"UPDATE vectors SET used = ? WHERE digest IN ({marks}) AND used < ?", used)  # noqa: S608 - as above
        return found

    def add(self, vectors: Mapping[bytes, Vectors]) -> None:
        """Keep vectors by digest of the text."""
        rows = [(digest, vector.astype(np.float32).tobytes(), self._today) for digest, vector in vectors.items()]
        with self._writing():
            self._vectors.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)

    def close(self) -> None:
        """Forget what nobody asked for, and close the file."""
        with self._writing():
            self._vectors.execute("DELETE FROM vectors WHERE used < ?", (self._today - KEPT_DAYS,))
        self._vectors.close()

    def _opened(self) -> sqlite3.Connection:
        opened = sqlite3.connect(self._path, timeout=_WAIT_SECONDS)
        try:
            opened.execute(
                "CREATE TABLE IF NOT EXISTS vectors"
                " (digest BLOB PRIMARY KEY, vector BLOB NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID"
            )
        except sqlite3.DatabaseError:
            opened.close()
            raise
        return opened

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self._vectors:
                yield
        except sqlite3.DatabaseError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: sqlite3.Error) -> DataError:
        return DataError(
            f"{self._path}: the cache of vectors cannot be used: {error}; delete the file, or let {CACHE_VARIABLE} name"
            " a folder with room"
        )
