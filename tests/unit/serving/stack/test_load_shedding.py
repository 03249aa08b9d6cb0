"""A real Envoy refuses requests that the servers of a track could not answer in time."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as services

from shortlist.rollout.deployment import Route
from shortlist.rollout.evidence.access_log import AccessLog
from shortlist.rollout.local.envoy.bootstrap import FLUSH_MS
from shortlist.spec.serving import Overload, Serving
from tests.fuzz.running import SECRETS, VERSION, free_ports, running_envoy
from tests.fuzz.world import INFER, MODEL

ECHO = Path(__file__).with_name("echo_server.py")
SLOW = b"take your time"  # answered after 200 ms
CLIENTS = 24
REQUESTS_PER_CLIENT = 12
OVERLOAD = Overload(max_concurrent=1, max_wait_ms=20)  # 4 requests always get in
REFUSED = "the server has too much to do; come back later"
Answer = tuple[int, str | None, str | None, str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("envoy")


@pytest.fixture(scope="module")
def envoy(folder: Path) -> Iterator[int]:
    with envoy_before_a_server(folder, OVERLOAD) as port:
        yield port


@contextmanager
def envoy_before_a_server(folder: Path, overload: Overload) -> Iterator[int]:
    """Run an Envoy in front of a stub server, with half of the users on the canary."""
    http_port, grpc_port, health_port = free_ports(3)
    ports = {"http_port": http_port, "grpc_port": grpc_port, "health_port": health_port}
    (folder / "echo.json").write_text(json.dumps({"version": VERSION, **ports}))
    route = Route(stable=VERSION, canary=VERSION, percent=50, rollout="one", step=1)
    process = subprocess.Popen([sys.executable, str(ECHO), str(folder / "echo.json")])
    try:
        with running_envoy(folder / "envoy", http_port, grpc_port, Serving(overload=overload), route) as port:
            deadline = time.monotonic() + 60
            while ask(port, "anna")[0] != 200:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield port
    finally:
        process.kill()
        process.wait()


def ask(port: int, user: str) -> Answer:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        return answer(connection, user, b"{}")


def answer(connection: http.client.HTTPConnection, user: str, body: bytes) -> Answer:
    """Return status, track, retry time, and the JSON of the response."""
    headers = {"x-shortlist-user": user, "authorization": f"Bearer {SECRETS.backend_token}"}
    connection.request("POST", INFER, body, headers)
    response = connection.getresponse()
    return (
        response.status,
        response.headers["x-shortlist-track"],
        response.headers["retry-after"],
        str(json.load(response).get("error")),
    )


def client(port: int, user: str) -> list[Answer]:
    """Send requests repeatedly over one connection, which a refusal must not close."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.connect()
        line = connection.sock
        responses = [answer(connection, user, SLOW) for _ in range(REQUESTS_PER_CLIENT)]
        assert connection.sock is line
        return responses


def user_of(port: int, track: str) -> str:
    return next(f"user {number}" for number in range(100) if ask(port, f"user {number}")[1] == track)


def test_requests_that_would_wait_too_long_are_refused_on_their_track_alone_and_keep_their_connection(
    envoy: int,
) -> None:
    stable_user, canary_user = user_of(envoy, "stable"), user_of(envoy, "canary")
    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        busy = [pool.submit(client, envoy, stable_user) for _ in range(CLIENTS)]
        meanwhile = pool.submit(lambda: [ask(envoy, canary_user)[:2] for _ in range(20)]).result()
        responses = [response for client_responses in busy for response in client_responses.result()]
    counts = Counter(status for status, *_ in responses)
    assert counts[503] > 0
    assert counts[200] >= REQUESTS_PER_CLIENT  # at least as many as one client that is never refused
    assert counts.total() == counts[200] + counts[503] == CLIENTS * REQUESTS_PER_CLIENT
    assert {response for response in responses if response[0] == 503} == {(503, "stable", "1", REFUSED)}
    assert meanwhile == [(200, "canary")] * 20


def test_over_grpc_a_refusal_is_resource_exhausted(envoy: int) -> None:
    stable_user = user_of(envoy, "stable")
    with ThreadPoolExecutor(CLIENTS) as pool, grpc.insecure_channel(f"127.0.0.1:{envoy}") as channel:
        busy = [pool.submit(client, envoy, stable_user) for _ in range(CLIENTS)]
        stub, refused = services.GRPCInferenceServiceStub(channel), []
        while not all(task.done() for task in busy):
            try:
                stub.ModelInfer(
                    messages.ModelInferRequest(model_name=MODEL),
                    timeout=60,
                    metadata=[("x-shortlist-user", stable_user)],
                )
            except grpc.RpcError as error:
                refused.append((error.code(), error.details()))
        assert set(refused) == {(grpc.StatusCode.RESOURCE_EXHAUSTED, REFUSED)}


def test_refusals_are_no_evidence_about_a_release(envoy: int, folder: Path) -> None:
    time.sleep(2 * FLUSH_MS / 1000)
    lines = [line for frame in AccessLog(folder / "envoy" / "access.jsonl").read() for line in frame.to_dicts()]
    refused = [line for line in lines if line["details"] == "reached_concurrency_limit"]
    assert len(refused) > 0
    assert {(line["track"], line["rollout"]) for line in refused} == {(None, None)}
    assert {line["rollout"] for line in lines if line["status"] == 200 and line["grpc"] is None} == {"one"}


def test_after_the_load_all_requests_are_accepted(envoy: int) -> None:
    stable_user = user_of(envoy, "stable")
    assert [ask(envoy, stable_user)[0] for _ in range(20)] == [200] * 20


def test_with_a_longer_max_wait_more_requests_are_accepted(tmp_path: Path) -> None:
    patient = OVERLOAD.model_copy(update={"max_wait_ms": 60_000})
    with envoy_before_a_server(tmp_path, patient) as port:
        stable_user = user_of(port, "stable")
        with ThreadPoolExecutor(CLIENTS) as pool:
            responses = [
                response
                for client_responses in pool.map(client, [port] * CLIENTS, [stable_user] * CLIENTS)
                for response in client_responses
            ]
    assert [status for status, *_ in responses] == [200] * CLIENTS * REQUESTS_PER_CLIENT
