"""Inference over HTTP: a plain ASGI application, as Starlette's routes and middleware do nothing for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from shortlist.serving.server.connections import TimedConnection, timed
from shortlist.serving.server.headers import RequestContext
from shortlist.serving.server.metrics import WENT_AWAY
from shortlist.serving.server.request_errors import (
    BadRequestError,
    RequestError,
    TooLargeError,
    TooSlowError,
    shown,
)
from shortlist.serving.server.service import InferenceRequest, Service
from shortlist.serving.server.v2 import HEADER_LENGTH, read_body, write_outputs

_PATH: Final = re.compile("/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer")
_HEADER_LENGTH: Final = HEADER_LENGTH.lower()
_MOST_DIGITS: Final = 18
"""Python reads no number of more than 4 300 digits."""
_LATER: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_LINGER_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class RequestHead(NamedTuple):
    """A request but for its body."""

    model: str
    version: str
    """Empty: whichever is served."""
    headers: Mapping[str, str]
    """Their names in lower case."""


class HttpResponse(NamedTuple):
    """What is answered."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class InferenceConnection(TimedConnection):
    """A connection that counts what is no HTTP as a client's mistake."""

    service: Service
    """Set by `connections_of`."""

    def note_malformed(self) -> None:
        """Count it."""
        self.service.metrics.count("http", HTTPStatus.BAD_REQUEST, 0.0)


def connections_of(service: Service) -> type[TimedConnection]:
    """Return the class of a service's connections, as `uvicorn.Config(http=...)` takes it."""
    limits = service.settings.serving.limits
    return timed(InferenceConnection, limits.idle_seconds, limits.body_seconds, service=service)


class InferenceApp:
    """Answers inference, an ASGI application; all other requests are another one's."""

    def __init__(self, service: Service, others: ASGIApp) -> None:
        self.service = service
        self.limits = service.settings.serving.limits
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        asked = _asked(scope)
        if asked is None:
            await self._others(scope, receive, send)
        else:
            await _Inference(self, asked, receive, send).run()


