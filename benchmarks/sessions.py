"""What a server's lists of live sequences take: one million users, by the declared measure and in resident memory.

    python -m benchmarks.sessions [--users 1000000] [--events 5 50]

Every user has one request with so many rows in one tile; what a request with one row costs is measured beside it.
"""

from __future__ import annotations

import argparse
import gc
import time
from datetime import UTC, datetime
from typing import Final, NamedTuple

import psutil

from benchmarks.bench import Line, record, show
from shortlist.features.open_events import AnsweredRequest, OpenList, OpenRequest
from shortlist.features.open_sessions import OpenSessions
from shortlist.spec.features import Streaming

_START: Final = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
_ITEMS: Final = 1_000_003
_ASKED: Final = 20_000


class Taken(NamedTuple):
    """What the lists of some users take."""

    declared_bytes: int
    resident_bytes: int
    list_us: float
    """Processor time of listing one event."""
    read_us: float
    """Processor time of reading one list."""
    dropped: int


def main() -> None:
    """Fill, measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--events", type=int, nargs="+", default=[5, 50])
    arguments = parser.parse_args()
    lines: list[Line] = []
    limit = Streaming().max_bytes
    for events in arguments.events:
        taken = filled(arguments.users, events)
        name = f"live state, {arguments.users:,} users, {events} events"
        peer = f"features.streaming.max_bytes: {limit / 1e6:.0f}; resident {taken.resident_bytes / 1e6:.0f}"
        lines.append(Line("sequences", name, taken.declared_bytes / 1e6, "MB", peer, taken.declared_bytes / limit))
        lines.append(Line("sequences", f"{name}, given up", taken.dropped, "users"))
        lines.append(Line("sequences", f"{name}, list an event", taken.list_us, "cpu-us"))
        lines.append(Line("sequences", f"{name}, read a list", taken.read_us, "cpu-us"))
    show("State of live sequences", lines)
    record(lines)


def filled(users: int, events: int) -> Taken:
    """Return what lists of so many events of so many users take, within the default memory."""
    wanted = OpenList("newest", "user_id", "item_id", 50)
    sessions = OpenSessions([wanted], Streaming().max_bytes)
    process = psutil.Process()
    gc.collect()
    before, began = process.memory_info().rss, time.process_time()
    times = [_START + 1_000_000 * number for number in range(events)]
    for user in range(users):
        items = [(user * 7_919 + number * 104_729) % _ITEMS for number in range(events)]
        shown = AnsweredRequest("", times[-1], times, {"user_id": [user], "item_id": items}, events)
        sessions.add(_START, OpenRequest(shown), range(events), positives=False)
    listed = time.process_time() - began
    gc.collect()
    resident, began = process.memory_info().rss - before, time.process_time()
    for user in range(0, users, max(1, users // _ASKED)):
        sessions.event_lists(wanted, [user])
    read = (time.process_time() - began) / len(range(0, users, max(1, users // _ASKED)))
    return Taken(sessions.bytes, resident, 1e6 * listed / (users * events), 1e6 * read, sessions.dropped)


if __name__ == "__main__":
    main()
