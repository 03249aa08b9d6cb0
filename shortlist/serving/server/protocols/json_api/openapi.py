"""OpenAPI description of the endpoints in plain JSON, for the version that is served."""

from __future__ import annotations

from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

from shortlist.contracts import Columns
from shortlist.serving.export.signature import SCORE
from shortlist.serving.log.logs import outcome_columns
from shortlist.serving.server.inference.event_receiver import MAX_EVENT_ID_LENGTH, MAX_EVENTS
from shortlist.serving.server.inference.service import Service
from shortlist.serving.server.request_inputs.input_types import accepted_datatypes
from shortlist.serving.server.requests.headers import MAX_REQUEST_ID_LENGTH, REQUEST_ID_HEADER, USER_HEADER
from shortlist.serving.server.requests.paths import EVENTS, RANK, RECOMMEND
from shortlist.serving.server.requests.tensors import BYTES, FLOATS, INTEGERS
from shortlist.spec.data import Column

Schema = dict[str, Any]

_ERRORS: Final = {
    HTTPStatus.BAD_REQUEST: "The request is invalid; the message names the first mistake",
    HTTPStatus.UNAUTHORIZED: "Of events: who sends them has not shown that they may",
    HTTPStatus.NOT_FOUND: "The served version cannot answer this kind of request",
    HTTPStatus.REQUEST_TIMEOUT: "The body was not received in time",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The content encoding is neither gzip nor deflate",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many bytes are buffered; retry later",
    HTTPStatus.INTERNAL_SERVER_ERROR: "The model returned no usable scores",
    HTTPStatus.SERVICE_UNAVAILABLE: "The server has too much to do, or the model is unavailable; retry later",
}
_INTEGER: Final = {"type": "integer", "minimum": -(2**63) + 1, "maximum": 2**63 - 1}
_BOOLEAN: Final = {"type": "boolean"}
_NUMBER: Final = {"type": "number"}
_STRING: Final = {"type": "string"}


def openapi(service: Service) -> Schema:
    """Return the description (OpenAPI 3.1) of the endpoints of a server: columns and limits are those of its spec."""
    paths = {RANK: _operation("Rank given items for a user", _rank_request(service), _ranking(service))}
    if service.recommending is not None:
        paths[RECOMMEND] = _operation("Recommend items to a user", _recommend_request(service), _slate(service))
    paths[EVENTS] = _operation("Report what users saw and did", _event_batch(service), _receipt())
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{service.settings.model}, served by Shortlist", "version": version("shortlist")},
        "paths": paths,
        "components": {
            "schemas": {"Error": _object({"error": _STRING})},
            "parameters": {
                "User": _header(USER_HEADER, "The user once more, for the gateway: it keeps a user on one version"),
                "RequestId": _header(REQUEST_ID_HEADER, "The request's id, which the answer repeats; made by default"),
            },
        },
    }


def _header(name: str, description: str) -> Schema:
    schema = {"type": "string", "pattern": f"^[!-~]{{1,{MAX_REQUEST_ID_LENGTH}}}$"}
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def _operation(summary: str, request: Schema, response: Schema) -> Schema:
    error = {"content": _json_content({"$ref": "#/components/schemas/Error"})}
    responses: Schema = {"200": {"description": "OK", "content": _json_content(response)}}
    responses |= {str(int(status)): {"description": text, **error} for status, text in _ERRORS.items()}
    return {
        "post": {
            "summary": summary,
            "parameters": [{"$ref": f"#/components/parameters/{name}"} for name in ("User", "RequestId")],
            "requestBody": {"required": True, "content": _json_content(request)},
            "responses": responses,
        }
    }


