"""Ranking 1 024 items for a user through Envoy, server and Triton: `make bench-serve`.

The measure is the same graph in-process. Two models on the demo's features: the demo's own XGBoost, and a DLRM with the
layers of the Kaggle configuration (16; 512-256-64-16; 512-256-1), trained briefly: what a network has learnt does not
change its speed. In-process and served calls alternate, so that a machine that slows down slows both. The peer is what
one writes in an afternoon: the same ONNX file behind FastAPI and uvicorn, the tensors as JSON. Whoever asks over HTTP
writes to a socket and reads from it, nothing more: a client library takes half a millisecond of its own.

Triton's program shares the rows out among threads, where ONNX Runtime shares out each node; that is faster. It is
measured in-process as well, to tell what of a ratio is the way through the servers, and what the threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

from models.export import export
from models.packing import pack
from models.train import train
from shortlist.artefacts import folder_digest
from shortlist.config.load import load_spec
from shortlist.config.spec import Spec
from shortlist.contracts import Columns, Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.features.fit import fit
from shortlist.features.preprocessing import Preprocessing
from shortlist.features.publish import publish
from shortlist.features.table import build_table
from shortlist.features.view_index import ViewIndex
from shortlist.serving.export.predictor import TritonPythonModel
from shortlist.serving.export.repository import write_repository
from shortlist.serving.export.running import session
from shortlist.serving.export.signature import FOLDER, SCORE, Signature
from shortlist.serving.online.offline import DayAssembler
from shortlist.serving.places import Places
from shortlist.serving.stack.deployment import Deployment, Route
from shortlist.serving.stack.stack import Stack
from shortlist.serving.stack.triton import running_triton
from shortlist.serving.traffic.client import Endpoint, connect
from shortlist.serving.traffic.ledger import Ledger, percentiles
from shortlist.serving.traffic.load import Load, endless
from shortlist.serving.traffic.requests import Protocol, prepare
from shortlist.tables import DayTable

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
CANDIDATES = 1_024
ROUNDS = 10
CALLS = 30
"""Calls of each kind in a round."""
LIMIT = 1.5
"""Most that ranking through everything may take at p50, as a multiple of the graph alone."""
SMALL_ROWS, SMALL_WORKERS, SMALL_SECONDS = 8, 16, 4.0


@dataclass(frozen=True)
class World:
    """A log with everything made from it, and two exported models."""

    spec: Spec
    folder: Path
    models: dict[str, Path]

    @property
    def store(self) -> Path:
        """The Feast store."""
        return self.folder / "store"


def make_world(folder: Path) -> World:
    """Generate a log, fit and publish its features, train and export both models."""
    spec = load_spec(ROOT / "pipelines/specs/demo.yaml")
    source = spec.data.source.model_copy(update={"rows": 60_000})
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"source": source})})
    ingest(spec.data, Path(), folder / "raw", spec.runtime)
    validate(spec.data, folder / "raw", folder / "log", folder / "quarantine", spec.runtime, datetime.now(UTC))
    fit(spec.data, spec.features, spec.gates, spec.runtime, folder / "log", folder / "fitted")
    paths = folder / "log", folder / "fitted", folder / "table"
    build_table(spec.data, spec.features, spec.gates, spec.runtime, *paths)
    publish(spec.name, folder / "store", spec.runtime, 20, *paths, folder / "skew")
    assert spec.models.xgboost is not None
    assert spec.models.dlrm is not None
    kaggle = {"embedding_dim": 16, "bottom_mlp": (512, 256, 64), "top_mlp": (512, 256), "epochs": 1, "batch_size": 4096}
    sections = {"xgboost": spec.models.xgboost, "dlrm": spec.models.dlrm.model_copy(update=kaggle)}
    table, models = DayTable.open(folder / "table", Files.TABLE), {}
    for kind, section in sections.items():
        models[kind] = folder / kind
        train(kind, section, table, spec.runtime, models[kind], folder / f"{kind}_scores")
        pack(models[kind], folder / "fitted")
        export(models[kind], spec.name)
    return World(spec, folder, models)


class Question:
    """One user, many items: as a request, and as the tensors that the server makes of it."""

    def __init__(self, world: World, model: Path, rows: int) -> None:
        plan = Preprocessing.load(model / Files.PREPROCESSING).plan
        views = ViewIndex.read(world.folder / "fitted" / "views")
        day = views.last_day + timedelta(days=1)
        log = pl.concat(frame for _, frame in DayTable.open(world.folder / "log", Files.LOG).frames({views.last_day}))
        items = log.unique("item_id", maintain_order=True).sample(rows, seed=1, with_replacement=True)
        moment = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
        one = log.row(0, named=True)
        same = {name: one[name] for name in ("user_id", "surface", "device", "duration")}
        asked = items.with_columns(
            *(pl.lit(value).cast(log.schema[name]).alias(name) for name, value in same.items()),
            pl.lit(moment).cast(log.schema[Columns.TIME]).alias(Columns.TIME),
            pl.lit(day).alias(Columns.DAY),
        )
        self.user = str(one["user_id"])
        self.tensors = DayAssembler(plan, Signature.read(model / FOLDER), views).tensors(asked, day)
        self.inputs = {
            **{name: np.array([value], object if isinstance(value, str) else None) for name, value in same.items()},
            "item_id": asked["item_id"].to_numpy(),
            "position": asked["position"].to_numpy(),
            Columns.TIME: np.array([int(moment.timestamp() * 1_000_000)]),
        }


@contextmanager
def served(world: World, model: Path, kind: str) -> Iterator[Stack]:
    """Give a stack that serves a model to everybody."""
    places = Places.of(world.folder / f"runs-{kind}", world.spec.name)
    stack = Stack.up(places, world.spec.name, world.spec.serving, world.spec.runtime.online_store, world.spec.name)
    try:
        deployment = Deployment(
            version=1, kind=kind, model_folder=model, digest=folder_digest(model), store=world.store
        )
        stack.deploy(deployment, world.spec.serving)
        stack.wait_ready(1, 90)
        stack.route(Route(stable=1))
        yield stack
    finally:
        stack.stop()


class Caller:
    """A connection over which one request after another goes."""

    def __init__(self, port: int, path: str) -> None:
        self._path = path
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def request(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Return a request's bytes."""
        told = {"Host": "127.0.0.1", **headers, "Content-Length": str(len(body))}
        lines = [f"POST {self._path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items()), "", ""]
        return "\r\n".join(lines).encode() + body

    def ask(self, request: bytes) -> bytes:
        """Return the body of the answer."""
        self._socket.sendall(request)
        got = bytearray()
        while (end := got.find(b"\r\n\r\n")) < 0:
            got += self._received()
        head = bytes(got[:end]).lower()
        assert head.startswith(b"http/1.1 200 "), bytes(got)
        length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        while len(got) < end + 4 + length:
            got += self._received()
        return bytes(got[end + 4 :])

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _received(self) -> bytes:
        piece = self._socket.recv(1 << 18)
        assert piece, "the connection was closed"
        return piece


def ask(stack: Stack, question: Question, protocol: Protocol) -> list[float]:
    """Return the milliseconds of calls one after another through Envoy."""
    if protocol == "grpc":
        return asyncio.run(ask_over_grpc(stack, question))
    prepared = prepare(question.inputs, protocol, "demo")
    with contextlib.closing(Caller(stack.port, "/v2/models/demo/infer")) as caller:
        request = caller.request(prepared.body, {**prepared.headers, "x-request-id": f"bench-{protocol}"})
        return timed(lambda: caller.ask(request), CALLS)


async def ask_over_grpc(stack: Stack, question: Question) -> list[float]:
    """Return the milliseconds of calls one after another through Envoy, over gRPC."""
    async with connect(Endpoint(port=stack.port, model="demo", protocol="grpc")) as client:
        prepared = client.prepare(question.inputs)
        await Load(client, itertools.islice(endless([prepared], "warm"), 3)).closed(1)
        ledger = await Load(client, itertools.islice(endless([prepared], "bench"), CALLS)).closed(1)
    assert ledger.answered.all(), ledger.summary()
    return ledger.latencies_ms().tolist()


async def scores_of(stack: Stack, question: Question) -> np.ndarray:
    """Return the scores of one call over HTTP."""
    found: list[np.ndarray] = []
    async with connect(Endpoint(port=stack.port, model="demo")) as client:
        asks = itertools.islice(endless([client.prepare(question.inputs)], "check"), 1)
        await Load(client, asks, on_answer=lambda _, answer: found.append(np.asarray(answer.scores))).closed(1)
    return found[0]


def rank_one(world: World, kind: str, results: list[dict[str, Any]], console: Console) -> None:
    """Measure ranking with one model: closed loop against in-process and FastAPI, then open loop."""
    model = world.models[kind]
    question = Question(world, model, CANDIDATES)
    graph = session(model / FOLDER, world.spec.serving.batching.threads)
    wanted = graph.run([SCORE], question.tensors)[0].ravel()
    found: dict[str, list[list[float]]] = {}
    with served(world, model, kind) as stack, fastapi(model, world.spec.serving.batching.threads) as peer:
        got = asyncio.run(scores_of(stack, question))
        assert np.abs(got - wanted).max() < 1e-5, "served scores differ from the graph's"
        body = json.dumps({name: tensor.tolist() for name, tensor in question.tensors.items()}).encode()
        asked = peer.request(body, {"Content-Type": "application/json"})
        assert np.abs(np.array(json.loads(peer.ask(asked))) - wanted).max() < 1e-5, "the peer's scores differ"
        shared_out = program(model, world.spec.serving.batching.threads)
        protocols: tuple[Protocol, ...] = ("http", "json", "grpc")
        for number in range(ROUNDS):
            for protocol in protocols:
                found.setdefault("in-process", []).append(in_process(graph, question))
                found.setdefault(f"served, {protocol}", []).append(ask(stack, question, protocol))
            spent = timed(lambda: shared_out(question.tensors), CALLS)
            found.setdefault("in-process, rows shared out", []).append(spent)
            found.setdefault("FastAPI, JSON tensors", []).append(timed(lambda: peer.ask(asked), CALLS // 2))
            console.print(f"  {kind}: round {number + 1} of {ROUNDS}", style="dim")
        best = statistics.median(statistics.median(calls) for calls in found["served, grpc"])
        rate = 500 / best  # half of what one caller after another gets
        opened = asyncio.run(open_loop(stack, question, rate))
    alone = statistics.median(statistics.median(calls) for calls in found["in-process"])
    for way, rounds in found.items():
        every = np.concatenate(rounds)
        middle = statistics.median(statistics.median(calls) for calls in rounds)
        results.append(
            {
                "work": "rank",
                "name": f"{kind}, {CANDIDATES} items, {way}",
                "p50_ms": round(middle, 2),
                "p95_ms": round(float(np.percentile(every, 95)), 2),
                "p99_ms": round(float(np.percentile(every, 99)), 2),
                "rows_per_s": round(CANDIDATES / middle * 1e3),
                "peer": "the same graph in-process, same run",
                "ratio": round(middle / alone, 3),
                "bound_ratio": LIMIT if way.startswith("served") else None,
            }
        )
    p50, p95, p99 = percentiles(opened.latencies_ms(), (50, 95, 99))
    name = f"{kind}, {CANDIDATES} items, open loop at {rate:.0f} requests/s"
    results.append({"work": "rank", "name": name, "p50_ms": p50, "p95_ms": p95, "p99_ms": p99,
                    "rows_per_s": round(opened.rate * CANDIDATES), "ratio": None, "bound_ratio": None})  # fmt: skip


def in_process(graph: Any, question: Question) -> list[float]:
    """Return the milliseconds of runs of the graph alone."""
    return timed(lambda: graph.run([SCORE], question.tensors), CALLS)


def program(model: Path, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
    """Return Triton's program of a model, here."""
    found = TritonPythonModel()
    said = json.dumps({"parameters": {"threads": {"string_value": str(threads)}}})
    found.initialize({"model_config": said, "model_repository": str(model), "model_version": FOLDER})
    return found.scores


def timed(call: Any, calls: int) -> list[float]:
    """Return the milliseconds of calls, after three that do not count."""
    spent = []
    for number in range(calls + 3):
        start = time.perf_counter()
        call()
        if number >= 3:
            spent.append((time.perf_counter() - start) * 1e3)
    return spent


async def open_loop(stack: Stack, question: Question, rate: float) -> Ledger:
    """Return the ledger of Poisson arrivals over gRPC."""
    async with connect(Endpoint(port=stack.port, model="demo", protocol="grpc")) as client:
        asks = endless([client.prepare(question.inputs)], "open")
        return await Load(client, asks, seconds=SMALL_SECONDS).open(rate)


PEER = """
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


@contextmanager
def fastapi(model: Path, threads: int) -> Iterator[Caller]:
    """Give a caller of the same graph behind FastAPI and uvicorn."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", PEER, str(model / FOLDER / "model.onnx"), str(threads), str(port)]
    with subprocess.Popen(command) as process:  # noqa: S603 - our own interpreter
        try:
            wait_for(port)
            with contextlib.closing(Caller(port, "/score")) as caller:
                yield caller
        finally:
            process.terminate()


def wait_for(port: int) -> None:
    """Return when somebody listens."""
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"nobody listens on {port}")


def batching(world: World, results: list[dict[str, Any]]) -> None:
    """Measure many small requests on Triton alone, with and without dynamic batching, alternating."""
    model = world.models["dlrm"]
    tensors = Question(world, model, SMALL_ROWS).tensors
    rates: dict[str, list[float]] = {"static": [], "dynamic": []}
    ledgers: dict[str, Ledger] = {}
    for _ in range(3):
        for way, reached in rates.items():
            repository = world.folder / f"repository-{way}"
            if not repository.exists():
                write_repository(model / FOLDER, 1, world.spec.serving.batching, repository, "python")
                if way == "static":
                    config = next(repository.glob("*/config.pbtxt"))
                    config.write_text(without_block(config.read_text(), "dynamic_batching"))
            with running_triton(repository) as triton:
                ledgers[way] = asyncio.run(closed(triton.ports.grpc, tensors))
            reached.append(ledgers[way].rate)
    base = statistics.median(rates["static"])
    for way, found in rates.items():
        p50, p95, p99 = percentiles(ledgers[way].latencies_ms(), (50, 95, 99))
        results.append(
            {
                "work": "batching",
                "name": f"dlrm, {SMALL_ROWS} rows, {SMALL_WORKERS} callers, {way} batching",
                "p50_ms": p50,
                "p95_ms": p95,
                "p99_ms": p99,
                "rows_per_s": round(statistics.median(found) * SMALL_ROWS),
                "peer": "requests/s without dynamic batching, same run",
                "ratio": round(statistics.median(found) / base, 3),
                "bound_ratio": None,
            }
        )


async def closed(port: int, tensors: dict[str, np.ndarray]) -> Ledger:
    """Return the ledger of callers who wait for their answers."""
    async with connect(Endpoint(port=port, model="demo", protocol="grpc", connections=4)) as client:
        asks = endless([client.prepare(tensors)], "batching")
        return await Load(client, asks, seconds=SMALL_SECONDS).closed(SMALL_WORKERS)


def without_block(config: str, name: str) -> str:
    r"""Return a text configuration without a top-level block.

    >>> without_block("a: 1\nb {\n  c: 2\n}\nd: 3\n", "b")
    'a: 1\nd: 3\n'
    """
    lines, kept, inside = config.splitlines(keepends=True), [], False
    for line in lines:
        inside = inside or line.startswith(f"{name} {{")
        if not inside:
            kept.append(line)
        if inside and line.startswith("}"):
            inside = False
    return "".join(kept)


def main() -> int:
    """Print the table and write the results; exit code 1 when a model's best way of ranking is over the limit."""
    console = Console()
    results: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="shortlist-bench-") as scratch:
        console.print("making a log and two models", style="dim")
        world = make_world(Path(scratch))
        for kind in world.models:
            rank_one(world, kind, results, console)
        batching(world, results)
    about = {
        "hardware": f"{platform.machine()}, {multiprocessing.cpu_count()} cores",
        "date": datetime.now(UTC).date().isoformat(),
    }
    table = Table(title=f"Serving ({about['hardware']})", title_justify="left")
    for heading in ("what", "p50 ms", "p95 ms", "p99 ms", "rows/s", "ratio"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for one in results:
        numbers = (f"{one[name]:.2f}" for name in ("p50_ms", "p95_ms", "p99_ms"))
        table.add_row(one["name"], *numbers, f"{one['rows_per_s']:,}", f"{one['ratio'] or 0:.2f}")
    console.print(table)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "serve.json").write_text(json.dumps([{**one, **about} for one in results], indent=2) + "\n")
    best: dict[str, float] = {}
    for one in results:
        if one["bound_ratio"]:
            kind = one["name"].partition(",")[0]
            best[kind] = min(best.get(kind, one["ratio"]), one["ratio"])
    return int(max(best.values()) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
