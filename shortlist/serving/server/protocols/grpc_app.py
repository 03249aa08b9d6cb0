"""The V2 inference protocol over gRPC."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Annotated, Any, Final

import grpc
from google.protobuf.message import DecodeError
from pydantic import Field
from tritonclient.grpc import service_pb2

from shortlist.serving.server.inference.service import InferenceRequest, InferenceResponse, Service
from shortlist.serving.server.protocols.http_app import SERVER
from shortlist.serving.server.protocols.v2 import MAX_INPUTS, check_output, encode_raw
from shortlist.serving.server.requests.headers import MAX_REQUEST_ID_LENGTH, VERSION_HEADER
from shortlist.serving.server.requests.request_errors import (
    BadRequestError,
    BadScoresError,
    ModelUnavailableError,
    OverloadedError,
    RequestError,
    TooLargeError,
    TooManyBytesError,
    TooSlowError,
    UnauthorizedError,
    UnknownModelError,
    UnsupportedEncodingError,
)
from shortlist.serving.server.requests.tensors import (
    ProtocolMessage,
    Tensor,
    TensorHead,
    from_bytes,
    from_values,
    validate_message,
)
from shortlist.serving.server.runtime.metrics import WENT_AWAY

_CODES: Final = {
    BadRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    TooLargeError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooManyBytesError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooSlowError: grpc.StatusCode.DEADLINE_EXCEEDED,
    UnauthorizedError: grpc.StatusCode.UNAUTHENTICATED,
    UnknownModelError: grpc.StatusCode.NOT_FOUND,
    UnsupportedEncodingError: grpc.StatusCode.UNIMPLEMENTED,
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


class _RequestSizes(ProtocolMessage):
    """Limits of a request's id and numbers of inputs and outputs."""

    id: Annotated[str, Field(max_length=MAX_REQUEST_ID_LENGTH)]
    inputs: Annotated[int, Field(le=MAX_INPUTS)]
    outputs: Annotated[int, Field(le=MAX_INPUTS)]


class GRPCApp:
    """Serves the protocol's methods over gRPC; other methods are UNIMPLEMENTED."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def handler(self) -> Any:
        """The handler for a gRPC server. The generated one would return UNKNOWN for messages that cannot be parsed."""
        return grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                name: grpc.unary_unary_rpc_method_handler(
                    self._make_handler(name, getattr(self, name)),
                    request_deserializer=_parser(getattr(service_pb2, f"{name}Request")),
                    response_serializer=getattr(service_pb2, f"{name}Response").SerializeToString,
                )
                for name in _METHODS
            },
        )

    def _make_handler(self, name: str, answer: Callable[[Any, Any], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return the handler of a method; the only place where errors become gRPC status codes."""
        count = self._service.metrics.count

        async def handle(received: tuple[Any, int], context: Any) -> Any:
            started, status, buffered_bytes = time.perf_counter(), WENT_AWAY, self._service.buffered_bytes
            request, size = received
            try:
                buffered_bytes.change(0, size)
                if request is None:
                    raise BadRequestError(f"the message is no {name}Request: it cannot be parsed")
                response = await answer(request, context)
                status = 200
                return response
            except RequestError as error:
                status = error.http
                await context.abort(_CODES[type(error)], str(error), tuple(error.headers.items()))
            except Exception:
                status = 500
                _log.exception("a request could not be answered")
                await context.abort(grpc.StatusCode.INTERNAL, "Internal Server Error")
            finally:
                buffered_bytes.change(size, 0)
                if name == "ModelInfer" or status != 200:
                    count("grpc", status, time.perf_counter() - started)

        return handle

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's names
        """Return that the process lives."""
        return service_pb2.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return whether the server is ready."""
        return service_pb2.ServerReadyResponse(ready=await self._service.is_ready())

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return name, version and extensions of the server."""
        return service_pb2.ServerMetadataResponse(**SERVER)

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return whether the model is ready."""
        self._service.check_model(request.name, request.version)
        return service_pb2.ModelReadyResponse(ready=await self._service.is_ready())

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return the inputs and outputs of the model."""
        self._service.check_model(request.name, request.version)
        kind = service_pb2.ModelMetadataResponse.TensorMetadata
        inputs, outputs = self._service.inputs_of(request.name), self._service.outputs_of(request.name)
        return service_pb2.ModelMetadataResponse(
            name=request.name,
            versions=[str(self._service.settings.version)],
            platform=SERVER["name"],
            inputs=[kind(name=spec.name, datatype=spec.datatype, shape=spec.shape) for spec in inputs],
            outputs=[kind(name=name, datatype=datatype, shape=[-1]) for name, datatype in outputs.items()],
        )

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Score a request, or recommend items."""
        request_context = self._service.request_context(dict(context.invocation_metadata() or ()))
        # gRPC cancels this coroutine when the client disconnects.
        async with self._service.admission.slot(request_context.sender) as slot:
            tensors = _tensors(request, self._service.outputs_of(request.model_name))
            inference_request = InferenceRequest(
                request.model_name, request.model_version, tensors, request_context, request.id
            )
            answer = await self._service.answer(inference_request, slot)
        headers = self._service.response_headers(request_context, request.model_version)
        await context.send_initial_metadata(tuple(headers.items()))
        return self._response(request, answer, headers)

    def _response(self, request: Any, answer: InferenceResponse, headers: dict[str, str]) -> Any:
        response = service_pb2.ModelInferResponse(
            model_name=request.model_name,
            model_version=headers.get(VERSION_HEADER, ""),
            id=request.id or answer.request_id,
        )
        for key, value in headers.items():
            response.parameters[key].string_param = value
        for key, parameter in {"degraded": answer.degraded, **answer.parameters}.items():
            if isinstance(parameter, bool):
                response.parameters[key].bool_param = parameter
            else:
                response.parameters[key].string_param = parameter
        for name, datatype, values in answer.select_outputs({output.name for output in request.outputs}):
            response.outputs.add(name=name, datatype=datatype, shape=[len(values)])
            response.raw_output_contents.append(encode_raw(values))
        return response


def _parser(kind: Any) -> Callable[[bytes], tuple[Any, int]]:
    """Return a parser that gives a message and its size in bytes; None for an invalid message."""

    def parse(raw: bytes) -> tuple[Any, int]:
        try:
            return kind.FromString(raw), len(raw)
        except DecodeError:
            return None, len(raw)

    return parse


def _tensors(request: Any, output_names: Collection[str]) -> Sequence[Tensor]:
    sizes = {"id": request.id, "inputs": len(request.inputs), "outputs": len(request.outputs)}
    validate_message(_RequestSizes, sizes)
    for output in request.outputs:
        check_output(output.name, output_names)
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise BadRequestError(
            f"raw_input_contents: got {len(raw)} of them; wanted one for each of {len(request.inputs)} inputs"
        )
    return [
        _tensor(number, input_tensor, raw[number] if raw else None)
        for number, input_tensor in enumerate(request.inputs)
    ]


def _tensor(number: int, input_tensor: Any, raw: bytes | None) -> Tensor:
    head_fields = {"name": input_tensor.name, "datatype": input_tensor.datatype, "shape": list(input_tensor.shape)}
    head = validate_message(TensorHead, head_fields, f"inputs.{number}")
    if raw is not None:
        return from_bytes(head, raw)
    if head.datatype not in _CONTENTS:
        raise BadRequestError(f"input '{head.name}': {head.datatype} has no typed contents; wanted raw_input_contents")
    return from_values(head, list(getattr(input_tensor.contents, _CONTENTS[head.datatype])))
