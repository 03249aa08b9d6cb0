"""What a server has counted of the event log, on disk: a start reads this and the events since, not all of them.

A file of records as in the event log. Where it is missing, of another plan or not whole, all events are read again:
it saves time, and nothing depends on it.
"""

from __future__ import annotations

import hashlib
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from shortlist.features.open_events import Impressions, OpenRequest, Outcome, StreamingPlan
from shortlist.features.open_sessions import Sessions
from shortlist.features.open_tiles import NEVER, OpenState, Pending, TileCounts
from shortlist.serving.log.event_log import framed, records

SUFFIX: Final = ".checkpoint"
_Entry = TypeVar("_Entry")
_FORMAT: Final = 4
_AT_ONCE: Final = 1_000
"""Entries of a record: encoding one keeps other threads waiting for about a millisecond."""


@dataclass(frozen=True)
class EventCheckpoint:
    """What was counted, and from where on to go on."""

    state: OpenState
    read: Mapping[str, int]
    """Files of the event log, and how many bytes of each are counted."""
    outcomes: Mapping[str, float]
    """Parts of the outcome log that are counted, and when each was written last."""


def checkpoint_path(folder: Path, plan: StreamingPlan) -> Path:
    """Return where servers that count the same things keep what they counted; each is right on its own."""
    return folder / (hashlib.blake2b(f"{_FORMAT} {plan}".encode(), digest_size=8).hexdigest() + SUFFIX)


def write_checkpoint(path: Path, found: EventCheckpoint) -> None:
    """Replace a checkpoint.

    Raises:
        OSError: The disk is full, most often; the checkpoint that was there is as it was.
    """
    staging = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with staging.open("wb") as file:
            for record in _encoded(found):
                file.write(framed(orjson.dumps(record)))
            file.flush()
            os.fsync(file.fileno())
        staging.replace(path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise


def read_checkpoint(path: Path, plan: StreamingPlan) -> EventCheckpoint | None:
    """Return a checkpoint; None where there is none that is whole."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    found = [orjson.loads(record) for record, _ in records(content)]
    if not found or found[-1] != ["end", len(found) - 1]:
        return None
    return _decoded(found[:-1], plan)


def _encoded(found: EventCheckpoint) -> Iterator[list[Any]]:
    count = 0
    for record in _parts(found.state, found):
        yield record
        count += 1
    yield ["end", count]


def _parts(state: OpenState, found: EventCheckpoint) -> Iterator[list[Any]]:
    lacks_until = None if state.lacks_until == NEVER else state.lacks_until  # NEVER has more than 64 bits
    lacking = [state.uncounted, lacks_until]
    yield ["about", state.now, state.open_since, state.too_late, dict(found.read), dict(found.outcomes), lacking]
    for start, counts in state.tiles.items():
        for kind in fields(TileCounts):
            for key, values in getattr(counts, kind.name).items():
                yield ["tile", start, kind.name, key, []]  # a key of which nothing was counted, too
                yield from (["tile", start, kind.name, key, some] for some in _some(values.items()))
    for start, views in state.sessions.items():
        for view, keys in views.items():
            listed = ((key, b64encode(events).decode()) for key, events in keys.items())
            yield from (["sessions", start, view, some] for some in _some(listed))
    for some in _some(state.requests):
        yield ["requests", [_request_values(one) for one in some]]
    for name in ("to_show", "to_settle"):
        waiting = ((time, one.impressions.request) for time, _, one in sorted(getattr(state, name), key=_by_time))
        yield from ([name, some] for some in _some(waiting))
    forgotten = ((time, request) for time, _, request in sorted(state.to_forget))
    yield from (["to_forget", some] for some in _some(forgotten))
    for several in _some(state.unmatched):
        told = ([(one.request, one.row, one.label, one.time) for one in outcomes] for outcomes in several)
        yield ["unmatched", list(told)]


def _decoded(found: Iterable[list[Any]], plan: StreamingPlan) -> EventCheckpoint:
    tiles: dict[int, TileCounts] = {}
    requests: dict[str, OpenRequest] = {}
    waiting: dict[str, list[tuple[int, str]]] = {"to_show": [], "to_settle": [], "to_forget": []}
    unmatched: list[Sequence[Outcome]] = []
    sessions: Sessions = {}
    about: list[Any] = []
    for kind, *values in found:
        if kind == "about":
            about = values
        elif kind == "tile":
            start, name, key, counts = values
            getattr(tiles.setdefault(start, TileCounts({}, {})), name).setdefault(key, {}).update(counts)
        elif kind == "sessions":
            start, view, listed = values
            known = sessions.setdefault(start, {}).setdefault(view, {})
            known.update((key, b64decode(events)) for key, events in listed)
        elif kind == "requests":
            requests |= {one[0]: _request(one) for one in values[0]}
        elif kind == "unmatched":
            unmatched += [[Outcome(*one) for one in outcomes] for outcomes in values[0]]
        else:
            waiting[kind] += values[0]
    now, open_since, too_late, read, outcomes, (uncounted, lacks_until) = about
    to_show, to_settle = (_pending(waiting[name], requests) for name in ("to_show", "to_settle"))
    _settle(requests.values(), to_settle, plan)
    forget = [(time, number, request) for number, (time, request) in enumerate(waiting["to_forget"])]
    state = OpenState(
        now, open_since, too_late, tiles, [*requests.values()], to_show, to_settle, forget, unmatched, sessions,
        uncounted, NEVER if lacks_until is None else lacks_until,
    )  # fmt: skip
    return EventCheckpoint(state, read, outcomes)


def _request_values(one: OpenRequest) -> list[Any]:
    shown = one.impressions
    return [shown.request, shown.answered, shown.times, shown.keys, shown.rows, list(one.labels.items())]


def _request(values: Sequence[Any]) -> OpenRequest:
    *shown, labels = values
    return OpenRequest(Impressions(*shown), {row: (time, label) for row, (time, label) in labels})


def _pending(waiting: Sequence[tuple[int, str]], requests: Mapping[str, OpenRequest]) -> Pending:
    return [(time, number, requests[request]) for number, (time, request) in enumerate(waiting)]


def _settle(requests: Iterable[OpenRequest], to_settle: Pending, plan: StreamingPlan) -> None:
    """Mark the times of rows whose labels are counted: all that no label is waited for, but those of no row."""
    for one in requests:
        latest = one.impressions.answered + plan.clock_skew_us
        one.settled = {time for time in one.impressions.times if time <= latest}
    for time, _, one in to_settle:
        one.settled.discard(time)


def _some(entries: Iterable[_Entry]) -> Iterator[list[_Entry]]:
    left = iter(entries)
    while some := list(islice(left, _AT_ONCE)):
        yield some


def _by_time(entry: tuple[int, int, OpenRequest]) -> tuple[int, int]:
    return entry[:2]
