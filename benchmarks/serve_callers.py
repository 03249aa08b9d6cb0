"""Who asks: sockets that carry one request after another, the served stack, and a peer behind FastAPI."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.serve_world import CANDIDATES, Question, World
from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.local.stack import Stack
from shortlist.serving.export.signature import FOLDER
from shortlist.serving.paths import ServingPaths
from shortlist.serving.traffic.client import Endpoint, connect
from shortlist.serving.traffic.load import Load, repeat_requests
from shortlist.serving.traffic.requests import WireProtocol, prepare
from shortlist.storage.artefacts import folder_digest

Ask = Callable[[], bytes]
WARM: Final = 3
"""Calls that do not count."""


@contextmanager
def served(world: World, kind: str, release: Path | None = None) -> Iterator[Stack]:
    """Give a stack that serves a model to everybody, with what is released with it, if anything."""
    paths = ServingPaths.for_spec(world.folder / f"runs-{kind}", world.spec.name)
    stack = Stack.up(paths, world.spec.name, world.spec.serving, world.spec.runtime.online_store)
    try:
        model = world.models[kind]
        deployment = Deployment(
            version=1, kind=kind, model_folder=model, digest=folder_digest(model), store=world.store, release=release,
            release_digest="" if release is None else folder_digest(release),
        )  # fmt: skip
        stack.deploy(deployment, world.spec.serving)
        stack.wait_ready(1, 90)
        stack.route(Route(stable=1))
        yield stack
    finally:
        stack.stop()


class Caller:
    """A connection over which one request after another goes; a client library takes half a millisecond of its own."""

    def __init__(self, port: int, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Connect and prepare the request."""
        all_headers = {"Host": "127.0.0.1", **headers, "Content-Length": str(len(body))}
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in all_headers.items()), "", ""]
        self._request = "\r\n".join(lines).encode() + body
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self) -> bytes:
        """Return the body of the answer."""
        self._socket.sendall(self._request)
        received = bytearray()
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += self._received()
        head = bytes(received[:end]).lower()
        assert head.startswith(b"http/1.1 200 "), bytes(received)
        length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        while len(received) < end + 4 + length:
            received += self._received()
        return bytes(received[end + 4 :])

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _received(self) -> bytes:
        piece = self._socket.recv(1 << 18)
        assert piece, "the connection was closed"
        return piece


def caller(port: int, question: Question, protocol: WireProtocol) -> Caller:
    """Return who asks a server or Envoy over HTTP."""
    prepared = prepare(question.inputs, protocol, "demo")
    return Caller(port, "/v2/models/demo/infer", prepared.body, {**prepared.headers, "x-request-id": f"b-{protocol}"})


def timed(ask: Callable[[], object], calls: int) -> list[float]:
    """Return the milliseconds of calls, after some that do not count."""
    spent = []
    for number in range(calls + WARM):
        start = time.perf_counter()
        ask()
        if number >= WARM:
            spent.append((time.perf_counter() - start) * 1e3)
    return spent


def time_calls(
    port: int, question: Question, protocol: WireProtocol, clients: int, calls: int
) -> tuple[list[float], float]:
    """Return the milliseconds of calls, and the rows per second, of clients that each wait for their answers.

    Args:
        port: Envoy's.
        question: What they ask.
        protocol: How.
        clients: How many there are.
        calls: Of each.
    """
    if protocol == "grpc":
        return asyncio.run(_asked_over_grpc(port, question, clients, calls))
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(contextlib.closing(caller(port, question, protocol))) for _ in range(clients)]
        pool = stack.enter_context(ThreadPoolExecutor(clients))
        for opened in callers:
            timed(opened.ask, 0)
        start = time.perf_counter()
        spent = [
            ms for times in pool.map(lambda caller: [_ms(caller.ask) for _ in range(calls)], callers) for ms in times
        ]
        return spent, clients * calls * CANDIDATES / (time.perf_counter() - start)


async def _asked_over_grpc(port: int, question: Question, clients: int, calls: int) -> tuple[list[float], float]:
    async with connect(Endpoint(port=port, model="demo", protocol="grpc", connections=clients)) as client:
        prepared = client.prepare(question.inputs)
        await Load(client, itertools.islice(repeat_requests([prepared], "warm"), WARM * clients)).run_closed(clients)
        start = time.perf_counter()
        ledger = await Load(client, itertools.islice(repeat_requests([prepared], "bench"), calls * clients)).run_closed(
            clients
        )
        seconds = time.perf_counter() - start
    assert ledger.answered.all(), ledger.summary()
    return ledger.latencies_ms().tolist(), clients * calls * CANDIDATES / seconds


async def scores_of(port: int, question: Question, protocol: WireProtocol) -> np.ndarray:
    """Return the scores of one call."""
    scores: list[np.ndarray] = []
    async with connect(Endpoint(port=port, model="demo", protocol=protocol)) as client:
        asks = itertools.islice(repeat_requests([client.prepare(question.inputs)], "check"), 1)
        await Load(client, asks, on_answer=lambda _, answer: scores.append(np.asarray(answer.scores))).run_closed(1)
    return scores[0]


PEER: Final = """
import sys
import numpy as np
import uvicorn
from fastapi import FastAPI, Request
from onnxruntime import InferenceSession, SessionOptions

options = SessionOptions()
options.intra_op_num_threads = int(sys.argv[2])
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
graph = InferenceSession(sys.argv[1], options)
types = {"tensor(double)": np.float64, "tensor(int64)": np.int64, "tensor(float)": np.float32}
app = FastAPI()

@app.post("/score")
async def score(request: Request):
    sent = await request.json()
    tensors = {one.name: np.array(sent[one.name], types[one.type]) for one in graph.get_inputs()}
    return graph.run(["score"], tensors)[0].ravel().tolist()

uvicorn.run(app, port=int(sys.argv[3]), access_log=False, log_level="error", timeout_keep_alive=600)
"""
"""What one writes in an afternoon: the same ONNX file, its tensors as JSON."""


@contextmanager
def fastapi(model: Path, threads: int, tensors: Mapping[str, Any]) -> Iterator[Caller]:
    """Give a caller of the same graph behind FastAPI and uvicorn."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", PEER, str(model / FOLDER / "model.onnx"), str(threads), str(port)]
    body = json.dumps({name: values.tolist() for name, values in tensors.items()}).encode()
    with subprocess.Popen(command) as process:  # noqa: S603 - our own interpreter
        try:
            _wait_for(port)
            with contextlib.closing(Caller(port, "/score", body, {"Content-Type": "application/json"})) as peer:
                yield peer
        finally:
            process.terminate()


def _ms(ask: Ask) -> float:
    start = time.perf_counter()
    ask()
    return (time.perf_counter() - start) * 1e3


def _wait_for(port: int) -> None:
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"nobody listens on {port}")
