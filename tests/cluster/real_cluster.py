"""Client of the cluster in a kubeconfig, with a proxy that can cut the connection."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from urllib.parse import urlencode, urlsplit

from kubernetes import client
from kubernetes.client.exceptions import ApiException

Object = dict[str, Any]
CONTROLLERS = {"KServe": "kserve-controller-manager", "Envoy Gateway": "envoy-gateway"}
MANAGER = "shortlist-test"


@dataclass
class RealCluster:
    """A cluster, asked as its administrator, and the namespace of the tests."""

    api: client.ApiClient
    namespace: str
    defined: list[str] = field(default_factory=list)
    """Names of the custom resource definitions that the tests made."""
    notes: list[str] = field(default_factory=list)
    """Lines for the summary at the end."""

    @cached_property
    def version(self) -> str:
        return str(self.request("GET", "/version")["gitVersion"])

    @cached_property
    def controllers(self) -> list[str]:
        """Those that run here, by title."""
        items = self.request("GET", "/apis/apps/v1/deployments")["items"]
        running = {
            object_["metadata"]["name"] for object_ in items if (object_.get("status") or {}).get("readyReplicas")
        }
        return [title for title, name in CONTROLLERS.items() if name in running]

    @property
    def kind_of_cluster(self) -> Literal["bare", "partial", "full"]:
        """Whether controllers are here: none, some, or all that a release needs."""
        return "full" if len(self.controllers) == len(CONTROLLERS) else "partial" if self.controllers else "bare"

    def request(
        self, method: str, path: str, body: Object | None = None, api: client.ApiClient | None = None,
        content_type: str = "application/json", **query: str,
    ) -> Any:  # fmt: skip
        """Return the answer to a request.

        Raises:
            ApiException: It is a refusal.
        """
        url = f"{path}?{urlencode(query)}" if query else path
        answer = (api or self.api).call_api(
            url, method, header_params={"Content-Type": content_type, "Accept": "application/json"},
            body=body,
            auth_settings=["BearerToken"], response_type="object", _request_timeout=60,
        )  # fmt: skip
        return answer[0]

    def path_of(self, body: Object, namespace: str | None = None) -> str:
        """Return the path of an object, in the namespace of the tests if it is in any."""
        version, kind = body["apiVersion"], body["kind"]
        base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        try:
            resources = self.request("GET", base)["resources"]
        except ApiException:
            resources = []
        resource = next(
            (resource_ for resource_ in resources if resource_["kind"] == kind and "/" not in resource_["name"]), None
        )
        if resource is None:
            raise LookupError(f"{version} {kind}: this cluster has no such kind")
        inside = f"/namespaces/{namespace or self.namespace}" if resource["namespaced"] else ""
        return f"{base}{inside}/{resource['name']}/{body['metadata']['name']}"

    def apply(self, body: Object, *, dry_run: bool = False) -> Any:
        """Apply an object as `kubectl apply --server-side --validate=strict` does."""
        namespaced = json.loads(json.dumps(body))
        path = self.path_of(namespaced)
        if "/namespaces/" in path:
            namespaced["metadata"]["namespace"] = self.namespace
        dry = {"dryRun": "All"} if dry_run else {}
        return self.request(
            "PATCH", path, namespaced, content_type="application/apply-patch+yaml",
            fieldManager=MANAGER, fieldValidation="Strict", force="true", **dry,
        )  # fmt: skip

    def token(self, account: str) -> str:
        """Return a token of a service account of the namespace."""
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        return str(self.request("POST", path, body)["status"]["token"])

    def is_allowed(self, account: str, verb: str, group: str, resource: str) -> bool:
        """Ask whether a service account may."""
        attributes = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        spec = {"user": f"system:serviceaccount:{self.namespace}:{account}", "resourceAttributes": attributes}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(self.request("POST", path, body)["status"]["allowed"])

    def connection(self, token: str, through: int | None = None) -> dict[str, Any]:
        """Return what a process needs to ask as somebody else: host, certificate authority, token.

        Args:
            token: Bearer token.
            through: Port of a gate on the loopback; None: straight.
        """
        configuration, parts = self.api.configuration, urlsplit(self.api.configuration.host)
        host = configuration.host if through is None else f"{parts.scheme}://127.0.0.1:{through}"
        name = getattr(configuration, "tls_server_name", None) or (None if through is None else parts.hostname)
        return {
            "host": host, "token": token, "ca": configuration.ssl_ca_cert, "verify": configuration.verify_ssl,
            "server_name": name,
        }  # fmt: skip


def configuration_of(connection: dict[str, Any]) -> client.Configuration:
    """Return a client's configuration from `RealCluster.connection`."""
    configuration = client.Configuration(host=connection["host"])
    configuration.api_key = {"authorization": f"Bearer {connection['token']}"}
    configuration.ssl_ca_cert, configuration.verify_ssl = connection["ca"], connection["verify"]
    if connection["server_name"]:
        configuration.tls_server_name = connection["server_name"]
    return configuration


