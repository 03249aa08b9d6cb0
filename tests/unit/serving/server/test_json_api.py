"""Plain JSON by a complete server: rankings, slates, messages, and the OpenAPI description that holds for both."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema.validators import Draft202012Validator
from recommending_shop import BEST, Shop
from schemathesis import GenerationMode

from shortlist.client import Event, RefusedRequestError, ShortlistClient
from shortlist.contracts import Files
from shortlist.rollout.local.reported_events import count_reported_events, describe_reported_events
from shortlist.serving.log.logs import item_type, outcome_schema
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.server.protocols.http_app import http_app
from shortlist.serving.server.runtime.health_server import HealthServer
from shortlist.serving.server.server import ServerComponents
from shortlist.slates.retrieval.retriever import fit_retrieval
from shortlist.spec.retrieval import Retrieval
from shortlist.storage.tables import DayTable

RETRIEVAL = {"candidates": 8, "sources": {"popular": {"kind": "popular", "keys": ["page"], "min_positives": 1}}}


class Api:
    """HTTP of a server in this process."""

    def __init__(self, parts: ServerComponents) -> None:
        self.parts = parts
        self._app = http_app(parts.service)
        self._runner = asyncio.Runner()

    def close(self) -> None:
        self._runner.run(self.parts.close())
        self._runner.close()

    def ask(self, method: str, path: str, content: bytes | None = None, **headers: str) -> httpx.Response:
        async def whole() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url="http://here") as client:
                return await client.request(method, path, content=content, headers=headers)

        return self._runner.run(whole())

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        response = self.ask("POST", path, json.dumps(body).encode(), **headers)
        return response.status_code, response.json()

    def handle(self, request: httpx.Request) -> httpx.Response:
        """Answer a request of a synchronous client."""
        response = self.ask(request.method, request.url.path, request.content, **request.headers)
        return httpx.Response(response.status_code, content=response.content)


class WeighingShop(Shop):
    """A shop whose model reads the item's weight and the user's impressions alone."""

    async def scores(self, tensors: Any, rows: int, place: Any = None) -> Any:
        return (np.nan_to_num(tensors["numbers"][:, :2]) @ [1.0, 1000.0]).astype(np.float32)


class PositionedShop(Shop):
    """A shop whose model reads the position."""

    async def scores(self, tensors: Any, rows: int, place: Any = None) -> Any:
        return np.nan_to_num(tensors["numbers"][:, 2], nan=-7.0).astype(np.float32)


@pytest.fixture(scope="module")
def local(published: Any, start: Any, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    log = DayTable.open(published.folder / "log", Files.LOG)
    section, days = Retrieval.model_validate(RETRIEVAL), frozenset(part.day for part in log.days)
    fit_retrieval(section, published.plan.declared.data, log, days, folder / "sources", 1)
    return WeighingShop(published, start.model, folder / "sources", folder)


@pytest.fixture(scope="module")
def api(local: Shop) -> Iterator[Api]:
    served = Api(local.parts(ordering=BEST, max_rows=50))
    yield served
    served.close()


def test_given_items_are_ranked_by_score(api: Api) -> None:
    status, content = api.post(
        "/v1/rank",
        {"user": 1, "items": ["item 4", "item 6", "item 5"], "context": {"page": "home"}},
        **{"x-request-id": "r1"},
    )
    assert status == 200, content
    assert (content["request_id"], content["degraded"]) == ("r1", False)
    assert [(ranked["index"], ranked["item"]) for ranked in content["items"]] == [
        (1, "item 6"), (2, "item 5"), (0, "item 4"),
    ]  # fmt: skip
    scores = [ranked["score"] for ranked in content["items"]]
    assert [scores[0] - score for score in scores] == [0, 1, 2]


def test_an_answer_names_the_columns_that_the_model_reads_and_the_request_left_out(api: Api) -> None:
    for path, body in (("/v1/rank", {"items": ["item 4", "item 5"]}), ("/v1/recommend", {})):
        for context, not_sent in (({}, ["position"]), ({"page": "home"}, ["position"]), ({"position": None}, None)):
            status, content = api.post(path, {"user": 1, "context": context, **body})
            assert (status, content.get("not_sent")) == (200, not_sent), content
    _, with_an_item = api.post("/v1/rank", {"user": 1, "items": ["item 4", {"item_id": "item 5", "position": 1}]})
    assert "not_sent" not in with_an_item
    with ShortlistClient("http://here", transport=httpx.MockTransport(api.handle)) as client:
        assert client.recommend(1).not_sent == ("position",)
        assert client.rank(1, ["item 4"], context={"position": 2}).not_sent == ()


def test_a_ranking_has_the_scores_of_the_same_request_in_tensors(api: Api) -> None:
    tensors = [
        {"name": "user_id", "datatype": "INT64", "shape": [1], "data": [1]},
        {"name": "item_id", "datatype": "BYTES", "shape": [3], "data": ["item 4", "item 6", "item 4"]},
        {"name": "position", "datatype": "INT64", "shape": [3], "data": [1, 2, None]},
        {"name": "words", "datatype": "BYTES", "shape": [3, 2], "data": ["a", "b", "c", None, None, None]},
        {"name": "made", "datatype": "BYTES", "shape": [1], "data": ["2026-01-02"]},
        {"name": "code", "datatype": "INT64", "shape": [1], "data": [255]},
    ]
    status, by_tensors = api.post("/v2/models/shop/infer", {"inputs": tensors})
    assert status == 200, by_tensors
    items = [
        {"item_id": "item 4", "position": 1, "words": ["a", "b"]}, {"item_id": "item 6", "position": 2, "words": ["c"]},
        "item 4",
    ]  # fmt: skip
    context = {"made": "2026-01-02", "code": 255}
    status, by_json = api.post("/v1/rank", {"user": 1, "items": items, "context": context})
    assert status == 200, by_json
    by_index = sorted(by_json["items"], key=lambda ranked: ranked["index"])
    assert [ranked["score"] for ranked in by_index] == by_tensors["outputs"][0]["data"]


def test_a_slate_says_item_position_source_and_propensity(api: Api) -> None:
    status, content = api.post("/v1/recommend", {"user": 1, "k": 3, "context": {"page": "home"}})
    assert status == 200, content
    assert content["items"][0]["item"] == "item 5"  # item 6 was never on this page
    assert [shown["position"] for shown in content["items"]] == [1, 2, 3]
    assert {shown["source"] for shown in content["items"]} == {"popular"}
    assert {shown["propensity"] for shown in content["items"]} == {1.0}
    assert (content["explored"], content["short"], content["fallback"]) == (False, False, [])


@pytest.mark.parametrize("sent", [{}, {"k": None}])
def test_a_request_without_k_gets_all_items_where_there_are_fewer_than_ten(api: Api, sent: dict[str, None]) -> None:
    status, content = api.post("/v1/recommend", {"user": 1, **sent})
    assert status == 200, content
    assert (len(content["items"]), content["short"]) == (8, False)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/rank", [], "the body: got []; wanted an object"),
        ("/v1/rank", {"user": 1}, "items: is missing"),
        ("/v1/rank", {"user": 1, "items": []}, "items: got []; list should have at least 1 item"),
        ("/v1/rank", {"user": "u", "items": ["item 1"]}, "user: got the text 'u'; wanted an integer"),
        ("/v1/recommend", {"user": 1, "context": {"page": 978}}, "input 'page': got the number 978; wanted a text"),
        ("/v1/rank", {"items": ["item 1"], "contexts": {}}, "contexts: unknown key; did you mean 'context'?"),
        ("/v1/rank", {"itmes": ["item 1"]}, "itmes: unknown key; did you mean 'items'?; wanted user, items, context"),
        ("/v1/rank", {"items": ["item 1"], "context": {"pag": "home"}}, "no input 'pag'; did you mean 'page'?"),
        ("/v1/rank", {"items": ["item 1"], "context": {"seconds": 3}}, "known only after the impression"),
        ("/v1/rank", {"items": ["item 1"], "context": {"user_id": 3}}, "context.user_id: wanted it outside"),
        ("/v1/rank", {"items": ["item 1"], "context": {"event_time": 3}}, "the server sets the time of a request"),
        ("/v1/rank", {"items": [{"page": "home"}]}, "items[0]: wanted its id as 'item_id'"),
        ("/v1/rank", {"items": ["item 1"], "context": {"words": "a"}}, "input 'words': got 'a'; wanted a list"),
        ("/v1/rank", {"items": ["item 1"], "context": {"made": "today"}}, "wanted ISO dates"),
        ("/v1/rank", {"items": ["item 1"] * 51}, "got 51 rows; wanted at most 50"),
        ("/v1/recommend", {"user": 1, "contxt": {}}, "contxt: unknown key; did you mean 'context'?"),
        ("/v1/recommend", {"user": 1, "k": 0}, "k: got 0; wanted greater than or equal to 1"),
        ("/v1/recommend", {"user": 1, "k": 9}, "k: got 9; wanted 1 to 8"),
        ("/v1/recommend", {"user": 1, "k": True}, "k: got True; wanted a valid integer"),
        ("/v1/recommend", {"user": 1, "context": {"page": ["home"]}}, "input 'page': got ['home']"),
        (
            "/v1/recommend",
            {"user": 1, "request_id": "r1"},
            "request_id: got 'r1'; wanted it as the header x-request-id",
        ),
    ],
)
def test_a_mistake_is_named(api: Api, path: str, body: Any, message: str) -> None:
    status, content = api.post(path, body)
    assert status == 400
    assert message in content["error"]


@pytest.fixture(scope="module")
def priced(published: Any, start: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A shop whose items have the newest position of the log as their own; its model reads the position."""
    folder = tmp_path_factory.mktemp("priced")
    log = DayTable.open(published.folder / "log", Files.LOG)
    section, days = (
        Retrieval.model_validate({**RETRIEVAL, "item_columns": ["position"]}),
        [part.day for part in log.days],
    )
    fit_retrieval(section, published.plan.declared.data, log, frozenset(days), folder / "sources", 1)
    served = Api(PositionedShop(published, start.model, folder / "sources", folder).parts(ordering=BEST, max_rows=50))
    yield served
    served.close()


