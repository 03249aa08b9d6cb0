"""The gRPC side of a server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from shortlist.serving.export.signature import SCORE
from shortlist.serving.online.failures import (
    BadRequestError,
    BadScoresError,
    RequestError,
    UnavailableError,
    UnknownModelError,
)
from shortlist.serving.online.headers import Origin
from shortlist.serving.online.http_app import SERVER
from shortlist.serving.online.service import Answer, Question, Service
from shortlist.serving.online.tensors import Tensor, check_head, from_bytes, from_values

_CODES: Final = {
    BadRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownModelError: grpc.StatusCode.NOT_FOUND,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
    BadScoresError: grpc.StatusCode.INTERNAL,
}
_CONTENTS: Final = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


class GRPCApp(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc] # untyped
    """Answers over gRPC; what it does not know is UNIMPLEMENTED."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's names
        """Say that the process lives."""
        return service_pb2.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Say whether it can score."""
        return service_pb2.ServerReadyResponse(ready=await self._service.is_ready())

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Say what it is."""
        return service_pb2.ServerMetadataResponse(**SERVER)

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Say whether the model can score."""
        await self._check(request, context)
        return service_pb2.ModelReadyResponse(ready=await self._service.is_ready())

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Say what the model takes and gives."""
        await self._check(request, context)
        kind = service_pb2.ModelMetadataResponse.TensorMetadata
        settings = self._service.settings
        return service_pb2.ModelMetadataResponse(
            name=settings.model,
            versions=[str(settings.version)],
            platform=SERVER["name"],
            inputs=[kind(name=one.name, datatype=one.datatype, shape=one.shape) for one in self._service.inputs.inputs],
            outputs=[kind(name=SCORE, datatype="FP32", shape=[-1])],
        )

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Score."""
        started = time.perf_counter()
        status = 500
        origin = Origin.of(dict(context.invocation_metadata() or ()))
        try:
            tensors = _tensors(request)
            question = Question(request.model_name, request.model_version, tensors, origin, request.id)
            answer = await self._service.answer(question)
            status = 200
        except RequestError as error:
            status = error.http
            await context.abort(_CODES[type(error)], str(error))
        finally:
            self._service.metrics.count("grpc", status, time.perf_counter() - started)
        headers = origin.answer(self._service.settings.version)
        await context.send_initial_metadata(tuple(headers.items()))
        return self._response(request.id, answer, headers)

    def _response(self, name: str, answer: Answer, headers: dict[str, str]) -> Any:
        settings = self._service.settings
        response = service_pb2.ModelInferResponse(
            model_name=settings.model, model_version=str(settings.version), id=name or answer.request_id
        )
        for key, value in headers.items():
            response.parameters[key].string_param = value
        response.parameters["degraded"].bool_param = answer.degraded
        response.outputs.add(name=SCORE, datatype="FP32", shape=[len(answer.scores)])
        response.raw_output_contents.append(answer.scores.tobytes())
        return response

    async def _check(self, request: Any, context: Any) -> None:
        try:
            self._service.check_model(request.name, request.version)
        except UnknownModelError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))


def _tensors(request: Any) -> Sequence[Tensor]:
    for output in request.outputs:
        if output.name != SCORE:
            raise BadRequestError(f"no output '{output.name}'; wanted '{SCORE}'")
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise BadRequestError(
            f"raw_input_contents: got {len(raw)} of them; wanted one for each of {len(request.inputs)} inputs"
        )
    return [_tensor(each, raw[number] if raw else None) for number, each in enumerate(request.inputs)]


def _tensor(each: Any, raw: bytes | None) -> Tensor:
    name, datatype, shape = check_head(each.name, each.datatype, list(each.shape))
    if raw is not None:
        return from_bytes(name, datatype, shape, raw)
    if datatype not in _CONTENTS:
        raise BadRequestError(f"input '{name}': {datatype} has no typed contents; wanted raw_input_contents")
    return from_values(name, datatype, shape, list(getattr(each.contents, _CONTENTS[datatype])))
