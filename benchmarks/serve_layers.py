"""Where the time of one request goes, from border to border, in figures that add up to the whole.

Envoy and the server are asked from outside. What the server does between its own borders is done here once more, by its
own objects: they read the same store and ask the same Triton. Triton counts for itself. What is left between two
borders is what lies between them: sockets, processes that wake each other, frameworks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks.serve_callers import caller
from benchmarks.serve_scorers import Scorer
from benchmarks.serve_world import CANDIDATES, Question
from shortlist.rollout.local.stack import Stack
from shortlist.serving.processes.sockets import UnixConnection
from shortlist.serving.server.protocols.v2 import read_body, write_answer
from shortlist.serving.server.runtime.settings import ServerSettings
from shortlist.serving.server.scoring.predictor import Predictor
from shortlist.serving.server.server import ServerComponents, read_settings
from shortlist.serving.traffic.requests import HEADER_LENGTH, prepare

CALLS: Final = 100
_SERVER_LAYERS: Final = ("parse", "read", "users", "assemble", "answer")


class Layer(NamedTuple):
    """A stretch of a request's way."""

    name: str
    ms: float


class RequestLayers(NamedTuple):
    """One request's time."""

    whole_ms: float
    layers: list[Layer]
    """In the order of the way; they add up to the whole."""


def way_of(stack: Stack, settings: Path, question: Question, scorer: Scorer, log: Path) -> RequestLayers:
    """Return where the time of one request over binary HTTP goes, at one caller; medians, Triton's own as means.

    Args:
        stack: Serves the model.
        settings: File that its server was started with.
        question: What is asked.
        scorer: The version's program, without Triton, with the question's tensors.
        log: Folder for what the objects here would log.
    """
    own_settings = read_settings(settings).model_copy(update={"predictions": log})
    return asyncio.run(_way_of(stack, own_settings, question, scorer))


async def _way_of(stack: Stack, settings: ServerSettings, question: Question, scorer: Scorer) -> RequestLayers:
    parts = ServerComponents(settings)
    parts.refresh.start()
    while parts.refresh.current is None:
        await asyncio.sleep(0.05)
    borders = _Borders(parts, question)
    alone: list[float] = []
    with contextlib.ExitStack() as open_:
        ports = {"envoy": stack.port, "server": settings.http_port}
        ask = {
            name: open_.enter_context(contextlib.closing(caller(port, question, "http")))
            for name, port in ports.items()
        }
        for call in ask.values():
            call.ask()
        counts_before = _counted(settings)
        for number in range(CALLS):
            for name, call in ask.items():
                borders.time(name, call.ask)
            await borders.cross()
            if number % 10 == 0:
                alone += scorer.timed(CANDIDATES, 10)["ms"]
        triton = _mean_ms(counts_before, _counted(settings))
    await parts.close()
    at = {name: median(values) for name, values in borders.spent.items()}
    return _split_layers(at, triton, median(alone))


class _Borders:
    """Does what the server does with a request, and notes how long each part takes."""

    def __init__(self, parts: ServerComponents, question: Question) -> None:
        self.spent: dict[str, list[float]] = {}
        self._service, self._predictor = parts.service, parts.predictor
        self._prepared = prepare(question.inputs, "http", parts.service.settings.model)

    def time(self, name: str, work: Callable[[], Any]) -> Any:
        """Note how long a work takes; return what it gives."""
        with self._noted(name):
            return work()

    async def cross(self) -> None:
        """Take one request from border to border."""
        service, length = self._service, self._prepared.headers.get(HEADER_LENGTH)
        body = self.time("parse", lambda: read_body(self._prepared.body, length))
        inputs = self.time("read", lambda: service.inputs.read(body.tensors, time.time_ns() // 1_000))
        with self._noted("users"):
            tables, _ = await service.tables(inputs)
        tensors = self.time("assemble", lambda: service.tensors(inputs, tables))
        with self._noted("triton"):
            scores = await _ask_predictor(self._predictor, tensors, inputs.rows)
        head = {"model_name": service.settings.model, "model_version": "1", "id": "b", "parameters": {}}
        self.time("answer", lambda: write_answer(head, scores, body.binary))
        self.time("digest", lambda: inputs.digest)

    @contextlib.contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        start = time.perf_counter_ns()
        yield
        self.spent.setdefault(name, []).append((time.perf_counter_ns() - start) / 1e6)


async def _ask_predictor(predictor: Predictor, tensors: Any, rows: int) -> Any:
    return await predictor.scores(tensors, rows)


def _split_layers(at: Mapping[str, float], triton: Mapping[str, float], alone: float) -> RequestLayers:
    server_ms = sum(at[name] for name in _SERVER_LAYERS)
    layers = [
        Layer("Envoy, there and back", at["envoy"] - at["server"]),
        Layer("server: sockets, HTTP, routing, event loop", at["server"] - server_ms - at["triton"]),
        Layer("server: the body's tensors", at["parse"]),
        Layer("server: typed columns, texts as codes", at["read"]),
        Layer("server: the user's row from Feast", at["users"]),
        Layer("server: look-ups of items, the model's tensors", at["assemble"]),
        Layer("server to Triton: shared memory, a small request", at["triton"] - triton["success"]),
        Layer("Triton: queue", triton["queue"]),
        Layer("Triton: tensors in and out", triton["success"] - triton["queue"] - triton["compute_infer"]),
        Layer("Triton to its Python process and back", triton["compute_infer"] - alone),
        Layer("features and model", alone),
        Layer("server: the answer's body", at["answer"]),
    ]
    return RequestLayers(at["envoy"], layers)


def _counted(settings: ServerSettings) -> dict[str, dict[str, int]]:
    connection = UnixConnection(Path(settings.predictor.removeprefix("unix:")), timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", f"/v2/models/{settings.model}/stats")
        return dict(json.load(connection.getresponse())["model_stats"][0]["inference_stats"])


def _mean_ms(counts_before: Mapping[str, Any], counts_after: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: (now["ns"] - counts_before[name]["ns"]) / max(1, now["count"] - counts_before[name]["count"]) / 1e6
        for name, now in counts_after.items()
    }
