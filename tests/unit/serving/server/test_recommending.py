"""Recommendations by a complete server: responses and logs, over both protocols, with a real Triton."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from polars.exceptions import PanicException
from recommending_shop import BEST, RECOMMEND, Shop, outputs, places_of, tensors
from tritonclient import grpc as triton_grpc
from tritonclient.utils import InferenceServerException
from typer.testing import CliRunner

from shortlist.cli.commands import app
from shortlist.contracts import Columns, Files, ShortlistError
from shortlist.deployment import slate_explanation
from shortlist.deployment.slate_explanation import (
    ReplayDiffersError,
    ServedVersion,
    explain,
    find_answer,
    replay,
)
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.log.logs import SLATE_COLUMNS, item_type, outcome_schema, prediction_schema
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.paths import ServingPaths
from shortlist.serving.server.inference.service import InferenceRequest, InferenceResponse
from shortlist.serving.server.recommendations.recommendation_service import request_from_json
from shortlist.serving.server.recommendations.user_items import UserItems
from shortlist.serving.server.request_inputs.slate_requests import SlateRequestReader
from shortlist.serving.server.requests.headers import RequestContext
from shortlist.serving.server.requests.request_errors import BadRequestError, BadScoresError, UnknownModelError
from shortlist.serving.server.requests.tensors import Tensor
from shortlist.serving.server.server import ServerComponents
from shortlist.slates.candidate_columns import candidate_types
from shortlist.slates.release import open_release
from shortlist.slates.retrieval.retriever import fit_retrieval
from shortlist.spec.retrieval import Retrieval
from shortlist.storage.artefacts import IntegrityError
from shortlist.storage.tables import DayTable
from tests.served_log import append_rows

RETRIEVAL = {"candidates": 8, "sources": {"popular": {"kind": "popular", "keys": ["page"], "min_positives": 1}}}
WEIGHTY = {"kind": "where", "name": "weighty", "keep": "weight > -2"}


@pytest.fixture(scope="module")
def sources(published: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources") / "sources"
    log = DayTable.open(published.folder / "log", Files.LOG)
    section, days = Retrieval.model_validate(RETRIEVAL), frozenset(part.day for part in log.days)
    fit_retrieval(section, published.plan.declared.data, log, days, folder, 1)
    return folder


@pytest.fixture
def local(published: Any, start: Any, sources: Path, tmp_path: Path) -> Shop:
    return Shop(published, start.model, sources, tmp_path)


def test_a_slate_is_ordered_by_value_and_names_the_sources(local: Shop) -> None:
    parts = local.parts({"rules": [WEIGHTY]}, BEST)
    (answer,) = local.ask(parts, {"user_id": 1})
    slate = outputs(answer)
    weights = {"item 0": 1.0, "item 3": 0.0, "item 4": 1.0, "item 5": 2.0, "item 6": 3.0, "never shown": 4.0}
    user_share = slate["score"][0] - weights[slate["item_id"][0]]  # 1000 times the user's impressions
    assert slate["score"] == [user_share + weights[item] for item in slate["item_id"]] == slate["value"]
    assert slate["item_id"][:2] == ["item 6", "item 5"]
    assert (slate["source"], slate["position"], slate["propensity"]) == (["popular"] * 3, [1, 2, 3], [1.0] * 3)
    assert isinstance(answer, InferenceResponse) and answer.parameters == {
        "explored": False,
        "short": False,
        "fallback": "",
    }


def test_every_user_gets_a_slate(local: Shop) -> None:
    parts = local.parts()
    known_user, new, anonymous, on_page = local.ask(
        parts, {"user_id": 1}, {"user_id": 987654}, {"recent_items": ["item 1", "no such item"]}, {"page": "home"}
    )
    assert len(outputs(known_user)["item_id"]) == 3
    (earlier_slate,) = local.ask(parts, {"user_id": 1, "event_time": 1_770_000_000_000_000})
    assert len(outputs(earlier_slate)["item_id"]) == 3
    # Nobody knows them: the score is the weight alone.
    assert outputs(new)["item_id"] == outputs(anonymous)["item_id"]
    assert max(outputs(new)["score"]) < 1000 < min(outputs(known_user)["score"])
    assert len(outputs(on_page)["item_id"]) == 3


@pytest.mark.parametrize(
    ("inputs", "value"),
    [
        ({"places": Tensor("places", "INT64", (1, 3), np.array([1, 2, NO_CODE]))}, [1, 2]),
        ({"words": Tensor("words", "BYTES", (1, 2), ["a", None])}, ["a"]),
        ({"query": Tensor("query", "FP32", (1, 2), np.array([1.0, 2.0]))}, [1.0, 2.0]),
        ({"code": 255}, 255),
        ({"made": "2026-01-02"}, "2026-01-02"),
    ],
)
def test_a_request_of_any_type_is_logged_with_its_trace(local: Shop, inputs: dict[str, Any], value: Any) -> None:
    parts = local.parts()
    (answer,) = local.ask(parts, {"user_id": 1, **inputs})
    (row,) = local.logged(parts)
    assert row["items"] == outputs(answer)["item_id"]
    (name,) = inputs
    logged_value = json.loads(row["slate:request"])["context"][name]
    assert logged_value == value


def test_recent_items_are_parsed_like_items(local: Shop) -> None:
    """The shop's `null_values`, here the empty text, are not items."""
    reader = SlateRequestReader(local.parts().service.inputs, local.data, ())
    query = reader.read(tensors(recent_items=["item 1", "", "item 2"]), 10**15)
    assert query.recent == ["item 1", "item 2"]