def scores_by_index(api: Api, items: Any, **body: Any) -> list[float]:
    status, content = api.post("/v1/rank", {"user": 1, "items": items, **body})
    assert status == 200, content
    return [ranked["score"] for ranked in sorted(content["items"], key=lambda ranked: ranked["index"])]


def test_bare_items_have_the_item_columns_that_they_have_in_slates(priced: Api) -> None:
    items = [f"item {number}" for number in range(8)]
    recommending: Any = priced.parts.service.recommending
    positions = [values["position"] for values in recommending.item_values(items)]
    assert len({*positions}) > 1
    sent_positions = [{"item_id": item, "position": value} for item, value in zip(items, positions, strict=True)]
    assert scores_by_index(priced, items) == scores_by_index(priced, sent_positions)
    in_other_place = [{"item_id": items[0], "position": 1}, items[1]]
    assert scores_by_index(priced, in_other_place)[1] == scores_by_index(priced, items)[1]
    assert scores_by_index(priced, items[:2], context={"position": 1}) == scores_by_index(
        priced, [{"item_id": item, "position": 1} for item in items[:2]]
    )


def test_an_item_that_is_not_released_needs_its_columns(priced: Api) -> None:
    status, content = priced.post("/v1/rank", {"user": 1, "items": ["item 1", "never seen"]})
    assert (status, content["error"]) == (
        400,
        "items[1]: 'never seen' is not among the items of the release, so its position must be sent with it; null where"
        " a value is unknown",
    )
    assert len(scores_by_index(priced, ["item 1", {"item_id": "never seen", "position": None}])) == 2


