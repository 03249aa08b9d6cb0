"""Paths of the endpoints, for the server and for the gateways in front of it."""

from __future__ import annotations

from typing import Final

from shortlist.serving.server.requests.headers import recommend_model

RANK: Final = "/v1/rank"
RECOMMEND: Final = "/v1/recommend"
EVENTS: Final = "/v1/events"
OPENAPI: Final = "/openapi.json"
LIVE: Final = "/v2/health/live"
READY: Final = "/v2/health/ready"
JSON_PATHS: Final = (RANK, RECOMMEND, EVENTS)
"""Plain JSON: POST, split between the tracks like V2 inference."""


def model_path(model: str) -> str:
    """Return the path of a model in the V2 protocol.

    >>> model_path("demo")
    '/v2/models/demo'
    """
    return f"/v2/models/{model}"


def inference_path(model: str, version: int | None = None) -> str:
    """Return the path of V2 inference by a model, or by one version of it.

    >>> inference_path("demo", 3)
    '/v2/models/demo/versions/3/infer'
    """
    return f"{model_path(model)}/infer" if version is None else f"{model_path(model)}/versions/{version}/infer"


def status_paths(model: str) -> tuple[str, ...]:
    """Return the paths that say what a server and its models are: GET, answered by the stable version."""
    models = [model_path(name) for name in (model, recommend_model(model))]
    return "/v2", LIVE, READY, OPENAPI, *models, *(f"{path}/ready" for path in models)
