"""Live counts of open tiles equal those of training, also after kills and with several servers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
import pyarrow as pa
import pytest

from shortlist.contracts import Columns, Files
from shortlist.data.base_rows import as_of_answer
from shortlist.data.collected import ANSWERED
from shortlist.features.counts.tiles import microseconds
from shortlist.features.fits.fit import fit
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.features.rows.table import build_table
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.serving.export.graph import FeatureGraph
from shortlist.serving.export.graph_builder import save
from shortlist.serving.export.signature import FOLDER, MODEL_FILE, SCORE, Signature
from shortlist.serving.log.logs import outcome_schema, prediction_schema
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.server.inference import event_counts
from shortlist.serving.server.inference.service import InferenceRequest
from shortlist.serving.server.raw_scorer import RawScorer
from shortlist.serving.server.request_inputs.input_reader import Inputs
from shortlist.serving.server.requests.headers import RequestContext
from shortlist.serving.server.requests.tensors import Tensor
from shortlist.serving.server.runtime.settings import ServerSettings
from shortlist.serving.server.server import ServerComponents
from shortlist.serving.validation.served_rows import ReferenceRows, ServedRows
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import BACKEND
from shortlist.storage.tables import DayTableWriter
from tests.served_log import append_rows, logged_rows

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
NAMES = ["user_now", "user_clicked_now", "page_now", "page_clicked_now", "pair_rows", "pair_positives"]
DATA = Data.model_validate(
    {
        "source": {"kind": "files"},
        "columns": [
            {"name": "user_id", "type": "integer"},
            {"name": "page", "type": "string"},
            {"name": "price", "type": "number"},
            {"name": "seconds", "type": "number", "known": "after"},
            {"name": "clicked", "type": "integer"},
        ],
        "label": "clicked",
        "clock": {"kind": "column", "column": "time", "unit": "s"},
        "user": "user_id",
        "item": "page",
        "outcome_delay": "10m",
        "split": {"warmup_days": 0, "validation_days": 1, "test_days": 1},
    }
)
FEATURES = Features.model_validate(
    {
        "columns": [
            {"kind": "current", "key": key, "counts": counts, "name": name}
            for name, (key, counts) in zip(
                NAMES,
                [
                    (key, statistic)
                    for key in ("user_id", "page", ["user_id", "page"])
                    for statistic in ("rows", "positives")
                ],
                strict=True,
            )
        ],
        "tile": "1h",
        "streaming": {"delay": "1s"},
    }
)
LIVE = Features.model_validate(
    {
        "columns": [
            {"kind": "sequence", "of": "page", "key": "user_id", "last": 3, "live": True, "name": "seen",
             "with": ["seconds_ago", "price", "seconds"]},
            {"kind": "sequence", "of": "page", "key": "user_id", "last": 4, "live": True, "counts": "positives",
             "name": "taken"},
        ],
        "streaming": {"delay": "1s"},
    }
)  # fmt: skip
SCORED = Features.model_validate(
    {
        "columns": [
            {"kind": "sequence_score", "of": "page", "key": "user_id", "last": 3, "live": True, "counts": "rows",
             "name": "follows", "refit_days": 1, "epochs": 5, "embedding_dim": 8, "dropout": 0.0},
        ],
        "streaming": {"delay": "1s"},
    }
)  # fmt: skip
PRICES: dict[str | None, float | None] = {"home": 1.5, "Zürich": None, "other": 1e300, "x": 4.0, None: 0.5}
LoggedRequest = tuple[float, int | None, Sequence[str | None], Sequence[int]]
"""Seconds after START, user, page of each row, label of each row."""


class Scorer:
    """Scores rows with the exported graph, in this process."""

    def __init__(self, model: Path) -> None:
        self._session = onnxruntime.InferenceSession(
            str(model / FOLDER / MODEL_FILE), providers=["CPUExecutionProvider"]
        )

    async def scores(self, tensors: Any, rows: int, place: Any = None) -> Any:
        return self._session.run([SCORE], dict(tensors))[0].ravel()

    async def is_ready(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing."""


