"""Client of a served recommender, for applications: recommend, rank, and report what users saw and did."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

import httpx

from shortlist.serving.server.requests.headers import REQUEST_ID_HEADER, USER_HEADER
from shortlist.serving.server.requests.paths import EVENTS, RANK, RECOMMEND

Key = int | str
_ITEM: Final = "item"


class RefusedRequestError(Exception):
    """The server did not answer a request with 200.

    Args:
        status: HTTP status.
        message: What the server says about it.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        """HTTP status: 4xx for a mistake in the request; of 429 and 503 a later try may be answered."""


@dataclass(frozen=True)
class ScoredItem:
    """An item of an answer."""

    item: Key
    score: float
    """Score of the label: the probability of a positive outcome, for calibrated models."""
    facts: Mapping[str, Any]
    """Further values: index and scores of further labels; of a slate also position, value, source and propensity."""


@dataclass(frozen=True)
class ItemList:
    """Items in the order in which to show them."""

    request_id: str
    """Names the request in events about these items."""
    items: tuple[ScoredItem, ...]
    degraded: bool
    """Whether some features could not be read and counted as unknown."""
    not_sent: tuple[str, ...] = ()
    """Columns that the model reads and the request left out: it was scored without them."""

    @property
    def ids(self) -> list[Key]:
        """Ids of the items, in order."""
        return [scored.item for scored in self.items]


@dataclass(frozen=True)
class Event:
    """What happened to an item of an answer."""

    request_id: str
    item: Key | None = None
    outcome: Mapping[str, Any] = field(default_factory=dict)
    """Values of columns that are known after the impression, such as `{"clicked": 1}`."""
    seen: bool | None = None
    """Whether the user saw the item; None: not known."""
    index: int | None = None
    """Place of the item in the answer (`ScoredItem.facts["index"]`)."""
    time: datetime | None = None
    """When it happened, with a time zone; None: when the server receives it."""
    event_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Different for each event; one that is sent again counts once."""

    def to_json(self) -> dict[str, Any]:
        """Return the event as it is sent."""
        fields = {**asdict(self), "outcome": dict(self.outcome)}
        fields["time"] = None if self.time is None else self.time.isoformat()
        return {name: value for name, value in fields.items() if value is not None}


class ShortlistClient:
    """Client of one server or gateway, with connections that are kept; a context manager.

    Args:
        url: Such as `http://127.0.0.1:8080`.
        timeout_seconds: Timeout of a request.
        token: Token of the application's servers (`serving.events.token_variable`): with it events are taken, and users
            are vouched for.
        transport: Transport of httpx in place of the network.
    """

    def __init__(
        self, url: str, timeout_seconds: float = 2.0, token: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:  # fmt: skip
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=url, timeout=timeout_seconds, transport=transport, headers=headers)

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def recommend(
        self, user: Key | None, k: int | None = None, *, context: Mapping[str, Any] | None = None,
        recent_items: Sequence[Key] | None = None, request_id: str | None = None,
    ) -> ItemList:  # fmt: skip
        """Return a slate for a user.

        Args:
            user: The user's id; None for one without.
            k: Number of items; by default ten, or as many as can be recommended.
            context: Columns of the request, such as the device.
            recent_items: Items that the user took lately, newest first.
            request_id: Id of the request; the server makes one by default.

        Raises:
            RefusedRequestError: The server did not answer with a slate.
            httpx.HTTPError: The server could not be reached, or did not answer in time.
        """
        request = {"user": user, "k": k, "recent_items": recent_items and list(recent_items)}
        return self._ask(RECOMMEND, user, request, context, request_id)

    def rank(
        self, user: Key | None, items: Sequence[Key | Mapping[str, Any]], *,
        context: Mapping[str, Any] | None = None, request_id: str | None = None,
    ) -> ItemList:  # fmt: skip
        """Return given items for a user, the best first.

        Args:
            user: The user's id; None for one without.
            items: Ids of the items, or objects with the id and further columns of the item's row.
            context: Columns of the request, which all items share.
            request_id: Id of the request; the server makes one by default.

        Raises:
            RefusedRequestError: The server did not answer with scores.
            httpx.HTTPError: The server could not be reached, or did not answer in time.
        """
        return self._ask(RANK, user, {"user": user, "items": list(items)}, context, request_id)

    def send_events(self, events: Iterable[Event]) -> list[str]:
        """Report what users saw and did; return why events were refused, which is empty when all are kept.

        After an error the same events may be sent again: one that is kept already counts once.

        Args:
            events: At most 10 000.

        Raises:
            RefusedRequestError: The server keeps none of them.
            httpx.HTTPError: The server could not be reached, or did not answer in time.
        """
        sent = [event.to_json() for event in events]
        if not sent:
            return []
        receipt = self._post(EVENTS, {"events": sent}, {})
        return [f"event {sent[refused['index']]['event_id']}: {refused['error']}" for refused in receipt["refused"]]

    def _ask(
        self, path: str, user: Key | None, request: dict[str, Any], context: Mapping[str, Any] | None,
        request_id: str | None,
    ) -> ItemList:  # fmt: skip
        header_values = {USER_HEADER: user, REQUEST_ID_HEADER: request_id}
        headers = {name: str(value) for name, value in header_values.items() if value is not None}
        body = {**request, "context": dict(context or {})}
        content = self._post(path, {name: value for name, value in body.items() if value is not None}, headers)
        scored = [dict(values) for values in content["items"]]
        items = tuple(ScoredItem(values.pop(_ITEM, None), values.pop("score"), values) for values in scored)
        return ItemList(content["request_id"], items, content["degraded"], tuple(content.get("not_sent", ())))

    def _post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        response = self._http.post(path, json=body, headers=dict(headers))
        if response.status_code != httpx.codes.OK:
            raise RefusedRequestError(response.status_code, _error_message(response))
        content: dict[str, Any] = response.json()
        return content


def _error_message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"])
    except (ValueError, KeyError, TypeError):  # of a proxy
        return response.text[:200]
