"""Events of an application: what its users saw and did, appended to the outcome log before they are acknowledged."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field

from shortlist.contracts import did_you_mean
from shortlist.serving.log.logs import EVENT_ID, SEEN, item_type, outcome_columns, outcome_name, outcome_schema
from shortlist.serving.log.outcome_writer import OutcomeWriter
from shortlist.serving.server.inference.recent_answers import RecentAnswers
from shortlist.serving.server.request_inputs.input_types import parse_hex
from shortlist.serving.server.requests.headers import MAX_REQUEST_ID_LENGTH
from shortlist.serving.server.requests.request_errors import (
    BadRequestError,
    ModelUnavailableError,
    shorten,
)
from shortlist.serving.server.requests.senders import Senders
from shortlist.serving.server.requests.tensors import ProtocolMessage, validate_message
from shortlist.spec.data import Column, Data
from shortlist.spec.log_shape import Positive
from shortlist.spec.serving import Events
from shortlist.spec.text.durations import parse_duration
from shortlist.storage.append_log.writer import AppendLogError
from shortlist.storage.positive_rows import is_positive_value

MAX_EVENTS: Final = 10_000
"""Most events of a request."""
ACCEPTED: Final = "accepted"
UNKNOWN_ANSWER: Final = "unknown_answer"
MAX_EVENT_ID_LENGTH: Final = 128
_MAX_INTEGER: Final = 2**63

Row = dict[str, Any]


class SentEvent(ProtocolMessage):
    """What happened to an item of an answer."""

    model_config = ConfigDict(extra="forbid")

    event_id: Annotated[str, Field(min_length=1, max_length=MAX_EVENT_ID_LENGTH)]
    """Given by the application, different for each event; one that is sent again counts once."""
    request_id: Annotated[str, Field(min_length=1, max_length=MAX_REQUEST_ID_LENGTH)]
    """Id of the answer that had the item."""
    item: int | str | None = None
    index: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Place of the item in the answer's request, from 0, as the answer says it."""
    seen: bool | None = None
    """Whether the user saw the item; null: not reported."""
    outcome: dict[str, Any] = Field(default_factory=dict)
    """Values of columns that are known after the impression, the label among them, such as `{"clicked": 1}`."""
    time: Annotated[str, Field(max_length=64)] | None = None
    """When it happened, in ISO 8601 with a time zone; null: now."""


class _EventBatch(ProtocolMessage):
    model_config = ConfigDict(extra="forbid")

    events: Annotated[list[Any], Field(min_length=1, max_length=MAX_EVENTS, fail_fast=True)]


