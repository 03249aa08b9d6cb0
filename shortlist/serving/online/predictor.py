"""Asking Triton for scores: rows cut to what it takes at once, and patience while it is being restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, cast

import grpc
import numpy as np
from numpy.typing import NDArray
from tenacity import AsyncRetrying, RetryError, retry_if_exception, stop_after_delay, wait_fixed
from tritonclient.grpc import service_pb2, service_pb2_grpc

from shortlist.serving.export.signature import SCORE
from shortlist.serving.online.assemble import Tensors
from shortlist.serving.online.failures import BadScoresError, UnavailableError
from shortlist.serving.online.settings import ServerSettings

Scores = NDArray[np.float32]

_DATATYPES: Final = {"f8": "FP64", "i8": "INT64", "f4": "FP32"}
_LONGEST_ANSWER_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.1
_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A restarted Triton is found within a tenth of a second; gRPC's own pauses grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 200),
)


class Predictor:
    """One model of one Triton."""

    def __init__(self, settings: ServerSettings) -> None:
        self._model = settings.model
        self._version = str(settings.version)
        self._hold_seconds = settings.serving.hold_seconds
        self._max_rows = settings.serving.batching.max_batch_rows
        self._channel = grpc.aio.insecure_channel(settings.predictor, options=_OPTIONS)
        self._triton = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def scores(self, tensors: Tensors, rows: int) -> Scores:
        """Return a score per row.

        Args:
            tensors: The inputs of the model, all of so many rows.
            rows: Number of rows; none is answered without asking.

        Raises:
            UnavailableError: Triton could not be reached, or broke, for longer than a request may wait.
            BadScoresError: It refused, or did not give one finite number per row.
        """
        if not rows:
            return np.zeros(0, np.float32)
        starts = range(0, rows, self._max_rows)
        if len(starts) == 1:
            scores = await self._patient(tensors)
        else:
            parts = [{name: each[at : at + self._max_rows] for name, each in tensors.items()} for at in starts]
            scores = np.concatenate(await asyncio.gather(*map(self._patient, parts)))
        if len(scores) != rows:
            raise BadScoresError(f"the model gave {len(scores)} scores for {rows} rows")
        return scores

    async def is_ready(self) -> bool:
        """Whether Triton says that the model is ready."""
        request = service_pb2.ModelReadyRequest(name=self._model, version=self._version)
        try:
            return bool((await self._triton.ModelReady(request, timeout=1.0)).ready)
        except grpc.aio.AioRpcError:
            return False

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def _patient(self, tensors: Tensors) -> Scores:
        request = self._request(tensors)
        try:
            return await self._ask(request)  # retrying costs even where nothing fails
        except grpc.aio.AioRpcError as error:
            if not _passes(error):
                raise _refusal(error) from None
        retrying = AsyncRetrying(
            stop=stop_after_delay(self._hold_seconds),
            wait=wait_fixed(_PAUSE_SECONDS),
            retry=retry_if_exception(_passes),
        )
        try:
            async for attempt in retrying:
                with attempt:
                    return await self._ask(request)
        except RetryError as error:
            last = cast(grpc.aio.AioRpcError, error.last_attempt.exception())
            raise UnavailableError(
                f"the model server cannot be reached for {self._hold_seconds:g} s ({last.details()}); try again later"
            ) from None
        except grpc.aio.AioRpcError as error:
            raise _refusal(error) from None
        raise AssertionError("an attempt returns or raises")

    async def _ask(self, request: Any) -> Scores:
        answer = await self._triton.ModelInfer(request, timeout=_LONGEST_ANSWER_SECONDS)
        return np.frombuffer(answer.raw_output_contents[0], np.float32)

    def _request(self, tensors: Mapping[str, NDArray[Any]]) -> Any:
        request = service_pb2.ModelInferRequest(model_name=self._model, model_version=self._version)
        for name, values in tensors.items():
            request.inputs.add(name=name, datatype=_DATATYPES[values.dtype.str[1:]], shape=values.shape)
            request.raw_input_contents.append(values.tobytes())
        request.outputs.add(name=SCORE)
        return request


def _passes(error: BaseException) -> bool:
    """Whether it may work a moment later: Triton, or the process in which it runs the model, is being restarted."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return False
    code = error.code()
    if code == grpc.StatusCode.INTERNAL:
        return "stub process" in (error.details() or "").lower()
    return code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def _refusal(error: grpc.aio.AioRpcError) -> UnavailableError | BadScoresError:
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return UnavailableError(f"the model server did not answer within {_LONGEST_ANSWER_SECONDS:g} s")
    return BadScoresError(f"the model server refused: {error.code().name}: {error.details()}")