def written_log(folder: Path, rows: pl.DataFrame) -> Path:
    writer = DayTableWriter(folder, Files.LOG, 250_000)
    days = pl.col(Columns.TIME).dt.date().alias(Columns.DAY)
    numbers = pl.int_range(pl.len(), dtype=pl.Int64).alias(Columns.IMPRESSION)
    writer.append(rows.sort(Columns.TIME, maintain_order=True).with_columns(days, numbers))
    writer.close()
    return folder


def as_rows(requests: Sequence[LoggedRequest]) -> pl.DataFrame:
    rows = [
        (user, page, PRICES[page], 3.0 * label, START + timedelta(seconds=at), label)
        for at, user, pages, labels in requests
        for page, label in zip(pages, labels, strict=True)
    ]
    numbers = {"price": pl.Float64, "seconds": pl.Float64}
    dtypes = {Columns.TIME: pl.Datetime("us", "UTC"), Columns.LABEL: pl.Int8}
    schema = {"user_id": pl.Int64, "page": pl.String, **numbers, **dtypes}
    return pl.DataFrame(rows, schema=schema, orient="row")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: the score is the sum of all features, of weight 1, 10, 100 and so on."""
    folder = tmp_path_factory.mktemp("streamed")
    log = written_log(folder / "log", as_rows([(day * 86_400.0, 1, ["home"], [1]) for day in range(3)]))
    fit(DATA, FEATURES, None, Runtime(engine="cpu"), log, folder / "fitted")
    (folder / "model" / FOLDER).mkdir(parents=True)
    graph = FeatureGraph(Preprocessing.load(folder / "fitted"))
    weights = np.array([[10.0**number] for number in range(len(NAMES))], np.float32)
    total = graph.nodes.add("MatMul", graph.floats(NAMES), weights)
    whole, signature = graph.finished(total, SCORE, 1, "streamed", "sum")
    save(whole, folder / "model" / FOLDER / MODEL_FILE)
    signature.write(folder / "model" / FOLDER)
    (folder / "model" / Files.PREPROCESSING).symlink_to(folder / "fitted")
    return folder / "model"


@pytest.fixture(scope="module")
def session_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: the score is `session_score` of the live sequences."""
    folder = tmp_path_factory.mktemp("sessions")
    pages = ["home", "Zürich", "other"]
    log = written_log(folder / "log", as_rows([(day * 86_400.0, 1, pages, [1, 1, 1]) for day in range(3)]))
    fit(DATA, LIVE, None, Runtime(engine="cpu"), log, folder / "fitted")
    (folder / "model" / FOLDER).mkdir(parents=True)
    graph = FeatureGraph(Preprocessing.load(folder / "fitted"))
    add, parts = graph.nodes.add, []
    for name in ("seen", "taken"):
        ids, is_filled = graph.lists(name)
        length = add("Squeeze", add("Slice", add("Shape", ids), np.array([1]), np.array([2])))
        weights = add("Range", np.array(1), add("Add", length, np.array(1)), np.array(1))
        total = add("ReduceSum", add("Mul", add("Where", is_filled, ids, np.array([0])), weights), np.array([1]))
        parts.append(graph.nodes.cast(total, np.float32))
    weights = np.concatenate([AGO_WEIGHTS, 2 * AGO_WEIGHTS, 3 * AGO_WEIGHTS])[:, None]
    ago = add("MatMul", graph.floats(["seen_seconds_ago", "seen_price", "seen_seconds"]), weights)
    total = add("Add", ago, add("Add", parts[0], add("Mul", parts[1], np.float32([100.0]))))
    whole, signature = graph.finished(total, SCORE, 1, "streamed", "sum")
    save(whole, folder / "model" / FOLDER / MODEL_FILE)
    signature.write(folder / "model" / FOLDER)
    (folder / "model" / Files.PREPROCESSING).symlink_to(folder / "fitted")
    return folder / "model"


EARLIER_REQUESTS: list[LoggedRequest] = [
    (-86_400.0 * day + 60 * place, 100 + user, [page], [1])
    for day in (4, 3, 2, 1)
    for user in range(20)
    for place, page in enumerate(("home", "Zürich", "other", "x") * 2)
]
"""Sessions of other users, on the days before."""