def _json_content(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _rank_request(service: Service) -> Schema:
    item = service.data.item
    columns = _columns(service)
    item_object = _object({} if item is None else {item: _key(service, item)}, columns)
    item_object["minProperties"] = 1
    item_schema = item_object if item is None else {"anyOf": [_key(service, item), item_object]}
    items = {"type": "array", "items": item_schema, "minItems": 1, "maxItems": service.settings.serving.max_rows}
    return _object({"items": items}, _request_properties(service))


def _recommend_request(service: Service) -> Schema:
    assert service.data.item is not None
    optional = {
        "k": _or_null({"type": "integer", "minimum": 1}),
        "recent_items": _or_null({"type": "array", "items": _key(service, service.data.item)}),
    }
    return _object({}, optional | _request_properties(service))


def _event_batch(service: Service) -> Schema:
    data = service.data
    columns = {name: _or_null(_column(column)) for name, column in outcome_columns(data).items()}
    request_id = {"type": "string", "minLength": 1, "maxLength": MAX_REQUEST_ID_LENGTH}
    optional = {
        "index": _or_null({"type": "integer", "minimum": 0}),
        "seen": _or_null(_BOOLEAN),
        "outcome": _object({}, {data.label: _or_null(_column(data.by_name[data.label])), **columns}),
        "time": _or_null({"type": "string", "format": "date-time"}),
    }
    if data.item is not None:
        optional["item"] = _or_null(_key(service, data.item))
    event_id = {"type": "string", "minLength": 1, "maxLength": MAX_EVENT_ID_LENGTH}
    event = _object({"event_id": event_id, "request_id": request_id}, optional)
    return _object({"events": {"type": "array", "items": event, "minItems": 1, "maxItems": MAX_EVENTS}})


def _receipt() -> Schema:
    refused = _object({"index": {"type": "integer", "minimum": 0}, "error": _STRING})
    return _object({"accepted": {"type": "integer"}, "refused": {"type": "array", "items": refused}})


def _request_properties(service: Service) -> Schema:
    user = service.data.user
    properties = {"context": _object({}, _columns(service))}
    return properties if user is None else {"user": _or_null(_key(service, user)), **properties}


def _columns(service: Service) -> Schema:
    """Return the schemas of the columns that a request may contain, besides user and item."""
    names = set(service.inputs.accepted_names) - {Columns.TIME, service.data.user, service.data.item}
    declared = service.data.by_name
    return {name: _or_null(_column(declared[name])) for name in sorted(names)}


def _column(column: Column) -> Schema:
    datatypes = accepted_datatypes(column)
    alternatives: list[Schema] = []
    if datatypes >= FLOATS:
        alternatives.append(_NUMBER)
    elif datatypes >= INTEGERS:
        alternatives.append(_INTEGER)
    if datatypes >= INTEGERS:
        alternatives.append(_BOOLEAN)
    if BYTES in datatypes:
        # Of a date or hexadecimal digits, the server says what it wants.
        alternatives.append(_STRING)
    value: Schema = alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}
    return {"type": "array", "items": _or_null(value)} if column.type in ("tags", "vector") else value


def _key(service: Service, name: str) -> Schema:
    """Return the schema of the ids in a column."""
    column = service.data.by_name[name]
    return (
        _STRING if column.type == "string" else _INTEGER if column.type == "integer" else {"anyOf": [_INTEGER, _STRING]}
    )


def _ranking(service: Service) -> Schema:
    item = service.data.item
    scores = dict.fromkeys(service.outputs, _NUMBER)
    columns = {"index": {"type": "integer", "minimum": 0}, **({} if item is None else {"item": _key(service, item)})}
    return _answer(_object({**columns, **scores}))


def _slate(service: Service) -> Schema:
    assert service.recommending is not None
    assert service.data.item is not None
    values: dict[str, Schema] = {
        "index": {"type": "integer", "minimum": 0},
        "item": _key(service, service.data.item),
        "position": {"type": "integer", "minimum": 1},
        SCORE: _NUMBER,
    }
    for name, datatype in service.recommending.outputs.items():
        if name not in values and name != service.data.item:
            values[name] = _STRING if datatype == BYTES else _or_null(_NUMBER)
    properties = {"explored": _BOOLEAN, "short": _BOOLEAN, "fallback": {"type": "array", "items": _STRING}}
    return _answer(_object(values), properties, {"empty": _STRING})


def _answer(item: Schema, properties: Schema | None = None, optional: Schema | None = None) -> Schema:
    required = {"request_id": _STRING, "degraded": _BOOLEAN, "items": {"type": "array", "items": item}}
    not_sent = {
        "type": "array", "items": _STRING, "minItems": 1,
        "description": "Columns that the model reads and the request left out",
    }  # fmt: skip
    return _object(required | (properties or {}), {**(optional or {}), "not_sent": not_sent})


def _object(required: Schema, optional: Schema | None = None) -> Schema:
    properties = {**(optional or {}), **required}
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}
