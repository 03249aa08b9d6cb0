"""Users' features, fresh from Feast's online store; unknown, and said to be so, while it cannot be read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from shortlist.features.store import UserReader, user_reader
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.server.columns import Codes, Ragged, Tags, TextCodes, Vectors
from shortlist.serving.server.feature_requirements import Step
from shortlist.serving.server.key_index import KeyIndex
from shortlist.serving.server.settings import ServerSettings
from shortlist.serving.server.view_table import ViewTable

_LONGEST_READ_SECONDS: Final = 0.5
"""The online store can be locked by a nightly run, or out of reach: an answer does not wait for it."""
_FEW: Final = 8
"""Users whose rows are read from a file sooner than a thread could be asked to: 0.1 ms for one."""

_log = logging.getLogger(__name__)


class Users:
    """Reads the rows of users that a model needs."""

    def __init__(self, settings: ServerSettings, step: Step, widths: Mapping[str, int]) -> None:
        self._settings = settings
        self._step = step
        self._widths = widths
        self._texts = TextCodes()
        self._reader: UserReader | None = None
        self._columns: tuple[str, ...] = ()
        self._opened: tuple[int | None, ...] = ()
        self._failed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="users")
        self.problem: str | None = "not connected yet"
        """Why some or all features of users count as unknown; None when all can be read."""

    def reconnect_if_needed(self, news: bool) -> None:
        """Open the store where it must be opened: at first, after news, when it failed or its file is another one."""
        if news or self._failed or self._reader is None or self._files() != self._opened:
            self._connect()

    def _connect(self) -> None:
        settings = self._settings
        assert settings.place is not None
        try:
            opened = self._files()
            reader = user_reader(settings.place, settings.project, settings.online_store, self._step.keys[0])
        # Feast and what it stores in raise errors of many kinds; whichever it is, users' features are unknown.
        except Exception as error:
            self._reader = None
            self._fail(error)
            return
        wanted = sorted(self._step.places)
        lacking = [column for column in wanted if column not in reader.columns]
        self._columns = tuple(column for column in wanted if column in reader.columns)
        self._reader, self._opened, self._failed = reader, opened, False
        self.problem = f"the online store has no '{lacking[0]}'" if lacking else None

    def _files(self) -> tuple[int | None, ...]:
        """Return which files the store reads: one that is deleted or replaced would be read for ever."""
        assert self._settings.place is not None
        paths = self._settings.online_store.files(self._settings.place.file)
        return tuple(path.stat().st_ino if path.exists() else None for path in paths)

    async def table(self, users: Sequence[int | str], codes: Sequence[int]) -> tuple[ViewTable, bool]:
        """Return the rows of some users, and whether all their features could be read.

        Args:
            users: Keys, each once, none null.
            codes: Their codes.
        """
        reader = self._reader
        if not users:
            return ViewTable.unknown(self._step, self._widths), True
        if reader is None:
            return ViewTable.unknown(self._step, self._widths), False
        try:
            if reader.is_local and len(users) <= _FEW:
                answers = reader.rows(users, self._columns)
            else:
                answers = await self._by_thread(reader, users)
        except Exception as error:  # as in `connect`
            self._fail(error)
            return ViewTable.unknown(self._step, self._widths), False
        return self._as_table(answers, codes), len(self._columns) == len(self._step.places)

    async def _by_thread(self, reader: UserReader, users: Sequence[int | str]) -> dict[str, list[Any]]:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_LONGEST_READ_SECONDS):
            return await loop.run_in_executor(self._thread, reader.rows, users, self._columns)

    def close(self) -> None:
        """Let go of the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        if self.problem != problem:
            _log.warning("users' features count as unknown: %s", problem)
        self.problem = problem

    def _as_table(self, answers: Mapping[str, Sequence[Any]], codes: Sequence[int]) -> ViewTable:
        step, rows = self._step, len(codes) + 1
        unknown: list[Any] = [None] * len(codes)
        found = {place: [*answers.get(place, unknown), None] for place in step.places}
        return ViewTable(
            index=None if len(codes) == 1 else KeyIndex(np.array(codes, np.int64)),
            numbers=np.array([found[place] for place in step.numbers], np.float64).reshape(-1, rows).T,
            codes=np.array([self._codes(found[place]) for place in step.codes], np.int64).reshape(-1, rows).T,
            lists={place: self._ragged(found[place]) for place in step.lists},
            tag_lists={place: Tags.of(self._ragged(found[place])) for place in step.tag_lists},
            vectors={place: _vectors(found[place], self._widths[place]) for place in step.vectors},
        )

    def _codes(self, values: Sequence[Any]) -> Codes:
        if any(isinstance(value, str) for value in values):
            return self._texts.of(values)
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
    """Return every user once, without nulls, and their codes.

    Args:
        codes: Of the user column.
        keys: Its values: texts, or integers, which are their own codes.
    """
    values: Sequence[Any] = keys.tolist() if isinstance(keys, np.ndarray) else keys
    by_code = {code: key for code, key in zip(codes.tolist(), values, strict=True) if code != NO_CODE}
    return list(by_code.values()), list(by_code)
