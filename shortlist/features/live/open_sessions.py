"""The events of the open tiles per key, which a server keeps for `live` sequences within a declared memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.features.live.open_events import Key, OpenList, OpenRequest
from shortlist.features.values.hashing import codes_of
from shortlist.features.values.ordered_events import Ints

Event = tuple[Any, ...]
"""Its time in microseconds, its row in the request, the code of the listed value, then numbers."""
Events = npt.NDArray[np.void]

Sessions = dict[int, dict[str, dict[Key, bytes]]]
"""Events in order of time, of `event_type`, by the start of the tile, the view and the key.

Bytes never change, so that a copy of the dictionaries is a copy of the events; the key with the oldest last event
comes first.
"""

KEY_BYTES: Final = 240
"""Most memory of a key without its events: its slot in a dictionary, the key, the header of the bytes."""
_SHARE_DROPPED: Final = 16
"""When the memory is used up, one of so many keys of the oldest tile is dropped."""


def event_type(numbers: int) -> np.dtype[np.void]:
    """Return the type of an event: 15 bytes, and 4 for each of its numbers.

    Its time is counted from the start of the tile, in 40 bits: a tile is a day at most. Of its row, 16 bits are kept:
    they and the listed value distinguish the rows of a request.
    """
    beside = [(f"number_{place}", "<f4") for place in range(numbers)]
    return np.dtype([("time", "<u4"), ("time_high", "u1"), ("row", "<u2"), ("code", "<i8"), *beside])


class EventLists(NamedTuple):
    """The concatenated lists of some keys, the newest event first."""

    codes: Ints
    times: Ints
    lengths: Ints
    numbers: tuple[npt.NDArray[np.float32], ...] = ()


class OpenSessions:
    """Keeps events until their tile is closed; when the memory is used up, the longest inactive keys are dropped.

    Args:
        lists: The lists.
        max_bytes: Most memory of all events.
    """

    def __init__(self, lists: Sequence[OpenList], max_bytes: int) -> None:
        self._lists = lists
        self._max_bytes = max_bytes
        self._tiles: Sessions = {}
        self.bytes = 0
        """Approximate memory of all events; see `KEY_BYTES`."""
        self.dropped = 0
        """Keys that were dropped because the memory was used up; their lists lack these events."""

    def state(self) -> Sessions:
        """Return a copy of the state; it takes as long as a copy of the dictionaries."""
        return {start: {view: dict(keys) for view, keys in views.items()} for start, views in self._tiles.items()}

    def restore(self, state: Sessions) -> None:
        """Restore the state of another instance."""
        self._tiles = state
        keys_by_view = (keys for views in state.values() for keys in views.values())
        self.bytes = sum(KEY_BYTES + len(events) for keys in keys_by_view for events in keys.values())
        self._enforce_memory_limit()

    def add(self, start: int, request: OpenRequest, rows: Sequence[int], *, positives: bool) -> None:
        """Add rows of a request to the lists of a tile.

        Args:
            start: Start of the tile.
            request: The request.
            rows: Numbers of the rows.
            positives: Whether to add to the lists of positive rows, or to those of all rows.
        """
        for open_list, events in self._by_list(request, rows, positives=positives):
            keys, event_dtype = (
                self._tiles.setdefault(start, {}).setdefault(open_list.view, {}),
                event_type(len(open_list.numbers)),
            )
            for key, new_events in events.items():
                known_events = keys.pop(key, None)
                self.bytes -= 0 if known_events is None else KEY_BYTES + len(known_events)
                # A label may be withdrawn, which brings an older positive event back: positive lists are not cut.
                all_events = _joined(known_events or b"", _packed(start, new_events, event_dtype))
                keys[key] = all_events[0 if positives else -event_dtype.itemsize * open_list.max_events :]
                self.bytes += KEY_BYTES + len(keys[key])
        self._enforce_memory_limit()

    def withdraw(self, start: int, request: OpenRequest, row: int) -> None:
        """Remove a row from the lists of positive rows."""
        for open_list, events in self._by_list(request, [row], positives=True):
            keys, event_dtype = self._tiles.get(start, {}).get(open_list.view, {}), event_type(len(open_list.numbers))
            for key, event in events.items():
                if key in keys:  # it may have been dropped
                    stored_events = np.frombuffer(keys[key], event_dtype)
                    remaining = stored_events[stored_events != _packed(start, event, event_dtype)]
                    self.bytes -= len(keys[key]) - remaining.nbytes
                    keys[key] = remaining.tobytes()

    def close(self, start: int) -> None:
        """Remove a tile, whose events are in the statistics now."""
        for keys in self._tiles.pop(start, {}).values():
            self.bytes -= sum(KEY_BYTES + len(events) for events in keys.values())

    def event_lists(self, open_list: OpenList, values: Sequence[Key | None]) -> EventLists:
        """Return the lists of some keys; empty for null and for unknown keys."""
        event_dtype = event_type(len(open_list.numbers))
        newest_tile_first = sorted(self._tiles, reverse=True)
        tiles = [(start, self._tiles[start].get(open_list.view, {})) for start in newest_tile_first]
        times, events, lengths = [np.zeros(0, np.int64)], [np.zeros(0, event_dtype)], []
        for value in values:
            missing = open_list.max_events
            for start, keys in tiles if value is not None else ():
                key_events = keys.get(value, b"")[-missing * event_dtype.itemsize :] if missing else b""  # type: ignore[arg-type]
                events.append(np.frombuffer(key_events, event_dtype)[::-1])
                times.append(start + _since_start(events[-1]))
                missing -= len(events[-1])
            lengths.append(open_list.max_events - missing)
        all_events = np.concatenate(events)
        numbers = tuple(all_events[f"number_{place}"] for place in range(len(open_list.numbers)))
        return EventLists(all_events["code"], np.concatenate(times), np.array(lengths, np.int64), numbers)

    def _by_list(
        self, request: OpenRequest, rows: Sequence[int], *, positives: bool
    ) -> Iterable[tuple[OpenList, Mapping[Key, list[Event]]]]:
        """Yield the events of rows by list and key."""
        for open_list in self._lists:
            keys, values = request.values_of(open_list.key, rows), request.values_of(open_list.column, rows)
            if open_list.positives != positives or not keys or not values:
                continue
            events: dict[Key, list[Event]] = {}
            number_lists = [_numbers(request.values_of(name, rows), len(rows)) for name in open_list.numbers]
            for key, row, code, *numbers in zip(keys, rows, _codes(values), *number_lists, strict=True):
                if key is not None and code is not None:
                    events.setdefault(key, []).append((request.time_of(row), row, code, *numbers))
            yield open_list, events

    def _enforce_memory_limit(self) -> None:
        while self.bytes > self._max_bytes and self._tiles:
            oldest = min(self._tiles)
            keys = max(self._tiles[oldest].values(), key=len)
            dropped_keys = list(islice(keys, max(1, len(keys) // _SHARE_DROPPED)))
            for key in dropped_keys:
                self.bytes -= KEY_BYTES + len(keys.pop(key))
            self.dropped += len(dropped_keys)
            if not any(self._tiles[oldest].values()):
                del self._tiles[oldest]


def _codes(values: Sequence[Key | None]) -> Sequence[int | None]:
    if any(isinstance(value, str) for value in values):
        return codes_of(pl.Series(values, dtype=pl.String)).to_list()
    return [None if value is None else int(value) for value in values]


def _numbers(values: Sequence[Any], rows: int) -> list[float]:
    """Return numbers as the statistics hold them: 0 for null and for infinite numbers."""
    doubles = np.array([0.0 if value is None else value for value in values or [0.0] * rows], np.float64)
    singles = doubles.astype(np.float32)
    return cast(list[float], np.where(np.isfinite(singles), singles, np.float32(0)).tolist())


def _packed(start: int, events: Sequence[Event], event_dtype: np.dtype[np.void]) -> Events:
    offsets = [(time - start, row, numbers) for time, row, *numbers in events]
    return np.array(
        [(time & 0xFFFFFFFF, time >> 32, row & 0xFFFF, *numbers) for time, row, numbers in offsets], event_dtype
    )


def _since_start(events: Events) -> Ints:
    return cast(Ints, events["time_high"].astype(np.int64) << 32 | events["time"])


def _joined(stored_events: bytes, new_events: Events) -> bytes:
    """Return events in order of time, then of rows."""
    if (
        stored_events
        and _since_start(np.frombuffer(stored_events[-new_events.itemsize :], new_events.dtype))[0]
        > _since_start(new_events[:1])[0]
    ):
        merged = np.concatenate([np.frombuffer(stored_events, new_events.dtype), new_events])  # added late
        return merged[np.lexsort((merged["row"], _since_start(merged)))].tobytes()
    return stored_events + new_events.tobytes()
