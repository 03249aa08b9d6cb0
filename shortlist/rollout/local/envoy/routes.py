"""Envoy's routes, which split users between versions, and the clusters of servers behind them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

from shortlist.rollout.deployment import Route
from shortlist.rollout.local.envoy.load_shedding import enable_shedding
from shortlist.rollout.local.record import VersionPorts
from shortlist.serving.processes.ports import HOST
from shortlist.serving.server.requests.headers import (
    GATEWAY_HEADER,
    ROLLOUT_HEADER,
    SENDER_HEADER,
    STEP_HEADER,
    TRACK_HEADER,
    UNREADY_HEADER,
    USER_HEADER,
    VERSION_HEADER,
    recommend_model,
)
from shortlist.serving.server.requests.paths import JSON_PATHS, READY, inference_path, status_paths
from shortlist.serving.server.requests.senders import ADDRESS_HEADER
from shortlist.serving.stack_secrets import StackSecrets
from shortlist.spec.serving import BACKEND, Serving

Config = dict[str, Any]
ROUTES = "shortlist"
"""Name of the route configuration."""
BUFFER = "envoy.filters.http.buffer"
"""Name of the filter that buffers a request until its body is complete."""
NO_VERSION_SERVED = "no version of the model is being served yet; deploy one, then ask again"
PATH_NOT_SERVED = "not found: only inference and health of the served model are reachable here"
_SERVICE = "/inference.GRPCInferenceService"
_SIDE_CALLS = ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata")
_LONGEST_ANSWER = 30.0
"""Longest time in seconds for an answer of an available server."""
_RETRY_MEAN = 0.1
"""Mean time in seconds between two attempts to reach a server: uniform between 0 and twice this."""
_PEER: Final = "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"
"""Envoy's command for the address of its peer."""
_WINDOW = 1024 * 1024
"""Flow-control window in bytes of a stream to a server; twice as many for a connection."""


def routes(
    model: str,
    route: Route | None,
    serving: Serving,
    stack_secrets: StackSecrets | None = None,
) -> Config:
    """Return the content of the routes' file.

    Args:
        model: Model name in requests.
        route: Share of the users for each version; None answers everything with 503.
        serving: The section with the limits, the replicas, and how long a request waits for a server that restarts.
        stack_secrets: Token by which the application's backend is known, and key that servers know this gateway by.
    """
    token = None if stack_secrets is None else stack_secrets.backend_token
    max_request_bytes = serving.limits.max_request_bytes
    table = (
        [_no_version_route()]
        if route is None
        else _table(model, route, _Retries(serving.hold_seconds, serving.replicas), max_request_bytes, token)
    )
    table.insert(0, _body_too_long_route(max_request_bytes))
    # Of a peer on this machine Envoy itself would append the machine's own address: another sender than in its log.
    gateway_headers = [_header(ADDRESS_HEADER, _PEER)]
    if stack_secrets is not None:
        gateway_headers.append(_text_header(GATEWAY_HEADER, stack_secrets.gateway_key))
    return _resource(
        {
            "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            "name": ROUTES,
            "virtual_hosts": [{"name": model, "domains": ["*"], "routes": table}],
            "request_headers_to_add": gateway_headers,
        }
    )


def clusters(versions: Mapping[int, Sequence[VersionPorts]], max_requests: int) -> Config:
    """Return the content of the clusters' file: every version once for HTTP and once for gRPC.

    Args:
        versions: Ports of the replicas of each version.
        max_requests: Most requests of one server at once, including waiting ones.
    """
    address = []
    for version, replicas in sorted(versions.items()):
        http = [_Endpoint(ports.http, ports.health) for ports in replicas]
        grpc = [_Endpoint(ports.grpc, ports.health) for ports in replicas]
        windows = {"initial_stream_window_size": _WINDOW, "initial_connection_window_size": 2 * _WINDOW}
        limit = max_requests * len(replicas)
        address.append(_cluster(f"v{version}-http", http, {"http_protocol_options": {}}, "3s", limit))
        address.append(_cluster(f"v{version}-grpc", grpc, {"http2_protocol_options": windows}, "3600s", limit))
    return _resource(*address)


class _Endpoint(NamedTuple):
    """A server of a cluster."""

    port: int
    health_port: int
    """Port of its readiness endpoint."""


class _Retries(NamedTuple):
    """Settings for retries of failed requests."""

    hold_seconds: float
    replicas: int


