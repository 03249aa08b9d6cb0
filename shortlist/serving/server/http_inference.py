"""Inference over HTTP: no framework stands between uvicorn's connection and the service, and an answer is one write.

Through uvicorn's own cycle, even without Starlette, a request takes 0.3 ms longer behind Envoy (twice 250, in turn),
and 0.1 ms without Envoy between: there head and body leave apart, and whoever is next may wake up for each.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import unquote

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from shortlist.serving.server.connections import TimedConnection, timed
from shortlist.serving.server.headers import RequestContext
from shortlist.serving.server.metrics import WENT_AWAY
from shortlist.serving.server.request_errors import (
    BadRequestError,
    RequestError,
    TooLargeError,
    TooManyBytesError,
    TooSlowError,
    shown,
)
from shortlist.serving.server.service import InferenceRequest, Service
from shortlist.serving.server.v2 import HEADER_LENGTH, read_body, write_outputs
from shortlist.spec.serving import Limits

_PATH: Final = re.compile("/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer")
_HEADER_LENGTH: Final = HEADER_LENGTH.lower()
_NOT_COUNTED: Final = 64 * 1024
"""Bytes of a body; uvicorn reads as many before it waits for whoever wants them."""
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


class Held:
    """How many bytes of bodies a server holds, the first ones of each not counted: small requests always get in."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0

    def change(self, before: int, after: int) -> None:
        """Note that a body of so many bytes has so many now.

        Raises:
            TooManyBytesError: It grew, and all together they have too many.
        """
        self._bytes += max(0, after - _NOT_COUNTED) - max(0, before - _NOT_COUNTED)
        if after > max(before, _NOT_COUNTED) and self._bytes > self._most:
            raise TooManyBytesError(
                f"the server holds {self._bytes} bytes of requests; at most {self._most} fit; try again later"
            )


class InferenceProtocol(TimedConnection):
    """A connection: inference is answered here; everything else, and what HTTP asks of a connection, is uvicorn's."""

    service: Service
    """Answers; set by `answering`."""
    limits: Limits
    """What a client may take; set by `answering`."""
    held: Held
    """The bodies of all connections; set by `answering`."""

    def on_headers_complete(self) -> None:
        """Begin to answer, or queue behind the request before, as uvicorn does."""
        self.stop_waiting_for_head()
        asked = self._asked() if self.parser.get_method() == b"POST" else None
        if asked is None:
            super().on_headers_complete()
            return
        length = asked.headers.get("content-length", "0")
        too_long = int(length) > self.limits.max_request_bytes  # the parser has seen to it that these are digits
        if self.expect_100_continue and not too_long:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        before, inference = self.cycle, _Inference(self, asked, keep_alive, too_long)
        self.cycle = inference  # type: ignore[assignment] # it has what is asked of a cycle
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_message_complete(self) -> None:
        """Note that a request is whole; one that was refused before that has nothing more to say."""
        super().on_message_complete()
        if isinstance(self.cycle, _Inference) and self.cycle.refused_early:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, and count it as a client's mistake."""
        super().send_400_response(msg)
        self.service.metrics.count("http", HTTPStatus.BAD_REQUEST, 0.0)

    def _asked(self) -> RequestHead | None:
        path = httptools.parse_url(self.url).path.decode("ascii")
        found = _PATH.fullmatch(unquote(path) if "%" in path else path)
        if found is None:
            return None
        # Of a header that is there twice the first one counts.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(self.headers)}
        return RequestHead(found["model"], found["version"] or "", headers)