@pytest.fixture(scope="module")
def score_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: the score is how well a page follows the live session."""
    folder = tmp_path_factory.mktemp("scored")
    log = written_log(folder / "log", as_rows(EARLIER_REQUESTS))
    fit(DATA, SCORED, None, Runtime(engine="cpu"), log, folder / "fitted")
    (folder / "model" / FOLDER).mkdir(parents=True)
    graph = FeatureGraph(Preprocessing.load(folder / "fitted"))
    whole, signature = graph.finished(graph.floats(["follows"]), SCORE, 1, "streamed", "score")
    save(whole, folder / "model" / FOLDER / MODEL_FILE)
    signature.write(folder / "model" / FOLDER)
    (folder / "model" / Files.PREPROCESSING).symlink_to(folder / "fitted")
    return folder / "model"


AGO_WEIGHTS = np.array([0.5, 0.25, 0.125], np.float32)


def session_score(rows: pl.DataFrame) -> np.ndarray:
    """Return the scores of `session_model`, which depend on every event, its position and its time."""
    placed = [[sum((place + 1) * list_id for place, list_id in enumerate(ids)) for ids in rows[name]]
              for name in ("seen", "taken")]  # fmt: skip
    beside: np.ndarray = sum(
        (place + 1) * rows[f"seen_{name}"].to_numpy() @ AGO_WEIGHTS
        for place, name in enumerate(("seconds_ago", "price", "seconds"))
    )  # type: ignore[assignment]
    return beside + np.array(placed[0]) + 100.0 * np.array(placed[1])


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_counts, "_OUTCOME_POLL_SECONDS", 0.0)


@dataclass
class Shop:
    """Servers of one spec in one folder."""

    folder: Path
    model: Path
    parts: list[ServerComponents] = field(default_factory=list)

    @property
    def settings(self) -> ServerSettings:
        return ServerSettings(
            model="streamed", version=1, model_folder=self.model, predictor="localhost:1", http_port=1, grpc_port=2,
            store=None, project="streamed", predictions=self.folder / "predictions",
        )  # fmt: skip

    def server(self) -> ServerComponents:
        self.parts.append(ServerComponents(self.settings, Scorer(self.model)))  # type: ignore[arg-type]
        self.parts[-1].counts.poll()  # type: ignore[union-attr]
        return self.parts[-1]

    async def ask(
        self, server: ServerComponents, request_row: LoggedRequest, request: str, sender: str | None = None
    ) -> list[float]:
        at, user, pages, labels = request_row
        tensors = [
            Tensor("page", "BYTES", (len(pages),), list(pages)),
            Tensor("price", "FP64", (len(pages),), np.array([PRICES[page] for page in pages], np.float64)),
            Tensor(Columns.TIME, "INT64", (1,), np.array([microseconds(START + timedelta(seconds=at))])),
        ]
        if user is not None:
            tensors.append(Tensor("user_id", "INT64", (1,), np.array([user])))
        origin = RequestContext(request_id=request, sender=sender)
        answer = await server.service.answer(InferenceRequest("streamed", "", tensors, origin))
        self.tell(request, labels, pages)
        for other_server in self.parts:
            other_server.counts.poll()  # type: ignore[union-attr]
        return np.asarray(answer.scores).tolist()

    def tell(self, request: str, labels: Sequence[int], pages: Sequence[str | None] = ()) -> None:
        """Write the positive outcomes of a request, as clients do: with the item alone where that is enough."""
        now = datetime.now(UTC)
        rows = [
            {"time": now, "request_id": request, "item": page, "row": row if page is None else None, "label": 1}
            for row, label in enumerate(labels) if label
            for page in [pages[row] if pages and pages.index(pages[row]) == row else None]
        ]  # fmt: skip
        if rows:
            append_rows(self.folder / "outcomes", outcome_schema(pa.string()), rows)

    async def close(self) -> None:
        for server in self.parts:
            await server.close()


@pytest.fixture
def shop(tmp_path: Path, model: Path) -> Shop:
    return Shop(tmp_path, model)


def traffic(seed: int, requests: int) -> list[LoggedRequest]:
    random = Random(seed)
    at, drawn_requests = 0.0, []
    for _ in range(requests):
        at += random.choice([0.3, 5.0, 120.0, 600.0])
        pages = random.choices(["home", "Zürich", None], k=random.randint(1, 3))
        labels = random.choices([0, 1], k=len(pages))
        drawn_requests.append((round(at, 3), random.choice([1, 2, None]), pages, labels))
    return drawn_requests


def test_a_server_scores_with_the_values_that_training_computes(shop: Shop, tmp_path: Path) -> None:
    requests = traffic(seed=4, requests=80)

    async def served() -> list[float]:
        servers = [shop.server(), shop.server()]  # each sees what the other one answers
        scores = []
        for number, request_row in enumerate(requests):
            scores += await shop.ask(servers[number % 2], request_row, str(number))
            if number == 40:  # one that starts later reads what there is
                servers[0] = shop.server()
        await shop.close()
        return scores

    scores = asyncio.run(served())
    log = written_log(tmp_path / "log", as_rows([*requests, *((day * 86_400.0, 9, ["x"], [0]) for day in (1, 2))]))
    assert min(max(scores), len(set(scores))) > 10
    assert_training_has(scores, log, tmp_path)


def test_training_counts_the_rows_of_a_hostile_sender_that_servers_counted(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows beyond the share of their sender are scored, and count neither on any server nor in training."""
    random = Random(3)
    requests: list[LoggedRequest] = []
    senders: list[str] = []
    for number in range(60):
        is_hostile = number % 3 == 2
        pages: list[str | None] = ["x"] * 20 if is_hostile else random.sample([*PRICES][:3], 2)
        requests.append((10.0 * number, 99 if is_hostile else number % 7, pages, [1] * len(pages)))
        senders.append("192.0.2.7" if is_hostile else BACKEND)

    async def served() -> tuple[list[float], str]:
        servers = [shop.server(), shop.server()]
        scores = []
        for number, (request_row, sender) in enumerate(zip(requests, senders, strict=True)):
            scores += await shop.ask(servers[number % 2], request_row, f"{number:02}", sender)
            if number == 30:
                servers[0] = shop.server()
        for server in servers:
            server.counts._checkpointed_at = 0.0  # type: ignore[union-attr]
            server.counts.poll()  # type: ignore[union-attr]
        text = servers[1].service.metrics.text()
        await shop.close()
        return scores, text.decode() if isinstance(text, bytes) else text

    scores, metrics = asyncio.run(served())
    logged = logged_rows(shop.folder / "predictions", prediction_schema(DATA)).sort("request_id")
    uncounted = [set(rows or ()) for rows in logged["uncounted_rows"].to_list()]
    assert sum(map(len, uncounted)) > 390 and not any(uncounted[0::3]) and not any(uncounted[1::3])
    assert "shortlist_events_beyond_share" in metrics
    assert "of them of sender '192.0.2.7', beyond their share" in caplog.text
    is_uncounted = [row in rows for (*_, pages, _), rows in zip(requests, uncounted, strict=True)
                    for row in range(len(pages))]  # fmt: skip
    later: list[LoggedRequest] = [(day * 86_400.0, 9, ["home"], [0]) for day in (1, 2)]
    rows = as_rows([*requests, *later]).with_columns(pl.Series(Columns.UNCOUNTED, [*is_uncounted, None, None]))
    assert_training_has(scores, written_log(tmp_path / "log", rows), tmp_path)
    with pytest.raises(AssertionError):
        assert_training_has(scores, written_log(tmp_path / "all", rows.drop(Columns.UNCOUNTED)), tmp_path / "without")


