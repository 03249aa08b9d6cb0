"""Checkpoints of the live counts: a server that starts reads the checkpoint and the events since.

A file of framed records as in a stream. When it is missing, incomplete or of another plan, all events are read again.
"""

from __future__ import annotations

import hashlib
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from shortlist.features.live.open_events import AnsweredRequest, OpenRequest, RowOutcome, StreamingPlan
from shortlist.features.live.open_sessions import Sessions
from shortlist.features.live.open_shares import SharesState, TileShares
from shortlist.features.live.open_tiles import BEFORE_ALL_TIMES, OpenState, Pending, TileCounts
from shortlist.storage.append_log.segments import frame, iter_frames

SUFFIX: Final = ".checkpoint"
_Item = TypeVar("_Item")
_FORMAT: Final = 8
_ITEMS_PER_RECORD: Final = 1_000
"""Most items of a record: encoding it blocks other threads for about a millisecond."""


@dataclass(frozen=True)
class EventCheckpoint:
    """The counts, and the positions in the logs up to which events are counted."""

    state: OpenState
    events: Mapping[str, int]
    """Offset behind the last counted event, by stream."""
    outcomes: Mapping[str, int]
    """Offset behind the last counted outcome, by stream."""


def checkpoint_path(folder: Path, plan: StreamingPlan) -> Path:
    """Return the checkpoint of servers with the same plan; any of them may write it."""
    return folder / (hashlib.blake2b(f"{_FORMAT} {plan}".encode(), digest_size=8).hexdigest() + SUFFIX)


def remove_old_checkpoints(folder: Path, seconds: float) -> None:
    """Remove checkpoints last written longer ago than `seconds`: those of plans that no server has any more."""
    for path in folder.glob(f"*{SUFFIX}*"):
        with suppress(FileNotFoundError):  # another server removed it
            if time.time() - path.stat().st_mtime > seconds:
                path.unlink()