def test_a_message_lists_the_columns_that_a_client_may_send(priced: Api) -> None:
    names = "page, code, price, words, places, made, query"
    for path, body, listed in (
        ("/v1/recommend", {"context": {"nowhere": 1}}, names),
        ("/v1/rank", {"items": ["item 1"], "context": {"nowhere": 1}}, names.replace("page,", "page, position,")),
        ("/v1/rank", {"items": [{"item_id": "item 1", "nowhere": 1}]}, "item_id, page, position" + names[4:]),
    ):
        status, content = priced.post(path, {"user": 1, **body})
        assert (status, content["error"]) == (400, f"no input 'nowhere'; wanted {listed}")
    status, content = priced.post("/v1/recommend", {"user": 1, "context": {"position": 1}})
    assert (status, "every candidate has its own" in content["error"]) == (400, True)


def test_a_version_without_retrieval_does_not_recommend(local: Shop) -> None:
    parts = local.parts(ordering=BEST)
    parts.service.recommending = None
    only_ranks = Api(parts)
    assert only_ranks.post("/v1/recommend", {"user": 1}) == (
        404,
        {
            "error": f"version {parts.service.settings.version}, which serves, ranks items that the request names: POST"
            " /v1/rank. It was trained without retrieval; declare `retrieval` in the spec, train, and roll that version"
            " out"
        },
    )  # fmt: skip
    assert list(only_ranks.ask("GET", "/openapi.json").json()["paths"]) == ["/v1/rank", "/v1/events"]
    only_ranks.close()


def test_compressed_bodies_are_read_within_the_limit(api: Api) -> None:
    body = json.dumps({"user": 1, "items": ["item 1"]}).encode()
    for encoding, compressed in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
        response = api.ask("POST", "/v1/rank", compressed, **{"content-encoding": encoding})
        assert response.status_code == 200, response.text
    too_long = gzip.compress(b" " * (api.parts.service.settings.serving.limits.max_request_bytes + 1) + body)
    for content, encoding, status, message in (
        (too_long, "gzip", 413, "bytes after decoding"),
        (gzip.compress(body)[:-9], "gzip", 400, "wanted one complete gzip stream"),
        (gzip.compress(body) + b"x", "gzip", 400, "wanted one complete gzip stream"),
        (body, "gzip", 400, "bytes that are not gzip"),
        (body, "br", 415, "content-encoding: got 'br'; wanted gzip, deflate or none"),
    ):
        response = api.ask("POST", "/v1/rank", content, **{"content-encoding": encoding})
        assert (response.status_code, message in response.json()["error"]) == (status, True), response.text