def assert_training_has(scores: Sequence[float], log: Path, folder: Path) -> None:
    """Check that the scores are those of the features that training computes for a log."""
    sections = DATA, FEATURES, None, Runtime(engine="cpu"), log, folder / "fitted"
    fit(*sections)
    rows = build_table(*sections, folder / "table").scan().sort(Columns.IMPRESSION).collect().head(len(scores))
    expected = sum((rows[name] * 10.0**number for number, name in enumerate(NAMES)), pl.zeros(rows.height, eager=True))
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_a_live_sequence_equals_the_one_in_training(tmp_path: Path, session_model: Path) -> None:
    requests, shop = traffic(seed=8, requests=60), Shop(tmp_path / "shop", session_model)

    async def served() -> list[float]:
        servers = [shop.server(), shop.server()]
        scores = []
        for number, request_row in enumerate(requests):
            scores += await shop.ask(servers[number % 2], request_row, str(number))
            if number == 30:
                servers[0] = shop.server()
        await shop.close()
        return scores

    scores = asyncio.run(served())
    log = written_log(tmp_path / "log", as_rows([*requests, *((day * 86_400.0, 9, ["x"], [0]) for day in (1, 2))]))
    sections = DATA, LIVE, None, Runtime(engine="cpu"), log, tmp_path / "fitted"
    fit(*sections)
    built = build_table(*sections, tmp_path / "table", preprocessing=session_model.parent / "fitted")
    rows = built.scan().sort(Columns.IMPRESSION).collect().head(len(scores))
    assert rows["seen"].list.len().max() == 3 and rows["taken"].list.len().max() == 4
    np.testing.assert_allclose(scores, session_score(rows), rtol=1e-5)