def write_checkpoint(path: Path, checkpoint: EventCheckpoint) -> None:
    """Replace a checkpoint.

    Raises:
        OSError: It could not be written, usually because the disk is full; the old checkpoint is unchanged.
    """
    staging = path.with_name(f"{path.name}.{os.getpid()}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)  # before the first event
    try:
        with staging.open("wb") as file:
            for record in _encode(checkpoint):
                file.write(frame(orjson.dumps(record)))
            file.flush()
            os.fsync(file.fileno())
        staging.replace(path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise


def read_checkpoint(path: Path, plan: StreamingPlan) -> EventCheckpoint | None:
    """Return the checkpoint; None when it is missing or incomplete."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    checkpoint_records = [orjson.loads(record) for record, *_ in iter_frames(content) if record is not None]
    if not checkpoint_records or checkpoint_records[-1] != ["end", len(checkpoint_records) - 1]:
        return None
    return _decode(checkpoint_records[:-1], plan)


def _encode(checkpoint: EventCheckpoint) -> Iterator[list[Any]]:
    count = 0
    for record in _encode_state(checkpoint.state, checkpoint):
        yield record
        count += 1
    yield ["end", count]


def _encode_state(state: OpenState, checkpoint: EventCheckpoint) -> Iterator[list[Any]]:
    lacks_until = None if state.lacks_until == BEFORE_ALL_TIMES else state.lacks_until  # more than 64 bits
    missing_counts = [state.uncounted, lacks_until]
    yield [
        "about",
        state.now,
        state.open_since,
        state.too_late,
        dict(checkpoint.events),
        dict(checkpoint.outcomes),
        missing_counts,
    ]
    for start, counts in state.tiles.items():
        for kind in fields(TileCounts):
            for key, values in getattr(counts, kind.name).items():
                yield ["tile", start, kind.name, key, []]  # also for keys without counts
                yield from (["tile", start, kind.name, key, batch] for batch in _batches(values.items()))
    shares = state.shares
    yield ["shares", shares.recent, shares.rows_before, shares.first_contributor, shares.has_several_contributors]
    for start, tile in shares.tiles.items():
        yield ["tile_shares", start, tile.users, tile.senders, tile.is_sampled, len(tile.groups)]
        for place, group in enumerate(tile.groups):
            contributions = ((value, *pair) for value, counts in group.items() for pair in [*counts.items()])
            yield from (["contributions", start, place, batch] for batch in _batches(contributions))
    for start, views in state.sessions.items():
        for view, keys in views.items():
            encoded_events = ((key, b64encode(events).decode()) for key, events in keys.items())
            yield from (["sessions", start, view, batch] for batch in _batches(encoded_events))
    for batch in _batches(state.requests):
        yield ["requests", [_request_values(request) for request in batch]]
    places = {id(request): place for place, request in enumerate(state.requests)}
    for name in ("to_show", "to_settle", "to_forget"):
        pending = ((time, places[id(request)]) for time, _, request in sorted(getattr(state, name), key=_by_time))
        yield from ([name, batch] for batch in _batches(pending))
    for unmatched in _batches(state.unmatched):
        outcome_values = (
            [(outcome.request, outcome.row, outcome.label, outcome.time, outcome.item) for outcome in outcomes]
            for outcomes in unmatched
        )
        yield ["unmatched", list(outcome_values)]


def _decode(checkpoint_records: Iterable[list[Any]], plan: StreamingPlan) -> EventCheckpoint:
    tiles: dict[int, TileCounts] = {}
    requests: list[OpenRequest] = []
    pending_by_name: dict[str, list[tuple[int, int]]] = {"to_show": [], "to_settle": [], "to_forget": []}
    unmatched: list[Sequence[RowOutcome]] = []
    sessions: Sessions = {}
    tile_shares: dict[int, TileShares] = {}
    shares = SharesState()
    counters: list[Any] = []
    for kind, *values in checkpoint_records:
        if kind == "about":
            counters = values
        elif kind == "tile":
            start, name, key, counts = values
            getattr(tiles.setdefault(start, TileCounts({}, {}, {})), name).setdefault(key, {}).update(counts)
        elif kind == "shares":
            shares = SharesState(tile_shares, *values)
        elif kind == "tile_shares":
            start, users, senders, is_sampled, groups = values
            tile_shares[start] = TileShares([{} for _ in range(groups)], users, senders, is_sampled)
        elif kind == "contributions":
            start, place, contributions = values
            for value, name, rows in contributions:
                tile_shares[start].groups[place].setdefault(value, {})[name] = rows
        elif kind == "sessions":
            start, view, encoded_events = values
            events_by_key = sessions.setdefault(start, {}).setdefault(view, {})
            events_by_key.update((key, b64decode(events)) for key, events in encoded_events)
        elif kind == "requests":
            requests += map(_request, values[0])
        elif kind == "unmatched":
            unmatched += [[RowOutcome(*outcome_values) for outcome_values in outcomes] for outcomes in values[0]]
        else:
            pending_by_name[kind] += values[0]
    now, open_since, too_late, events, outcomes, (uncounted, lacks_until) = counters
    to_show, to_settle, to_forget = (_pending(pending, requests) for pending in pending_by_name.values())
    _settle(requests, to_settle, plan)
    state = OpenState(
        now, open_since, too_late, tiles, requests, to_show, to_settle, to_forget, unmatched, sessions,
        uncounted, BEFORE_ALL_TIMES if lacks_until is None else lacks_until, shares,
    )  # fmt: skip
    return EventCheckpoint(state, events, outcomes)


def _request_values(request: OpenRequest) -> list[Any]:
    impressions = request.impressions
    return [
        impressions.request,
        impressions.answered,
        impressions.times,
        impressions.keys,
        impressions.rows,
        impressions.sender,
        impressions.contributors,
        impressions.uncounted,
        list(request.labels.items()),
    ]


def _request(values: Sequence[Any]) -> OpenRequest:
    *impression_values, labels = values
    return OpenRequest(AnsweredRequest(*impression_values), {row: (time, label) for row, (time, label) in labels})


def _pending(pending: Sequence[tuple[int, int]], requests: Sequence[OpenRequest]) -> Pending:
    return [(time, number, requests[place]) for number, (time, place) in enumerate(pending)]


def _settle(requests: Iterable[OpenRequest], to_settle: Pending, plan: StreamingPlan) -> None:
    """Restore the settled times: those of rows that wait for no label."""
    for request in requests:
        latest = request.impressions.answered + plan.clock_skew_us
        request.settled = {time for time in request.impressions.times if time <= latest}
    for moment, _, request in to_settle:
        request.settled.discard(moment)


def _batches(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    remaining_items = iter(items)
    while batch := list(islice(remaining_items, _ITEMS_PER_RECORD)):
        yield batch


def _by_time(pending_request: tuple[int, int, OpenRequest]) -> tuple[int, int]:
    return pending_request[:2]
