"""Requests in plain JSON, and their conversion into the tensors of an inference request."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, Final, TypeVar

import orjson
from pydantic import ConfigDict, Field

from shortlist.contracts import Columns
from shortlist.serving.server.inference.service import InferenceRequest, Service
from shortlist.serving.server.request_inputs.input_types import accepted_datatypes, preferred_datatype
from shortlist.serving.server.requests.headers import REQUEST_ID_HEADER, RequestContext, recommend_model
from shortlist.serving.server.requests.paths import RANK
from shortlist.serving.server.requests.request_errors import BadRequestError, UnknownModelError, shorten
from shortlist.serving.server.requests.tensors import ProtocolMessage, Tensor, TensorHead, from_values, validate_message
from shortlist.spec.data import Column
from shortlist.spec.retrieval import RECENT_ITEMS, K

MAX_ITEMS: Final = 100_000
"""Most items of a request in any spec; `serving.max_rows` is the limit of this one."""
DEFAULT_K: Final = 10
"""Items of a slate whose request does not say how many."""

_JSON_TYPES: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "BYTES": ((str,), "a text"),
    "INT64": ((int, bool), "an integer"),
    "FP32": ((int, float, bool), "a number"),
    "FP64": ((int, float, bool), "a number"),
}
"""Types of the values in JSON by the datatype of their tensor, and what messages call them."""

Key = int | str
Message = TypeVar("Message", bound=ProtocolMessage)


class _StrictMessage(ProtocolMessage):
    model_config = ConfigDict(extra="forbid")


class RankRequest(_StrictMessage):
    """Items to be scored for a user."""

    user: Key | None = None
    items: Annotated[list[Key | dict[str, Any]], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]
    """Ids; or objects with the id and further columns of the item's row."""
    context: dict[str, Any] = Field(default_factory=dict)
    """Columns of the request, which all items share."""


class RecommendRequest(_StrictMessage):
    """A user who wants a slate."""

    user: Key | None = None
    k: Annotated[int, Field(ge=1, le=MAX_ITEMS)] | None = None
    context: dict[str, Any] = Field(default_factory=dict)
    """Columns of the request."""
    recent_items: Annotated[list[Key], Field(max_length=MAX_ITEMS, fail_fast=True)] | None = None
    """Items that the user took lately, newest first."""


def parse_json(content: bytes | bytearray) -> Any:
    """Return the content of a body.

    Raises:
        BadRequestError: It is not JSON.
    """
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is not valid JSON: {error}") from None


def read_rank_request(service: Service, document: Any, context: RequestContext) -> InferenceRequest:
    """Return a request for scores.

    Args:
        service: The service of the server.
        document: Content of the body, as `RankRequest` describes it.
        context: Headers of the request.

    Raises:
        BadRequestError: It is invalid; the message names the first mistake.
    """
    request = _validate(RankRequest, document)
    roles = {service.data.user, service.data.item, Columns.TIME}
    names = [name for name in service.inputs.accepted_names if name not in roles]
    context_columns = _context(service, request.context, request.user, names)
    columns = {**context_columns, **_item_columns(service, request.items, context_columns)}
    return _inference_request(service, service.settings.model, columns, [], context)


def read_recommend_request(service: Service, document: Any, context: RequestContext) -> InferenceRequest:
    """Return a request for a slate.

    Args:
        service: The service of the server.
        document: Content of the body, as `RecommendRequest` describes it.
        context: Headers of the request.

    Raises:
        BadRequestError: It is invalid; the message names the first mistake.
        UnknownModelError: The served version has no retrieval.
    """
    if service.recommending is None:
        raise UnknownModelError(
            f"version {service.settings.version}, which serves, ranks items that the request names: POST {RANK}. It was"
            " trained without retrieval; declare `retrieval` in the spec, train, and roll that version out"
        )
    request = _validate(RecommendRequest, document)
    k = min(DEFAULT_K, service.recommending.max_k) if request.k is None else request.k
    tensors = [from_values(TensorHead(name=K, datatype="INT64", shape=[1]), [k])]
    if request.recent_items:
        assert service.data.item is not None
        tensors.append(_tensor(RECENT_ITEMS, service.data.by_name[service.data.item], request.recent_items))
    columns = _context(service, request.context, request.user, service.recommending.context_names)
    return _inference_request(service, recommend_model(service.settings.model), columns, tensors, context)


def unsent_columns(service: Service, request: InferenceRequest) -> list[str]:
    """Return the columns that the model reads and a request left out, so that it was scored without them."""
    sent = {tensor.name for tensor in request.tensors}
    sendable = service.inputs.context_columns
    if service.recommending is not None and service.recommends(request.model):
        sendable = tuple(name for name in sendable if name in service.recommending.context_names)
    return [name for name in sendable if name not in sent]


def _validate(kind: type[Message], document: Any) -> Message:
    if isinstance(document, Mapping) and "request_id" in document:
        raise BadRequestError(
            f"request_id: got {shorten(document['request_id'])}; wanted it as the header {REQUEST_ID_HEADER}, which the"
            " gateway reads too"
        )
    return validate_message(kind, document)


def _inference_request(
    service: Service, model: str, columns: Mapping[str, Sequence[Any]], tensors: list[Tensor], context: RequestContext
) -> InferenceRequest:
    declared = service.data.by_name
    tensors += [_tensor(name, declared[name], values) for name, values in columns.items()]
    return InferenceRequest(model, "", tensors, context)


