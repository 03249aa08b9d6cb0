"""Client of the V2 inference protocol over HTTP and gRPC, with optional resending."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field

from shortlist.serving.server.requests.headers import TRACK_HEADER, USER_HEADER
from shortlist.serving.server.requests.paths import inference_path
from shortlist.serving.traffic.answers import ClientResponse, http_status, read_json, read_protobuf
from shortlist.serving.traffic.requests import HEADER_LENGTH, Array, PreparedRequest, WireProtocol, prepare

REQUEST_ID: Final = "x-request-id"
_RETRY_SECONDS: Final = 0.05


class Endpoint(BaseModel):
    """Address of a model, protocol and timeouts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    port: int
    model: str
    host: str = "127.0.0.1"
    protocol: WireProtocol = "http"
    timeout_seconds: float = 30
    """Timeout of a request."""
    patience_seconds: float = 5
    """Time for connection attempts, after which the request fails without having been sent."""
    resend: bool = False
    """Whether a request is sent again when its connection broke before the response. It keeps its id, and requests
    with one id count once in windows, KPIs and collected rows."""
    connections: int = 1
    """Number of gRPC connections, each of which carries many requests; HTTP opens connections as needed."""
    token: str | None = Field(default=None, repr=False)
    """Token of the application's backend, which vouches for its users and is told the track of each response."""
    scores_per_row: int | None = 1
    """Expected scores per row: more than 1 for a Triton with several labels in one tensor; our server has one output
    per label. None for any number, as in slates."""


class ConnectionNotMadeError(Exception):
    """No connection could be made; the request was not sent and can be retried."""


class BrokenConnectionError(Exception):
    """The connection broke after the request was sent; it may have been scored."""


class Client(ABC):
    """Client of one endpoint; an asynchronous context manager."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def prepare(self, inputs: Mapping[str, Array]) -> PreparedRequest:
        """Return a request that `ask` can send repeatedly; see `requests.prepare`."""
        return prepare(inputs, self.endpoint.protocol, self.endpoint.model)

    async def ask(self, request: PreparedRequest, request_id: str, user: str | None = None) -> ClientResponse:
        """Return the response to a request; server failures are responses, not exceptions.

        Args:
            request: Request from `prepare`.
            request_id: Sent as `x-request-id`.
            user: Sent as `x-shortlist-user`, which determines the track.
        """
        headers = {REQUEST_ID: request_id} if user is None else {REQUEST_ID: request_id, USER_HEADER: user}
        if self.endpoint.token is not None:
            headers["authorization"] = f"Bearer {self.endpoint.token}"
        loop = asyncio.get_running_loop()
        give_up, retries, resent = loop.time() + self.endpoint.patience_seconds, 0, False
        while True:
            try:
                answer = await self._send(request, headers)
            except ConnectionNotMadeError as error:
                if loop.time() >= give_up:
                    return ClientResponse(0, error=f"not sent: {error}", retries=retries, resent=resent)
                retries += 1
                await asyncio.sleep(_RETRY_SECONDS)
            except BrokenConnectionError as error:
                if resent or not self.endpoint.resend:
                    return ClientResponse(0, error=str(error), retries=retries, resent=resent)
                resent = True
                await asyncio.sleep(_RETRY_SECONDS)  # until a killed process accepts no connections any more
            else:
                if self.endpoint.scores_per_row is not None:
                    answer = _check_score_count(answer, request.rows * self.endpoint.scores_per_row)
                return replace(answer, retries=retries, resent=resent)

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Prepare the client; connections are opened when needed."""

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""

    @abstractmethod
    async def _send(self, request: PreparedRequest, headers: dict[str, str]) -> ClientResponse:
        """Send a request once.

        Raises:
            ConnectionNotMadeError: No connection could be made.
            BrokenConnectionError: The connection broke before the response was complete.
        """


class HttpClient(Client):
    """Client over HTTP/1.1 with keep-alive connections."""

    async def __aenter__(self) -> Self:
        """Open the session."""
        import aiohttp

        endpoint = self.endpoint
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=endpoint.timeout_seconds),
            # Without Accept-Encoding, no server spends time on compression.
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
            auto_decompress=False,
        )
        self._url = f"http://{endpoint.host}:{endpoint.port}{inference_path(endpoint.model)}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the session."""
        await self._session.close()

    async def _send(self, request: PreparedRequest, headers: dict[str, str]) -> ClientResponse:
        import aiohttp

        try:
            async with self._session.post(
                self._url, data=request.body, headers={**request.headers, **headers}
            ) as response:
                body = await response.read()
        except aiohttp.ClientConnectorError as error:
            raise ConnectionNotMadeError(str(error)) from None
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError) as error:
            raise BrokenConnectionError(f"{type(error).__name__}: {error}") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return ClientResponse(0, error=f"{type(error).__name__}: {error}")
        track = response.headers.get(TRACK_HEADER, "")
        if response.status != 200:
            return ClientResponse(response.status, track=track, error=body[:500].decode(errors="replace"))
        length = response.headers.get(HEADER_LENGTH)
        try:
            scores, version = read_json(body, None if length is None else int(length))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return ClientResponse(0, track=track, error=f"not an answer of the protocol: {error}")
        return ClientResponse(200, scores, version, track)


class GrpcClient(Client):
    """Client over gRPC, with many concurrent requests per connection."""

    async def __aenter__(self) -> Self:
        """Open the channels."""
        import grpc
        from tritonclient.grpc import service_pb2

        options = [
            ("grpc.use_local_subchannel_pool", 1),  # otherwise all channels to one address share a connection
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

    async def _send(self, request: PreparedRequest, headers: dict[str, str]) -> ClientResponse:
        import grpc

        number = self._next = (self._next + 1) % len(self._calls)
        call = self._calls[number](request.body, metadata=tuple(headers.items()), timeout=self.endpoint.timeout_seconds)
        try:
            response = await call
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details() or ""
            if code == grpc.StatusCode.UNAVAILABLE and self._was_not_sent(details):
                raise ConnectionNotMadeError(details) from None
            if code == grpc.StatusCode.UNAVAILABLE and not error.initial_metadata():  # no server has responded
                raise BrokenConnectionError(details) from None
            return ClientResponse(http_status(code.value[0]), track=_track(error.initial_metadata()), error=details)
        track = _track(await call.initial_metadata())
        try:
            scores, version = read_protobuf(response)
        except ValueError as error:
            return ClientResponse(0, track=track, error=f"not an answer of the protocol: {error}")
        return ClientResponse(200, scores, version, track)

    def _was_not_sent(self, details: str) -> bool:
        # A proxy may report the same message about its own upstream, with another address.
        address = f"{self.endpoint.host}:{self.endpoint.port}"
        return details.startswith("failed to connect to all addresses") and address in details


def connect(endpoint: Endpoint) -> Client:
    """Return the client for an endpoint's protocol."""
    return GrpcClient(endpoint) if endpoint.protocol == "grpc" else HttpClient(endpoint)


def _check_score_count(answer: ClientResponse, expected: int) -> ClientResponse:
    if answer.scores is not None and answer.scores.size != expected:
        error = f"{answer.scores.size} scores for {expected} rows"
        return replace(answer, status=0, scores=None, error=error)
    return answer


def _track(metadata: Any) -> str:
    return next((value for name, value in metadata or () if name == TRACK_HEADER), "")
