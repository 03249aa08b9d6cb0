"""The gRPC side of a server."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Annotated, Any, Final

import grpc
from google.protobuf.message import DecodeError
from pydantic import Field
from tritonclient.grpc import service_pb2

from shortlist.serving.server.headers import RequestContext
from shortlist.serving.server.http_app import SERVER
from shortlist.serving.server.metrics import WENT_AWAY
from shortlist.serving.server.request_errors import (
    BadRequestError,
    BadScoresError,
    ModelUnavailableError,
    OverloadedError,
    RequestError,
    TooLargeError,
    TooManyBytesError,
    TooSlowError,
    UnknownModelError,
)
from shortlist.serving.server.service import InferenceRequest, InferenceResponse, Service
from shortlist.serving.server.tensors import Head, Message, Tensor, checked, from_bytes, from_values
from shortlist.serving.server.v2 import LONGEST_ID, MOST_INPUTS, check_output, raw_of

_CODES: Final = {
    BadRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    TooLargeError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooManyBytesError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooSlowError: grpc.StatusCode.DEADLINE_EXCEEDED,
    UnknownModelError: grpc.StatusCode.NOT_FOUND,
    OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ModelUnavailableError: grpc.StatusCode.UNAVAILABLE,
    BadScoresError: grpc.StatusCode.INTERNAL,
}
_SERVICE: Final = "inference.GRPCInferenceService"
_METHODS: Final = ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelInfer")
_CONTENTS: Final = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


_log = logging.getLogger(__name__)


class _Sizes(Message):
    """Of the parts of a request."""

    id: Annotated[str, Field(max_length=LONGEST_ID)]
    inputs: Annotated[int, Field(le=MOST_INPUTS)]
    outputs: Annotated[int, Field(le=MOST_INPUTS)]


class GRPCApp:
    """Answers over gRPC; what it does not know is UNIMPLEMENTED."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def handler(self) -> Any:
        """What a server of gRPC's is given: the generated one would answer UNKNOWN where protobuf cannot be parsed."""
        return grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                name: grpc.unary_unary_rpc_method_handler(
                    self._answering(name, getattr(self, name)),
                    request_deserializer=_parser(getattr(service_pb2, f"{name}Request")),
                    response_serializer=getattr(service_pb2, f"{name}Response").SerializeToString,
                )
                for name in _METHODS
            },
        )

    def _answering(self, name: str, answer: Callable[[Any, Any], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return what answers a method, a refusal too; the only place where errors become codes of gRPC's."""
        count = self._service.metrics.count

        async def answered(received: tuple[Any, int], context: Any) -> Any:
            started, status, held = time.perf_counter(), WENT_AWAY, self._service.held
            request, size = received
            try:
                held.change(0, size)
                if request is None:
                    raise BadRequestError(f"the message is no {name}Request: it cannot be parsed")
                found = await answer(request, context)
                status = 200
                return found
            except RequestError as error:
                status = error.http
                await context.abort(_CODES[type(error)], str(error), tuple(error.headers.items()))
            except Exception:
                status = 500
                _log.exception("a request could not be answered")
                await context.abort(grpc.StatusCode.INTERNAL, "Internal Server Error")
            finally:
                held.change(size, 0)
                if name == "ModelInfer" or status != 200:
                    count("grpc", status, time.perf_counter() - started)

        return answered

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
        self._service.check_model(request.name, request.version)
        return service_pb2.ModelReadyResponse(ready=await self._service.is_ready())

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Say what the model takes and gives."""
        self._service.check_model(request.name, request.version)
        kind = service_pb2.ModelMetadataResponse.TensorMetadata
        inputs, outputs = self._service.inputs_of(request.name), self._service.outputs_of(request.name)
        return service_pb2.ModelMetadataResponse(
            name=request.name,
            versions=[str(self._service.settings.version)],
            platform=SERVER["name"],
            inputs=[kind(name=one.name, datatype=one.datatype, shape=one.shape) for one in inputs],
            outputs=[kind(name=name, datatype=datatype, shape=[-1]) for name, datatype in outputs.items()],
        )

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Score."""
        request_context = RequestContext.of(dict(context.invocation_metadata() or ()))
        async with self._service.admission.place() as place:  # which a client's cancelling ends, as all of this
            tensors = _tensors(request, self._service.outputs_of(request.model_name))
            question = InferenceRequest(request.model_name, request.model_version, tensors, request_context, request.id)
            answer = await self._service.answer(question, place)
        headers = request_context.answer(self._service.settings.version)
        await context.send_initial_metadata(tuple(headers.items()))
        return self._response(request, answer, headers)

    def _response(self, request: Any, answer: InferenceResponse, headers: dict[str, str]) -> Any:
        response = service_pb2.ModelInferResponse(
            model_name=request.model_name,
            model_version=str(self._service.settings.version),
            id=request.id or answer.request_id,
        )
        for key, value in headers.items():
            response.parameters[key].string_param = value
        for key, told in {"degraded": answer.degraded, **answer.told}.items():
            if isinstance(told, bool):
                response.parameters[key].bool_param = told
            else:
                response.parameters[key].string_param = told
        for name, datatype, values in answer.named({output.name for output in request.outputs}):
            response.outputs.add(name=name, datatype=datatype, shape=[len(values)])
            response.raw_output_contents.append(raw_of(values))
        return response


def _parser(kind: Any) -> Callable[[bytes], tuple[Any, int]]:
    """Return what parses a message and tells its bytes; None for what is none."""

    def parse(raw: bytes) -> tuple[Any, int]:
        try:
            return kind.FromString(raw), len(raw)
        except DecodeError:
            return None, len(raw)

    return parse


def _tensors(request: Any, known: Collection[str]) -> Sequence[Tensor]:
    sizes = {"id": request.id, "inputs": len(request.inputs), "outputs": len(request.outputs)}
    checked(_Sizes, sizes)
    for output in request.outputs:
        check_output(output.name, known)
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise BadRequestError(
            f"raw_input_contents: got {len(raw)} of them; wanted one for each of {len(request.inputs)} inputs"
        )
    return [_tensor(number, each, raw[number] if raw else None) for number, each in enumerate(request.inputs)]


def _tensor(number: int, each: Any, raw: bytes | None) -> Tensor:
    said = {"name": each.name, "datatype": each.datatype, "shape": list(each.shape)}
    head = checked(Head, said, f"inputs.{number}")
    if raw is not None:
        return from_bytes(head, raw)
    if head.datatype not in _CONTENTS:
        raise BadRequestError(f"input '{head.name}': {head.datatype} has no typed contents; wanted raw_input_contents")
    return from_values(head, list(getattr(each.contents, _CONTENTS[head.datatype])))