class _Inference:
    """One request, with the attributes of uvicorn's `RequestResponseCycle` that a connection of uvicorn's uses."""

    def __init__(self, connection: InferenceProtocol, asked: RequestHead, keep_alive: bool, too_long: bool) -> None:
        self._connection = connection
        self._asked = asked
        self._too_long = too_long
        self._size = 0
        self.keep_alive = keep_alive
        self.body = bytearray()
        self.more_body = True
        self.message_event = asyncio.Event()
        """Set when more of the body is there, all of it, or nobody who waits."""
        self.response_complete = False
        self.refused_early = False
        """Whether it was refused before its body was there."""
        self._disconnected = False
        self._answering: asyncio.Task[None] | None = None

    @property
    def disconnected(self) -> bool:
        """Whether the client has gone; uvicorn says so. What is not computed yet then never is."""
        return self._disconnected

    @disconnected.setter
    def disconnected(self, has_gone: bool) -> None:
        self._disconnected = has_gone
        if has_gone and self._answering is not None and not self.response_complete:
            self._answering.cancel()

    async def run_asgi(self, _app: object) -> None:
        """Answer; the name is uvicorn's."""
        service, started, status = self._connection.service, time.perf_counter(), WENT_AWAY
        try:
            await self._receive()
            started = time.perf_counter()
            if not self.more_body:
                self._answering = asyncio.current_task()
                reply = await answer(service, self._asked, self._taken())
        except RequestError as error:
            reply = refusal(error)
            self._taken()  # let go of what is there
            self.refused_early, self.keep_alive = self.more_body, self.keep_alive and not self.more_body
        # Cancelled: nobody waits for it any more, or the time for finishing before a stop is over.
        except (Exception, asyncio.CancelledError):
            if self.disconnected:
                asyncio.get_running_loop().call_soon(service.metrics.count, "http", status, 0.0)
                return
            _log.exception("a request could not be answered")
            reply = HttpResponse(500, {"content-type": "text/plain; charset=utf-8"}, b"Internal Server Error")
        finally:
            self._connection.held.change(self._size, 0)
        if not self.more_body or self.refused_early:
            status = reply.status
            self._send(reply)
        # uvloop sends at the end of its round: what is not the answer's comes in the next one.
        spent = time.perf_counter() - started
        asyncio.get_running_loop().call_soon(service.metrics.count, "http", status, spent)

    async def _receive(self) -> None:
        """Return when all of the body is there, or the client went away.

        Raises:
            TooLargeError: It is, or says that it will be, longer than a request may be.
            TooSlowError: It is not whole in time.
            TooManyBytesError: The server holds too many bodies.
        """
        self._check_size()
        if not self.more_body:
            return
        seconds = self._connection.limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                while self.more_body and not self.disconnected:
                    self._connection.flow.resume_reading()  # which uvicorn pauses with every 64 KiB
                    await self.message_event.wait()
                    self.message_event.clear()
                    self._check_size()
        except TimeoutError:
            raise TooSlowError(f"the body: got {self._size} bytes within {seconds:g} s; wanted all of it") from None

    def _check_size(self) -> None:
        before, self._size = self._size, len(self.body)
        self._connection.held.change(before, self._size)
        most = self._connection.limits.max_request_bytes
        if self._too_long or self._size > most:
            raise TooLargeError(f"the body: wanted at most {most} bytes (serving.limits.max_request_bytes)")

    def _taken(self) -> bytearray:
        body, self.body = self.body, bytearray()  # whoever has it can let go of it
        return body

    def _send(self, reply: HttpResponse) -> None:
        self.response_complete = True
        if self.disconnected:
            return
        connection = self._connection
        head = [STATUS_LINE[reply.status]]
        for name, value in connection.server_state.default_headers:
            head += (name, b": ", value, b"\r\n")
        head += [f"{name}: {value}\r\n".encode("latin-1") for name, value in reply.headers.items()]
        if not self.keep_alive:
            head.append(b"connection: close\r\n")
        head.append(b"content-length: %d\r\n\r\n" % len(reply.content))
        connection.transport.write(b"".join((*head, reply.content)))
        if self.refused_early:
            # Who is still sending would not read an answer that comes with a reset: what comes is thrown away a while.
            connection.loop.call_later(_LINGER_SECONDS, connection.transport.close)
            connection.pipeline.clear()
        elif not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()


def answering(service: Service) -> type[TimedConnection]:
    """Return the class of connections over which a service answers, as `uvicorn.Config` takes it."""
    limits = service.settings.serving.limits
    return timed(
        InferenceProtocol, limits.idle_seconds, limits.body_seconds,
        service=service, limits=limits, held=Held(limits.max_buffered_bytes),
    )  # fmt: skip


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
        origin = RequestContext.of(headers)
        question = InferenceRequest(asked.model, asked.version, body.tensors, origin, body.id)
        given = await service.answer(question, place)
    settings = service.settings
    told = origin.answer(settings.version)
    head = {
        "model_name": asked.model,
        "model_version": str(settings.version),
        "id": body.id or given.request_id,
        "parameters": {**told, "degraded": given.degraded, **given.told},
    }
    written, more = write_outputs(head, given.outputs, body.binary)
    return HttpResponse(200, {**told, **more}, written)