def _context(
    service: Service, sent: Mapping[str, Any], user: Key | None, names: Sequence[str]
) -> dict[str, Sequence[Any]]:
    """Return the columns of a request, each of one value; a message about another one lists `names`."""
    columns: dict[str, Sequence[Any]] = {}
    for name, value in sent.items():
        if name in (service.data.user, service.data.item):
            raise BadRequestError(f"context.{name}: wanted it outside of the context, as 'user' or in 'items'")
        if _is_read(service, name, "context", names):
            columns[name] = [value]
    if user is not None:
        if service.data.user is None:
            raise BadRequestError(f"user: got {shorten(user)}; the served spec declares no user (data.user)")
        _check_types("user", _datatype(service.data.by_name[service.data.user], [user]), [user])
        columns[service.data.user] = [user]
    return columns


def _item_columns(
    service: Service, items: Sequence[Key | Mapping[str, Any]], context: Collection[str]
) -> dict[str, Sequence[Any]]:
    """Return the columns of items, each of as many values as there are items, None where an item has none."""
    item = service.data.item
    names = [name for name in service.inputs.accepted_names if name not in {service.data.user, Columns.TIME}]
    rows = []
    for number, value in enumerate(items):
        if not isinstance(value, Mapping):
            if item is None:
                raise BadRequestError(
                    f"items[{number}]: got {shorten(value)}; wanted an object, for the spec has no item"
                )
            rows.append({item: value})
            continue
        if item is not None and value.get(item) is None:
            raise BadRequestError(f"items[{number}]: wanted its id as '{item}'")
        rows.append({name: cell for name, cell in value.items() if _is_read(service, name, f"items[{number}]", names)})
    _add_released_columns(service, rows, context)
    sent_names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in sent_names}


def _add_released_columns(service: Service, rows: Sequence[dict[str, Any]], context: Collection[str]) -> None:
    """Add the item columns that a request leaves out: the values that the same items have in slates.

    Raises:
        BadRequestError: The release does not have an item that lacks such a column.
    """
    if service.recommending is None:
        return
    assert service.data.item is not None
    item = service.data.by_name[service.data.item]
    names = [name for name in service.recommending.scored_item_columns if name not in context]
    lacking_rows = [(number, row) for number, row in enumerate(rows) if any(name not in row for name in names)]
    if not lacking_rows:
        return
    ids = service.inputs.values(item, _tensor(item.name, item, [row[item.name] for _, row in lacking_rows]))
    if len(ids) < len(lacking_rows):  # an id that means null: the model knows nothing of it in any case
        return
    for (number, row), values in zip(lacking_rows, service.recommending.item_values(ids), strict=True):
        lacking = [name for name in names if name not in row]
        if values is None:
            raise BadRequestError(
                f"items[{number}]: {shorten(row[item.name])} is not among the items of the release, so its"
                f" {', '.join(lacking)} must be sent with it; null where a value is unknown"
            )
        row.update({name: values[name] for name in lacking})


def _is_read(service: Service, name: str, location: str, names: Sequence[str]) -> bool:
    """Return whether a column is read; False: it is passed over.

    Raises:
        BadRequestError: Nobody knows the column; the message lists `names`, which may be sent at the location.
    """
    if name == Columns.TIME:
        raise BadRequestError(
            f"{location}.{name}: the server sets the time of a request; leave it out, or send"
            " tensors, which may have one (docs/serving.md)"
        )
    return name in service.inputs.accepted_names or service.inputs.check_name(name, names)


def _tensor(name: str, column: Column, values: Sequence[Any]) -> Tensor:
    """Return the values of a column as a tensor: shape (values,), of lists (values, longest list)."""
    if column.type in ("tags", "vector"):
        return _matrix(name, column, values)
    datatype = _datatype(column, values)
    _check_types(f"input '{name}'", datatype, values)
    return from_values(_head(name, datatype, [len(values)]), values)


def _datatype(column: Column, values: Sequence[Any]) -> str:
    datatype = preferred_datatype(column)
    if datatype == "BYTES" and "INT64" in accepted_datatypes(column) and not any(isinstance(v, str) for v in values):
        return "INT64"  # bits or days instead of their text
    return datatype


def _check_types(location: str, datatype: str, values: Sequence[Any]) -> None:
    """Refuse values of another type; a client of plain JSON knows no tensors, whose messages name datatypes."""
    types, wanted = _JSON_TYPES[datatype]
    if set(map(type, values)) <= {*types, NoneType}:
        return
    value = next(value for value in values if type(value) not in (*types, NoneType))
    kind = {int: "the number ", float: "the number ", str: "the text "}.get(type(value), "")
    raise BadRequestError(f"{location}: got {kind}{shorten(value)}; wanted {wanted}")


def _matrix(name: str, column: Column, values: Sequence[Any]) -> Tensor:
    lists: list[list[Any]] = []
    for value in values:
        if value is not None and not isinstance(value, list):
            raise BadRequestError(f"input '{name}': got {shorten(value)}; wanted a list")
        lists.append(value or [])
    width = max(map(len, lists))
    padding = 0.0 if column.type == "vector" else None
    if column.type == "vector" and any(len(value) not in (0, width) for value in lists):
        raise BadRequestError(f"input '{name}': got vectors of different lengths; wanted {width} numbers each")
    flat = [element for value in lists for element in (*value, *[padding] * (width - len(value)))]
    datatype = preferred_datatype(column)
    _check_types(f"input '{name}'", datatype, flat)
    return from_values(_head(name, datatype, [len(lists), width]), flat)


def _head(name: str, datatype: str, shape: list[int]) -> TensorHead:
    return TensorHead.model_validate({"name": name, "datatype": datatype, "shape": shape})
