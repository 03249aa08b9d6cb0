"""An API server without controllers, with the calls of the tests of a real cluster, so that these are tested, too."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import crd_schemas
import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from kube_server import KubeServer, Object, RefusalError, handler_of
from listening import listening

ADMINISTRATOR = "administrator"
KUBERNETES = "1.34"
CRD_SCHEMAS = yaml.safe_load((Path(__file__).parent / "crds.yaml").read_text())
_CLUSTERED = {"Namespace", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "CustomResourceDefinition"}
_CORE = {
    "v1": ("Namespace", "ServiceAccount", "Secret", "ConfigMap", "Service", "Pod", "Event"),
    "apps/v1": ("Deployment",),
    "batch/v1": ("CronJob",),
    "policy/v1": ("PodDisruptionBudget",),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "rbac.authorization.k8s.io/v1": ("Role", "RoleBinding"),
    "admissionregistration.k8s.io/v1": ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    "apiextensions.k8s.io/v1": ("CustomResourceDefinition",),
}


class BareServer(KubeServer):
    """The fake cluster, with what an administrator asks; a bearer token is the name of an account."""

    def __init__(self) -> None:
        super().__init__()
        self.resources: dict[str, list[Object]] = {
            version: [_resource(kind, kind not in _CLUSTERED) for kind in kinds] for version, kinds in _CORE.items()
        }
        self.applied: list[str] = []

    def _answer(self, method: str, path: str, query: dict[str, str], body: Object | None, account: str) -> Object:
        answer = self._answer_administrator(method, path, query, body or {}) if account == ADMINISTRATOR else None
        service_account = "" if account == ADMINISTRATOR else account
        return super()._answer(method, path, query, body, service_account) if answer is None else answer

    def _answer_administrator(  # noqa: PLR0911 - a path each
        self, method: str, path: str, query: dict[str, str], body: Object
    ) -> Object | None:
        """Return the answer to what only an administrator asks; None when it is something else."""
        if path == "/version":
            return {"gitVersion": f"v{KUBERNETES}.0-fake"}
        if path == "/apis/apps/v1/deployments":
            return {"items": []}
        if match := re.fullmatch(r"/(?:api|apis)/([^/]+(?:/v[^/]+)?)", path):
            return self._discover(match[1])
        if match := re.search(r"/serviceaccounts/([^/]+)/token$", path):
            return {"status": {"token": match[1]}}
        if path.endswith("/customresourcedefinitions") or path == "/api/v1/namespaces":
            return self._make(body)
        if method == "PATCH":
            return self._patch(path, query, body)
        if "/customresourcedefinitions/" in path or re.fullmatch(r"/api/v1/namespaces/[^/]+", path):
            return {}
        return None

    def _discover(self, version: str) -> Object:
        if version not in self.resources:
            raise RefusalError(404, "NotFound", "the server could not find the requested resource")
        return {"resources": self.resources[version]}

    def _make(self, body: Object) -> Object:
        kubernetes_validate.validate(body, KUBERNETES, strict=True)
        if body["kind"] == "CustomResourceDefinition":
            spec = body["spec"]
            version = f"{spec['group']}/{spec['versions'][0]['name']}"
            resource = _resource(spec["names"]["kind"], spec["scope"] == "Namespaced", spec["names"]["plural"])
            self.resources.setdefault(version, []).append(resource)
        return body

    def _patch(self, path: str, query: dict[str, str], body: Object) -> Object:
        if "fieldManager" in query:
            self._validate_strictly(body)
            self.applied.append(f"{body['kind']} {body['metadata']['name']}")
            return body
        parts = path.split("/")
        if parts[-1] == "status":
            return {}  # the fake cluster plays its controllers already
        kind = {"inferenceservices": "InferenceService", "httproutes": "HTTPRoute"}[parts[-2]]
        existing = copy.deepcopy(self._read(kind, parts[-3], parts[-1]))
        change = body.get("metadata", {})
        existing["metadata"].setdefault("annotations", {}).update(change.get("annotations", {}))
        if "finalizers" in change:
            existing["metadata"]["finalizers"] = change["finalizers"] or []
        key = (kind, parts[-3], parts[-1])
        if "deletionTimestamp" in existing["metadata"] and not existing["metadata"].get("finalizers"):
            del self.objects[key]
            return {}
        self._store(key, existing, existing["metadata"]["generation"])
        return existing

    def _delete(self, kind: str, namespace: str, name: str, options: Object) -> Object:
        existing = self.objects.get((kind, namespace, name))
        if existing is not None and existing["metadata"].get("finalizers"):
            existing["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
            return {"status": "Success"}
        return super()._delete(kind, namespace, name, options)

    def _validate_strictly(self, body: Object) -> None:
        key = f"{body['apiVersion']}/{body['kind']}"
        try:
            if crd_schemas.has_schema(body["apiVersion"], body["kind"]):
                crd_schemas.validator(body["apiVersion"], body["kind"]).validate(body)
            elif key in CRD_SCHEMAS:
                Draft202012Validator(CRD_SCHEMAS[key]).validate(body["spec"])
            else:
                kubernetes_validate.validate(body, KUBERNETES, strict=True)
        except (ValidationError, kubernetes_validate.ValidationError) as error:
            raise RefusalError(400, "BadRequest", str(error)) from None


def _resource(kind: str, namespaced: bool, plural: str = "") -> Object:
    lower = kind.lower()
    name = plural or (f"{lower[:-1]}ies" if lower.endswith("y") else f"{lower}s")
    return {"name": name, "kind": kind, "namespaced": namespaced}


def kubeconfig_of(url: str) -> str:
    """Return what makes kubectl the administrator of a server."""
    named: list[tuple[str, str, dict[str, Any]]] = [
        ("clusters", "cluster", {"server": url}),
        ("users", "user", {"token": ADMINISTRATOR}),
        ("contexts", "context", {"cluster": "here", "user": "here"}),
    ]
    config = {plural: [{"name": "here", field: value}] for plural, field, value in named}
    return json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "here", **config})


@contextmanager
def running() -> Iterator[BareServer]:
    """Run a server on a free port while the block runs."""
    state = BareServer()
    handler: type[BaseHTTPRequestHandler] = handler_of(state)
    with listening(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as state.port:
        yield state
