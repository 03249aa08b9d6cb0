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
from typing import Final, NamedTuple
from urllib.parse import unquote

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from shortlist.serving.online.failures import BadRequestError, RequestError
from shortlist.serving.online.headers import Origin
from shortlist.serving.online.service import Question, Service
from shortlist.serving.online.v2 import HEADER_LENGTH, read_body, write_answer

_PATH: Final = re.compile("/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer")
_HEADER_LENGTH: Final = HEADER_LENGTH.lower()
_WENT_AWAY: Final = 499
"""nginx's status for a client that did not wait; nobody receives it."""

_log = logging.getLogger(__name__)


class Asked(NamedTuple):
    """A request but for its body."""

    model: str
    version: str
    """Empty: whichever is served."""
    headers: Mapping[str, str]
    """Their names in lower case."""


class Reply(NamedTuple):
    """What is answered."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class InferenceProtocol(HttpToolsProtocol):
    """A connection: inference is answered here; everything else, and what HTTP asks of a connection, is uvicorn's."""

    service: Service
    """Answers; set by `answering`."""

    def on_headers_complete(self) -> None:
        """Begin to answer, or queue behind the request before, as uvicorn does."""
        asked = self._asked() if self.parser.get_method() == b"POST" else None
        if asked is None:
            super().on_headers_complete()
            return
        if self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        before, inference = self.cycle, _Inference(self, asked, keep_alive)
        self.cycle = inference  # type: ignore[assignment] # it has what is asked of a cycle
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _asked(self) -> Asked | None:
        path = httptools.parse_url(self.url).path.decode("ascii")
        found = _PATH.fullmatch(unquote(path) if "%" in path else path)
        if found is None:
            return None
        # Of a header that is there twice the first one counts.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(self.headers)}
        return Asked(found["model"], found["version"] or "", headers)


class _Inference:
    """One request, with the attributes of uvicorn's `RequestResponseCycle` that a connection of uvicorn's uses."""

    def __init__(self, connection: InferenceProtocol, asked: Asked, keep_alive: bool) -> None:
        self._connection = connection
        self._asked = asked
        self.keep_alive = keep_alive
        self.body = bytearray()
        self.more_body = True
        self.message_event = asyncio.Event()
        """Set when more of the body is there, all of it, or nobody who waits."""
        self.disconnected = False
        self.response_complete = False

    async def run_asgi(self, _app: object) -> None:
        """Answer; the name is uvicorn's."""
        service, started, status = self._connection.service, time.perf_counter(), _WENT_AWAY
        await self._received()
        if not self.more_body:
            try:
                reply = await answer(service, self._asked, bytes(self.body))
            # Cancelled: the time for finishing before a stop is over.
            except (Exception, asyncio.CancelledError):
                _log.exception("a request could not be answered")
                reply = Reply(500, {"content-type": "text/plain; charset=utf-8"}, b"Internal Server Error")
            status = reply.status
            self._send(reply)
        # uvloop sends at the end of its round: what is not the answer's comes in the next one.
        spent = time.perf_counter() - started
        asyncio.get_running_loop().call_soon(service.metrics.count, "http", status, spent)

    async def _received(self) -> None:
        """Return when all of the body is there, or the client went away."""
        while self.more_body and not self.disconnected:
            self._connection.flow.resume_reading()  # which uvicorn pauses with every 64 KiB
            await self.message_event.wait()
            self.message_event.clear()

    def _send(self, reply: Reply) -> None:
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
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()


def answering(service: Service) -> type[InferenceProtocol]:
    """Return the class of connections over which a service answers, as `uvicorn.Config` takes it."""
    return type("Inference", (InferenceProtocol,), {"service": service})


async def answer(service: Service, asked: Asked, content: bytes) -> Reply:
    """Return the answer to a request, a refusal too."""
    headers = asked.headers
    try:
        if (encoding := headers.get("content-encoding", "identity")) != "identity":
            raise BadRequestError(f"content-encoding: got '{encoding}'; wanted a plain body")
        body = read_body(content, headers.get(_HEADER_LENGTH))
        origin = Origin.of(headers)
        given = await service.answer(Question(asked.model, asked.version, body.tensors, origin, body.id))
    except RequestError as error:
        return Reply(error.http, {"content-type": "application/json"}, orjson.dumps({"error": str(error)}))
    settings = service.settings
    told = origin.answer(settings.version)
    head = {
        "model_name": settings.model,
        "model_version": str(settings.version),
        "id": body.id or given.request_id,
        "parameters": {**told, "degraded": given.degraded},
    }
    written, more = write_answer(head, given.scores, body.binary)
    return Reply(200, {**told, **more}, written)
