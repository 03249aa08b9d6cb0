"""Inference over HTTP as a plain ASGI application, without the cost of Starlette's routing and middleware."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from shortlist.serving.server.inference.service import InferenceRequest, Service
from shortlist.serving.server.protocols.connections import TimedConnection, make_connection_class
from shortlist.serving.server.protocols.json_api.endpoints import JSON_ENDPOINTS, answer_json
from shortlist.serving.server.protocols.v2 import HEADER_LENGTH, read_body, write_outputs
from shortlist.serving.server.requests.headers import VERSION_HEADER
from shortlist.serving.server.requests.http_messages import HttpResponse, RequestHead, decode_content, error_response
from shortlist.serving.server.requests.request_errors import RequestError, TooLargeError, TooSlowError
from shortlist.serving.server.runtime.metrics import WENT_AWAY

_PATH: Final = re.compile("/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer")
_HEADER_LENGTH: Final = HEADER_LENGTH.lower()
_MAX_DIGITS: Final = 18
"""Longer numbers are cut: Python parses at most 4 300 digits."""
_DRAIN_SECONDS: Final = 1.0

Handler = Callable[[Service, Mapping[str, str], bytes | bytearray], Awaitable[HttpResponse]]
"""From the service, the headers of a request, their names in lower case, and its body to the response."""

_log = logging.getLogger(__name__)


class InferenceConnection(TimedConnection):
    """A connection that counts malformed HTTP as a client error."""

    service: Service
    """The service; set by `connection_class`."""

    def note_malformed(self) -> None:
        """Count a malformed request."""
        self.service.metrics.count("http", HTTPStatus.BAD_REQUEST, 0.0)


def connection_class(service: Service) -> type[TimedConnection]:
    """Return the connection class of a service, for `uvicorn.Config(http=...)`."""
    limits = service.settings.serving.limits
    return make_connection_class(InferenceConnection, limits.idle_seconds, limits.body_seconds, service=service)


class InferenceApp:
    """ASGI application that serves inference and passes other requests to another application."""

    def __init__(self, service: Service, other_app: ASGIApp) -> None:
        self.service = service
        self.limits = service.settings.serving.limits
        self._other_app = other_app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        handler = _find_handler(scope)
        if handler is None:
            await self._other_app(scope, receive, send)
        else:
            await _Inference(self, *handler, receive, send).run()


class _Inference:
    """One inference request."""

    def __init__(
        self, app: InferenceApp, headers: Mapping[str, str], handler: Handler, receive: Receive, send: Send
    ) -> None:
        self._app = app
        self._headers = headers
        self._handler = handler
        self._receive = receive
        self._send = send
        self._body = bytearray()
        self._is_complete = False
        self._is_disconnected = False
        """Whether the client disconnected before the response."""

    async def run(self) -> None:
        """Read, answer and count the request; a disconnected client gets no response."""
        metrics, started, response = self._app.service.metrics, time.perf_counter(), None
        try:
            await self._read()
            started = time.perf_counter()
            if not self._is_disconnected:
                response = await self._answer()
        except RequestError as error:
            response = error_response(error)
        # Cancelled: the client disconnected, or the grace period before the stop is over.
        except (Exception, asyncio.CancelledError):
            if not self._is_disconnected:
                _log.exception("a request could not be answered")
                response = HttpResponse(500, {"content-type": "text/plain; charset=utf-8"}, b"Internal Server Error")
        finally:
            self._app.service.buffered_bytes.change(len(self._body), 0)
            self._body = bytearray()
        if response is not None:
            await self._send_response(response)
        # Work that the response does not need waits for the next round of the loop.
        status, seconds = WENT_AWAY if response is None else response.status, time.perf_counter() - started
        asyncio.get_running_loop().call_soon(metrics.count, "http", status, seconds)

    async def _read(self) -> None:
        """Read the body until it is complete or the client disconnects.

        Raises:
            TooLargeError: Its declared or received length exceeds the limit.
            TooSlowError: It was not received in time.
            TooManyBytesError: The server buffers too many bytes.
        """
        self._check_length(_declared_length(self._headers))
        seconds = self._app.limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                while not (self._is_complete or self._is_disconnected):
                    await self._read_chunk()
        except TimeoutError:
            length = len(self._body)
            raise TooSlowError(f"the body: got {length} bytes within {seconds:g} s; wanted all of it") from None

    async def _read_chunk(self) -> None:
        old_length = len(self._body)
        self._body += await self._receive_chunk()
        self._app.service.buffered_bytes.change(old_length, len(self._body))
        self._check_length(len(self._body))

    async def _receive_chunk(self) -> bytes:
        message = await self._receive()
        self._is_disconnected = message["type"] == "http.disconnect"
        self._is_complete = not self._is_disconnected and not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk

    def _check_length(self, length: int) -> None:
        max_bytes = self._app.limits.max_request_bytes
        if length > max_bytes:
            raise TooLargeError(f"the body: wanted at most {max_bytes} bytes (serving.limits.max_request_bytes)")

    async def _answer(self) -> HttpResponse:
        """Return the response; cancelled when the client disconnects."""
        body, size = self._body, len(self._body)
        self._body = bytearray()  # so that the receiver can free it
        answering = asyncio.current_task()
        assert answering is not None
        watching = asyncio.get_running_loop().create_task(self._cancel_on_disconnect(answering))
        try:
            return await self._handler(self._app.service, self._headers, body)
        finally:
            watching.cancel()
            self._app.service.buffered_bytes.change(size, 0)

    async def _cancel_on_disconnect(self, answering: asyncio.Task[None]) -> None:
        await self._receive()  # returns when the client disconnects, because the body is complete
        self._is_disconnected = True
        answering.cancel()

    async def _send_response(self, response: HttpResponse) -> None:
        headers = {**response.headers, "content-length": str(len(response.content))}
        if not self._is_complete:
            headers["connection"] = "close"
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": response.status, "headers": raw})
        await self._send({"type": "http.response.body", "body": response.content, "more_body": not self._is_complete})
        if not self._is_complete:
            await self._drain()
            await self._send({"type": "http.response.body", "body": b""})

    async def _drain(self) -> None:
        """Discard further input for a while: a client that is still sending does not read a response after a reset."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while not (self._is_complete or self._is_disconnected):
                    await self._receive_chunk()


