"""Events of applications: durable before they are acknowledged, each judged by itself, and collected as labels."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import ShortlistError
from shortlist.serving.log.logs import item_type, outcome_columns, outcome_schema
from shortlist.serving.log.serving_log import ServingLog, stream_folder
from shortlist.serving.server.inference.event_receiver import EventReceiver
from shortlist.serving.server.inference.recent_answers import RecentAnswers
from shortlist.serving.server.requests.request_errors import BadRequestError, ModelUnavailableError, UnauthorizedError
from shortlist.serving.server.requests.senders import Senders
from shortlist.spec.data import Data
from shortlist.spec.serving import Events
from shortlist.storage.append_log.writer import AppendLog

DECLARED: dict[str, Any] = {
    "source": {"kind": "files", "path": "log.csv"}, "label": "clicked", "user": "user_id", "item": "item_id",
    "clock": {"kind": "column", "column": "time", "unit": "s"}, "outcome_delay": "1h",
    "columns": [
        {"name": "user_id", "type": "string"}, {"name": "item_id", "type": "integer"},
        {"name": "clicked", "type": "integer"}, {"name": "watched", "type": "number", "known": "after"},
        {"name": "day_bought", "type": "date", "known": "after"}, {"name": "reasons", "type": "tags", "known": "after"},
    ],
}  # fmt: skip
NOW = datetime.now(UTC)


class Outcomes:
    """A receiver and the log that it appends to."""

    def __init__(self, folder: Path, data: Data, settings: Events, host: str) -> None:
        self.folder, self.data = folder / "outcomes", data
        self.receiver = EventReceiver(stream_folder(self.folder), data, settings, host)

    def send(self, *events: Any) -> tuple[int, list[str]]:
        """Send events; return how many are accepted, and why others are not."""
        receipt = asyncio.run(self.receiver.receive({"events": list(events)}))
        return receipt.accepted, [f"{refused.index}: {refused.error}" for refused in receipt.refused]

    def rows(self) -> pl.DataFrame:
        """Return what is on the disk, in the order in which it was appended."""
        schema = outcome_schema(item_type(self.data), outcome_columns(self.data))
        return ServingLog.on_disk(self.folder, schema).read_all()


Open = Callable[..., Outcomes]


@pytest.fixture
def open_outcomes(tmp_path: Path) -> Iterator[Open]:
    opened: list[Outcomes] = []

    def outcomes(settings: Any = None, host: str = "127.0.0.1", **data: Any) -> Outcomes:
        declared = Data.model_validate(DECLARED | data)
        opened.append(Outcomes(tmp_path / str(len(opened)), declared, Events.model_validate(settings or {}), host))
        return opened[-1]

    yield outcomes
    for each in opened:
        each.receiver.close()


def event(**fields: Any) -> dict[str, Any]:
    return {"event_id": "e", "request_id": "r", "item": 5, "outcome": {"clicked": 1}} | fields


def test_an_accepted_event_is_on_the_disk_with_all_that_it_says(open_outcomes: Open) -> None:
    outcomes = open_outcomes()
    outcome = {"clicked": 1, "watched": 2, "day_bought": "2026-03-01T10:00:00Z", "reasons": ["price", "brand"]}
    moment = NOW - timedelta(minutes=5)
    sent = event(index=3, seen=True, outcome=outcome, time=moment.isoformat())
    assert outcomes.send(sent, event(event_id="f", outcome={}, seen=False)) == (2, [])
    bought, unseen = outcomes.rows().to_dicts()  # the writer is still open: what is acknowledged can be read
    assert {name: bought[name] for name in ("request_id", "item", "row", "label", "event_id", "seen")} == {
        "request_id": "r", "item": 5, "row": 3, "label": 1, "event_id": "e", "seen": True,
    }  # fmt: skip
    assert (bought["time"], bought["watched"], str(bought["day_bought"])) == (moment, 2.0, "2026-03-01")
    assert bought["reasons"] == ["price", "brand"]
    assert (unseen["label"], unseen["seen"], unseen["row"]) == (None, False, None)
    assert NOW <= unseen["received"] <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"event_id": ""}, "event_id: got ''"),
        ({"request_id": None}, "request_id: got None"),
        ({"clicked": 1}, "clicked: unknown key; wanted event_id, request_id, item, index, seen, outcome, time"),
        ({"outcom": {"clicked": 1}}, "outcom: unknown key; did you mean 'outcome'?"),
        ({"outcome": {}}, "the event says nothing; wanted 'seen', or an 'outcome'"),
        ({"item": None}, "wanted 'item' or 'index', as the answer names them"),
        ({"item": "5"}, "item: got '5'; wanted an integer"),
        ({"index": -1}, "index: got -1"),
        ({"outcome": {"clicked": 2}}, "outcome.clicked: got 2; wanted 0 or 1"),
        ({"outcome": {"clickd": 1}}, "no such column; did you mean 'clicked'?"),
        ({"outcome": {"user_id": "u"}}, "outcome.'user_id': no such column"),
        ({"outcome": {"watched": "long"}}, "outcome.watched: got 'long'; wanted a value of type number"),
        ({"outcome": {"day_bought": "today"}}, "outcome.day_bought: got 'today'; wanted an ISO date"),
        ({"time": "yesterday"}, "time: got 'yesterday'; wanted ISO 8601 with a time zone"),
        ({"time": "2026-03-01T10:00:00"}, "wanted ISO 8601 with a time zone"),
        ({"time": (NOW + timedelta(hours=9)).isoformat()}, "more than 0:05:00 after the server's clock"),
        ({"time": (NOW - timedelta(hours=2)).isoformat()}, "outcomes of more than 1:06:00 ago count no more"),
    ],
)
def test_a_wrong_event_is_refused_by_itself(open_outcomes: Open, changes: dict[str, Any], message: str) -> None:
    outcomes = open_outcomes()
    accepted, refused = outcomes.send(event(event_id="good"), event(**changes))
    assert (accepted, len(refused)) == (1, 1)
    assert refused[0].startswith("1: ")
    assert message in refused[0]
    assert outcomes.rows()["event_id"].to_list() == ["good"]


@pytest.mark.parametrize("document", [[], {}, {"events": []}, {"events": "e"}, {"event": []}, None])
def test_a_body_without_events_is_refused(open_outcomes: Open, document: Any) -> None:
    with pytest.raises(BadRequestError, match=r"events|the body"):
        asyncio.run(open_outcomes().receiver.receive(document))


def test_events_are_counted_by_what_became_of_them(tmp_path: Path) -> None:
    data, counts = Data.model_validate(DECLARED), Counter[str]()
    receiver = EventReceiver(tmp_path, data, Events(), "127.0.0.1", count_events=counts.update)
    receiver.answers.add("r", np.array([5]))
    events = [
        event(), event(event_id="f", request_id="elsewhere"), event(outcome={}), event(item=9), event(item=None),
        event(index=1), event(time="yesterday"), event(outcome={"clicked": 2}), event(clicked=1),
    ]  # fmt: skip
    asyncio.run(receiver.receive({"events": events}))
    receiver.close()
    assert counts == {"accepted": 1, "unknown_answer": 1, "outcome": 2, "item": 2, "index": 1, "time": 1, "form": 1}


def test_an_event_that_is_sent_again_is_appended_once(open_outcomes: Open) -> None:
    outcomes = open_outcomes()
    assert [outcomes.send(event()), outcomes.send(event(), event(event_id="f"))] == [(1, []), (2, [])]
    assert outcomes.rows()["event_id"].to_list() == ["e", "f"]


def test_the_server_that_gave_an_answer_knows_its_items(open_outcomes: Open) -> None:
    outcomes = open_outcomes()
    outcomes.receiver.answers.add("r", np.array([7, 5, 5]))
    accepted, refused = outcomes.send(
        event(), event(event_id="f", index=2), event(event_id="g", item=None, index=0), event(event_id="h", item=9),
        event(event_id="i", index=0), event(event_id="j", item=None, index=3), event(event_id="k", request_id="other"),
    )  # fmt: skip
    assert accepted == 4
    assert refused == [
        "3: item: got 9, which was not in the answer", "4: index 0: the answer had another item, or none, there",
        "5: index 3: the answer had another item, or none, there",
    ]  # fmt: skip
    assert outcomes.rows()["row"].to_list() == [1, 2, 0, None]


def test_memory_of_answers_is_bounded_and_the_oldest_is_forgotten() -> None:
    answers = RecentAnswers(max_items=5)
    for request, items in (("a", [1, 2]), ("a", [9]), ("b", [3, 4]), ("large", list(range(6))), ("c", ["x", "y"])):
        answers.add(request, items)
    assert [answers.items(request) for request in ("a", "b", "large", "c")] == [None, [3, 4], None, ["x", "y"]]


def test_a_label_with_a_rule_is_positive_by_its_rule(open_outcomes: Open) -> None:
    columns = [column | ({"known": "after"} if column["name"] == "watched" else {}) for column in DECLARED["columns"]]
    outcomes = open_outcomes(label="watched", positive={"at_least": 10}, columns=columns)
    assert outcomes.send(
        event(outcome={"watched": 12}), event(event_id="f", outcome={"watched": 9.5}),
        event(event_id="g", outcome={"watched": True}),
    ) == (3, [])  # fmt: skip
    assert outcomes.rows()["label"].to_list() == [1, 0, 0]


def text_label(**declaration: Any) -> list[dict[str, Any]]:
    """The columns with a label that is a text."""
    changes = {"type": "string", **declaration}
    return [{**column, **changes} if column["name"] == "clicked" else column for column in DECLARED["columns"]]


def test_another_spelling_of_a_positive_label_is_refused(open_outcomes: Open) -> None:
    outcomes = open_outcomes(positive={"any_of": ["yes"]}, columns=text_label(allowed=["yes", "no"]))
    accepted, refused = outcomes.send(
        event(outcome={"clicked": "yes"}), event(event_id="f", outcome={"clicked": "no"}),
        event(event_id="g", outcome={"clicked": "YES "}),
    )  # fmt: skip
    assert accepted == 2 and "outcome.clicked: got 'YES '; did you mean 'yes'?" in refused[0]
    assert outcomes.rows()["label"].to_list() == [1, 0]


@pytest.mark.parametrize(
    ("declaration", "value", "message"),
    [
        (
            {"allowed": ["yes", "no"]},
            "maybe",
            "got 'maybe', a value that is not declared; 'yes', 'buy' count as 1, 'no' as 0",
        ),
        (
            {},
            "true",
            "got 'true', a value that is not declared; 'yes', 'buy' count as 1. To send values that count as 0, list"
            " all values of 'clicked' in data.columns (allowed)",
        ),
        ({}, 1, "got 1; wanted a value of type string: 'yes', 'buy' count as 1"),
    ],
)
def test_a_value_that_no_declaration_lists_is_no_negative(
    open_outcomes: Open, declaration: dict[str, Any], value: Any, message: str
) -> None:
    outcomes = open_outcomes(positive={"any_of": ["yes", "buy"]}, columns=text_label(**declaration))
    accepted, refused = outcomes.send(event(outcome={"clicked": value}))
    assert accepted == 0 and message in refused[0]


def test_numbers_within_declared_bounds_are_negatives(open_outcomes: Open) -> None:
    columns = text_label(type="integer", min=1, max=4)
    outcomes = open_outcomes(positive={"any_of": [3]}, columns=columns)
    accepted, refused = outcomes.send(
        event(outcome={"clicked": 3}), event(event_id="f", outcome={"clicked": 4}),
        event(event_id="g", outcome={"clicked": 5}),
    )  # fmt: skip
    assert (
        accepted == 2 and "got 5, a value that is not declared; 3 counts as 1, other values from 1 to 4" in refused[0]
    )
    assert outcomes.rows()["label"].to_list() == [1, 0]


def test_another_spelling_of_a_further_labels_positive_is_refused(open_outcomes: Open) -> None:
    columns = [*DECLARED["columns"], {"name": "deed", "type": "string", "known": "after"}]
    labels = {"shared": {"column": "deed", "positive": {"any_of": ["share"]}}}
    accepted, refused = open_outcomes(columns=columns, labels=labels).send(
        event(outcome={"deed": "Share"}), event(event_id="f", outcome={"deed": "save"})
    )
    assert accepted == 1 and "outcome.deed: got 'Share'; did you mean 'share'?" in refused[0]


def test_who_may_send_is_declared(open_outcomes: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    open_outcomes().receiver.senders.check({})
    with pytest.raises(UnauthorizedError, match=r"declare serving\.events\.token_variable"):
        open_outcomes(host="0.0.0.0").receiver.senders.check({"authorization": "Bearer x"})  # noqa: S104
    with pytest.raises(ShortlistError, match="EVENT_TOKEN is not set"):
        open_outcomes({"token_variable": "EVENT_TOKEN"})
    monkeypatch.setenv("EVENT_TOKEN", "secret")
    guarded = open_outcomes({"token_variable": "EVENT_TOKEN"}).receiver.senders
    guarded.check({"authorization": "Bearer secret"})
    for sent in ({}, {"authorization": "Bearer"}, {"authorization": "secret"}, {"authorization": "Bearer secrets"}):
        with pytest.raises(UnauthorizedError, match="Authorization: Bearer TOKEN"):
            guarded.check(sent)
    behind_gateway = open_outcomes({"identity_header": "X-Client"}, "0.0.0.0").receiver.senders  # noqa: S104
    behind_gateway.check({"x-client": "shop"})
    with pytest.raises(UnauthorizedError, match="the header 'X-Client'"):
        behind_gateway.check({"x-client": ""})


def test_a_sender_is_named_by_its_token_its_identity_or_the_address_that_the_gateway_saw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forged_and_seen = {"x-forwarded-for": "10.9.9.9, 192.0.2.7"}
    unknown = Senders(Events(), "127.0.0.1")
    assert unknown.name(forged_and_seen) == "192.0.2.7"
    assert [unknown.name({"x-forwarded-for": text}) for text in ("", "not an address", "192.0.2.7,")] == [None] * 3
    behind_gateway = Senders(Events(identity_header="X-Client"), "127.0.0.1")
    assert behind_gateway.name({"x-client": "shop", **forged_and_seen}) == "shop"
    assert behind_gateway.name(forged_and_seen) == "192.0.2.7"
    monkeypatch.setenv("EVENT_TOKEN", "secret")
    guarded = Senders(Events.model_validate({"token_variable": "EVENT_TOKEN"}), "127.0.0.1")
    assert guarded.name({"authorization": "Bearer secret", **forged_and_seen}) == "backend"
    assert guarded.name({"authorization": "Bearer other", **forged_and_seen}) == "192.0.2.7"


def test_events_that_the_disk_does_not_take_are_not_acknowledged(
    open_outcomes: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = open_outcomes()
    assert outcomes.send(event()) == (1, [])

    def fail(log: AppendLog, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(AppendLog, "_write", fail)
        with pytest.raises(ModelUnavailableError, match="could not be written"):
            outcomes.send(event(event_id="f"))
        assert outcomes.receiver.problem is not None
    assert outcomes.send(event(event_id="f")) == (1, [])
    assert outcomes.rows()["event_id"].to_list() == ["e", "f"]


def test_text_items_and_hex_items(open_outcomes: Open) -> None:
    def columns(kind: str) -> list[dict[str, Any]]:
        return [column | ({"type": kind} if column["name"] == "item_id" else {}) for column in DECLARED["columns"]]

    texts = open_outcomes(columns=columns("string"))
    assert texts.send(event(item="a"), event(event_id="f", item=5))[1] == ["1: item: got 5; wanted a text"]
    digits = open_outcomes(columns=columns("hex"))
    assert digits.send(event(item="ff"), event(event_id="f", item="xyz"))[0] == 1
    assert digits.rows()["item"].to_list() == [255]
