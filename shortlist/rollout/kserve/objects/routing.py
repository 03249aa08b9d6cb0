"""The manifest of a spec's HTTPRoute, which splits users between versions and sets the same headers as local Envoy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from shortlist.rollout.deployment import Route
from shortlist.rollout.kserve.objects.owner import (
    CLUSTER_ANNOTATION,
    MANAGED_BY,
    ROUTE_ANNOTATION,
    SPEC_ANNOTATION,
    SPEC_LABEL,
    ObjectOwner,
)
from shortlist.serving.server.requests.headers import (
    ROLLOUT_HEADER,
    STEP_HEADER,
    TRACK_HEADER,
    VERSION_HEADER,
    recommend_model,
)
from shortlist.serving.server.requests.paths import JSON_PATHS, inference_path, status_paths
from shortlist.spec.cluster import Cluster
from shortlist.system.kubernetes_api import HTTP_ROUTE, Object

SHARES: Final = 100
"""Total weight, which is constant: a user's hash modulo this is the user's position, whatever the weights."""
PLACES: Final[Mapping[str, tuple[int, ...]]] = {"canary": (0, 2), "stable": (1, 3)}
"""Positions of each track among the backends while there is a canary."""
_PORT: Final = 80
"""Port of every Service of KServe."""
_LONGEST_ANSWER: Final = 30
"""Longest time in seconds for an answer of an available server."""
_INTERNAL_HEADERS: Final = (TRACK_HEADER, ROLLOUT_HEADER, STEP_HEADER, VERSION_HEADER)


def http_route(
    owner: ObjectOwner, cluster: Cluster, route: Route, services: Mapping[int, str], hold_seconds: float
) -> Object:
    """Return the HTTPRoute that implements a route.

    Args:
        owner: Owner of the HTTPRoute.
        cluster: The spec's section with the Gateway and the host.
        route: Share of the users for each version.
        services: Name of the InferenceService of each version in the route.
        hold_seconds: How long a request may wait for a server that restarts.
    """
    spec: Object = {
        "parentRefs": [{"name": cluster.gateway}],
        "rules": _rules(owner.spec, route, services, gateway_duration(_LONGEST_ANSWER + hold_seconds)),
    }
    if cluster.hostname:
        spec["hostnames"] = [cluster.hostname]
    return {
        "apiVersion": HTTP_ROUTE.api_version,
        "kind": HTTP_ROUTE.name,
        "metadata": {
            "name": owner.route_name,
            "namespace": owner.namespace,
            "labels": {**MANAGED_BY, SPEC_LABEL: owner.spec},
            "annotations": {
                CLUSTER_ANNOTATION: owner.cluster,
                ROUTE_ANNOTATION: route.model_dump_json(exclude_none=True),
                SPEC_ANNOTATION: json.dumps(spec, sort_keys=True),
            },
        },
        "spec": spec,
    }


def gateway_duration(seconds: float) -> str:
    """Return a duration in the Gateway API's format: at most five digits for each unit.

    >>> [gateway_duration(seconds) for seconds in (45, 100, 30.25, 0.5, 200_000)]
    ['45s', '100s', '30s250ms', '500ms', '55h2000s']
    """
    milliseconds = round(seconds * 1000)
    hours = milliseconds // 3_600_000 if milliseconds >= 100_000_000 else 0
    milliseconds -= hours * 3_600_000
    parts = {"h": hours, "s": milliseconds // 1000, "ms": milliseconds % 1000}
    return "".join(f"{number}{unit}" for unit, number in parts.items() if number) or "0s"


def shares(route: Route) -> list[tuple[str, int, int]]:
    """Return tracks, versions and weights in order; the weights add up to `SHARES`.

    The gateway chooses by a hash of the user, without a salt. To vary the canary's users, the canary's share of each
    rollout begins at another position and grows from there, wrapping around at the end. Users of the canary keep it
    while the share grows.

    >>> shares(Route(stable=4, canary=5, percent=25, rollout="r", salt="b"))
    [('canary', 5, 0), ('stable', 4, 65), ('canary', 5, 25), ('stable', 4, 10)]
    """
    if route.canary is None:
        return [("stable", route.stable, SHARES)]
    start = int(hashlib.sha256(route.hash_salt.encode()).hexdigest(), 16) % SHARES
    wrapped = max(start + route.percent - SHARES, 0)
    stable_first = start - wrapped
    # Always four, also with weight 0: the gateway counts requests by position, which must keep its track.
    return [
        ("canary", route.canary, wrapped),
        ("stable", route.stable, stable_first),
        ("canary", route.canary, route.percent - wrapped),
        ("stable", route.stable, SHARES - stable_first - route.percent),
    ]


def weights_by_service(live: Object) -> dict[str, int]:
    """Return the weights of an HTTPRoute by Service; without Services of weight 0."""
    weights: dict[str, int] = {}
    for backend in live["spec"]["rules"][0].get("backendRefs", []):
        weights[backend["name"]] = weights.get(backend["name"], 0) + int(backend.get("weight", 1))
    return {name: weight for name, weight in weights.items() if weight}


def service_of(inference_service: str) -> str:
    """Return the Service in front of a version's servers."""
    return f"{inference_service}-transformer"


def _rules(model: str, route: Route, services: Mapping[int, str], timeout: str) -> list[Object]:
    models = (model, recommend_model(model))
    inference_rule = {
        "matches": [_match(path, "POST") for path in (*map(inference_path, models), *JSON_PATHS)],
        "backendRefs": [_share(route, *share, service=services[share[1]]) for share in shares(route)],
        "timeouts": {"request": timeout},
    }
    # A client that names a version gets that version; its requests count for no track.
    version_rules = [
        {
            "matches": [_match(inference_path(name, version), "POST") for name in models],
            "filters": [_remove_internal_headers()],
            "backendRefs": [_backend(services[version])],
            "timeouts": {"request": timeout},
        }
        for version in sorted({route.stable, route.canary or route.stable})
    ]
    status_rule = {
        "matches": [_match(path, "GET") for path in status_paths(model)],
        "backendRefs": [_backend(services[route.stable])],
        "timeouts": {"request": "5s"},
    }
    return [inference_rule, *version_rules, status_rule]


def _share(route: Route, track: str, version: int, weight: int, *, service: str) -> Object:
    request_headers = [_header(TRACK_HEADER, track), _header(VERSION_HEADER, str(version))]
    if route.rollout is not None:
        request_headers.append(_header(ROLLOUT_HEADER, route.rollout))
    if route.step is not None:
        request_headers.append(_header(STEP_HEADER, str(route.step)))
    header_names = {header["name"] for header in request_headers}
    changes: Object = {"set": request_headers}
    if absent := [name for name in _INTERNAL_HEADERS if name not in header_names]:
        changes["remove"] = absent  # a client may not send them either
    # Every backend has filters of its own; otherwise Envoy Gateway merges all backends into one cluster.
    filters = [{"type": "RequestHeaderModifier", "requestHeaderModifier": changes}]
    return {**_backend(service), "weight": weight, "filters": filters}


def _backend(service: str) -> Object:
    return {"name": service_of(service), "port": _PORT}


def _remove_internal_headers() -> Object:
    return {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": list(_INTERNAL_HEADERS)}}


def _header(name: str, value: str) -> Object:
    return {"name": name, "value": value}


def _match(path: str, method: str) -> Object:
    return {"path": {"type": "Exact", "value": path}, "method": method}
