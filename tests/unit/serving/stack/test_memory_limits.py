"""Peak memory of a real server and a real Envoy with large bodies."""

from __future__ import annotations

import http.client
import re
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from shortlist.spec.serving import Limits, Serving
from tests.fuzz.running import running_envoy, running_server
from tests.fuzz.world import INFER, fuzz_world

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells the peak of a process, and resets it"),
]

MIB = 2**20
CLIENTS = 40
LONGEST = 4 * MIB
LIMITS = Limits(max_request_bytes=LONGEST, max_buffered_bytes=LONGEST, body_seconds=60)
BODIES = 4 * LIMITS.max_buffered_bytes
"""What bodies may take, of a server and of an Envoy: they are received, kept, and sent on."""
ENVOY = 128 * MIB + BODIES
"""Of Envoy's heap."""
PAGES = 1.25
"""Times its heap that a process may have in pages."""
EVERY_SECONDS = 0.1
"""How often Envoy looks at its heap."""


class Peak:
    """Measures the peak memory of a process above its current memory."""

    def __init__(self, pid: int) -> None:
        self._folder = Path("/proc") / str(pid)
        (self._folder / "clear_refs").write_text("5")
        self._old_peak = self._peak()

    @property
    def bytes(self) -> int:
        """Return the peak memory above the initial one."""
        return self._peak() - self._old_peak

    def _peak(self) -> int:
        (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", (self._folder / "status").read_text())
        return int(kilobytes) * 1024


class Stack(NamedTuple):
    """The serving processes."""

    server: int
    envoy: int
    port: int
    """Of Envoy."""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A server behind an Envoy, after one request."""
    serving = {"limits": LIMITS.model_dump(mode="json")}
    with (
        running_server(tmp_path / "server", fuzz_world(tmp_path / "world"), serving) as server,
        running_envoy(tmp_path / "envoy", server.http, server.grpc, Serving(limits=LIMITS)) as port,
    ):
        assert status_of(port, b"{}") == 400
        assert status_of(port, numbers(64 * 1024)) == 400
        envoy = next(
            process for process in psutil.Process().children() if str(tmp_path / "envoy") in " ".join(process.cmdline())
        )
        yield Stack(server.process.pid, envoy.pid, port)


def status_of(port: int, body: bytes) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        connection.request("POST", INFER, body)
        return connection.getresponse().status


def numbers(length: int) -> bytes:
    """Return a request of so many bytes, nearly all of them integers."""
    count = (length - 200) // len("10000,")
    data = ",".join(str(10_000 + number % 80_000) for number in range(count))
    input_head = f'{{"name": "price", "shape": [{count}, 1], "datatype": "INT64", "data": [{data}]}}'
    return f'{{"inputs": [{input_head}]}}'.encode().ljust(length)


@pytest.mark.parametrize("body", [b" " * LONGEST, numbers(LONGEST)], ids=["blanks", "integers"])
def test_concurrent_bodies_keep_a_server_within_its_memory_limit(stack: Stack, body: bytes) -> None:
    """It buffers the bodies that fit, refuses the others, and reads one at a time, with the memory of one request."""
    peak = Peak(stack.server)
    assert status_of(stack.port, body) == 400
    alone = peak.bytes
    with ThreadPoolExecutor(CLIENTS) as clients:
        peaks = list(clients.map(lambda _: status_of(stack.port, body), range(CLIENTS)))
    assert set(peaks) == {400, 429}
    assert peak.bytes - alone < BODIES < CLIENTS * LONGEST / 2


def test_incomplete_bodies_keep_envoy_within_its_heap(stack: Stack) -> None:
    """Twice as many as fit; when its heap is full, it refuses further requests."""
    peak, count = Peak(stack.envoy), 2 * ENVOY // LONGEST
    head = f"POST {INFER} HTTP/1.1\r\nHost: here\r\nContent-Length: {LONGEST}\r\n\r\n".encode()
    refused = 0
    with ExitStack() as lines:
        for _ in range(count):
            line = lines.enter_context(socket.create_connection(("127.0.0.1", stack.port), timeout=120))
            try:
                line.sendall(head + b" " * (LONGEST - 1))
            except ConnectionError:  # it was answered before it was sent
                refused += 1
            time.sleep(EVERY_SECONDS / 2)
        assert peak.bytes < PAGES * ENVOY < count * LONGEST
        assert status_of(stack.port, b"{}") == 503
    deadline = time.monotonic() + 60
    while status_of(stack.port, b"{}") != 400:
        assert time.monotonic() < deadline, f"{refused} were refused, and Envoy has no room again"
        time.sleep(0.1)
