"""Users' features from Feast's online store; they count as unknown while it cannot be read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from shortlist.features.feast.store import UserReader, user_reader
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.server.features.columns import Codes, Ragged, Tags, TextCodes, Vectors
from shortlist.serving.server.features.feature_requirements import LookupStep
from shortlist.serving.server.features.key_index import KeyIndex
from shortlist.serving.server.features.view_table import ViewTable
from shortlist.serving.server.runtime.settings import ServerSettings

_READ_TIMEOUT_SECONDS: Final = 0.5
"""The online store may be locked by a nightly run or unreachable; a response does not wait for it."""
_MAX_INLINE_USERS: Final = 8
"""Most users whose rows are read without a thread from a local file (0.1 ms for one user)."""

_log = logging.getLogger(__name__)


class UserFeatureStore:
    """Reads the users' features that a model needs from the online store."""

    def __init__(self, settings: ServerSettings, step: LookupStep, widths: Mapping[str, int]) -> None:
        self._settings = settings
        self._step = step
        self._widths = widths
        self._texts = TextCodes()
        self._reader: UserReader | None = None
        self._columns: tuple[str, ...] = ()
        self._opened_files: tuple[int | None, ...] = ()
        self._failed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="users")
        self.problem: str | None = "not connected yet"
        """Why users' features count as unknown; None when all can be read."""

    def reconnect_if_stale(self, has_newer_views: bool) -> None:
        """Connect to the store at first, after newer views, after a failure, and when its files were replaced."""
        if has_newer_views or self._failed or self._reader is None or self._files() != self._opened_files:
            self._connect()

    def _connect(self) -> None:
        settings = self._settings
        assert settings.store_location is not None
        try:
            opened_files = self._files()
            reader = user_reader(settings.store_location, settings.project, settings.online_store, self._step.keys[0])
        # Feast and its stores raise many kinds of errors; after any of them, users' features are unknown.
        except Exception as error:
            self._reader = None
            self._fail(error)
            return
        features = sorted(self._step.places)
        missing_features = [column for column in features if column not in reader.columns]
        self._columns = tuple(column for column in features if column in reader.columns)
        self._reader, self._opened_files, self._failed = reader, opened_files, False
        self.problem = f"the online store has no '{missing_features[0]}'" if missing_features else None

    def _files(self) -> tuple[int | None, ...]:
        """Return the inodes of the store's files: a deleted or replaced file would be read for ever."""
        assert self._settings.store_location is not None
        paths = self._settings.online_store.files(self._settings.store_location.file)
        return tuple(path.stat().st_ino if path.exists() else None for path in paths)

    async def table(self, users: Sequence[int | str], codes: Sequence[int]) -> tuple[ViewTable, bool]:
        """Return the features of some users, and whether all of them could be read.

        Args:
            users: Distinct user keys without nulls.
            codes: Codes of the keys.
        """
        reader = self._reader
        if not users:
            return ViewTable.empty(self._step, self._widths), True
        if reader is None:
            return ViewTable.empty(self._step, self._widths), False
        try:
            if reader.is_local and len(users) <= _MAX_INLINE_USERS:
                values_by_feature = reader.rows(users, self._columns)
            else:
                values_by_feature = await self._read_in_thread(reader, users)
        except Exception as error:  # as in `connect`
            self._fail(error)
            return ViewTable.empty(self._step, self._widths), False
        return self._as_table(values_by_feature, codes), len(self._columns) == len(self._step.places)

    async def _read_in_thread(self, reader: UserReader, users: Sequence[int | str]) -> dict[str, list[Any]]:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_READ_TIMEOUT_SECONDS):
            return await loop.run_in_executor(self._thread, reader.rows, users, self._columns)

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        if self.problem != problem:
            _log.warning("users' features count as unknown: %s", problem)
        self.problem = problem

    def _as_table(self, values_by_feature: Mapping[str, Sequence[Any]], codes: Sequence[int]) -> ViewTable:
        step, rows = self._step, len(codes) + 1
        nulls: list[Any] = [None] * len(codes)
        values_by_place = {place: [*values_by_feature.get(place, nulls), None] for place in step.places}
        return ViewTable(
            index=None if len(codes) == 1 else KeyIndex(np.array(codes, np.int64)),
            numbers=np.array([values_by_place[place] for place in step.numbers], np.float64).reshape(-1, rows).T,
            codes=np.array([self._codes(values_by_place[place]) for place in step.codes], np.int64).reshape(-1, rows).T,
            lists={place: self._ragged(values_by_place[place]) for place in step.lists},
            tag_lists={place: Tags.from_ragged(self._ragged(values_by_place[place])) for place in step.tag_lists},
            vectors={place: _vectors(values_by_place[place], self._widths[place]) for place in step.vectors},
        )

    def _codes(self, values: Sequence[Any]) -> Codes:
        if any(isinstance(value, str) for value in values):
            return self._texts.encode(values)
        return np.array([NO_CODE if value is None else value for value in values], np.int64)

    def _ragged(self, lists: Sequence[Any]) -> Ragged:
        lengths = np.array([len(values) if values is not None else 0 for values in lists], np.intp)
        flat = [value for values in lists if values is not None for value in values]
        return Ragged(self._codes(flat), np.cumsum(lengths) - lengths, lengths)


def _vectors(values: Sequence[Any], width: int) -> Vectors:
    rows = np.zeros((len(values), width), np.float32)
    for row, value in enumerate(values):
        if value is not None and len(value) == width:
            rows[row] = value
    return rows


def distinct_users(codes: Codes, keys: Sequence[str | None] | Codes) -> tuple[list[int | str], list[int]]:
    """Return the distinct users, without nulls, and their codes.

    Args:
        codes: Codes of the user column.
        keys: Values of the user column: texts, or integers, which are their own codes.
    """
    values: Sequence[Any] = keys.tolist() if isinstance(keys, np.ndarray) else keys
    by_code = {code: key for code, key in zip(codes.tolist(), values, strict=True) if code != NO_CODE}
    return list(by_code.values()), list(by_code)