def _table(model: str, route: Route, retries: _Retries, max_requests: int, token: str | None) -> list[Config]:
    models = (model, recommend_model(model))
    inference = (*map(inference_path, models), *JSON_PATHS)
    table = []
    for backend_token in (*([] if token is None else [token]), None):
        grpc, http = (_split(route, protocol, retries, backend_token is not None) for protocol in ("grpc", "http"))
        splits = [_route(f"{_SERVICE}/ModelInfer", grpc, grpc=True, token=backend_token)]
        splits += [_route(path, http, token=backend_token) for path in inference]
        table += [split | _buffered(max_requests) for split in splits]
    for name, version in product(models, sorted({route.stable, route.canary or route.stable})):
        # A client that names a version gets that version; its requests count for no track.
        action = {**_cluster_action(version, "http"), **_retry_policy(retries, "http")}
        route_entry = _route(inference_path(name, version), action, method="POST", version=version)
        table.append(route_entry | _buffered(max_requests))
    http, grpc = _status_action(route, "http"), _status_action(route, "grpc")
    stable = route.stable
    calls = [_route(f"{_SERVICE}/{name}", grpc, grpc=True, version=stable) for name in _SIDE_CALLS]
    table += [call | _buffered(max_requests) for call in calls]
    table += [_route(path, http, method="GET", version=stable) for path in status_paths(model)]
    return [*table, {"match": {"prefix": "/"}, "direct_response": _direct_response(404, PATH_NOT_SERVED)}]


def _no_version_route() -> Config:
    return {"match": {"prefix": "/"}, "direct_response": _direct_response(503, NO_VERSION_SERVED)}


def _body_too_long_route(max_requests: int) -> Config:
    header = {"name": "content-length", "range_match": {"start": max_requests + 1, "end": 2**63 - 1}}
    body_text = f"the body: wanted at most {max_requests} bytes (serving.limits.max_request_bytes)"
    return {"match": {"prefix": "/", "headers": [header]}, "direct_response": _direct_response(413, body_text)}


def _buffered(max_requests: int) -> Config:
    """Return the route settings that buffer a request until it is complete, and keep it for retries.

    Without them Envoy would close an HTTP/1 connection when it refuses an incomplete request, and the memory of all
    gRPC messages together would be unbounded.
    """
    kind = "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.BufferPerRoute"
    buffer = {BUFFER: {"@type": kind, "buffer": {"max_request_bytes": max_requests}}}
    return {"request_body_buffer_limit": max_requests, "typed_per_filter_config": buffer}


def _direct_response(status: int, text: str) -> Config:
    return {"status": status, "body": {"inline_string": text}}


def _route(
    path: str,
    action: Config,
    method: str = "POST",
    grpc: bool = False,
    version: int | None = None,
    token: str | None = None,
) -> Config:
    match: Config = {"path": path, "headers": [{"name": ":method", "string_match": {"exact": method}}]}
    if token is not None:
        match["headers"].append({"name": "authorization", "string_match": {"exact": f"Bearer {token}"}})
    if grpc:
        match["grpc"] = {}
    answer = {} if version is None else {"response_headers_to_add": [_text_header(VERSION_HEADER, str(version))]}
    return {"match": match, "route": action, **answer}


