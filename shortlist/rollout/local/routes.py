"""Who gets which version, as Envoy reads it: routes, and the servers behind them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shortlist.rollout.deployment import Route
from shortlist.rollout.local.load_shedding import sheds
from shortlist.rollout.local.record import VersionPorts
from shortlist.serving.processes.ports import HOST
from shortlist.serving.server.headers import (
    ROLLOUT_HEADER,
    STEP_HEADER,
    TRACK_HEADER,
    UNREADY_HEADER,
    USER_HEADER,
    VERSION_HEADER,
    recommend_model,
)

Config = dict[str, Any]
ROUTES = "shortlist"
"""Name of the route configuration."""
BUFFER = "envoy.filters.http.buffer"
"""Name of the filter that holds a request until its body is whole."""
NOTHING_SERVED = "no version of the model is being served yet; deploy one, then ask again"
NOT_SERVED = "not found: only inference and health of the served model are reachable here"
_SERVICE = "/inference.GRPCInferenceService"
_SIDE_CALLS = ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata")
_LONGEST_ANSWER = 30.0
"""Seconds that an answer may take once its server is there."""
_RETRY_MEAN = 0.1
"""Seconds between two tries to reach a server: uniform between 0 and twice this."""
_WINDOW = 1024 * 1024
"""Bytes under way to or from a server on a stream; twice as many on a connection."""


def routes(model: str, route: Route | None, hold_seconds: float, max_request_bytes: int, replicas: int = 1) -> Config:
    """Return the content of the routes' file.

    Args:
        model: Name under which clients ask.
        route: Who gets what; None answers everything with 503.
        hold_seconds: How long a request waits for a server that is being restarted.
        max_request_bytes: A body that says that it is longer is refused before it comes.
        replicas: How many servers a version has.
    """
    table = [_nothing()] if route is None else _table(model, route, _Retries(hold_seconds, replicas), max_request_bytes)
    table.insert(0, _too_long(max_request_bytes))
    return _resource(
        {
            "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            "name": ROUTES,
            "virtual_hosts": [{"name": model, "domains": ["*"], "routes": table}],
        }
    )


def clusters(versions: Mapping[int, Sequence[VersionPorts]], most: int) -> Config:
    """Return the content of the servers' file: every version once for HTTP and once for gRPC.

    Args:
        versions: The ports of each one's replicas.
        most: Requests that a version's servers may have at once, waiting ones too.
    """
    found = []
    for version, replicas in sorted(versions.items()):
        http = [_Endpoint(ports.http, ports.health) for ports in replicas]
        grpc = [_Endpoint(ports.grpc, ports.health) for ports in replicas]
        windows = {"initial_stream_window_size": _WINDOW, "initial_connection_window_size": 2 * _WINDOW}
        limit = most * len(replicas)
        found.append(_cluster(f"v{version}-http", http, {"http_protocol_options": {}}, "3s", limit))
        found.append(_cluster(f"v{version}-grpc", grpc, {"http2_protocol_options": windows}, "3600s", limit))
    return _resource(*found)


class _Endpoint(NamedTuple):
    """A server."""

    port: int
    health_port: int
    """Where it says whether it is ready."""


class _Retries(NamedTuple):
    """How failed requests are tried again."""

    hold_seconds: float
    replicas: int


def _table(model: str, route: Route, retries: _Retries, most: int) -> list[Config]:
    table = [_route(f"{_SERVICE}/ModelInfer", _split(route, "grpc", retries), grpc=True) | _whole_first(most)]
    paths = [f"/v2/models/{name}" for name in (model, recommend_model(model))]
    for path in paths:
        table.append(_route(f"{path}/infer", _split(route, "http", retries), method="POST") | _whole_first(most))
        for version in sorted({route.stable, route.canary or route.stable}):
            # A client that names a version gets it and counts for no track.
            action = {**_to(version, "http"), **_patience(retries, "http")}
            one = _route(f"{path}/versions/{version}/infer", action, method="POST", version=version)
            table.append(one | _whole_first(most))
    http, grpc = _quick(route, "http"), _quick(route, "grpc")
    stable = route.stable
    calls = [_route(f"{_SERVICE}/{name}", grpc, grpc=True, version=stable) for name in _SIDE_CALLS]
    table += [call | _whole_first(most) for call in calls]
    of_models = [side for path in paths for side in (path, f"{path}/ready")]
    sides = ("/v2", "/v2/health/live", "/v2/health/ready", *of_models)
    table += [_route(side, http, method="GET", version=stable) for side in sides]
    return [*table, {"match": {"prefix": "/"}, "direct_response": _says(404, NOT_SERVED)}]


def _nothing() -> Config:
    return {"match": {"prefix": "/"}, "direct_response": _says(503, NOTHING_SERVED)}


def _too_long(most: int) -> Config:
    header = {"name": "content-length", "range_match": {"start": most + 1, "end": 2**63 - 1}}
    said = f"the body: wanted at most {most} bytes (serving.limits.max_request_bytes)"
    return {"match": {"prefix": "/", "headers": [header]}, "direct_response": _says(413, said)}


def _whole_first(most: int) -> Config:
    """Hold a request until it is whole, and keep it for another try.

    Envoy closes a connection of HTTP/1 over which it refuses a request that is not whole; and a server cannot bound
    what all messages of gRPC's together take, Envoy ends streams.
    """
    kind = "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.BufferPerRoute"
    buffer = {BUFFER: {"@type": kind, "buffer": {"max_request_bytes": most}}}
    return {"request_body_buffer_limit": most, "typed_per_filter_config": buffer}


def _says(status: int, text: str) -> Config:
    return {"status": status, "body": {"inline_string": text}}


def _route(path: str, action: Config, method: str = "POST", grpc: bool = False, version: int | None = None) -> Config:
    match: Config = {"path": path, "headers": [{"name": ":method", "string_match": {"exact": method}}]}
    if grpc:
        match["grpc"] = {}
    answer = {} if version is None else {"response_headers_to_add": [_header(VERSION_HEADER, str(version))]}
    return {"match": match, "route": action, **answer}


def _split(route: Route, protocol: str, retries: _Retries) -> Config:
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
        **_patience(retries, protocol),
    }


def _share(route: Route, track: str, version: int, percent: int, *, protocol: str) -> Config:
    answer_headers = [_header(TRACK_HEADER, track), _header(VERSION_HEADER, str(version))]
    request_headers = list(answer_headers)
    if route.rollout is not None:
        request_headers.append(_header(ROLLOUT_HEADER, route.rollout))
    if route.step is not None:
        request_headers.append(_header(STEP_HEADER, str(route.step)))
    return {
        "name": f"v{version}-{protocol}",
        "weight": percent,
        "request_headers_to_add": request_headers,
        "response_headers_to_add": answer_headers,
        **sheds(track),
    }


def _header(name: str, value: str) -> Config:
    # In Envoy's formats a single % begins a command.
    header = {"key": name, "value": value.replace("%", "%%")}
    return {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


def _to(version: int, protocol: str) -> Config:
    return {"cluster": f"v{version}-{protocol}"}


def _quick(route: Route, protocol: str) -> Config:
    # Whether a server is ready must be answered now, not after it has come back.
    # The limit of requests under way is not for it.
    return {**_to(route.stable, protocol), "timeout": "5s", "priority": "HIGH"}


def _patience(retries: _Retries, protocol: str) -> Config:
    """Return how long an answer may take, and when a request is sent again.

    Only what never reached a server is sent again by itself: an answer, even 5xx, is an answer. Where there is another
    replica it also gets what broke off half way, as scoring changes nothing, and what a server refused that is not
    ready.
    """
    hold, replicas = retries
    timeout = {"timeout": f"{_LONGEST_ANSWER + hold:g}s"}
    if replicas == 1:
        return {**timeout, **_retry(hold, ["connect-failure", "refused-stream", "reset-before-request"], _RETRY_MEAN)}
    never_reached = ["connect-failure", "refused-stream"]
    broken_off = ["reset", "unavailable" if protocol == "grpc" else "retriable-headers"]
    policy = _retry(max(hold, 1.0), never_reached + broken_off, _RETRY_MEAN / 8)
    other: Config = {
        "retriable_headers": [{"name": UNREADY_HEADER, "present_match": True}],
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                },
            }
        ],
        "host_selection_retry_max_attempts": 2 * replicas,
    }
    return {**timeout, "retry_policy": {**policy["retry_policy"], **other}}


def _retry(hold_seconds: float, reasons: list[str], first_mean: float) -> Config:
    if not hold_seconds:
        return {}
    policy = {
        "retry_on": ",".join(reasons),
        "num_retries": math.ceil(hold_seconds / _RETRY_MEAN),
        "retry_back_off": {"base_interval": f"{2 * first_mean:g}s", "max_interval": f"{2 * _RETRY_MEAN:g}s"},
    }
    return {"retry_policy": policy}


def _cluster(name: str, endpoints: Sequence[_Endpoint], protocol: Config, idle: str, most: int) -> Config:
    limits = {"max_connections": most, "max_pending_requests": most, "max_requests": most, "max_retries": most}
    return {
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": 2 * _WINDOW,
        "circuit_breakers": {"thresholds": [{"priority": priority, **limits} for priority in ("DEFAULT", "HIGH")]},
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
            "endpoints": [{"lb_endpoints": [_endpoint(each, len(endpoints) > 1) for each in endpoints]}],
        },
        # One server: nothing to choose from, so nothing may be found unfit.
        **(_choosing() if len(endpoints) > 1 else {}),
    }


def _endpoint(endpoint: _Endpoint, is_asked: bool) -> Config:
    found: Config = {"address": {"socket_address": {"address": HOST, "port_value": endpoint.port}}}
    if is_asked:
        found["health_check_config"] = {"port_value": endpoint.health_port}
    return {"endpoint": found}


def _choosing() -> Config:
    """Return how one of several servers is chosen: in turn, but for those that are not ready or refuse connections.

    While no more than half of them are fit, all get requests: a request that waits for one is better than none.
    """
    return {
        # A server that is gone has no request under way: who prefers the least busy one would prefer it.
        "lb_policy": "ROUND_ROBIN",
        "health_checks": [
            {
                "timeout": "3s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 3,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/v2/health/ready", "codec_client_type": "HTTP1"},
            }
        ],
        "outlier_detection": {
            # The canary analysis reads its answers, and a busy one is not unfit; only whether it can be reached counts.
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 2,
            "enforcing_consecutive_local_origin_failure": 100,
            "enforcing_consecutive_5xx": 0,
            "enforcing_consecutive_gateway_failure": 0,
            "enforcing_success_rate": 0,
            "enforcing_local_origin_success_rate": 0,
            "interval": "1s",
            "base_ejection_time": "1s",
            "max_ejection_time": "5s",
            "max_ejection_percent": 50,
        },
    }


def _resource(*resources: Config) -> Config:
    """Return a file's content under a version that follows from it: the same content is the same version."""
    digest = hashlib.sha256(json.dumps(resources, sort_keys=True).encode()).hexdigest()[:16]
    return {"version_info": digest, "resources": list(resources)}