def test_a_session_score_equals_the_one_in_training(tmp_path: Path, score_model: Path) -> None:
    requests, shop = traffic(seed=8, requests=60), Shop(tmp_path / "shop", score_model)

    async def served() -> list[float]:
        server = shop.server()
        scores = [await shop.ask(server, request_row, str(number)) for number, request_row in enumerate(requests)]
        await shop.close()
        return [score for request in scores for score in request]

    scores = asyncio.run(served())
    log = written_log(tmp_path / "log", as_rows([*EARLIER_REQUESTS, *requests, (86_400.0, 9, ["x"], [0])]))
    sections = DATA, SCORED, None, Runtime(engine="cpu"), log, tmp_path / "fitted"
    fit(*sections)
    built = build_table(*sections, tmp_path / "table", preprocessing=score_model.parent / "fitted")
    rows = built.scan({START.date()}).sort(Columns.IMPRESSION).collect()
    np.testing.assert_allclose(scores, rows["follows"], rtol=0, atol=1e-5)
    assert (rows["follows"] != 0).mean() > 0.5 and rows["follows"].n_unique() > 15


def test_validation_of_an_export_joins_live_events_with_those_of_earlier_days(
    tmp_path: Path, session_model: Path
) -> None:
    later_requests = [(at + 86_400.0, *columns) for at, *columns in traffic(seed=9, requests=40)]
    requests: list[Any] = [*traffic(seed=5, requests=20), *later_requests, (2 * 86_400.0, 9, ["home"], [0])]
    log = written_log(tmp_path / "log", as_rows(requests))
    sections = DATA, LIVE, None, Runtime(engine="cpu"), log, tmp_path / "fitted"
    fit(*sections)
    built = build_table(*sections, tmp_path / "table", preprocessing=session_model.parent / "fitted")
    rows = built.scan().sort(Columns.IMPRESSION).collect()
    reference = rows.select(Columns.IMPRESSION, Columns.DAY).with_columns(
        rows[Columns.LABEL].cast(pl.Float64).alias("label_scored"),
        pl.Series("score", session_score(rows), dtype=pl.Float32),
    )
    served = ServedRows(session_model, log, tmp_path / "fitted", ReferenceRows(reference, rows.height))
    session = onnxruntime.InferenceSession(str(session_model / FOLDER / MODEL_FILE), providers=["CPUExecutionProvider"])
    for batch in served.batches():
        np.testing.assert_allclose(session.run([SCORE], batch.tensors)[0].ravel(), batch.reference, rtol=1e-5)
    assert served.differing_inputs(int(rows[Columns.IMPRESSION][-5])) == ()
    assert served.edge_case_difference() is None


def test_a_further_session_event_changes_the_next_scores(tmp_path: Path, session_model: Path) -> None:
    shop = Shop(tmp_path, session_model)

    async def served() -> list[float]:
        server, scores = shop.server(), []
        for number, (at, page) in enumerate([(0, "home"), (10, "Zürich"), (20, "home"), (20.5, "home")]):
            scores += await shop.ask(server, (at, 1, [page], [0]), str(number))
        scores += await shop.ask(server, (20.5, 2, ["home"], [0]), "another user")
        scores += await shop.ask(server, (20.5, None, ["home"], [0]), "nobody")
        await shop.close()
        return scores

    first, second, third, too_soon, *other_scores = asyncio.run(served())
    assert (first, *other_scores) == (0.0, 0.0, 0.0)
    assert len({first, second, third}) == 3
    # The third event is younger than features.streaming.delay: the list is as before, half a second later.
    ago = np.log1p([[10, 20, 0], [10.5, 20.5, 0]]) @ AGO_WEIGHTS
    assert too_soon - third == pytest.approx(ago[1] - ago[0], rel=1e-3)