def _split(route: Route, protocol: str, retries: _Retries, of_backend: bool) -> Config:
    # The canary comes first and the weights always add up to 100: a user whose hash is below the canary's weight
    # stays below it when the weight grows.
    shares = [] if route.canary is None else [("canary", route.canary, route.percent)]
    shares.append(("stable", route.stable, 100 - route.percent))
    salt = route.hash_salt.replace("\\", "\\\\")
    return {
        "weighted_clusters": {
            "clusters": [_share(route, *share, protocol=protocol, of_backend=of_backend) for share in shares],
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
        **_retry_policy(retries, protocol),
    }


def _share(route: Route, track: str, version: int, percent: int, *, protocol: str, of_backend: bool) -> Config:
    track_headers = [_text_header(TRACK_HEADER, track), _text_header(VERSION_HEADER, str(version))]
    request_headers = [*track_headers, _header(SENDER_HEADER, BACKEND if of_backend else _PEER)]
    if route.rollout is not None:
        request_headers.append(_text_header(ROLLOUT_HEADER, route.rollout))
    if route.step is not None:
        request_headers.append(_text_header(STEP_HEADER, str(route.step)))
    return {
        "name": f"v{version}-{protocol}",
        "weight": percent,
        "request_headers_to_add": request_headers,
        # A client that knows the track of its users could send requests to one track alone.
        "response_headers_to_add": track_headers if of_backend else [],
        **enable_shedding(track),
    }


def _header(name: str, value: str) -> Config:
    return {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


def _text_header(name: str, text: str) -> Config:
    return _header(name, text.replace("%", "%%"))  # in Envoy's formats a single % begins a command


def _cluster_action(version: int, protocol: str) -> Config:
    return {"cluster": f"v{version}-{protocol}"}


def _status_action(route: Route, protocol: str) -> Config:
    # Readiness must be answered at once, not after a server has restarted.
    # Priority HIGH: the limit of requests in flight does not apply.
    return {**_cluster_action(route.stable, protocol), "timeout": "5s", "priority": "HIGH"}


def _retry_policy(retries: _Retries, protocol: str) -> Config:
    """Return the timeout and the retry policy of a route.

    By default only requests that never reached a server are retried: any answer, even 5xx, is final. With several
    replicas, requests whose connection broke (scoring has no side effects) and those that an unready server refused
    are also retried, on another replica.
    """
    hold_seconds, replicas = retries
    timeout = {"timeout": f"{_LONGEST_ANSWER + hold_seconds:g}s"}
    if replicas == 1:
        return {
            **timeout,
            **_retry(hold_seconds, ["connect-failure", "refused-stream", "reset-before-request"], _RETRY_MEAN),
        }
    never_reached = ["connect-failure", "refused-stream"]
    broken_off = ["reset", "unavailable" if protocol == "grpc" else "retriable-headers"]
    policy = _retry(max(hold_seconds, 1.0), never_reached + broken_off, _RETRY_MEAN / 8)
    replica_policy: Config = {
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
    return {**timeout, "retry_policy": {**policy["retry_policy"], **replica_policy}}


def _retry(hold_seconds: float, reasons: list[str], first_mean: float) -> Config:
    if not hold_seconds:
        return {}
    policy = {
        "retry_on": ",".join(reasons),
        "num_retries": math.ceil(hold_seconds / _RETRY_MEAN),
        "retry_back_off": {"base_interval": f"{2 * first_mean:g}s", "max_interval": f"{2 * _RETRY_MEAN:g}s"},
    }
    return {"retry_policy": policy}


def _cluster(name: str, endpoints: Sequence[_Endpoint], protocol: Config, idle: str, max_requests: int) -> Config:
    limits = {
        "max_connections": max_requests,
        "max_pending_requests": max_requests,
        "max_requests": max_requests,
        "max_retries": max_requests,
    }
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
                # Shorter than the server's own timeout (5 s with uvicorn), so that Envoy closes idle connections first.
                "common_http_protocol_options": {"idle_timeout": idle},
                "explicit_http_config": protocol,
            }
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [_endpoint(endpoint, len(endpoints) > 1) for endpoint in endpoints]}],
        },
        # A single server must never be ejected.
        **(_load_balancing() if len(endpoints) > 1 else {}),
    }


def _endpoint(endpoint: _Endpoint, is_asked: bool) -> Config:
    address: Config = {"address": {"socket_address": {"address": HOST, "port_value": endpoint.port}}}
    if is_asked:
        address["health_check_config"] = {"port_value": endpoint.health_port}
    return {"endpoint": address}


def _load_balancing() -> Config:
    """Return the load balancing between several servers: in turn, without those that are not ready or unreachable.

    While at most half of them are healthy, all get requests: a waiting request is better than a refused one.
    """
    return {
        # Not LEAST_REQUEST, which would prefer a dead server because it has no requests in flight.
        "lb_policy": "ROUND_ROBIN",
        "health_checks": [
            {
                "timeout": "3s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 3,
                "healthy_threshold": 1,
                "http_health_check": {"path": READY, "codec_client_type": "HTTP1"},
            }
        ],
        "outlier_detection": {
            # Only unreachable servers are ejected: bad answers are for the canary analysis, busy servers are healthy.
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
    """Return the content of a file with a version that is a digest of the content."""
    digest = hashlib.sha256(json.dumps(resources, sort_keys=True).encode()).hexdigest()[:16]
    return {"version_info": digest, "resources": list(resources)}
