"""The event log: events of all servers are read once, and old ones removed. Streams have tests of their own."""

from __future__ import annotations

import os
import time
from pathlib import Path

from shortlist.features.live.open_events import AnsweredRequest
from shortlist.serving.log.event_log import EventReader, encode_event, remove_old_events
from shortlist.storage.append_log.writer import open_free_stream


def event(number: int) -> AnsweredRequest:
    return AnsweredRequest(f"request-{number}", number, [number], {"user_id": [number], "page": ["Zürich", None]}, 2)


def test_events_of_two_servers_are_read_unchanged_and_once(tmp_path: Path) -> None:
    reader = EventReader(tmp_path / "events")
    assert list(reader.read_new()) == []  # the folder is not there yet
    servers = [open_free_stream(tmp_path / "events") for _ in range(2)]
    events = []
    for number in range(10):
        servers[number % 2].append([encode_event(event(number))]).result(5)
        events += list(reader.read_new())
    assert events == [event(number) for number in range(10)]
    assert list(reader.read_new()) == []
    servers[0].append([encode_event(event(10))]).result(5)
    assert list(EventReader(tmp_path / "events", reader.positions).read_new()) == [event(10)]
    for server in servers:
        server.close()


def test_only_old_events_are_removed(tmp_path: Path) -> None:
    server = open_free_stream(tmp_path, rotate_bytes=1)  # a segment each time
    for number in range(3):
        server.append([encode_event(event(number))]).result(5)
    server.close()
    oldest = min(tmp_path.rglob("*.segment"))
    os.utime(oldest, (time.time() - 3_601, time.time() - 3_601))
    reader = EventReader(tmp_path)
    assert remove_old_events(tmp_path, 3_600) == 1
    assert list(reader.read_new()) == [event(1), event(2)]


def test_an_event_that_cannot_be_read_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    server = open_free_stream(tmp_path)
    for record in (encode_event(event(0)), b"{no JSON", b"[1]", encode_event(event(1))):
        server.append([record]).result(5)
    server.close()
    reader = EventReader(tmp_path)
    assert list(reader.read_new()) == [event(0), event(1)]
    assert list(reader.read_new()) == []
    assert reader.problem is not None and "it is left out" in reader.problem
    assert not reader.is_stuck
