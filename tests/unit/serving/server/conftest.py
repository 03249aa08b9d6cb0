"""A small fitted log with every type of column, and a model folder with a hand-made graph."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import Columns, Files
from shortlist.features.declared.plan import Plan
from shortlist.features.feast.store import apply
from shortlist.features.fits.fit import fit
from shortlist.features.fits.publish import announce_views
from shortlist.features.online_stores.sqlite import SQLiteOnline
from shortlist.features.rows.transform import Transformer
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.serving.export.repository import write_repository
from shortlist.serving.export.signature import (
    FOLDER,
    MODEL_FILE,
    SECOND_OF_DAY,
    WEEKDAY,
    ListInput,
    Signature,
    VectorInput,
)
from shortlist.serving.log.logs import prediction_schema
from shortlist.serving.triton.triton import running_triton
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Batching
from shortlist.storage import artefacts
from shortlist.storage.tables import DayTable, DayTableWriter
from tests.served_log import logged_rows

ZONE = "America/New_York"
DAYS = [date(2026, 3, 6) + timedelta(days=number) for number in range(4)]  # a change to summer time among them
ROWS = 200
MODEL = "shop"

DECLARED: dict[str, Any] = {
    "source": {"kind": "files"},
    "columns": [
        {"name": "user_id", "type": "integer"},
        {"name": "item_id", "type": "string"},
        {"name": "page", "type": "string"},
        {"name": "position", "type": "integer"},
        {"name": "code", "type": "hex"},
        {"name": "price", "type": "number"},
        {"name": "words", "type": "tags"},
        {"name": "places", "type": "tags", "tag_type": "integer"},
        {"name": "made", "type": "date"},
        {"name": "query", "type": "vector"},
        {"name": "seconds", "type": "number", "known": "after"},
        {"name": "clicked", "type": "integer"},
    ],
    "label": "clicked",
    "clock": {"kind": "column", "column": "time", "unit": "s", "timezone": ZONE},
    "user": "user_id",
    "item": "item_id",
    "side_tables": [
        {
            "name": "users",
            "path": "users.csv",
            "key": "user_id",
            "columns": [
                {"name": "user_id", "type": "integer"},
                {"name": "watched", "type": "tags"},
                {"name": "city", "type": "string"},
                {"name": "likes", "type": "tags"},
            ],
        },
        {
            "name": "items",
            "path": "items.csv",
            "key": "item_id",
            "columns": [
                {"name": "item_id", "type": "string"},
                {"name": "maker", "type": "integer"},
                {"name": "weight", "type": "number"},
                {"name": "topics", "type": "tags"},
                {"name": "released", "type": "date"},
                {"name": "picture", "type": "vector"},
            ],
        },
    ],
    "split": {"warmup_days": 1, "validation_days": 1, "test_days": 1},
}
FEATURES: list[dict[str, Any]] = [
    {"kind": "numeric", "each": ["price", "position", "weight", "code"]},
    {"kind": "age", "each": ["made", "released"]},
    {"kind": "cyclic", "period": "week", "name": "weekday"},
    {"kind": "target", "key": "user_id", "name": "user_rate"},
    {"kind": "target", "key": "topics", "name": "topics_rate", "window_days": 2},
    {"kind": "target", "key": "maker", "name": "maker_rate"},
    {"kind": "target", "key": ["user_id", "words"], "of": "seconds", "name": "user_words_seconds"},
    {"kind": "target", "key": ["city", "topics"], "name": "city_topics_rate"},
    {"kind": "target", "key": ["words", "topics"], "name": "words_topics_rate"},
    {"kind": "target", "key": ["page", "position"], "prior_key": "page", "name": "page_position_rate"},
    {"kind": "count", "key": "item_id", "name": "item_seen"},
    {"kind": "count", "key": ["user_id", "topics"], "of": "watched", "name": "user_topics_watched"},
    {"kind": "time_since", "key": "user_id", "name": "user_away"},
    {"kind": "time_since", "key": ["user_id", "topics"], "name": "user_topics_away"},
    {"kind": "lag", "key": ["topics"], "column": "seconds", "name": "topics_last_seconds"},
    {"kind": "lag", "key": "user_id", "column": "seconds", "name": "last_seconds"},
    {"kind": "vocabulary", "each": ["page", "position", "user_id", "code", "city", "maker"]},
    {"kind": "vocabulary", "each": ["words", "places", "topics", "likes"], "max_values": 2},
    {"kind": "vector", "each": ["query", "picture"]},
    {"kind": "similarity", "list": "watched", "vector": "picture", "name": "fit"},
]
ITEMS = [f"item {number}" for number in range(9)]


@dataclass(frozen=True)
class Shop:
    """A fitted, published and exported shop."""

    folder: Path
    plan: Plan
    signature: Signature
    """Of a model that reads everything there is."""

    @property
    def views(self) -> ViewIndex:
        return ViewIndex.read(self.folder / "fitted" / "views")

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def until(self) -> datetime:
        return self.views.start_of(DAYS[-1] + timedelta(days=1))

    def rows(self, day: date) -> pl.DataFrame:
        log = DayTable.open(self.folder / "log", Files.LOG)
        return pl.concat([frame for part, frame in log.frames() if part == day])

    def looked_up(self, rows: pl.DataFrame, day: date) -> pl.DataFrame:
        return Transformer.load(self.folder / "fitted", "cpu").look_up(rows, day)


def _draw_values(random: np.random.Generator, values: list[Any], dtype: Any, rows: int = ROWS) -> pl.Series:
    return pl.Series([values[number] for number in random.integers(0, len(values), rows)], dtype=dtype)


def _day(random: np.random.Generator, day: date, number: int) -> pl.DataFrame:
    midnight = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(ZONE)).astimezone(UTC)
    texts = [["a", "b", "b"], ["c"], [], None, ["b", "never seen", "a"]]
    return pl.DataFrame(
        {
            "user_id": _draw_values(random, [1, 2, 3, 2**40, -5, None], pl.Int64),
            "item_id": _draw_values(random, [*ITEMS, "in no table", None], pl.String),
            "page": _draw_values(random, ["home", "Zürich, 漢字", "x" * 200, None], pl.String),
            "position": _draw_values(random, [1, 2, -3, 2**62, None], pl.Int64),
            "code": _draw_values(random, [255, -1, None], pl.Int64),
            "price": _draw_values(random, [1.5, -2.0, 0.0, 1e12, None], pl.Float64),
            "words": _draw_values(random, texts, pl.List(pl.String)),
            "places": _draw_values(random, [[1, 2, 3], [-1], [], None], pl.List(pl.Int64)),
            "made": _draw_values(random, [day, DAYS[0], date(1969, 7, 20), None], pl.Date),
            "query": _draw_values(random, [[1.0, 2.0], [0.0, -1.0], None], pl.List(pl.Float32)),
            "seconds": _draw_values(random, [1.25, 8.0, None], pl.Float64),
            Columns.LABEL: pl.Series(random.integers(0, 2, ROWS), dtype=pl.Int8),
            Columns.TIME: pl.Series(
                sorted(midnight + timedelta(seconds=seconds) for seconds in (0, *random.uniform(0, 79_000, ROWS - 1))),
                dtype=pl.Datetime("us", "UTC"),
            ),
            Columns.DAY: pl.Series([day] * ROWS),
            Columns.IMPRESSION: pl.Series(range(number * ROWS, (number + 1) * ROWS), dtype=pl.Int64),
        }
    )


def _write_log(folder: Path) -> None:
    random = np.random.default_rng(3)
    (folder / "side").mkdir(parents=True)
    writer = DayTableWriter(folder, Files.LOG, 250_000)
    for number, day in enumerate(DAYS):
        writer.append(_day(random, day, number))
    writer.close()
    pl.DataFrame(
        {
            "user_id": [1, 2, 2**40, 77],
            "watched": [["item 1", "item 2", "item 1"], [], ["item 3"], None],
            "city": ["Oslo", None, "Rome", "Rome"],
            "likes": [["a"], ["b", "a"], None, []],
        },
        schema_overrides={"watched": pl.List(pl.String), "likes": pl.List(pl.String)},
    ).write_parquet(folder / "side" / "users.parquet")
    pl.DataFrame(
        {
            "item_id": [*ITEMS[:7], "never shown"],
            "maker": [7, 7, 8, None, 9, 9, 9, 7],
            "weight": [1.0, None, -2.5, 0.0, 1.0, 2.0, 3.0, 4.0],
            "topics": [["a", "b"], ["b", "b", "c"], [], None, ["c"], ["a"], ["d", "a", "c"], ["a"]],
            "released": [DAYS[0], None, *[date(2025, 1, 2)] * 6],
            "picture": [[1.0, 0.0], [0.5, 0.5], None, [0.0, 2.0], *[[3.0, 4.0]] * 4],
        }
    ).write_parquet(folder / "side" / "items.parquet")


def _signature(plan: Plan) -> Signature:
    """Use all features that a model can read."""
    views = {view.name: [f"{view.name}:{name}" for name in view.features] for view in plan.views}
    keyed = [place for name, places in views.items() if name.startswith(("by_", "all_")) for place in places]
    return Signature(
        model=MODEL,
        kind="tiny",
        numbers=(
            "price", "position", "code", "made", "event_time", "day", SECOND_OF_DAY, WEEKDAY,
            "items:weight", "items:released", "items:maker", *keyed,
        ),
        codes=("page", "position", "user_id", "code", "users:city", "items:maker"),
        lists=(
            ListInput(tensor="list_0", place="words", longest=2),
            ListInput(tensor="list_1", place="places", longest=None),
            ListInput(tensor="list_2", place="items:topics", longest=2),
            ListInput(tensor="list_3", place="users:likes", longest=1),
        ),
        vectors=(
            VectorInput(tensor="vector_0", place="query", width=2),
            VectorInput(tensor="vector_1", place="items:picture", width=2),
            VectorInput(tensor="vector_2", place="mean_picture_of_watched:mean_picture", width=2),
        ),
    )  # fmt: skip


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """The shop with a filled Feast store; read only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artefacts, "_sync", lambda path: None)
        folder = tmp_path_factory.mktemp("shop")
        _write_log(folder / "log")
        data, features = Data.model_validate(DECLARED), Features.model_validate({"columns": FEATURES})
        fit(data, features, None, Runtime(engine="cpu"), folder / "log", folder / "fitted")
        plan = Transformer.load(folder / "fitted", "cpu").plan
        return Shop(folder, plan, _signature(plan))


