"""Requests leave when they are due, whatever becomes of them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.open_loop import BROKEN, LATE, Load, TimedRequest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
ANSWERS = {
    1: b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    2: b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nconnection: close\r\n\r\n",
    3: b"",  # it hangs up
    0: None,  # no answer in time
}


async def answered(load: Load, file: Path) -> tuple[list[TimedRequest], list[bytes]]:
    """Return what became of a load's requests, and their ids as a server saw them, which treats them in turn."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            assert await reader.readexactly(4) == b"body"
            seen.append(head.partition(b"x-request-id: ")[2].partition(b"\r\n")[0])
            answer = ANSWERS[len(seen) % 4]
            if answer is None:
                await reader.read()
            if not answer:
                break
            writer.write(answer)
        writer.close()

    def quiet(loop: asyncio.AbstractEventLoop, context: object) -> None: ...

    asyncio.get_running_loop().set_exception_handler(quiet)  # of connections that the generator closes
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        file.write_text(json.dumps(load._replace(port=server.sockets[0].getsockname()[1])._asdict()))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.open_loop",
            str(file),
            str(file.with_name("answers.json")),
            cwd=Path(__file__).parents[3],
        )
        assert await process.wait() == 0
        told = json.loads(file.with_name("answers.json").read_text())
    assert told["busy_seconds"] > 0
    return [TimedRequest(*each) for each in told["asked"]], seen


@pytest.fixture
def load(tmp_path: Path) -> Load:
    (tmp_path / "body").write_text("body")
    head = "POST / HTTP/1.1\r\nx-request-id: a-{number}\r\ncontent-length: 4\r\n\r\n"
    return Load(0, head, str(tmp_path / "body"), seconds=2.0, deadline_seconds=5.0)


def test_every_request_is_answered_refused_broken_or_late(load: Load, tmp_path: Path) -> None:
    asked, seen = asyncio.run(answered(load._replace(rate=40.0, seed=1), tmp_path / "load.json"))
    counts = Counter(each.status for each in asked)
    assert set(counts) == {200, 503, BROKEN, LATE}
    assert len(asked) == len(seen) == len(set(seen))
    assert max(counts.values()) - min(counts.values()) <= 1
    assert all(0 <= each.due < 2.0 and each.due <= each.sent <= each.answered for each in asked)
    # Those without an answer hold no other one up: all have left before the first one is given up.
    assert max(each.sent for each in asked) < min(each.answered for each in asked if each.status == LATE)


def test_clients_that_wait_ask_again_once_they_are_answered(load: Load, tmp_path: Path) -> None:
    asked, _ = asyncio.run(answered(load._replace(clients=3, seconds=1.0, deadline_seconds=2.0), tmp_path / "l.json"))
    assert len(asked) > 3
    assert sum(each.status in {LATE, BROKEN} for each in asked) <= 3  # who was not answered asks no more