def test_only_post_is_allowed_and_the_server_says_that_it_lives(api: Api) -> None:
    assert api.ask("GET", "/v1/rank").status_code == 405
    assert api.ask("GET", "/v2/health/live").json() == {"live": True}


def test_the_client_returns_typed_answers_and_raises_what_the_server_says(api: Api) -> None:
    with ShortlistClient("http://here", transport=httpx.MockTransport(api.handle)) as client:
        slate = client.recommend(1, k=2, context={"page": "home"}, recent_items=["item 1"], request_id="mine")
        assert (slate.request_id, slate.ids[0], slate.degraded) == ("mine", "item 5", False)
        assert slate.items[0].facts["position"] == 1
        ranking = client.rank(1, ["item 4", {"item_id": "item 6", "page": "home"}])
        assert ranking.ids == ["item 6", "item 4"]
        assert ranking.items[0].score - ranking.items[1].score == 2
        with pytest.raises(RefusedRequestError, match="400: k: got 9; wanted 1 to 8") as refusal:
            client.recommend(1, k=9)
        assert refusal.value.status == 400


def test_what_users_did_with_a_slate_is_told_by_the_client(api: Api) -> None:
    with ShortlistClient("http://here", transport=httpx.MockTransport(api.handle)) as client:
        slate = client.recommend(1, k=3, request_id="told")
        first, second, _ = slate.items
        events = [
            Event(slate.request_id, first.item, {"clicked": 1}, seen=True), Event("told", second.item, seen=False),
            Event("told", "never shown there"), Event("told", second.item, {"clicked": 1}, index=0),
        ]  # fmt: skip
        refused = client.send_events(events)
        assert client.send_events([]) == []
    assert [text.split(": ", 1)[1] for text in refused] == [
        "the event says nothing; wanted 'seen', or an 'outcome'",
        "index 0: the answer had another item, or none, there",
    ]
    data = api.parts.service.data
    log = ServingLog.on_disk(
        api.parts.service.settings.predictions.with_name("outcomes"), outcome_schema(item_type(data))
    )
    rows = log.read_all().filter(pl.col("request_id") == "told").select("item", "row", "label", "seen")
    assert rows.rows() == [(first.item, 0, 1, True), (second.item, 1, None, False)]
    with HealthServer("127.0.0.1", 0, dict, api.parts.service.metrics.text) as health:
        counts = count_reported_events([health._server.server_address[1]])
    assert describe_reported_events(counts).endswith(": 4 arrived; 2 accepted; 2 refused: 1 by index, 1 by outcome.")


def test_events_need_the_declared_token(local: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENT_TOKEN", "secret")
    guarded = Api(local.parts(ordering=BEST, events={"token_variable": "EVENT_TOKEN"}))
    event = Event("r", "item 1", {"clicked": 1})
    transport = httpx.MockTransport(guarded.handle)
    with ShortlistClient("http://here", transport=transport) as client, pytest.raises(RefusedRequestError, match="401"):
        client.send_events([event])
    with ShortlistClient("http://here", token="secret", transport=transport) as client:  # noqa: S106
        assert client.send_events([event]) == []
    assert guarded.ask("POST", "/v1/events", b"{}").headers["www-authenticate"] == "Bearer"
    guarded.close()


def test_a_proxy_that_refuses_is_quoted() -> None:
    refuses = httpx.MockTransport(lambda request: httpx.Response(502, text="bad gateway"))
    with (
        ShortlistClient("http://here", transport=refuses) as client,
        pytest.raises(RefusedRequestError, match="bad gateway"),
    ):
        client.rank(None, ["item 1"])


def test_requests_by_the_description_are_understood_and_answers_are_as_it_says(api: Api) -> None:
    """Positive cases are answered or refused for a value; negative ones are refused; none is a server error."""
    description = api.ask("GET", "/openapi.json").json()
    schema = schemathesis.openapi.from_dict(description)
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    cases = st.one_of(*(schema.as_strategy(mode) for mode in modes))
    statuses = SimpleNamespace(seen=set())

    @settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
    @given(cases)
    def check(case: Any) -> None:
        content = case.as_transport_kwargs()
        body = content.get("json")
        response = api.ask("POST", case.path, json.dumps(body).encode(), **(case.headers or {}))
        assert response.status_code < 500, response.text
        declared = description["paths"][case.path]["post"]["responses"][str(response.status_code)]
        Draft202012Validator(
            {**declared["content"]["application/json"]["schema"], "components": description["components"]}
        ).validate(response.json())
        statuses.seen.add(response.status_code)

    check()
    assert statuses.seen >= {200, 400}