@pytest.fixture(scope="session")
def published(shop: Shop) -> Shop:
    """The shop with a filled Feast store; read only."""
    views = shop.folder / "fitted" / "views"
    apply(views, shop.store, MODEL, SQLiteOnline(), "user_id").materialize(shop.until)
    announce_views(views, shop.store, shop.until, shop.folder / "log")
    return shop


@pytest.fixture
def copied(published: Shop, tmp_path: Path) -> Shop:
    """A copy of the shop, for tests that break it."""
    for name in ("store", "fitted"):
        shutil.copytree(published.folder / name, tmp_path / name)
    announce_views(tmp_path / "fitted" / "views", tmp_path / "store", published.until, published.folder / "log")
    return Shop(tmp_path, published.plan, published.signature)


def write_model(folder: Path, shop: Shop) -> Signature:
    """Write a model folder: the score is the item's weight plus 1000 times the user's impressions.

    What is not known of them counts as 0; a null position makes the score NaN.
    """
    from onnx import TensorProto, helper, save

    signature = Signature(model=MODEL, kind="tiny", numbers=("items:weight", "by_user_id:rows", "position"))
    serving = folder / FOLDER
    serving.mkdir(parents=True)
    numbers = helper.make_tensor_value_info("numbers", TensorProto.DOUBLE, [None, 3])
    score = helper.make_tensor_value_info("score", TensorProto.FLOAT, [None, 1])
    constants = [
        helper.make_tensor("weights", TensorProto.DOUBLE, [2, 1], [1.0, 1000.0]),
        helper.make_tensor("nothing", TensorProto.DOUBLE, [], [0.0]),
        helper.make_tensor("parts", TensorProto.INT64, [2], [2, 1]),
    ]
    nodes = [
        helper.make_node("Split", ["numbers", "parts"], ["known", "position"], axis=1),
        helper.make_node("IsNaN", ["known"], ["missing"]),
        helper.make_node("Where", ["missing", "nothing", "known"], ["filled"]),
        helper.make_node("MatMul", ["filled", "weights"], ["sum"]),
        helper.make_node("Mul", ["position", "nothing"], ["zero"]),
        helper.make_node("Add", ["sum", "zero"], ["total"]),
        helper.make_node("Cast", ["total"], ["score"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(nodes, "tiny", [numbers], [score], constants)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), serving / MODEL_FILE)
    signature.write(serving)
    (folder / "preprocessing").mkdir()
    shutil.copyfile(shop.folder / "fitted" / Files.FEATURES, folder / "preprocessing" / Files.FEATURES)
    shutil.copytree(shop.folder / "fitted" / "vocabularies", folder / "preprocessing" / "vocabularies")
    return signature


@dataclass
class Server:
    """A server process with its clients."""

    process: subprocess.Popen[bytes]
    http: int
    grpc: int
    predictions: Path
    log: Path

    def get(self, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of a response."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}{path}", data, named)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own server
                return answer.status, {key.lower(): value for key, value in answer.headers.items()}, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {key.lower(): value for key, value in error.headers.items()}, error.read()

    def infer(self, *inputs: dict[str, Any], model: str = MODEL, **headers: str) -> tuple[int, dict[str, Any]]:
        """Return status and JSON of a response."""
        status, _, body = self.get(f"/v2/models/{model}/infer", {"inputs": list(inputs)}, **headers)
        return status, json.loads(body)

    def until(self, holds: Callable[[], bool], seconds: float = 90) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def until_ready(self) -> None:
        """Wait until the server is ready."""

        def is_ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            try:
                return self.get("/v2/health/ready")[0] == 200
            except OSError:
                return False

        self.until(is_ready)

    def metric(self, name: str) -> float:
        """Return a number from its metrics."""
        text = self.get("/metrics")[2].decode()
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    def logged(self) -> pl.DataFrame:
        """Return its prediction log."""
        return logged_rows(self.predictions, prediction_schema(Data.model_validate(DECLARED)))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)