class _Inference:
    """One request."""

    def __init__(self, app: InferenceApp, asked: RequestHead, receive: Receive, send: Send) -> None:
        self._app = app
        self._asked = asked
        self._receive = receive
        self._send = send
        self._body = bytearray()
        self._is_whole = False
        self._has_gone = False
        """Whether the client went away before it was answered."""

    async def run(self) -> None:
        """Answer it; nobody is answered who went away."""
        metrics, started, reply = self._app.service.metrics, time.perf_counter(), None
        try:
            await self._read()
            started = time.perf_counter()
            if not self._has_gone:
                reply = await self._answered()
        except RequestError as error:
            reply = refusal(error)
        # Cancelled: nobody waits for it any more, or the time for finishing before a stop is over.
        except (Exception, asyncio.CancelledError):
            if not self._has_gone:
                _log.exception("a request could not be answered")
                reply = HttpResponse(500, {"content-type": "text/plain; charset=utf-8"}, b"Internal Server Error")
        finally:
            self._app.service.held.change(len(self._body), 0)
            self._body = bytearray()
        if reply is not None:
            await self._reply(reply)
        # uvloop sends at the end of its round: what is not the answer's comes in the next one.
        status, spent = WENT_AWAY if reply is None else reply.status, time.perf_counter() - started
        asyncio.get_running_loop().call_soon(metrics.count, "http", status, spent)

    async def _read(self) -> None:
        """Return when all of the body is there, or the client went away.

        Raises:
            TooLargeError: It is, or says that it will be, longer than a request may be.
            TooSlowError: It is not whole in time.
            TooManyBytesError: The server holds too many bodies.
        """
        self._check_length(_declared(self._asked.headers))
        seconds = self._app.limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                while not (self._is_whole or self._has_gone):
                    await self._read_on()
        except TimeoutError:
            got = len(self._body)
            raise TooSlowError(f"the body: got {got} bytes within {seconds:g} s; wanted all of it") from None

    async def _read_on(self) -> None:
        before = len(self._body)
        self._body += await self._piece()
        self._app.service.held.change(before, len(self._body))
        self._check_length(len(self._body))

    async def _piece(self) -> bytes:
        message = await self._receive()
        self._has_gone = message["type"] == "http.disconnect"
        self._is_whole = not self._has_gone and not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    def _check_length(self, length: int) -> None:
        most = self._app.limits.max_request_bytes
        if length > most:
            raise TooLargeError(f"the body: wanted at most {most} bytes (serving.limits.max_request_bytes)")

    async def _answered(self) -> HttpResponse:
        """Return the answer; whoever goes away meanwhile cancels it."""
        body, held = self._body, len(self._body)
        self._body = bytearray()  # whoever has it can let go of it
        asking = asyncio.current_task()
        assert asking is not None
        watching = asyncio.get_running_loop().create_task(self._cancel_if_gone(asking))
        try:
            return await answer(self._app.service, self._asked, body)
        finally:
            watching.cancel()
            self._app.service.held.change(held, 0)

    async def _cancel_if_gone(self, asking: asyncio.Task[None]) -> None:
        await self._receive()  # returns when the client has gone, as the body is whole
        self._has_gone = True
        asking.cancel()

    async def _reply(self, reply: HttpResponse) -> None:
        headers = {**reply.headers, "content-length": str(len(reply.content))}
        if not self._is_whole:
            headers["connection"] = "close"
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": reply.status, "headers": raw})
        await self._send({"type": "http.response.body", "body": reply.content, "more_body": not self._is_whole})
        if not self._is_whole:
            await self._linger()
            await self._send({"type": "http.response.body", "body": b""})

    async def _linger(self) -> None:
        """Throw away what comes for a while: who is still sending would not read an answer that comes with a reset."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while not (self._is_whole or self._has_gone):
                    await self._piece()


def _declared(headers: Mapping[str, str]) -> int:
    """Return the length that a request declares; the parser made sure that it is digits, of any number."""
    digits = headers.get("content-length", "0").strip().lstrip("0") or "0"
    return int(digits) if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS


def _asked(scope: Scope) -> RequestHead | None:
    """Return the head of a request for scores; None for any other."""
    found = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
    if found is None:
        return None
    # Of a header that is there twice the first one counts.
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
    return RequestHead(found["model"], found["version"] or "", headers)


def refusal(error: RequestError) -> HttpResponse:
    """Return what a request that is not answered gets: the only place where errors become answers of HTTP's."""
    later = {"retry-after": "1"} if error.http in _LATER else {}
    told = {"content-type": "application/json", **later, **error.headers}
    return HttpResponse(error.http, told, orjson.dumps({"error": str(error)}))


async def answer(service: Service, asked: RequestHead, content: bytes | bytearray) -> HttpResponse:
    """Return the answer to a request.

    Raises:
        RequestError: Why there is none.
    """
    headers = asked.headers
    if (encoding := headers.get("content-encoding", "identity")) != "identity":
        raise BadRequestError(f"content-encoding: got {shown(encoding)}; wanted a plain body")
    async with service.admission.place() as place:  # before anything is read: a refusal must cost nothing
        body = read_body(content, headers.get(_HEADER_LENGTH), service.outputs_of(asked.model))
        del content  # not held while the model scores
        context = RequestContext.of(headers)
        question = InferenceRequest(asked.model, asked.version, body.tensors, context, body.id)
        given = await service.answer(question, place)
    settings = service.settings
    told = context.answer(settings.version)
    head = {
        "model_name": asked.model,
        "model_version": str(settings.version),
        "id": body.id or given.request_id,
        "parameters": {**told, "degraded": given.degraded, **given.told},
    }
    written, more = write_outputs(head, given.named(body.outputs), body.binary)
    return HttpResponse(200, {**told, **more}, written)
