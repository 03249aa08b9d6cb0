"""A short fuzz test: minimised earlier failures, and some hundred invalid requests to a real server."""

import asyncio
import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from random import Random

import pytest

from benchmarks.fuzz.cases import INFER, KINDS, http_case
from benchmarks.fuzz.driver import Target, fuzz
from benchmarks.fuzz.mutation import changed_bytes
from benchmarks.fuzz.running import Running, running_envoy, running_server
from benchmarks.fuzz.world import SCORES, fuzz_world
from shortlist.spec.serving import Limits, Serving

LIMITS = Limits(max_request_bytes=2**20, max_buffered_bytes=2**21, body_seconds=30)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("fuzz")
    serving = {"limits": LIMITS.model_dump(mode="json"), "log": {"feature_sampling": 1.0}}
    with running_server(folder / "server", fuzz_world(folder / "world"), serving) as server:
        yield server


@pytest.fixture(scope="module")
def envoy(server: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_envoy(tmp_path_factory.mktemp("envoy"), server.http, server.grpc, Serving(limits=LIMITS)) as port:
        yield port


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_requests_never_cause_a_server_error(server: Running, kind: str) -> None:
    tally = asyncio.run(fuzz(Target(server.http, server.grpc, SCORES), kind, range(200), seed=7))
    assert not tally.failures
    assert tally.sent == 200
    assert server.metric("shortlist_requests_total", 'outcome="failed"') == 0
    for part in ("log", "users", "release", "events", "history"):
        assert server.metric(f"shortlist_{part}_broken") == 0


def test_client_errors_and_answers_are_counted_separately(server: Running) -> None:
    old_counts = {
        name: server.metric("shortlist_requests_total", f'outcome="{name}"') for name in ("answered", "refused")
    }
    target = Target(server.http, server.grpc, SCORES)
    tally = asyncio.run(fuzz(target, "binary", range(1_000, 1_050), seed=7))
    answered = tally.answers["200"] + 1  # the check with the good request after the thousandth case
    for name, count in (("answered", answered), ("refused", tally.sent - tally.answers["200"])):
        assert server.metric("shortlist_requests_total", f'outcome="{name}"') == old_counts[name] + count


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_requests_never_cause_a_server_error_through_envoy(server: Running, envoy: int, kind: str) -> None:
    tally = asyncio.run(fuzz(Target(envoy, envoy, SCORES), kind, range(40), seed=8))
    assert not tally.failures
    assert server.metric("shortlist_requests_total", 'outcome="failed"') == 0


def test_a_chunked_body_is_refused_as_soon_as_it_is_too_long(envoy: int) -> None:
    with closing(socket.create_connection(("127.0.0.1", envoy), timeout=60)) as line:
        line.sendall(f"POST {INFER} HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        line.sendall((b"10000\r\n" + b" " * 2**16 + b"\r\n") * 17)  # and no end
        answer = http.client.HTTPResponse(line)
        answer.begin()
        assert (answer.status, "wanted at most 1048576 bytes" in answer.read().decode()) == (413, True)


@contextmanager
def large_bodies(port: int) -> Iterator[None]:
    """While the block runs, four bodies lack a byte; together they are more than the server holds."""
    head = f"POST {INFER} HTTP/1.1\r\nHost: here\r\nContent-Length: {2**20}\r\n\r\n".encode()
    with ExitStack() as stack:
        for _ in range(4):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            line.sendall(head + b" " * (2**20 - 1))
        yield


def test_large_bodies_do_not_keep_small_requests_out(server: Running) -> None:
    old_refusals = server.metric("shortlist_requests_total", 'status="429"')
    with large_bodies(server.http):
        deadline = time.monotonic() + 60
        while server.metric("shortlist_requests_total", 'status="429"') == old_refusals:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        target = Target(server.http, server.grpc, SCORES)
        tally = asyncio.run(fuzz(target, "json", range(0, 2_000, 500), seed=8))
        assert not tally.failures  # the good request among them


def test_incomplete_bodies_wait_in_envoy(server: Running, envoy: int) -> None:
    old_refusals = server.metric("shortlist_requests_total", 'status="429"')
    with large_bodies(envoy):
        tally = asyncio.run(fuzz(Target(envoy, envoy, SCORES), "json", range(0, 2_000, 500), seed=8))
        assert not tally.failures
        assert server.metric("shortlist_requests_total", 'status="429"') == old_refusals


def test_the_same_number_is_the_same_request() -> None:
    assert http_case("json", 3, 500) == http_case("json", 3, 500) != http_case("json", 3, 501)
    assert changed_bytes(Random(1), b"abc") == changed_bytes(Random(1), b"abc")