def free_ports(count: int) -> list[int]:
    """Return free ports."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [listening_socket.getsockname()[1] for listening_socket in sockets]
    finally:
        for listening_socket in sockets:
            listening_socket.close()


Start = Callable[..., Server]


@pytest.fixture(scope="module")
def start(published: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start servers; all of them are stopped at the end."""
    model = tmp_path_factory.mktemp("model") / "model"
    write_model(model, published)
    running: list[Server] = []

    def make(predictor: str, store: Path | None = published.store, **serving: Any) -> Server:
        folder = tmp_path_factory.mktemp("server")
        http, grpc = (
            serving.pop(f"{name}_port", free) for name, free in zip(("http", "grpc"), free_ports(2), strict=True)
        )
        settings = {
            "model": MODEL, "version": 3, "model_folder": str(model), "predictor": predictor, "http_port": http,
            "grpc_port": grpc, "store": str(store) if store else None, "project": MODEL,
            "predictions": str(folder / "predictions"), "spare_predictors": serving.pop("spare_predictors", []),
            "release": str(release) if (release := serving.pop("release", None)) else None,
            "serving": {"refresh_seconds": 0.2, "log": {"flush_seconds": 0.1}, "hold_seconds": 10, **serving},
        }  # fmt: skip
        (folder / "settings.json").write_text(json.dumps(settings))
        with (folder / "log.txt").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "shortlist.serving.server.server", str(folder / "settings.json")],
                stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
            )  # fmt: skip
        server = Server(process, http, grpc, folder / "predictions", folder / "log.txt")
        running.append(server)
        return server

    make.model = model  # type: ignore[attr-defined]
    yield make
    for server in running:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()


@pytest.fixture(scope="module")
def repository(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository") / "repository"
    write_repository(start.model / FOLDER, 3, Batching(threads=1), folder)
    return folder


@pytest.fixture(scope="module")
def triton(repository: Path) -> Iterator[Any]:
    with running_triton(repository) as running:
        yield running


@pytest.fixture(scope="module")
def impressions(published: Any) -> dict[int, int]:
    """Number of impressions per user."""
    rows = published.views.snapshot("by_user_id", published.until)
    return dict(rows.select("user_id", Columns.ROWS).iter_rows())