def test_sessions_beyond_the_declared_memory_are_reported(tmp_path: Path, session_model: Path) -> None:
    shop = Shop(tmp_path, session_model)

    async def served() -> tuple[str, list[float]]:
        server = shop.server()
        server.counts._tiles.sessions._max_bytes = 500  # type: ignore[union-attr]
        for number, user in enumerate([1, 2, 3]):
            await shop.ask(server, (10 * number, user, ["home"], [0]), f"first {number}")
        scores = [value for user in (1, 3) for value in await shop.ask(server, (99, user, ["home"], [0]), f"{user}")]
        text = server.service.metrics.text()
        await shop.close()
        return text.decode() if isinstance(text, bytes) else text, scores

    text, scores = asyncio.run(served())
    assert scores[0] == 0.0 and scores[1] > 0.0
    assert "shortlist_sessions_dropped 2.0" in text


def test_the_prediction_log_contains_the_delay_of_the_counts(shop: Shop) -> None:
    async def served() -> None:
        server = shop.server()
        await shop.ask(server, (0, 1, ["home"], [0]), "a")
        server.counts.counted_at -= 3.0  # type: ignore[union-attr, operator]
        await shop.ask(server, (1, 1, ["home"], [0]), "b")
        await shop.close()

    asyncio.run(served())
    delays = logged_rows(shop.folder / "predictions", prediction_schema(DATA))["counts_delay_ms"].to_list()
    assert 0 <= delays[0] < 2_000
    assert 3_000 <= delays[1] < 5_000