class Gate:
    """A port of the loopback that passes bytes on to a server, and can be closed for a while."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._to = (parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80))
        self._closed_until = 0.0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close_for(self, seconds: float) -> None:
        """End every connection, and take no new one for a while."""
        self._closed_until = time.monotonic() + seconds
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Be gone."""
        self.close_for(1e9)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(30)

    def _accept(self) -> None:
        while True:
            try:
                inside, _ = self._listener.accept()
            except OSError:
                return
            if time.monotonic() < self._closed_until:
                inside.close()
                continue
            self._start(self._serve, inside)

    def _start(self, target: Callable[..., None], *sockets: socket.socket) -> threading.Thread:
        thread = threading.Thread(target=target, args=sockets, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _serve(self, inside: socket.socket) -> None:
        with inside, suppress(OSError), socket.create_connection(self._to, timeout=30) as outside:
            outside.settimeout(None)
            with self._lock:
                self._open |= {inside, outside}
            back = self._start(_pass, outside, inside)
            _pass(inside, outside)
            back.join()
            with self._lock:
                self._open -= {inside, outside}


def _pass(reading: socket.socket, writing: socket.socket) -> None:
    """Copy bytes until either side ends; then both do."""
    with suppress(OSError):
        while data := reading.recv(65536):
            writing.sendall(data)
    for sock in (reading, writing):
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


class PlayedControllers:
    """Writes the statuses of KServe's controller and of the gateway, and EndpointSlices, where these do not run."""

    def __init__(self, cluster: RealCluster) -> None:
        self._cluster, self._stop = cluster, threading.Event()
        self.wrong: list[str] = []
        self._backends: set[str] = set()
        self.shares: list[dict[str, int]] = []
        """Weights of the route by Service, each that was seen."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write no more."""
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            with suppress(ApiException, OSError):
                self._once()

    def _once(self) -> None:
        services = self._list("serving.kserve.io/v1beta1", "inferenceservices")
        for service in services:
            conditions = [condition(kind, service) for kind in ("PredictorReady", "TransformerReady", "Ready")]
            self._write("serving.kserve.io/v1beta1", "inferenceservices", service, {"conditions": conditions})
            for component in ("predictor", "transformer"):
                self._play_endpoint(f"{service['metadata']['name']}-{component}")
        for route in self._list("gateway.networking.k8s.io/v1", "httproutes"):
            weights: dict[str, int] = {}
            for backend in route["spec"]["rules"][0]["backendRefs"]:
                weights[backend["name"]] = weights.get(backend["name"], 0) + backend.get("weight", 1)
            weights = {name: weight for name, weight in weights.items() if weight}
            if not self.shares or self.shares[-1] != weights:
                self.shares.append(weights)
            if sum(weights.values()) != 100:
                self.wrong.append(f"weights do not add up: {weights}")
            conditions = [condition(kind, route) for kind in ("Accepted", "ResolvedRefs")]
            parent = {"parentRef": {"name": "shortlist"}, "controllerName": "shortlist.dev/test"}
            status = {"parents": [{**parent, "conditions": conditions}]}
            self._write("gateway.networking.k8s.io/v1", "httproutes", route, status)

    def _play_endpoint(self, backend: str) -> None:
        """Put a ready endpoint behind a Service, once."""
        if backend in self._backends:
            return
        labels = {"kubernetes.io/service-name": backend}
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self._cluster.namespace}/endpointslices"
        endpoint = {"addresses": ["192.0.2.1"], "conditions": {"ready": True}}
        body = {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": f"{backend}-played", "labels": labels}, "endpoints": [endpoint],
        }  # fmt: skip
        self._cluster.request("POST", path, body)
        self._backends.add(backend)

    def _list(self, version: str, plural: str) -> list[Object]:
        path = f"/apis/{version}/namespaces/{self._cluster.namespace}/{plural}"
        items: list[Object] = self._cluster.request("GET", path)["items"]
        return items

    def _write(self, version: str, plural: str, object_: Object, status: Object) -> None:
        status_before = object_.get("status") or {}
        if all(status_before.get(name) == value for name, value in status.items()):
            return
        path = f"/apis/{version}/namespaces/{self._cluster.namespace}/{plural}/{object_['metadata']['name']}/status"
        kind = "application/merge-patch+json"
        self._cluster.request("PATCH", path, {"status": status}, content_type=kind)


def condition(kind: str, object_: Object) -> Object:
    """Return a condition that holds of an object as it is."""
    return {
        "type": kind, "status": "True", "reason": "Played", "message": "by the test",
        "lastTransitionTime": "2026-11-21T12:00:00Z", "observedGeneration": object_["metadata"].get("generation", 1),
    }  # fmt: skip


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