def test_a_request_dated_ahead_is_answered_as_of_its_receipt(local: Shop) -> None:
    reader = SlateRequestReader(local.parts().service.inputs, local.data, ())
    received, ahead = 10**15, Tensor(Columns.TIME, "INT64", (1,), np.array([10**15 + 299_000_000]))
    query = reader.read([*tensors(), ahead], received)
    assert query.now == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=received)
    assert query.inputs.columns[Columns.TIME].tolist() == [received]  # type: ignore[union-attr]
    assert query.inputs.sent[Columns.TIME].tolist() == [10**15 + 299_000_000]  # type: ignore[union-attr]


def test_candidates_have_the_newest_values_of_their_items_in_the_log(
    published: Any, start: Any, tmp_path: Path
) -> None:
    log = DayTable.open(published.folder / "log", Files.LOG)
    section = Retrieval.model_validate({**RETRIEVAL, "item_columns": ["price"]})
    days = frozenset(part.day for part in log.days)
    fit_retrieval(section, published.plan.declared.data, log, days, tmp_path / "sources", 1)
    local = Shop(published, start.model, tmp_path / "sources", tmp_path)
    parts = local.parts(None, BEST)
    (answer, refusal) = local.ask(parts, {"user_id": 1}, {"user_id": 1, "price": 2})
    assert isinstance(refusal, BadRequestError) and "input 'price': every candidate has its own" in str(refusal)
    (row, *_) = local.logged(parts)
    rows = log.scan().select("item_id", "price", Columns.TIME).collect().sort(Columns.TIME).drop_nulls("price")
    newest_prices = dict(rows.group_by("item_id", maintain_order=True).last().select("item_id", "price").rows())
    items = outputs(answer)["item_id"]
    assert row["price"] == [newest_prices.get(item) for item in items]
    assert len({*row["price"]}) > 1