def test_on_a_full_disk_requests_are_answered_and_reported_as_uncounted(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    async def served() -> tuple[list[float], dict[str, str]]:
        server = shop.server()
        with monkeypatch.context() as disk:
            disk.setattr(os, "fdatasync", full)
            scores = await shop.ask(server, (0, 1, ["home"], [0]), "a")
        problems = server.service.problems()
        await shop.ask(server, (1, 1, ["home"], [0]), "b")
        assert "events" not in server.service.problems()
        await shop.close()
        return scores, problems

    scores, problems = asyncio.run(served())
    assert scores == [0.0]
    assert problems["events"] == "OSError: [Errno 28] No space left on device"


def test_a_bad_record_of_the_outcome_log_is_reported_and_the_others_count(shop: Shop) -> None:
    async def served() -> tuple[str | None, list[float]]:
        server = shop.server()
        await shop.ask(server, (0, 1, ["home"], [1]), "a")
        stream = ServingLog.on_disk(shop.folder / "outcomes", outcome_schema(pa.int64())).open_stream()
        stream.append([b"no rows"]).result()
        stream.close()
        server.counts.poll()  # type: ignore[union-attr]
        problem = server.counts.problem  # type: ignore[union-attr]
        scores = await shop.ask(server, (700, 1, ["other"], [0]), "b")
        await shop.close()
        return problem, scores

    problem, scores = asyncio.run(served())
    assert problem is not None
    assert "no Arrow stream" in problem
    assert scores == [pytest.approx(11 * np.log(2))]


def test_a_request_with_a_future_time_does_not_close_tiles(shop: Shop) -> None:
    async def served() -> list[float]:
        server = shop.server()
        now = (datetime.now(UTC) - START).total_seconds()
        now += max(0.0, 2 - now % 3_600)  # not across an hour's end
        await shop.ask(server, (now - 1.5, 1, ["home"], [0]), "a")
        await shop.ask(server, (now + 365 * 86_400, 1, ["home"], [0]), "b")
        scores = await shop.ask(server, (now, 1, ["other"], [0]), "c")
        await shop.close()
        return scores

    # The time of the request from next year counts as the time of its receipt for the others.
    assert asyncio.run(served()) == [pytest.approx(np.log(2))]


def seconds_now() -> float:
    return (datetime.now(UTC) - START).total_seconds()


def test_a_request_dated_ahead_within_the_clock_skew_leaves_the_counts_of_others_as_they_are(shop: Shop) -> None:
    async def served() -> list[float]:
        server = shop.server()
        await shop.ask(server, (seconds_now() + 299, 9, ["x"], [0]), "ahead")  # live.max_clock_skew is 5 minutes
        await shop.ask(server, (seconds_now() - 1.5, 1, ["home"], [0]), "a")
        scores = await shop.ask(server, (seconds_now(), 1, ["other"], [0]), "b")
        await shop.close()
        return scores

    assert asyncio.run(served()) == [pytest.approx(np.log(2))]


def test_a_request_with_a_guessed_id_leaves_that_of_another_sender_counted(shop: Shop) -> None:
    async def served() -> list[float]:
        server = shop.server()
        await shop.ask(server, (seconds_now() - 1.6, 9, ["x"], [0]), "a", "192.0.2.7")
        await shop.ask(server, (seconds_now() - 1.5, 1, ["home"], [0]), "a", "10.0.0.1")
        scores = await shop.ask(server, (seconds_now(), 1, ["other"], [0]), "b")
        await shop.close()
        return scores

    assert asyncio.run(served()) == [pytest.approx(np.log(2))]


def test_the_counts_never_move_past_the_servers_clock(shop: Shop) -> None:
    async def served() -> list[float]:
        server = shop.server()
        ahead = microseconds(datetime.now(UTC) + timedelta(seconds=299))
        tensors = [Tensor("page", "BYTES", (1,), ["x"]), Tensor(Columns.TIME, "INT64", (1,), np.array([ahead]))]
        server.counts.columns(server.service.inputs.read(tensors, ahead))  # type: ignore[union-attr]
        await shop.ask(server, (seconds_now() - 1.5, 1, ["home"], [0]), "a")
        scores = await shop.ask(server, (seconds_now(), 1, ["other"], [0]), "b")
        await shop.close()
        return scores

    assert asyncio.run(served()) == [pytest.approx(np.log(2))]


def test_features_of_a_request_dated_ahead_are_as_of_its_receipt(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    scored_inputs: list[Inputs] = []

    async def served() -> None:
        server = shop.server()
        score = server.service.score

        def recorded_score(inputs: Inputs, *arguments: Any) -> Any:
            scored_inputs.append(inputs)
            return score(inputs, *arguments)

        monkeypatch.setattr(server.service, "score", recorded_score)
        await shop.ask(server, (seconds_now() + 299, 1, ["home"], [0]), "ahead")
        await shop.close()

    asyncio.run(served())
    (received,) = logged_rows(shop.folder / "predictions", prediction_schema(DATA))["time"]
    assert [list(inputs.columns[Columns.TIME]) for inputs in scored_inputs] == [[microseconds(received)]]


def test_rows_dated_ahead_are_scored_with_the_values_that_training_computes(shop: Shop, tmp_path: Path) -> None:
    """A row counts, and sees the counts, as of the receipt of its request; one beyond the clock skew never counts."""

    async def served() -> list[float]:
        server, scores = shop.server(), []
        for name, ahead in [("a", 0.0), ("b", 299.0), ("beyond", 301.0)]:
            scores += await shop.ask(server, (seconds_now() + ahead, 1, ["home"], [0]), name)
        await asyncio.sleep(1.1)  # features.streaming.delay is a second
        for name, ahead in [("c", 299.0), ("d", 0.0)]:
            scores += await shop.ask(server, (seconds_now() + ahead, 1, ["home"], [0]), name)
        await shop.close()
        return scores

    scores = asyncio.run(served())
    logged = logged_rows(shop.folder / "predictions", prediction_schema(DATA))
    sent = pl.DataFrame(
        {
            "name": logged["request_id"], Columns.TIME: logged[Columns.TIME].list.first(), ANSWERED: logged["time"],
            Columns.DAY: logged["time"].dt.date(), Columns.IMPRESSION: range(logged.height),
        }
    )  # fmt: skip
    collected = as_of_answer(sent, DATA).filter(pl.col("name") != "beyond")
    assert collected["name"].to_list() == ["a", "b", "c", "d"]
    seconds = [(time - START).total_seconds() for time in collected[Columns.TIME]]
    later: list[LoggedRequest] = [(seconds[0] + day * 86_400.0, 9, ["x"], [0]) for day in (1, 2)]
    requests: list[LoggedRequest] = [(at, 1, ["home"], [0]) for at in seconds]
    log = written_log(tmp_path / "log", as_rows([*requests, *later]))
    sections = DATA, FEATURES, None, Runtime(engine="cpu"), log, tmp_path / "fitted"
    fit(*sections)
    rows = build_table(*sections, tmp_path / "table").scan().sort(Columns.IMPRESSION).collect().head(4)
    expected = sum((rows[name] * 10.0**number for number, name in enumerate(NAMES)), pl.zeros(rows.height, eager=True))
    np.testing.assert_allclose([*scores[:2], *scores[3:]], expected, rtol=1e-5)
    # The features user_now, page_now and pair_rows, of weights 1, 100 and 10 000, count the two earlier rows.
    assert scores[3] == scores[4] == pytest.approx(10_101 * np.log(3))


def test_a_model_without_live_counts_logs_its_rows_for_other_models(shop: Shop, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    (plain / FOLDER).mkdir(parents=True)
    Signature(model="streamed", kind="plain", codes=("user_id",)).write(plain / FOLDER)
    (plain / Files.PREPROCESSING).symlink_to(shop.model.parent / "fitted")

    class Constant(Scorer):
        """Look up no users."""

        async def scores(self, tensors: Any, rows: int, place: Any = None) -> Any:
            assert set(tensors) == {"codes"}
            return np.zeros(rows, np.float32)

    async def served() -> list[float]:
        reads = shop.server()
        settings = shop.settings.model_copy(update={"model_folder": plain})
        keeps = ServerComponents(settings, Constant(shop.model))  # type: ignore[arg-type]
        await shop.ask(keeps, (0, 1, ["home"], [0]), "a")
        scores = await shop.ask(reads, (2, 1, ["other"], [0]), "b")
        await keeps.close()
        await shop.close()
        return scores

    assert asyncio.run(served()) == [pytest.approx(np.log(2))]


def test_a_server_is_not_ready_before_it_has_counted_the_log(shop: Shop) -> None:
    async def served() -> list[bool]:
        server = ServerComponents(shop.settings, Scorer(shop.model))  # type: ignore[arg-type]
        ready_before = await server.service.is_ready()
        server.counts.poll()  # type: ignore[union-attr]
        ready_after = await server.service.is_ready()
        await server.close()
        return [ready_before, ready_after]

    assert asyncio.run(served()) == [False, True]


def test_rows_scored_without_a_server_see_empty_tiles(model: Path, tmp_path: Path) -> None:
    scorer = RawScorer(model, ViewIndex.read(model.parent / "fitted" / "views"))
    frame = pl.DataFrame({"user_id": [1], "page": ["home"]}).to_pandas()
    assert scorer.predict(frame).tolist() == [0.0]


def test_validation_of_an_export_sees_the_counts_that_training_saw(model: Path, tmp_path: Path) -> None:
    requests = traffic(seed=5, requests=60)
    log = written_log(tmp_path / "log", as_rows([*requests, *((day * 86_400.0, 9, ["x"], [0]) for day in (1, 2))]))
    sections = DATA, FEATURES, None, Runtime(engine="cpu"), log, tmp_path / "fitted"
    fit(*sections)
    rows = build_table(*sections, tmp_path / "table").scan().sort(Columns.IMPRESSION).collect()
    total = sum((rows[name] * 10.0**number for number, name in enumerate(NAMES)), pl.zeros(rows.height, eager=True))
    reference = rows.select(Columns.IMPRESSION, Columns.DAY).with_columns(
        rows[Columns.LABEL].cast(pl.Float64).alias("label_scored"), total.cast(pl.Float32).alias("score")
    )
    served = ServedRows(model, log, tmp_path / "fitted", ReferenceRows(reference, rows.height))
    session = onnxruntime.InferenceSession(str(model / FOLDER / MODEL_FILE), providers=["CPUExecutionProvider"])
    compared_rows = 0
    for batch in served.batches():
        np.testing.assert_allclose(session.run([SCORE], batch.tensors)[0].ravel(), batch.reference, rtol=1e-5)
        compared_rows += batch.reference.size
    assert compared_rows == rows.height
    assert served.differing_inputs(int(rows[Columns.IMPRESSION][-3])) == ()
    assert served.edge_case_difference() is None