class InvalidEventError(BadRequestError):
    """An event breaks a rule; the message says how.

    Args:
        rule: What of the event is wrong: `outcome`, `item`, `index` or `time`.
        message: Message for the client.
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


@dataclass(frozen=True)
class RefusedEvent:
    """An event that was not accepted; sending it again does not help."""

    index: int
    """Place of the event in the request, from 0."""
    error: str


@dataclass(frozen=True)
class EventReceipt:
    """What became of the events of a request."""

    accepted: int
    """Events that are on the disk, those that were sent before among them."""
    refused: list[RefusedEvent]


class EventReceiver:
    """Checks events and appends them to the outcome log. Use from one event loop.

    Args:
        streams: Folder of the outcome log's streams.
        data: Declared columns of the log.
        settings: Who may send events.
        host: Address that the server listens on.
        backend_token: Token of the application's backend; see `Senders`.
        count_events: Called with the number of events by what became of them: `accepted`, `unknown_answer` (accepted,
            of an answer that this server does not know), and of refused ones `form` or the rule of `InvalidEventError`.

    Raises:
        ShortlistError: The declared environment variable with the token is not set.
    """

    def __init__(
        self,
        streams: Path,
        data: Data,
        settings: Events,
        host: str,
        backend_token: str | None = None,
        count_events: Callable[[Mapping[str, int]], None] = lambda _: None,
    ) -> None:
        self._data, self._count_events = data, count_events
        self.senders = Senders(settings, host, backend_token)
        """Who may send events, and who sends requests."""
        self._columns = outcome_columns(data)
        self._is_text = data.item is not None and data.by_name[data.item].type == "string"
        self._writer = OutcomeWriter(streams, outcome_schema(item_type(data), self._columns))
        skew, delay = parse_duration(data.live.max_clock_skew), data.live_outcome_delay
        self._skew = skew
        self._oldest = None if delay is None else skew + parse_duration(delay) + parse_duration(data.live.settle)
        self.answers = RecentAnswers()
        """Items of the newest answers of this server."""

    @property
    def problem(self) -> str | None:
        """Why events cannot be written; None when they can."""
        return self._writer.problem

    def close(self) -> None:
        """Write what was appended."""
        self._writer.close()

    async def receive(self, document: Any) -> EventReceipt:
        """Append the events of a request; return when they are on the disk.

        An event that is invalid is refused by itself; the others are accepted.

        Args:
            document: Content of the body: an object with a list `events`.

        Raises:
            BadRequestError: The body is no such object.
            ModelUnavailableError: The disk does not take the events; none is acknowledged, and all may be sent again.
        """
        batch = validate_message(_EventBatch, document)
        now = datetime.now(UTC)
        rows: list[Row] = []
        refused: list[RefusedEvent] = []
        counts = Counter[str]()
        for number, sent in enumerate(batch.events):
            try:
                rows.append(self._row(validate_message(SentEvent, sent), now))
            except BadRequestError as error:
                refused.append(RefusedEvent(number, str(error)))
                counts[error.rule if isinstance(error, InvalidEventError) else "form"] += 1
        if rows:
            try:
                await asyncio.wrap_future(self._writer.append(rows))
            except AppendLogError as error:
                raise ModelUnavailableError(f"the events could not be written: {error}") from None
        for row in rows:
            is_unknown = self.answers.items(row["request_id"]) is None
            counts[UNKNOWN_ANSWER if is_unknown else ACCEPTED] += 1
        self._count_events(counts)
        return EventReceipt(len(rows), refused)

    def _row(self, event: SentEvent, now: datetime) -> Row:
        label, values = self._outcome(event.outcome)
        if label is None and not values and event.seen is None:
            raise InvalidEventError("outcome", "the event says nothing; wanted 'seen', or an 'outcome'")
        item = self._item(event.item)
        return {
            "time": self._time(event.time, now), "request_id": event.request_id, "item": item,
            "row": self._index(event, item), "label": label, EVENT_ID: event.event_id, SEEN: event.seen, **values,
        }  # fmt: skip

    def _item(self, item: int | str | None) -> int | str | None:
        if item is None or isinstance(item, str) == self._is_text:
            return item
        if self._data.item is None:
            raise InvalidEventError("item", f"item: got {shorten(item)}; the served spec declares no items")
        if isinstance(item, str) and self._data.by_name[self._data.item].type == "hex":
            try:
                return parse_hex(item)
            except ValueError:
                raise InvalidEventError(
                    "item", f"item: got {shorten(item)}; wanted at most 16 hexadecimal digits"
                ) from None
        raise InvalidEventError(
            "item", f"item: got {shorten(item)}; wanted {'a text' if self._is_text else 'an integer'}"
        )

    def _index(self, event: SentEvent, item: int | str | None) -> int | None:
        """Return the row of the item; None where neither the event nor this server knows it."""
        if item is None and event.index is None:
            raise InvalidEventError("item", "wanted 'item' or 'index', as the answer names them")
        items = self.answers.items(event.request_id)
        if items is None:
            return event.index
        if event.index is not None:
            if event.index >= len(items) or (item is not None and items[event.index] != item):
                raise InvalidEventError("index", f"index {event.index}: the answer had another item, or none, there")
            return event.index
        if item not in items:
            raise InvalidEventError("item", f"item: got {shorten(item)}, which was not in the answer")
        return list(items).index(item)

    def _time(self, text: str | None, now: datetime) -> datetime:
        if text is None:
            return now
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            time = datetime.min
        if time.tzinfo is None:
            raise InvalidEventError(
                "time", f"time: got {shorten(text)}; wanted ISO 8601 with a time zone: {now.isoformat()}"
            )
        if time > now + self._skew:
            raise InvalidEventError("time", f"time: got {text}, more than {self._skew} after the server's clock")
        if self._oldest is not None and time < now - self._oldest:
            raise InvalidEventError("time", f"time: got {text}; outcomes of more than {self._oldest} ago count no more")
        return time

    def _outcome(self, outcome: Mapping[str, Any]) -> tuple[int | None, Row]:
        """Return the label, None where the event has none, and the other values by column of the outcome log."""
        label = None
        values: Row = {}
        for name, value in outcome.items():
            if value is None:
                continue
            if name == self._data.label:
                label = self._label(name, value)
            elif name in self._columns:
                values[outcome_name(name)] = self._further_value(self._columns[name], value)
            else:
                names = [self._data.label, *self._columns]
                raise InvalidEventError(
                    "outcome",
                    f"outcome.{shorten(name)}: no such column{did_you_mean(name, names)}; wanted {', '.join(names)}",
                )
        return label, values

    def _label(self, name: str, value: Any) -> int:
        positive = self._data.positive
        if positive is None:
            if isinstance(value, int | float) and value in (0, 1):
                return int(value)
            raise InvalidEventError("outcome", f"outcome.{name}: got {shorten(value)}; wanted 0 or 1")
        column = self._data.by_name[name]
        typed = _typed(column, value, f": {_describe_positives(positive)}" if positive.any_of else "")
        if is_positive_value(typed, positive):
            return 1
        if positive.any_of is not None:
            _check_spelling(column, value, positive)
            if not _is_declared(column, typed):  # another language or type of 'yes' must not become a negative
                raise InvalidEventError("outcome", _undeclared_message(column, value, positive))
        return 0

    def _further_value(self, column: Column, value: Any) -> Any:
        """Return the value of a column that is not the label, in its type."""
        typed = _typed(column, value)
        for label in self._data.labels.values():
            if (
                label.column == column.name
                and label.positive is not None
                and not is_positive_value(typed, label.positive)
            ):
                _check_spelling(column, value, label.positive)
        return typed


def _describe_positives(positive: Positive) -> str:
    values = ", ".join(map(repr, positive.any_of or ()))
    return f"{values} count{'s' if len(positive.any_of or ()) == 1 else ''} as 1"


def _check_spelling(column: Column, value: Any, positive: Positive) -> None:
    """Refuse a value that differs from a positive one in case or spaces alone."""
    for accepted in positive.any_of or ():
        if str(accepted).strip().lower() == str(value).strip().lower():
            raise InvalidEventError(
                "outcome", f"outcome.{column.name}: got {shorten(value)}; did you mean '{accepted}'?"
            )


def _is_declared(column: Column, value: float | str) -> bool:
    """Return whether the column's declaration lists a value, or bounds it on both sides."""
    if column.allowed is not None:
        return str(value) in map(str, column.allowed)
    if column.min is None or column.max is None or isinstance(value, str):
        return False
    return column.min <= value <= column.max


