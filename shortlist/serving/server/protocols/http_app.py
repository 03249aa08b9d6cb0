"""HTTP routes of a server except inference; see `http_inference`."""

from __future__ import annotations

from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shortlist.serving.server.inference.service import Service
from shortlist.serving.server.protocols.http_inference import InferenceApp
from shortlist.serving.server.protocols.json_api.endpoints import JSON_ENDPOINTS
from shortlist.serving.server.protocols.json_api.openapi import openapi
from shortlist.serving.server.requests.paths import LIVE, OPENAPI, READY, model_path
from shortlist.serving.server.requests.request_errors import RequestError

SERVER: Final = {"name": "shortlist", "version": version("shortlist"), "extensions": ["binary_tensor_data"]}


def http_app(service: Service) -> InferenceApp:
    """Return the ASGI application of a server."""
    model = model_path("{model}")
    routes = [
        ("/v2", _server),
        (LIVE, _live),
        (READY, _ready),
        (OPENAPI, _openapi),
        *((path, _only_post) for path in JSON_ENDPOINTS),
        (model, _model),
        (f"{model}/versions/{{version}}", _model),
        (f"{model}/ready", _model_ready),
        (f"{model}/versions/{{version}}/ready", _model_ready),
        (f"{model}/infer", _only_post),
        (f"{model}/versions/{{version}}/infer", _only_post),
        ("/metrics", _metrics),
    ]
    app = Starlette(
        routes=[Route(path, answer, methods=["GET"]) for path, answer in routes],
        exception_handlers={RequestError: _error_response, HTTPException: _no_such_page},
    )
    app.state.service = service
    return InferenceApp(service, app)


async def _only_post(request: Request) -> Response:
    raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED)


async def _server(request: Request) -> Response:
    return _json(SERVER)


async def _live(request: Request) -> Response:
    return _json({"live": True})


async def _ready(request: Request) -> Response:
    service: Service = request.app.state.service
    ready = await service.is_ready()
    return _json({"ready": ready, "problems": service.problems()}, 200 if ready else 503)


async def _openapi(request: Request) -> Response:
    return _json(openapi(request.app.state.service))


async def _model_ready(request: Request) -> Response:
    service: Service = request.app.state.service
    service.check_model(request.path_params["model"], request.path_params.get("version", ""))
    return await _ready(request)


async def _model(request: Request) -> Response:
    service: Service = request.app.state.service
    model = request.path_params["model"]
    service.check_model(model, request.path_params.get("version", ""))
    input_specs, outputs = service.inputs_of(model), service.outputs_of(model)
    inputs = [
        {"name": spec.name, "datatype": spec.datatype, "shape": spec.shape, "parameters": {"optional": spec.optional}}
        for spec in input_specs
    ]
    return _json(
        {
            "name": model,
            "versions": [str(service.settings.version)],
            "platform": SERVER["name"],
            "inputs": inputs,
            "outputs": [{"name": name, "datatype": kind, "shape": [-1]} for name, kind in outputs.items()],
        }
    )


async def _metrics(request: Request) -> Response:
    service: Service = request.app.state.service
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


async def _error_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _json({"error": str(error)}, error.http)


async def _no_such_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    # Not `request.url`: a client's Host header may make it an invalid URL.
    return _json({"error": f"{request.method} {request.scope['path']}: {error.detail}"}, error.status_code)


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")
