"""The HTTP side of a server."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, Final

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from shortlist.serving.export.signature import SCORE
from shortlist.serving.online.failures import BadRequestError, RequestError
from shortlist.serving.online.headers import Origin
from shortlist.serving.online.service import Question, Service
from shortlist.serving.online.v2 import HEADER_LENGTH, read_body, write_answer

SERVER: Final = {"name": "shortlist", "version": version("shortlist"), "extensions": ["binary_tensor_data"]}
_WENT_AWAY: Final = 499
"""nginx's status for a client that did not wait; nobody receives it."""

Answering = Callable[[Request], Awaitable[Response]]


def http_app(service: Service) -> Starlette:
    """Return the application that answers over HTTP."""
    model = "/v2/models/{model}"
    routes = [
        ("/v2", "GET", _server),
        ("/v2/health/live", "GET", _live),
        ("/v2/health/ready", "GET", _ready),
        (model, "GET", _model),
        (f"{model}/versions/{{version}}", "GET", _model),
        (f"{model}/ready", "GET", _model_ready),
        (f"{model}/versions/{{version}}/ready", "GET", _model_ready),
        (f"{model}/infer", "POST", _infer),
        (f"{model}/versions/{{version}}/infer", "POST", _infer),
        ("/metrics", "GET", _metrics),
    ]
    app = Starlette(
        routes=[Route(path, answer, methods=[method]) for path, method, answer in routes],
        exception_handlers={RequestError: _refused, HTTPException: _no_such_page},
    )
    app.state.service = service
    return app


async def _infer(request: Request) -> Response:
    service: Service = request.app.state.service
    started = time.perf_counter()
    status = _WENT_AWAY
    try:
        response = await _answered(request, service)
        status = response.status_code
    except RequestError as error:
        status = error.http
        raise
    except ClientDisconnect:
        return Response(status_code=_WENT_AWAY)
    except Exception:
        status = 500
        raise
    finally:
        service.metrics.count("http", status, time.perf_counter() - started)
    return response


async def _answered(request: Request, service: Service) -> Response:
    if request.headers.get("content-encoding", "identity") != "identity":
        raise BadRequestError(f"content-encoding: got '{request.headers['content-encoding']}'; wanted a plain body")
    body = read_body(await request.body(), request.headers.get(HEADER_LENGTH))
    model, version = request.path_params["model"], request.path_params.get("version", "")
    origin = Origin.of(request.headers)
    answer = await service.answer(Question(model, version, body.tensors, origin, body.id))
    headers = origin.answer(service.settings.version)
    head = {
        "model_name": service.settings.model,
        "model_version": str(service.settings.version),
        "id": body.id or answer.request_id,
        "parameters": {**headers, "degraded": answer.degraded},
    }
    content, more = write_answer(head, answer.scores, body.binary)
    return Response(content, headers={**headers, **more})


async def _server(request: Request) -> Response:
    return _json(SERVER)


async def _live(request: Request) -> Response:
    return Response()


async def _ready(request: Request) -> Response:
    service: Service = request.app.state.service
    ready = await service.is_ready()
    return _json({"ready": ready, "problems": service.problems()}, 200 if ready else 503)


async def _model_ready(request: Request) -> Response:
    service: Service = request.app.state.service
    service.check_model(request.path_params["model"], request.path_params.get("version", ""))
    return await _ready(request)


async def _model(request: Request) -> Response:
    service: Service = request.app.state.service
    service.check_model(request.path_params["model"], request.path_params.get("version", ""))
    inputs = [
        {"name": each.name, "datatype": each.datatype, "shape": each.shape, "parameters": {"optional": each.optional}}
        for each in service.inputs.inputs
    ]
    return _json(
        {
            "name": service.settings.model,
            "versions": [str(service.settings.version)],
            "platform": SERVER["name"],
            "inputs": inputs,
            "outputs": [{"name": SCORE, "datatype": "FP32", "shape": [-1]}],
        }
    )


async def _metrics(request: Request) -> Response:
    service: Service = request.app.state.service
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _json({"error": str(error)}, error.http)


async def _no_such_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": f"{request.method} {request.url.path}: {error.detail}"}, error.status_code)


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")
