"""The events of the open tiles per key, as a server keeps them for `live` sequences, within a declared memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from shortlist.features.hashing import codes_of
from shortlist.features.open_events import Key, OpenList, OpenRequest
from shortlist.features.ordered_events import Ints

Event = tuple[int, int, int]
"""Its time in microseconds, its row in the request, and the code of the listed value."""
Sessions = dict[int, dict[str, dict[Key, bytes]]]
"""By the start of the tile, the view and the key: events in order of time, three INT64 each.

Bytes never change, so that a copy of the dictionaries is a copy of the events; the key with the oldest last event
comes first.
"""

_EVENT_BYTES: Final = 24
KEY_BYTES: Final = 240
"""What a key takes beside its events, at most: its place in a dictionary, the key, the head of the bytes."""
_SHARE_DROPPED: Final = 16
"""When the memory is used up, one key of so many of the oldest tile goes."""


class Listed(NamedTuple):
    """Lists of some keys, one after the other, the newest event first."""

    codes: Ints
    times: Ints
    lengths: Ints


class OpenSessions:
    """Keeps events until their tile is closed, or until the memory is used up: then the keys that rested longest go.

    Args:
        lists: What is listed.
        max_bytes: Memory of all events.
    """

    def __init__(self, lists: Sequence[OpenList], max_bytes: int) -> None:
        self._lists = lists
        self._max_bytes = max_bytes
        self._tiles: Sessions = {}
        self.bytes = 0
        """Of all events, as far as `KEY_BYTES` tells."""
        self.dropped = 0
        """Keys that were given up because the memory was used up; their lists lack these events."""

    def state(self) -> Sessions:
        """Return a copy, in the time of a copy of the dictionaries."""
        return {start: {view: dict(keys) for view, keys in views.items()} for start, views in self._tiles.items()}

    def restore(self, state: Sessions) -> None:
        """Know what `state` of another one gave."""
        self._tiles = state
        every = (keys for views in state.values() for keys in views.values())
        self.bytes = sum(KEY_BYTES + len(events) for keys in every for events in keys.values())
        self._keep_within()

    def add(self, start: int, request: OpenRequest, rows: Sequence[int], *, positives: bool) -> None:
        """List rows of a request of a tile.

        Args:
            start: Of the tile.
            request: The request.
            rows: Numbers of the rows.
            positives: Whether in the lists of positive rows, or in those of all.
        """
        for wanted, events in self._by_list(request, rows, positives=positives):
            keys = self._tiles.setdefault(start, {}).setdefault(wanted.view, {})
            for key, new in events.items():
                known = keys.pop(key, None)
                self.bytes -= 0 if known is None else KEY_BYTES + len(known)
                # A label may be withdrawn, which brings an older positive one back: none of them is cut.
                keys[key] = _joined(known or b"", new)[0 if positives else -_EVENT_BYTES * wanted.most :]
                self.bytes += KEY_BYTES + len(keys[key])
        self._keep_within()

    def withdraw(self, start: int, request: OpenRequest, row: int) -> None:
        """List a row no longer among positive ones."""
        for wanted, events in self._by_list(request, [row], positives=True):
            keys = self._tiles.get(start, {}).get(wanted.view, {})
            for key, gone in events.items():
                if key in keys:  # it may have been dropped
                    left = [event for event in _events(keys[key]) if event not in gone]
                    self.bytes -= len(keys[key]) - _EVENT_BYTES * len(left)
                    keys[key] = _packed(left)

    def close(self, start: int) -> None:
        """Forget a tile, whose events the statistics hold now."""
        for keys in self._tiles.pop(start, {}).values():
            self.bytes -= sum(KEY_BYTES + len(events) for events in keys.values())

    def listed(self, wanted: OpenList, values: Sequence[Key | None]) -> Listed:
        """Return the lists of some keys; empty for null and for those that are not known."""
        newest_tile_first = sorted(self._tiles, reverse=True)
        tiles = [self._tiles[start].get(wanted.view, {}) for start in newest_tile_first]
        found = [_newest(tiles, value, wanted.most) for value in values]
        every = np.concatenate([np.zeros((0, 3), np.int64), *found])
        return Listed(every[:, 2], every[:, 0], np.array([len(one) for one in found], np.int64))

    def _by_list(
        self, request: OpenRequest, rows: Sequence[int], *, positives: bool
    ) -> Iterable[tuple[OpenList, Mapping[Key, list[Event]]]]:
        """Give the events of rows by list and key."""
        for wanted in self._lists:
            keys, values = request.values_of(wanted.key, rows), request.values_of(wanted.of, rows)
            if wanted.positives != positives or not keys or not values:
                continue
            events: dict[Key, list[Event]] = {}
            for key, row, code in zip(keys, rows, _codes(values), strict=True):
                if key is not None and code is not None:
                    events.setdefault(key, []).append((request.time_of(row), row, code))
            yield wanted, events

    def _keep_within(self) -> None:
        while self.bytes > self._max_bytes and self._tiles:
            oldest = min(self._tiles)
            keys = max(self._tiles[oldest].values(), key=len)
            gone = list(islice(keys, max(1, len(keys) // _SHARE_DROPPED)))
            for key in gone:
                self.bytes -= KEY_BYTES + len(keys.pop(key))
            self.dropped += len(gone)
            if not any(self._tiles[oldest].values()):
                del self._tiles[oldest]


def _codes(values: Sequence[Key | None]) -> Sequence[int | None]:
    if any(isinstance(value, str) for value in values):
        return codes_of(pl.Series(values, dtype=pl.String)).to_list()
    return [None if value is None else int(value) for value in values]


def _joined(known: bytes, new: list[Event]) -> bytes:
    """Return events in order of time, then of rows."""
    if known and _events(known[-_EVENT_BYTES:])[0] > new[0]:  # told late
        return _packed(sorted((*_events(known), *new)))
    return known + _packed(new)


def _packed(events: Sequence[Event]) -> bytes:
    return np.array(events, "<i8").tobytes()


def _events(packed: bytes) -> list[Event]:
    return [(time, row, code) for time, row, code in np.frombuffer(packed, "<i8").reshape(-1, 3).tolist()]


def _newest(tiles: Sequence[Mapping[Key, bytes]], key: Key | None, most: int) -> Ints:
    """Return the newest events of a key, the newest first, shape (events, 3)."""
    found = b""
    for keys in tiles:
        missing = most - len(found) // _EVENT_BYTES
        if key is not None and missing > 0:
            found = keys.get(key, b"")[-missing * _EVENT_BYTES :] + found
    return np.frombuffer(found, "<i8").reshape(-1, 3)[::-1]