def test_a_recent_item_must_fit_into_64_bits(local: Shop) -> None:
    service = local.parts().service
    columns = [
        column.model_copy(update={"type": "integer"}) if column.name == "item_id" else column
        for column in local.data.columns
    ]
    reader = SlateRequestReader(service.inputs, local.data.model_copy(update={"columns": tuple(columns)}), ())
    large = Tensor("recent_items", "UINT64", (1,), np.array([2**63], np.uint64).view(np.int64) + 1)
    with pytest.raises(BadRequestError, match="input 'recent_items': a value is above 9223372036854775807"):
        reader._recent_items(large)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"k": None}, "input 'k' is missing; wanted the number of items to show"),
        ({"k": 0}, "k: got 0; wanted 1 to 8, the candidates of a request"),
        ({"k": 10_000}, "k: got 10000; wanted 1 to 8, the candidates of a request"),
        ({"k": "three"}, r"input 'k': got BYTES of shape \[1\]; wanted one whole number"),
        ({"k": [1, 2]}, r"input 'k': got INT64 of shape \[2\]; wanted one whole number"),
        ({"user_id": "anna"}, "input 'user_id': got datatype BYTES; wanted an integer type"),
        ({"user_id": [1, 2]}, "input 'user_id': got 2 rows; wanted 1, for a request has one user"),
        ({"item_id": ["item 1"]}, "input 'item_id': got candidates; this model retrieves the items itself"),
        ({"recent_items": [1]}, "input 'recent_items': got INT64"),
        ({"recent_items": ["x"] * 1_001}, "input 'recent_items': got 1001 items; wanted at most 1000"),
        ({"recent_items": ["x" * 16_385]}, "input 'recent_items': got a text of 16385 characters; wanted at most"),
        ({"pagge": "home"}, "no input 'pagge'; did you mean 'page'"),
        ({"recent_item": ["item 1"]}, "no input 'recent_item'; did you mean 'recent_items'"),
        ({"basket": 1}, "no input 'basket'; wanted k, recent_items, user_id, page, position, .*, event_time$"),
        ({"city": "Oslo"}, "input 'city' is looked up in side table 'users'; leave it out"),
        ({"seconds": 1}, "input 'seconds' is known only after the impression; leave it out"),
        ({"made": "some day"}, "input 'made': got 'some day'; wanted ISO dates"),
    ],
)
def test_a_client_error_has_a_one_sentence_message(local: Shop, inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        raise local.ask(local.parts(), inputs)[0]  # type: ignore[misc] # it is no answer


@pytest.mark.parametrize(
    ("filters", "ordering", "message", "reason"),
    [
        (
            {"rules": [{"kind": "where", "name": "heavy", "keep": "weight > 99"}]},
            None,
            "no item is left for this request: 8 candidates, 'heavy' removed 8",
            "filtered",
        ),
        (None, {"value": "score / (weight - weight)"}, "none of 8 candidates has a value that is a number", "no_value"),
    ],
)
def test_an_empty_slate_contains_its_reason(
    local: Shop, filters: Any, ordering: Any, message: str, reason: str
) -> None:
    parts = local.parts(filters, ordering, log={"feature_sampling": 1.0})
    (answer,) = local.ask(parts, {"user_id": 1})
    assert outputs(answer) == {name: [] for name in parts.service.outputs_of(RECOMMEND)}
    assert isinstance(answer, InferenceResponse)
    assert answer.parameters == {"explored": False, "short": True, "fallback": "", "empty": message}
    text = parts.service.metrics.text().decode()
    assert f'shortlist_empty_slates_total{{reason="{reason}"}} 1.0' in text
    assert "shortlist_slates_total 1.0" in text
    (row,) = local.logged(parts)
    assert (row["status"], row["items"], row["scores"], row["slate:asked"]) == (200, [], [], 3)
    assert row["slate:retrieved"] == 8 and sum(row["slate:filter_counts"]) + len(row["slate:candidates"]) == 8
    shutil.copytree(local.folder / "release", local.folder / "versions" / "v3" / "release")
    shutil.copytree(parts.service.settings.model_folder, local.folder / "versions" / "v3" / "model")
    version = ServedVersion.open(places_of(local), 3)
    assert replay(find_answer(places_of(local), "r0"), version, version.recommender()) == []
    assert "the same, bit by bit" in "\n".join(explain(places_of(local), "r0"))


def test_columns_of_the_user_and_of_the_request_decide(local: Shop) -> None:
    parts = local.parts({"rules": [{"kind": "where", "keep": "city = 'Oslo' OR page = 'home'"}]})
    oslo, elsewhere, home = local.ask(parts, {"user_id": 1}, {"user_id": 2}, {"user_id": 2, "page": "home"})
    assert outputs(elsewhere)["item_id"] == []
    assert len(outputs(oslo)["item_id"]) == len(outputs(home)["item_id"]) == 3


def test_scores_that_are_not_numbers_are_model_errors_and_logged(local: Shop) -> None:
    parts = local.parts()
    (failed,) = local.ask(parts, {"position": None, "user_id": 1})
    assert isinstance(failed, BadScoresError) and "the model returned 8 of 8 scores" in str(failed)
    (row,) = local.logged(parts)
    assert (row["status"], row["items"]) == (500, [])


def test_a_fallback_is_in_the_response_and_counted(local: Shop) -> None:
    rules = {"rules": [{"kind": "where", "name": "light", "keep": "weight IS NULL OR weight < 1"}]}
    parts = local.parts({**rules, "fallback": ["popular"]})
    (answer,) = local.ask(parts, {"k": 7})  # six of eleven items are light
    assert isinstance(answer, InferenceResponse)
    assert answer.parameters == {"explored": False, "short": True, "fallback": "popular"}
    assert len(outputs(answer)["item_id"]) == 6
    text = parts.service.metrics.text().decode()
    assert 'shortlist_fallbacks_total{source="popular"} 1.0' in text
    assert 'shortlist_removed_candidates_total{filter="light"}' in text
    assert "shortlist_slates_total 1.0" in text
    (short,) = local.ask(local.parts(rules), {"k": 7})
    assert isinstance(short, InferenceResponse) and short.parameters["fallback"] == ""


def test_a_slate_can_be_collected_as_one_record(local: Shop) -> None:
    log = {"feature_sampling": 0.01}
    parts = local.parts({"rules": [WEIGHTY]}, {"explore": {"kind": "gumbel", "temperature": 1.0}}, log=log)
    first, second = local.ask(parts, {"user_id": 1, "page": "home"}, {"user_id": 1})
    rows = local.logged(parts)
    assert [row["request_id"] for row in rows] == ["r0", "r1"]
    for row, answer in zip(rows, (first, second), strict=True):
        slate = outputs(answer)
        assert row["items"] == slate["item_id"] and row["scores"] == slate["score"]  # as of a client's own candidates
        assert row["slate:conditional_propensities"] == slate["propensity"] and row["slate:values"] == slate["value"]
        assert all(0 < propensity <= 1 for propensity in row["slate:place_propensities"])
        assert len(row["slate:place_propensity_errors"]) == len(row["items"])
        assert row["slate:explored"] is True and all(0 < propensity < 1 for propensity in slate["propensity"])
        assert (row["slate:asked"], row["slate:retrieved"], row["slate:filter_names"]) == (3, 8, ["weighty"])
        assert row["slate:source_names"] == ["popular"]
        assert sum(row["slate:source_counts"]) + sum(row["slate:filter_counts"]) == 8
        assert row["user_id"] == [1] and row["user"] == "u"
    assert rows[0]["page"] == ["home"] and rows[1]["page"] is None
    assert all(row["slate:request"] is not None for row in rows)  # drawn slates have their whole journey


def test_a_slate_logs_what_its_draws_gave_up(local: Shop) -> None:
    parts = local.parts(ordering={"explore": {"kind": "gumbel", "temperature": 1000.0}})
    local.ask(parts, *[{"user_id": 1, "k": 2}] * 12)
    rows = local.logged(parts)
    best = [sum(sorted(row["slate:candidate_scores"], reverse=True)[:2]) for row in rows]
    given_up = [row["slate:given_up"] for row in rows]
    assert given_up == [expected - sum(row["scores"]) for expected, row in zip(best, rows, strict=True)]
    assert len(rows) == 12 and max(given_up) > 0


def test_a_logged_trace_reproduces_the_slate_bit_by_bit(local: Shop) -> None:
    explore = {"diversity": {"kind": "mmr", "by": "maker"}, "explore": {"kind": "gumbel", "temperature": 2.0}}
    sections: Any = ({"rules": [{"kind": "seen"}, WEIGHTY], "fallback": ["popular"]}, explore)
    parts = local.parts(*sections)
    answers = local.ask(
        parts,
        {"user_id": 1, "made": "2026-01-02"},
        {"user_id": 1, "k": 2},  # has seen the first slate
        {"recent_items": ["item 1"], "page": "home", "words": None},
    )
    rows = local.logged(parts)
    stages = open_release(local.folder / "release", local.data)
    for row, answer in zip(rows, answers, strict=True):
        slate_request = request_from_json(
            row["request_id"], row["slate:request"], stages.item_type, candidate_types(local.data)
        )
        candidates = stages.find(slate_request)
        assert candidates.rows["item"].to_list() == row["slate:candidates"]
        assert list(candidates.sources) == row["slate:candidate_sources"]
        assert candidates.removed.items.to_list() == row["slate:removed"]
        assert list(candidates.removed.filters) == row["slate:removed_by"]
        slate = stages.slate(slate_request, candidates, np.array(row["slate:candidate_scores"], np.float32))
        answered_slate = outputs(answer)
        assert slate.items.to_list() == answered_slate["item_id"]
        assert (
            slate.values.tolist() == answered_slate["value"]
            and slate.propensities.tolist() == answered_slate["propensity"]
        )
    assert not {*rows[0]["items"]} & {*rows[1]["items"]}
    assert "seen" in rows[1]["slate:removed_by"]


def test_concurrent_requests_of_a_user_do_not_show_the_same_item(local: Shop) -> None:
    parts = local.parts(
        {"rules": [{"kind": "seen"}], "fallback": ["popular"]},
        {"explore": {"kind": "gumbel", "temperature": 2.0}},
        log={"feature_sampling": 1.0},
    )
    scores, waiting = parts.predictor.scores, asyncio.Barrier(2)

    async def both_wait(*arguments: Any) -> Any:
        await waiting.wait()  # both have found their candidates
        return await scores(*arguments)

    parts.predictor.scores = both_wait  # type: ignore[method-assign]

    async def whole() -> list[dict[str, list[Any]]]:
        requests = (
            InferenceRequest(RECOMMEND, "", tensors(user_id=1, k=4), RequestContext(name)) for name in ("one", "other")
        )
        return [outputs(answer) for answer in await asyncio.gather(*map(parts.service.answer, requests))]

    first_slate, second_slate = asyncio.run(whole())
    assert len(first_slate["item_id"]) == len(second_slate["item_id"]) == 4
    assert not {*first_slate["item_id"]} & {*second_slate["item_id"]}
    rows = {row["request_id"]: row for row in local.logged(parts)}
    removed = {name: row["slate:filter_counts"] for name, row in rows.items()}
    assert sorted(removed.values()) == [[0], [4]]  # whichever was answered first
    # The journey tells what was known when candidates were found and when they were put in order.
    stages = open_release(local.folder / "release", local.data)
    (second,) = (name for name, counts in removed.items() if counts == [4])
    row, answer = rows[second], {"one": first_slate, "other": second_slate}[second]
    slate_request = request_from_json(second, row["slate:request"], stages.item_type, candidate_types(local.data))
    candidates = stages.find(slate_request)
    assert candidates.rows["item"].to_list() == row["slate:candidates"]
    slate = stages.slate(slate_request, candidates, np.array(row["slate:candidate_scores"], np.float32))
    assert (slate.items.to_list(), slate.propensities.tolist()) == (answer["item_id"], answer["propensity"])


def test_items_of_the_training_log_count_as_already_seen_items(local: Shop) -> None:
    log = pl.concat([frame for _, frame in DayTable.open(local._published.folder / "log", Files.LOG).frames()])
    shown_items = log.filter(pl.col("user_id") == 2**40)["item_id"].drop_nulls()
    since_the_log = datetime.now(UTC) - log[Columns.TIME].max() + timedelta(days=9)  # type: ignore[operator]
    rules = {"rules": [{"kind": "seen", "window": f"{since_the_log.days}d"}]}
    known_user, new = local.ask(local.parts(rules), {"user_id": 2**40}, {"user_id": 987654})
    assert len(outputs(new)["item_id"]) == 3
    assert isinstance(known_user, BadRequestError) or not {*outputs(known_user)["item_id"]} & {*shown_items}
    (long_ago,) = local.ask(local.parts({"rules": [{"kind": "seen", "window": "1h"}]}), {"user_id": 2**40})
    assert len(outputs(long_ago)["item_id"]) == 3


class TestExplain:
    """The command `shortlist why`."""

    @pytest.fixture
    def places(self, local: Shop, start: Any) -> ServingPaths:
        sections: Any = ({"rules": [WEIGHTY]}, {"explore": {"kind": "gumbel", "temperature": 2.0}})
        parts = local.parts(*sections)
        local.ask(parts, {"user_id": 1, "page": "home"})
        local.logged(parts)
        version = local.folder / "versions" / "v3"
        shutil.copytree(start.model, version / "model")
        shutil.copytree(local.folder / "release", version / "release")
        return places_of(local)

    def test_every_stage_is_explained_and_the_slate_is_reproduced(self, places: ServingPaths) -> None:
        text = "\n".join(explain(places, "r0"))
        row = find_answer(places, "r0")
        assert "request 'r0' of " in text and ", version 3" in text
        assert "retrieval  8 candidates; after filters: popular " in text
        assert f"weighty: {', '.join(row['slate:removed'])}" in text
        assert "ordering   value score > gumbel; drawn; 0 without a value" in text
        assert f"  1  {row['items'][0]}  popular  {row['scores'][0]:.6g}" in text
        assert "items:weight: " in text and "slates.json" in text
        assert "candidates, filters, order and propensities are the same, bit by bit" in text
        assert "from the logged features differ by at most 0" in text

    def test_events_of_the_answer_are_shown_with_those_that_do_not_count(self, places: ServingPaths) -> None:
        items, now = find_answer(places, "r0")["items"], datetime.now(UTC)
        columns = ("event_id", "row", "item", "label", "seen", "time")
        events = [
            ("a", 0, None, None, True, now), ("b", None, items[1], 0, True, now), ("c", 1, None, 1, None, now),
            ("c", 1, None, 1, None, now), ("d", 2, "another item", 1, None, now),
            ("e", 2, None, 1, None, now - timedelta(hours=1)),  # whoever sends it has guessed the request's id
        ]  # fmt: skip
        rows = [{"request_id": "r0", **dict(zip(columns, values, strict=True))} for values in events]
        append_rows(places.outcomes, outcome_schema(pa.string()), [*rows, {**rows[2], "request_id": "r1"}])
        lines = list(explain(places, "r0"))
        begin = lines.index("  events     of 3 items 2 seen, 1 with an outcome, 1 with clicked positive")
        assert lines[begin + 1 : begin + 4] == [
            "             index 0: seen",
            "             index 1: seen, clicked 1",
            "             not counted: 1 received before the answer, 1 replaced by a later one of the same item,"
            " 1 of an item that the answer does not have there",
        ]

    @pytest.mark.parametrize(
        ("change", "differs"),
        [
            ({"slate:candidates": ["item 1"]}, ["candidates"]),
            ({"slate:conditional_propensities": [0.5, 0.5, 0.5]}, ["propensities"]),
            ({"request_id": "another"}, ["items", "values", "propensities", "propensities of places"]),  # other draws
        ],
    )
    def test_differences_to_the_logged_slate_are_named(
        self, places: ServingPaths, change: dict[str, Any], differs: list[str]
    ) -> None:
        version = ServedVersion.open(places, 3)
        assert replay(find_answer(places, "r0") | change, version, version.recommender()) == differs

    def test_the_command_prints_the_explanation_and_names_unlogged_requests(
        self, places: ServingPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        served = ServingPaths.for_spec(tmp_path / "runs", "demo")
        shutil.copytree(places.predictions, served.predictions)
        shutil.copytree(places.versions, served.versions)
        (tmp_path / "runs" / "stores").mkdir()
        command = ["why", "demo", "--runs", str(tmp_path / "runs")]
        explained = CliRunner().invoke(app, [*command, "r0"])
        assert explained.exit_code == 0 and explained.output.splitlines() == list(explain(places, "r0"))
        with monkeypatch.context() as patch:
            patch.setattr(slate_explanation, "replay", lambda *arguments: ["items"])
            differing = CliRunner().invoke(app, [*command, "r0"])
        assert differing.exit_code == 1 and "request 'r0' cannot be reproduced: its items differ" in differing.output
        unlogged = CliRunner().invoke(app, [*command, "nobody"])
        assert (unlogged.exit_code, type(unlogged.exception)) == (1, ShortlistError)
        assert "no answer to request 'nobody' is logged. It may not be written yet" in str(unlogged.exception)

    def test_a_slate_that_cannot_be_reproduced_is_an_error_after_the_explanation(
        self, places: ServingPaths, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row = find_answer(places, "r0") | {"slate:conditional_propensities": [0.5, 0.5, 0.5]}
        monkeypatch.setattr(slate_explanation, "find_answer", lambda *arguments: row)
        lines = explain(places, "r0")
        with pytest.raises(ReplayDiffersError, match="'r0' cannot be reproduced: its propensities differ"):
            for line in lines:
                last_line = line
        assert "from the logged features" in last_line

    def test_changed_files_are_refused(self, places: ServingPaths) -> None:
        (places.versions / "v3" / "release" / "slates.json").write_text("{}")
        with pytest.raises(IntegrityError, match="changed after it was written"):
            list(explain(places, "r0"))

    def test_an_unlogged_request_is_reported(self, places: ServingPaths) -> None:
        with pytest.raises(ShortlistError, match="no answer to request 'nobody' is logged"):
            find_answer(places, "nobody")
        shutil.rmtree(places.versions / "v3" / "release")
        with pytest.raises(ShortlistError, match="release: missing; version 3 is not deployed here any more"):
            list(explain(places, "r0"))
        shutil.rmtree(places.versions / "v3" / "model")
        with pytest.raises(ShortlistError, match="model: missing; version 3 is not deployed here any more"):
            find_answer(places, "r0")


def test_requests_with_candidates_still_get_scores(local: Shop, start: Any) -> None:
    parts = local.parts()
    items = Tensor("item_id", "BYTES", (2,), ["item 0", "item 5"])
    request = InferenceRequest("shop", "", [items, *tensors(k=None)], RequestContext("rank"))
    (row,) = _answered(local, parts, request)
    assert (row["items"], row["scores"]) == (["item 0", "item 5"], [1.0, 2.0])
    assert all(row[name] is None for name in SLATE_COLUMNS)
    shutil.copytree(local.folder / "release", local.folder / "versions" / "v3" / "release")
    shutil.copytree(start.model, local.folder / "versions" / "v3" / "model")
    heading, events = explain(places_of(local), "rank")
    assert heading.endswith("version 3: it ranked items that the request brought; only slates have stages")
    assert events == "  events     of 2 items 0 seen, 0 with an outcome, 0 with clicked positive"


def test_without_a_release_recommendations_are_an_unknown_model(local: Shop) -> None:
    parts = local.parts()
    parts.service.recommending = None
    with pytest.raises(UnknownModelError, match=r"got model 'shop\.recommend'; here is 'shop' version 3"):
        raise local.ask(parts, {})[0]  # type: ignore[misc]


def _answered(local: Shop, parts: ServerComponents, request: InferenceRequest) -> list[dict[str, Any]]:
    async def whole() -> None:
        await parts.service.answer(request)
        await asyncio.sleep(0)

    asyncio.run(whole())
    return local.logged(parts)


class TestUserItems:
    """Items shown to users, from the logs of all servers."""

    @pytest.fixture
    def followed(self, local: Shop) -> Callable[..., UserItems]:
        def follow(window: timedelta = timedelta(days=1)) -> UserItems:
            logs = local.folder / "predictions", local.folder / "outcomes"
            return UserItems(local.data, pl.String(), *logs, window)

        return follow

    def test_slates_and_outcomes_of_other_servers_are_read(self, local: Shop, followed: Any) -> None:
        parts = local.parts()
        slate = outputs(local.ask(parts, {"user_id": 1})[0])
        local.logged(parts)
        schema = outcome_schema(item_type(local.data))
        clicked = {"time": datetime.now(UTC), "request_id": "r0", "item": slate["item_id"][1], "row": 1, "label": 1}
        append_rows(local.folder / "outcomes", schema, [clicked])
        items = followed()
        items.read_logs()
        history = items.history(1)
        assert history is not None and history.items.to_list() == slate["item_id"]
        assert history.positive.to_list() == [False, True, False]
        assert items.history(2) is None and items.history(None) is None
        items.read_logs()  # nothing is read twice
        assert len(items.history(1).items) == 3

    def test_an_outcome_may_arrive_before_its_slate(self, local: Shop, followed: Any) -> None:
        clicked = {"time": datetime.now(UTC), "request_id": "early", "item": "b", "row": 1, "label": 1}
        append_rows(local.folder / "outcomes", outcome_schema(item_type(local.data)), [clicked])
        items = followed()
        items.read_logs()
        items.record_slate("early", 1, ["a", "b"], datetime.now(UTC))
        assert items.history(1).positive.to_list() == [False, True]

    def test_items_older_than_the_window_are_dropped(self, followed: Any) -> None:
        items = followed(timedelta(hours=1))
        now = datetime.now(UTC)
        items.record_slate("old", 1, ["a"], now - timedelta(hours=2))
        items.record_slate("new", 1, ["b"], now)
        items.record_slate("other", 2, ["c"], now - timedelta(hours=2))
        items.read_logs()
        assert items.history(1).items.to_list() == ["b"]
        assert items.history(2) is None

    def test_an_outcome_finds_its_item_after_older_items_were_dropped(self, local: Shop, followed: Any) -> None:
        rows = [
            {"time": datetime.now(UTC), "request_id": request, "item": "whatever", "row": row, "label": 1}
            for request, row in (("first", 0), ("first", 1), ("later", 998), ("later", 999))
        ]
        append_rows(local.folder / "outcomes", outcome_schema(item_type(local.data)), rows)
        items, now = followed(), datetime.now(UTC)
        items.record_slate("first", 1, ["a", "b"], now)
        items.record_slate(
            "later", 1, [f"c{number}" for number in range(999)], now
        )  # the 1 001st item: 'a' is forgotten
        items.read_logs()
        history = items.history(1)
        assert history.items.to_list() == ["b", *(f"c{number}" for number in range(999))]
        assert np.flatnonzero(history.positive.to_numpy()).tolist() == [0, 999]  # there is no row 999 of 'later'

    def test_late_items_are_ordered_by_time(self, followed: Any) -> None:
        items, now = followed(), datetime.now(UTC)
        items.record_slate("now", 1, ["a", "b"], now)
        items.record_slate("before", 1, ["c"], now - timedelta(minutes=1))
        history = items.history(1)
        assert history.items.to_list() == ["c", "a", "b"]
        assert history.times.to_list() == [now - timedelta(minutes=1), now, now]

    def test_the_items_of_all_users_are_limited_and_the_least_recent_user_is_dropped(self, local: Shop) -> None:
        logs = local.folder / "predictions", local.folder / "outcomes"
        items = UserItems(local.data, pl.String(), *logs, timedelta(days=1), max_items=10)
        now = datetime.now(UTC)
        for user in (1, 2, 3, 1, 4):
            items.record_slate(f"{user} {items.items}", user, ["a", "b", "c"], now)
        assert [items.history(user) is None for user in (1, 2, 3, 4)] == [False, True, True, False]
        assert (items.items, items.forgotten) == (9, 2)
        items._forget(now + timedelta(hours=1))
        assert (items.items, items.history(1)) == (0, None)

    def test_an_error_of_any_kind_is_reported_and_polling_continues(
        self, followed: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        items = followed()

        def broken(*_: object) -> None:
            raise PanicException("no")

        with monkeypatch.context() as once:
            once.setattr("shortlist.serving.log.log_follower.streams", broken)
            items.poll()
        assert (items.problem, items.has_polled) == ("PanicException: no", False)
        items.poll()
        assert (items.problem, items.has_polled) == (None, True)

    def test_a_bad_record_is_reported_and_later_ones_are_read(self, local: Shop, followed: Any) -> None:
        log = ServingLog.on_disk(local.folder / "predictions", prediction_schema(local.data))
        stream = log.open_stream()
        stream.append([b"no rows"]).result()
        items = followed()
        items.poll()
        assert "no Arrow stream" in str(items.problem)
        row = {"time": datetime.now(UTC), "request_id": "a", "version": 1, "status": 200, "items": ["a"],
               "scores": [0.5], "user_id": [1]}  # fmt: skip
        append_rows(local.folder / "predictions", prediction_schema(local.data), [row], stream=1)
        items.poll()
        assert items.history(1).items.to_list() == ["a"]
        stream.close()


@pytest.fixture(scope="module")
def server(start: Any, triton: Any, published: Any, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    shop = Shop(published, start.model, sources, tmp_path_factory.mktemp("shop"))
    release = shop.release({"rules": [{"kind": "seen"}, WEIGHTY]}, BEST)
    server = start(triton.http, release=release)
    server.until_ready()
    return server


@pytest.fixture(scope="module")
def near(start: Any, triton: Any, published: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server whose candidates have the pictures nearest to that of the user's newest item."""
    folder = tmp_path_factory.mktemp("near")
    log = DayTable.open(published.folder / "log", Files.LOG)
    section = {"candidates": 2, "sources": {"near": {"kind": "item_vector", "column": "picture", "newest": 1}}}
    days = frozenset(part.day for part in log.days)
    fit_retrieval(Retrieval.model_validate(section), published.plan.declared.data, log, days, folder / "sources", 1)
    server = start(triton.http, release=Shop(published, start.model, folder / "sources", folder).release())
    server.until_ready()
    return server


def test_a_further_session_event_changes_the_next_slate(near: Any, published: Any) -> None:
    user = column("position", "INT64", 1), column("user_id", "INT64", 1)

    def slate() -> set[str]:
        status, answer = near.infer(column("k", "INT64", 2), *user, model=RECOMMEND)
        assert status == 200, answer
        return {*next(output["data"] for output in answer["outputs"] if output["name"] == "item_id")}

    # No other picture points where that of item 0 does, (1, 0), nor where that of item 3 does, (0, 2).
    for item in ("item 0", "item 3"):
        assert item not in slate()
        name = f"took {item}"
        status, answer = near.infer(column("item_id", "BYTES", item), *user, x_request_id=name)
        assert status == 200, answer
        clicked = {"time": datetime.now(UTC), "request_id": name, "item": item, "row": 0, "label": 1}
        schema = outcome_schema(item_type(published.plan.declared.data))
        append_rows(near.predictions.with_name("outcomes"), schema, [clicked])
        near.until(lambda: item in slate())  # noqa: B023 - within the round


def column(name: str, datatype: str, *values: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(values)], "data": list(values)}


def test_slates_over_http_in_front_of_triton(server: Any) -> None:
    inputs = column("k", "INT64", 2), column("position", "INT64", 1), column("user_id", "INT64", 1)
    slates = []
    for _ in range(2):
        status, answer = server.infer(*inputs, model=RECOMMEND)
        assert (status, answer["model_name"]) == (200, RECOMMEND)
        slates.append({output["name"]: output["data"] for output in answer["outputs"]})
    assert slates[0]["item_id"] == ["item 6", "item 5"]
    assert slates[0]["position"] == [1, 2] and slates[0]["source"] == ["popular"] * 2
    assert not {*slates[0]["item_id"]} & {*slates[1]["item_id"]}  # they were seen
    status, answer = server.infer(*inputs[1:], model=RECOMMEND)
    assert (status, answer) == (400, {"error": "input 'k' is missing; wanted the number of items to show"})
    status, _, body = server.get(f"/v2/models/{RECOMMEND}")
    metadata = json.loads(body)
    assert metadata["inputs"][:2] == [
        {"name": "k", "datatype": "INT64", "shape": [1], "parameters": {"optional": False}},
        {"name": "recent_items", "datatype": "BYTES", "shape": [-1], "parameters": {"optional": True}},
    ]
    names = ["score", "item_id", "value", "source", "position", "propensity"]
    assert [output["name"] for output in metadata["outputs"]] == names
    assert server.get(f"/v2/models/{RECOMMEND}/ready")[0] == 200


def test_slates_over_grpc(server: Any) -> None:
    client = triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}")
    inputs = []
    for name, value in (("k", 2), ("position", 1), ("user_id", 2)):
        inputs.append(triton_grpc.InferInput(name, [1], "INT64"))
        inputs[-1].set_data_from_numpy(np.array([value]))
    answer = client.infer(RECOMMEND, inputs)
    assert answer.as_numpy("item_id").tolist() == [b"item 6", b"item 5"]
    assert answer.as_numpy("propensity").tolist() == [1.0, 1.0]
    assert answer.get_response().parameters["short"].bool_param is False
    inputs[0].set_data_from_numpy(np.array([1_000_000]))
    with pytest.raises(InferenceServerException, match="k: got 1000000; wanted 1 to 8") as refused:
        client.infer(RECOMMEND, inputs)
    assert "INVALID_ARGUMENT" in str(refused.value)
    assert client.is_model_ready(RECOMMEND)
    client.close()
