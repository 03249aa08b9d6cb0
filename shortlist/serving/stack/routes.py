"""Who gets which version, as Envoy reads it: routes, and the servers behind them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from shortlist.serving.online.headers import (
    ROLLOUT_HEADER,
    STEP_HEADER,
    TRACK_HEADER,
    USER_HEADER,
    VERSION_HEADER,
)
from shortlist.serving.stack.deployment import Route
from shortlist.serving.stack.ports import HOST
from shortlist.serving.stack.record import VersionPorts

Config = dict[str, Any]
ROUTES = "shortlist"
"""Name of the route configuration."""
NOTHING_SERVED = "no version of the model is being served yet; deploy one, then ask again"
NOT_SERVED = "not found: only inference and health of the served model are reachable here"
_SERVICE = "/inference.GRPCInferenceService"
_SIDE_CALLS = ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata")
_LONGEST_ANSWER = 30.0
"""Seconds that an answer may take once its server is there."""
_RETRY_MEAN = 0.1
"""Seconds between two tries to reach a server: uniform between 0 and twice this."""
_WINDOW = 16 * 1024 * 1024


def routes(model: str, route: Route | None, hold_seconds: float) -> Config:
    """Return the content of the routes' file.

    Args:
        model: Name under which clients ask.
        route: Who gets what; None answers everything with 503.
        hold_seconds: How long a request waits for a server that is being restarted.
    """
    table = [_nothing()] if route is None else _table(model, route, hold_seconds)
    return _resource(
        {
            "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            "name": ROUTES,
            "virtual_hosts": [{"name": model, "domains": ["*"], "routes": table}],
        }
    )


def clusters(versions: Mapping[int, VersionPorts]) -> Config:
    """Return the content of the servers' file: every version once for HTTP and once for gRPC."""
    found = []
    for version, ports in sorted(versions.items()):
        found.append(_cluster(f"v{version}-http", ports.http, {"http_protocol_options": {}}, idle="3s"))
        windows = {"initial_stream_window_size": _WINDOW, "initial_connection_window_size": 2 * _WINDOW}
        found.append(_cluster(f"v{version}-grpc", ports.grpc, {"http2_protocol_options": windows}, idle="3600s"))
    return _resource(*found)


def _table(model: str, route: Route, hold_seconds: float) -> list[Config]:
    path = f"/v2/models/{model}"
    table = [
        _route(f"{_SERVICE}/ModelInfer", _split(route, "grpc", hold_seconds), grpc=True),
        _route(f"{path}/infer", _split(route, "http", hold_seconds), method="POST"),
    ]
    for version in sorted({route.stable, route.canary or route.stable}):
        # A client that names a version gets it and counts for no track.
        action = {**_to(version, "http"), "timeout": f"{_LONGEST_ANSWER + hold_seconds:g}s", **_retries(hold_seconds)}
        table.append(_route(f"{path}/versions/{version}/infer", action, method="POST", version=version))
    http, grpc = _quick(route, "http"), _quick(route, "grpc")
    stable = route.stable
    table += [_route(f"{_SERVICE}/{name}", grpc, grpc=True, version=stable) for name in _SIDE_CALLS]
    sides = ("/v2", "/v2/health/live", "/v2/health/ready", path, f"{path}/ready")
    table += [_route(side, http, method="GET", version=stable) for side in sides]
    return [*table, {"match": {"prefix": "/"}, "direct_response": _says(404, NOT_SERVED)}]


def _nothing() -> Config:
    return {"match": {"prefix": "/"}, "direct_response": _says(503, NOTHING_SERVED)}


def _says(status: int, text: str) -> Config:
    return {"status": status, "body": {"inline_string": text}}


def _route(path: str, action: Config, method: str = "POST", grpc: bool = False, version: int | None = None) -> Config:
    match: Config = {"path": path, "headers": [{"name": ":method", "string_match": {"exact": method}}]}
    if grpc:
        match["grpc"] = {}
    answer = {} if version is None else {"response_headers_to_add": [_header(VERSION_HEADER, str(version))]}
    return {"match": match, "route": action, **answer}


def _split(route: Route, protocol: str, hold_seconds: float) -> Config:
    # The canary comes first and the weights always add up to 100: a user whose hash is below the canary's weight
    # stays below it when the weight grows.
    shares = [] if route.canary is None else [("canary", route.canary, route.percent)]
    shares.append(("stable", route.stable, 100 - route.percent))
    salt = (route.rollout or "").replace("\\", "\\\\")
    return {
        "weighted_clusters": {
            "clusters": [_share(route, *share, protocol=protocol) for share in shares],
            "use_hash_policy": True,
        },
        "hash_policy": [
            {
                "header": {
                    "header_name": USER_HEADER,
                    "regex_rewrite": {"pattern": {"regex": "^(.+)$"}, "substitution": f"{salt}|\\1"},
                }
            }
        ],
        "timeout": f"{_LONGEST_ANSWER + hold_seconds:g}s",
        **_retries(hold_seconds),
    }


def _share(route: Route, track: str, version: int, percent: int, *, protocol: str) -> Config:
    told = [_header(TRACK_HEADER, track), _header(VERSION_HEADER, str(version))]
    asked = list(told)
    if route.rollout is not None:
        asked.append(_header(ROLLOUT_HEADER, route.rollout))
    if route.step is not None:
        asked.append(_header(STEP_HEADER, str(route.step)))
    return {
        "name": f"v{version}-{protocol}",
        "weight": percent,
        "request_headers_to_add": asked,
        "response_headers_to_add": told,
    }


def _header(name: str, value: str) -> Config:
    # In Envoy's formats a single % begins a command.
    header = {"key": name, "value": value.replace("%", "%%")}
    return {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


def _to(version: int, protocol: str) -> Config:
    return {"cluster": f"v{version}-{protocol}"}


def _quick(route: Route, protocol: str) -> Config:
    # Whether a server is ready must be answered now, not after it has come back.
    return {**_to(route.stable, protocol), "timeout": "5s"}


def _retries(hold_seconds: float) -> Config:
    """Only what never reached a server is tried again: an answer, even 5xx, is an answer."""
    if not hold_seconds:
        return {}
    policy = {
        "retry_on": "connect-failure,refused-stream,reset-before-request",
        "num_retries": math.ceil(hold_seconds / _RETRY_MEAN),
        "retry_back_off": {"base_interval": f"{2 * _RETRY_MEAN:g}s", "max_interval": f"{2 * _RETRY_MEAN:g}s"},
    }
    return {"retry_policy": policy}


def _cluster(name: str, port: int, protocol: Config, idle: str) -> Config:
    address = {"socket_address": {"address": HOST, "port_value": port}}
    # One server per version: nothing to choose from, so nothing may be ejected, and no budget may refuse a retry.
    many = {
        "max_connections": 100_000,
        "max_pending_requests": 100_000,
        "max_requests": 100_000,
        "max_retries": 100_000,
    }
    return {
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": 2 * _WINDOW,
        "circuit_breakers": {"thresholds": [{"priority": "DEFAULT", **many}]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                # Shorter than a server keeps an idle connection (5 s with uvicorn): Envoy lets go first.
                "common_http_protocol_options": {"idle_timeout": idle},
                "explicit_http_config": protocol,
            }
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }


def _resource(*resources: Config) -> Config:
    """Return a file's content under a version that follows from it: the same content is the same version."""
    digest = hashlib.sha256(json.dumps(resources, sort_keys=True).encode()).hexdigest()[:16]
    return {"version_info": digest, "resources": list(resources)}