def _declared_length(headers: Mapping[str, str]) -> int:
    """Return the declared content length; the parser ensures that it consists of digits, however many."""
    digits = headers.get("content-length", "0").strip().lstrip("0") or "0"
    return int(digits) if len(digits) <= _MAX_DIGITS else 10**_MAX_DIGITS


def _find_handler(scope: Scope) -> tuple[Mapping[str, str], Handler] | None:
    """Return the headers of an inference request and what answers it; None for any other request."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    path = scope["path"]
    # Of a repeated header, the first one counts.
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
    if (match := _PATH.fullmatch(path)) is not None:
        return headers, partial(_answer_v2, match["model"], match["version"] or "")
    endpoint = JSON_ENDPOINTS.get(path)
    return None if endpoint is None else (headers, partial(answer_json, endpoint))


async def _answer_v2(
    model: str, version: str, service: Service, headers: Mapping[str, str], content: bytes | bytearray
) -> HttpResponse:
    return await answer(service, RequestHead(model, version, headers), content)


async def answer(service: Service, request_head: RequestHead, content: bytes | bytearray) -> HttpResponse:
    """Return the response to a request.

    Raises:
        RequestError: The request cannot be answered.
    """
    headers = request_head.headers
    context = service.request_context(headers)
    async with service.admission.slot(context.sender) as slot:  # before the body is parsed: a refusal must cost nothing
        content = decode_content(content, headers, service.settings.serving.limits.max_request_bytes)
        body = read_body(content, headers.get(_HEADER_LENGTH), service.outputs_of(request_head.model))
        del content  # freed while the model scores
        request = InferenceRequest(request_head.model, request_head.version, body.tensors, context, body.id)
        response = await service.answer(request, slot)
    track_headers = service.response_headers(context, request_head.version)
    version = {"model_version": track_headers[VERSION_HEADER]} if track_headers else {}
    head = {
        "model_name": request_head.model,
        **version,
        "id": body.id or response.request_id,
        "parameters": {**track_headers, "degraded": response.degraded, **response.parameters},
    }
    content_bytes, body_headers = write_outputs(head, response.select_outputs(body.outputs), body.binary)
    return HttpResponse(200, {**track_headers, **body_headers}, content_bytes)