def _undeclared_message(column: Column, value: Any, positive: Positive) -> str:
    positives = list(map(str, positive.any_of or ()))
    negatives = [repr(allowed) for allowed in column.allowed or () if str(allowed) not in positives]
    if negatives:
        advice = f", {', '.join(negatives)} as 0"
    elif column.min is not None and column.max is not None:
        advice = f", other values from {column.min:g} to {column.max:g} as 0"
    else:
        advice = (
            f". To send values that count as 0, list all values of '{column.name}' in data.columns (allowed), and serve"
            " a version that is trained with it"
        )
    problem = f"outcome.{column.name}: got {shorten(value)}, a value that is not declared"
    return f"{problem}; {_describe_positives(positive)}{advice}"


def _typed(column: Column, value: Any, explanation: str = "") -> Any:
    """Return a value in the type of its column of the outcome log; a message about another type has `explanation`."""
    location = f"outcome.{column.name}"
    match column.type:
        case "integer" if isinstance(value, int) and -_MAX_INTEGER <= value < _MAX_INTEGER:
            return int(value)
        case "number" if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
        case "string" if isinstance(value, str):
            return value
        case "tags" if isinstance(value, list):
            kind = str if column.tag_type == "string" else int
            if all(isinstance(tag, kind) for tag in value):
                return value
        case "hex" if isinstance(value, str):
            try:
                return parse_hex(value)
            except ValueError:
                raise InvalidEventError(
                    "outcome", f"{location}: got {shorten(value)}; wanted hexadecimal digits"
                ) from None
        case "date" if isinstance(value, str):
            try:
                return date.fromisoformat(value[:10])
            except ValueError:
                raise InvalidEventError("outcome", f"{location}: got {shorten(value)}; wanted an ISO date") from None
    raise InvalidEventError(
        "outcome", f"{location}: got {shorten(value)}; wanted a value of type {column.type}{explanation}"
    )
