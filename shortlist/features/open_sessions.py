"""The events of the open tiles per key, as a server keeps them for `live` sequences, within a declared memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.features.hashing import codes_of
from shortlist.features.open_events import Key, OpenList, OpenRequest
from shortlist.features.ordered_events import Ints

Event = tuple[Any, ...]
"""Its time in microseconds, its row in the request, the code of the listed value, then numbers."""
Events = npt.NDArray[np.void]

Sessions = dict[int, dict[str, dict[Key, bytes]]]
"""By the start of the tile, the view and the key: events in order of time, of `event_type`.

Bytes never change, so that a copy of the dictionaries is a copy of the events; the key with the oldest last event
comes first.
"""

KEY_BYTES: Final = 240
"""What a key takes beside its events, at most: its place in a dictionary, the key, the head of the bytes."""
_SHARE_DROPPED: Final = 16
"""When the memory is used up, one key of so many of the oldest tile goes."""


def event_type(numbers: int) -> np.dtype[np.void]:
    """Return how an event is kept: 15 bytes, and 4 for every number beside it.

    Its time is that since the start of the tile, of 40 bits: a tile is a day at most. Of its row, 16 bits are kept:
    rows of a request are told apart by them, and by what they list.
    """
    beside = [(f"number_{place}", "<f4") for place in range(numbers)]
    return np.dtype([("time", "<u4"), ("time_high", "u1"), ("row", "<u2"), ("code", "<i8"), *beside])


class Listed(NamedTuple):
    """Lists of some keys, one after the other, the newest event first."""

    codes: Ints
    times: Ints
    lengths: Ints
    numbers: tuple[npt.NDArray[np.float32], ...] = ()


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
            keys, kind = self._tiles.setdefault(start, {}).setdefault(wanted.view, {}), event_type(len(wanted.numbers))
            for key, new in events.items():
                known = keys.pop(key, None)
                self.bytes -= 0 if known is None else KEY_BYTES + len(known)
                # A label may be withdrawn, which brings an older positive one back: none of them is cut.
                kept = _joined(known or b"", _packed(start, new, kind))
                keys[key] = kept[0 if positives else -kind.itemsize * wanted.most :]
                self.bytes += KEY_BYTES + len(keys[key])
        self._keep_within()

    def withdraw(self, start: int, request: OpenRequest, row: int) -> None:
        """List a row no longer among positive ones."""
        for wanted, events in self._by_list(request, [row], positives=True):
            keys, kind = self._tiles.get(start, {}).get(wanted.view, {}), event_type(len(wanted.numbers))
            for key, event in events.items():
                if key in keys:  # it may have been dropped
                    known = np.frombuffer(keys[key], kind)
                    left = known[known != _packed(start, event, kind)]
                    self.bytes -= len(keys[key]) - left.nbytes
                    keys[key] = left.tobytes()

    def close(self, start: int) -> None:
        """Forget a tile, whose events the statistics hold now."""
        for keys in self._tiles.pop(start, {}).values():
            self.bytes -= sum(KEY_BYTES + len(events) for events in keys.values())

    def listed(self, wanted: OpenList, values: Sequence[Key | None]) -> Listed:
        """Return the lists of some keys; empty for null and for those that are not known."""
        kind = event_type(len(wanted.numbers))
        newest_tile_first = sorted(self._tiles, reverse=True)
        tiles = [(start, self._tiles[start].get(wanted.view, {})) for start in newest_tile_first]
        times, events, lengths = [np.zeros(0, np.int64)], [np.zeros(0, kind)], []
        for value in values:
            missing = wanted.most
            for start, keys in tiles if value is not None else ():
                own = keys.get(value, b"")[-missing * kind.itemsize :] if missing else b""  # type: ignore[arg-type]
                events.append(np.frombuffer(own, kind)[::-1])
                times.append(start + _since_start(events[-1]))
                missing -= len(events[-1])
            lengths.append(wanted.most - missing)
        every = np.concatenate(events)
        numbers = tuple(every[f"number_{place}"] for place in range(len(wanted.numbers)))
        return Listed(every["code"], np.concatenate(times), np.array(lengths, np.int64), numbers)

    def _by_list(
        self, request: OpenRequest, rows: Sequence[int], *, positives: bool
    ) -> Iterable[tuple[OpenList, Mapping[Key, list[Event]]]]:
        """Give the events of rows by list and key."""
        for wanted in self._lists:
            keys, values = request.values_of(wanted.key, rows), request.values_of(wanted.of, rows)
            if wanted.positives != positives or not keys or not values:
                continue
            events: dict[Key, list[Event]] = {}
            beside = [_numbers(request.values_of(name, rows), len(rows)) for name in wanted.numbers]
            for key, row, code, *numbers in zip(keys, rows, _codes(values), *beside, strict=True):
                if key is not None and code is not None:
                    events.setdefault(key, []).append((request.time_of(row), row, code, *numbers))
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


def _numbers(values: Sequence[Any], rows: int) -> list[float]:
    """Return numbers as the statistics have them: 0 for what is null, or no finite number."""
    known = np.array([0.0 if value is None else value for value in values or [0.0] * rows], np.float64)
    single = known.astype(np.float32)
    return cast(list[float], np.where(np.isfinite(single), single, np.float32(0)).tolist())


def _packed(start: int, events: Sequence[Event], kind: np.dtype[np.void]) -> Events:
    since = [(time - start, row, rest) for time, row, *rest in events]
    return np.array([(time & 0xFFFFFFFF, time >> 32, row & 0xFFFF, *rest) for time, row, rest in since], kind)


def _since_start(events: Events) -> Ints:
    return cast(Ints, events["time_high"].astype(np.int64) << 32 | events["time"])


def _joined(known: bytes, new: Events) -> bytes:
    """Return events in order of time, then of rows."""
    if known and _since_start(np.frombuffer(known[-new.itemsize :], new.dtype))[0] > _since_start(new[:1])[0]:
        every = np.concatenate([np.frombuffer(known, new.dtype), new])  # told late
        return every[np.lexsort((every["row"], _since_start(every)))].tobytes()
    return known + new.tobytes()
