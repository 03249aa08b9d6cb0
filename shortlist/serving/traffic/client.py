"""A client of any server of the V2 inference protocol; it sends a request once, or as declared a second time."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict

from shortlist.serving.server.headers import TRACK_HEADER, USER_HEADER
from shortlist.serving.traffic.answers import ClientResponse, http_status, read_json, read_protobuf
from shortlist.serving.traffic.requests import HEADER_LENGTH, Array, Prepared, Protocol, prepare

REQUEST_ID: Final = "x-request-id"
_PAUSE_SECONDS: Final = 0.05


class Endpoint(BaseModel):
    """Where a model is asked, and how."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    port: int
    model: str
    host: str = "127.0.0.1"
    protocol: Protocol = "http"
    timeout_seconds: float = 30
    """A request without an answer by then has failed."""
    patience_seconds: float = 5
    """How long a connection is tried for, before the request counts as failed without having been sent."""
    resend: bool = False
    """Whether a request whose connection broke before its answer is sent once more. It keeps its id, and requests of
    one id count once in windows, KPIs and collected rows."""
    connections: int = 1
    """Of gRPC, which sends many requests at once over each; HTTP opens what it needs."""
    scores_per_row: int | None = 1
    """Of a Triton that answers all labels in one tensor; our server answers each in an output of its own. None: any
    number, as of slates."""


class ConnectionNotMadeError(Exception):
    """No connection could be made, so that the request can be tried again without being sent twice."""


class BrokenConnectionError(Exception):
    """The connection broke after the request was sent; nobody knows whether it was scored."""


class Client(ABC):
    """Asks one endpoint; an asynchronous context manager."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def prepare(self, inputs: Mapping[str, Array]) -> Prepared:
        """Return a request that `ask` can send any number of times; see `requests.prepare`."""
        return prepare(inputs, self.endpoint.protocol, self.endpoint.model)

    async def ask(self, request: Prepared, request_id: str, user: str | None = None) -> ClientResponse:
        """Return the answer to a request; nothing is raised for a server that fails.

        Args:
            request: What `prepare` gave.
            request_id: Travels as `x-request-id`.
            user: Travels as `x-shortlist-user`: who is sticky to a track.
        """
        headers = {REQUEST_ID: request_id} if user is None else {REQUEST_ID: request_id, USER_HEADER: user}
        loop = asyncio.get_running_loop()
        give_up, retries, resent = loop.time() + self.endpoint.patience_seconds, 0, False
        while True:
            try:
                answer = await self._send(request, headers)
            except ConnectionNotMadeError as error:
                if loop.time() >= give_up:
                    return ClientResponse(0, error=f"not sent: {error}", retries=retries, resent=resent)
                retries += 1
                await asyncio.sleep(_PAUSE_SECONDS)
            except BrokenConnectionError as error:
                if resent or not self.endpoint.resend:
                    return ClientResponse(0, error=str(error), retries=retries, resent=resent)
                resent = True
                await asyncio.sleep(_PAUSE_SECONDS)  # until a killed process accepts no connection any more
            else:
                if self.endpoint.scores_per_row is not None:
                    answer = _checked(answer, request.rows * self.endpoint.scores_per_row)
                return replace(answer, retries=retries, resent=resent)

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Get ready; connections are made when they are needed."""

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""

    @abstractmethod
    async def _send(self, request: Prepared, headers: dict[str, str]) -> ClientResponse:
        """Send once.

        Raises:
            ConnectionNotMadeError: There was no connection to send it over.
            BrokenConnectionError: The connection broke before the answer was whole.
        """


class HttpClient(Client):
    """Over HTTP/1.1, keeping connections alive."""

    async def __aenter__(self) -> Self:
        """Open the session."""
        import aiohttp

        endpoint = self.endpoint
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=endpoint.timeout_seconds),
            # Not asked to, no server spends time on compressing.
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
            auto_decompress=False,
        )
        self._url = f"http://{endpoint.host}:{endpoint.port}/v2/models/{endpoint.model}/infer"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the session."""
        await self._session.close()

    async def _send(self, request: Prepared, headers: dict[str, str]) -> ClientResponse:
        import aiohttp

        try:
            async with self._session.post(self._url, data=request.body, headers={**request.headers, **headers}) as got:
                body = await got.read()
        except aiohttp.ClientConnectorError as error:
            raise ConnectionNotMadeError(str(error)) from None
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError) as error:
            raise BrokenConnectionError(f"{type(error).__name__}: {error}") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return ClientResponse(0, error=f"{type(error).__name__}: {error}")
        track = got.headers.get(TRACK_HEADER, "")
        if got.status != 200:
            return ClientResponse(got.status, track=track, error=body[:500].decode(errors="replace"))
        length = got.headers.get(HEADER_LENGTH)
        try:
            scores, version = read_json(body, None if length is None else int(length))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return ClientResponse(0, track=track, error=f"not an answer of the protocol: {error}")
        return ClientResponse(200, scores, version, track)


class GrpcClient(Client):
    """Over gRPC, many requests at once on a connection."""

    async def __aenter__(self) -> Self:
        """Open the channels."""
        import grpc
        from tritonclient.grpc import service_pb2

        options = [
            ("grpc.use_local_subchannel_pool", 1),  # or all channels to one address share a connection
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 500),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        ]
        address = f"{self.endpoint.host}:{self.endpoint.port}"
        self._channels = [grpc.aio.insecure_channel(address, options) for _ in range(self.endpoint.connections)]
        self._calls = [
            channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                response_deserializer=service_pb2.ModelInferResponse.FromString,
            )
            for channel in self._channels
        ]
        self._next = 0
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the channels."""
        for channel in self._channels:
            await channel.close()

    async def _send(self, request: Prepared, headers: dict[str, str]) -> ClientResponse:
        import grpc

        number = self._next = (self._next + 1) % len(self._calls)
        call = self._calls[number](request.body, metadata=tuple(headers.items()), timeout=self.endpoint.timeout_seconds)
        try:
            got = await call
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details() or ""
            if code == grpc.StatusCode.UNAVAILABLE and self._never_left(details):
                raise ConnectionNotMadeError(details) from None
            if code == grpc.StatusCode.UNAVAILABLE and not error.initial_metadata():  # no server has answered
                raise BrokenConnectionError(details) from None
            return ClientResponse(http_status(code.value[0]), track=_track(error.initial_metadata()), error=details)
        track = _track(await call.initial_metadata())
        try:
            scores, version = read_protobuf(got)
        except ValueError as error:
            return ClientResponse(0, track=track, error=f"not an answer of the protocol: {error}")
        return ClientResponse(200, scores, version, track)

    def _never_left(self, details: str) -> bool:
        # A server behind may pass on the same words about its own peer; they would name another address.
        own = f"{self.endpoint.host}:{self.endpoint.port}"
        return details.startswith("failed to connect to all addresses") and own in details


def connect(endpoint: Endpoint) -> Client:
    """Return the client for an endpoint's protocol."""
    return GrpcClient(endpoint) if endpoint.protocol == "grpc" else HttpClient(endpoint)


def _checked(answer: ClientResponse, wanted: int) -> ClientResponse:
    if answer.scores is not None and answer.scores.size != wanted:
        error = f"{answer.scores.size} scores for {wanted} rows"
        return replace(answer, status=0, scores=None, error=error)
    return answer


def _track(metadata: Any) -> str:
    return next((value for name, value in metadata or () if name == TRACK_HEADER), "")
