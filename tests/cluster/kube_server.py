"""A Kubernetes API server over real HTTP: few kinds, real schemas, real conflicts, and faults to order.

It does what a rollout sees of a cluster: resource versions, generations, 404, 409, 422, defaults that are filled in,
KServe's webhooks (`kserve_rules.py`), KServe that makes versions ready after a while (or never) and says `Ready` before
their transformers and without any replica, EndpointSlices, a gateway that takes routes, roles (`kube_rbac.py`: a
bearer token is the name of a service account), 403 while it starts. It watches its HTTPRoutes, too: whatever would be
wrong for users is noted in `wrong`. The pod of a Job is a process of this machine (`job_pods.py`), whose log is
followed as it is written.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import crd_schemas
import kserve_rules
import kube_rbac
import kubernetes_validate
from job_pods import JobPod
from listening import listening

Object = dict[str, Any]
KINDS = {
    ("serving.kserve.io", "v1beta1", "inferenceservices"): "InferenceService",
    ("gateway.networking.k8s.io", "v1", "httproutes"): "HTTPRoute",
    ("batch", "v1", "jobs"): "Job",
}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class RefusalError(Exception):
    """An answer that is not 2xx."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


@dataclass
class Fault:
    """Fault of the next matching requests."""

    effect: str
    """A status (`500`), `lost before`, `lost after`, or `conflict`."""
    method: str = ""
    path: str = ""
    times: int = 1
    message: str = "a fault of the test"


@dataclass
class Behaviour:
    """Behaviour of a new InferenceService."""

    ready_after: float = 0.0
    """Seconds; infinite: never."""
    transformer_after: float = 0.0
    """Seconds that the transformer needs longer than the predictor."""
    replicas: Mapping[str, int] = field(default_factory=lambda: {"predictor": 1, "transformer": 1})
    """Pods of each component; KServe calls a component with 0 of 0 ready."""
    failing: bool = False
    gone_after: float = 0.0
    """Seconds that a deletion takes."""
    restarts: int = 0
    waiting: str = ""
    """Why the containers of its pods cannot start, such as `ErrImagePull`."""


@dataclass
class Sent:
    """An HTTPRoute as it was written, and who was ready then."""

    weights: dict[str, int]
    ready: frozenset[str]
    headers: list[Object] = field(default_factory=list)


class KubeServer:
    """The state behind the HTTP server."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.events: list[Object] = []
        self.behaviour: dict[str, Behaviour] = {}
        self.default = Behaviour()
        self.takes_routes = True
        self.objects_by_path: dict[str, Object | None] = {}
        """What else everybody may read, by its path, such as a Secret or the kinds of an API group; None: not there."""
        self.denied: set[tuple[str, str, str]] = set()
        """Account, verb and resource that reviews of access deny, whatever the roles say."""
        self.job_pods: list[JobPod] = []
        self.make_job_pod: Callable[[Object], JobPod | None] = lambda job: None
        """Returns the pod of a new Job; None: the quota allows none."""
        self.faults: list[Fault] = []
        self.deployments = {
            ("kserve", "kserve-controller-manager"): _deployment("kserve/kserve-controller:v0.20.0"),
            ("envoy-gateway-system", "envoy-gateway"): _deployment("docker.io/envoyproxy/gateway:v1.9.0"),
        }
        self.down_until = 0.0
        self.starting_until = 0.0
        self.forbidden: list[str] = []
        self.requests: list[tuple[str, str]] = []
        self.sent: list[Sent] = []
        self.wrong: list[str] = []
        self.on_request: Callable[[str, str], None] = lambda method, path: None
        self.lock = threading.RLock()
        self.port = 0
        self._version = 100
        self._times: dict[str, float] = {}
        self._deleted_at: dict[str, float] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # --- for tests

    def down(self, seconds: float) -> None:
        """Be away: connections end without an answer."""
        self.down_until = time.monotonic() + seconds

    def restart(self, away: float, starting: float) -> None:
        """Be away, then answer 403 until the caches of roles are filled, then 503 once, as a restarted server does."""
        self.down_until = time.monotonic() + away
        self.starting_until = self.down_until + starting
        self.faults.append(Fault("503"))

    def named(self, kind: str) -> list[str]:
        with self.lock:
            return sorted(
                name for stored_kind, _, name in self.objects if stored_kind == kind and self._exists(stored_kind, name)
            )

    def object(self, kind: str, name: str) -> Object:
        with self.lock:
            return next(
                object_
                for (stored_kind, _, stored_name), object_ in self.objects.items()
                if (stored_kind, stored_name) == (kind, name)
            )

    def put_object(self, body: Object) -> None:
        """Write an object as somebody else would, past all checks of who may."""
        with self.lock:
            key = (body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])
            existing = self.objects.get(key)
            self._store(key, body, generation=1 if existing is None else existing["metadata"]["generation"] + 1)

    def edit(self, kind: str, name: str, change: Callable[[Object], None]) -> None:
        """Change an object as somebody with kubectl would."""
        with self.lock:
            body = copy.deepcopy(self.object(kind, name))
            change(body)
            self.put_object(body)

    def ready(self) -> frozenset[str]:
        with self.lock:
            names = [name for kind, _, name in self.objects if kind == "InferenceService"]
            return frozenset(name for name in names if self._answers(name) and name not in self._deleted_at)

    # --- requests

    def answer(self, method: str, url: str, body: Object | None, account: str = "") -> Object:
        parts = urlsplit(url)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        with self.lock:
            if re.fullmatch(r"/apis/authorization.k8s.io/v1/(self)?subjectaccessreviews", parts.path):
                return self._review_access((body or {})["spec"], account)
            if method in ("DELETE", "PATCH") and (answer := self._spoil(method, parts.path, query, body or {})):
                return answer
            return self._answer(method, parts.path, query, body, account)

    def _answer(self, method: str, path: str, query: dict[str, str], body: Object | None, account: str) -> Object:
        if path in self.objects_by_path:
            if (live_object := self.objects_by_path[path]) is None:
                raise RefusalError(404, "NotFound", "not found")
            return live_object
        if match := re.fullmatch(r"/api/v1/namespaces/([^/]+)/(pods|events)", path):
            self._authorize(account, method, "", match[2], match[1], None)
            return self._core(match[2], query)
        if match := re.fullmatch(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/log", path):
            self._authorize(account, method, "", "pods/log", match[1], match[2])
            return {}  # the handler writes it
        match = re.fullmatch(r"/apis/([^/]+)/([^/]+)/namespaces/([^/]+)/([^/]+)(?:/([^/]+))?", path)
        if match is None:
            raise RefusalError(404, "NotFound", "the server could not find the requested resource")
        group, version, namespace, resource, name = match.groups()
        self._authorize(account, method, group, resource, namespace, name)
        if resource == "deployments":
            return self._deployment(namespace, name)
        if (group, version, resource, method) == ("discovery.k8s.io", "v1", "endpointslices", "GET"):
            return self._endpoint_slices(query.get("labelSelector", ""))
        kind = KINDS.get((group, version, resource))
        if kind is None:
            raise RefusalError(404, "NotFound", "the server could not find the requested resource")
        return self._custom(method, kind, namespace, name, query, body or {})

    def _spoil(self, method: str, path: str, query: dict[str, str], body: Object) -> Object | None:
        """Let pods of a version go, as an administrator's deletion or scaling does, which a controller would undo."""
        if method == "DELETE" and re.fullmatch(r"/api/v1/namespaces/[^/]+/pods", path):
            labels = dict(pair.split("=", 1) for pair in query["labelSelector"].split(","))
            assert labels["component"] == "transformer"
            self.behaviour[labels["serving.kserve.io/inferenceservice"]] = Behaviour(transformer_after=1e9)
            return {"kind": "PodList", "items": []}
        if match := re.fullmatch(r"/apis/apps/v1/namespaces/[^/]+/deployments/(.+)-(\w+)/scale", path):
            replicas = {"predictor": 1, "transformer": 1, match[2]: int(body["spec"]["replicas"])}
            self.behaviour[match[1]] = Behaviour(replicas=replicas)
            return {"kind": "Scale", "spec": body["spec"]}
        return None

    def _review_access(self, review: Object, account: str) -> Object:
        asked = review["resourceAttributes"]
        subject = str(review["user"]).rpartition(":")[2] if "user" in review else account
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource", ""))))
        allowed = kube_rbac.is_allowed(
            subject, asked["verb"], asked["group"], resource, kube_rbac.NAMESPACE, asked.get("name")
        )
        return {"status": {"allowed": allowed and (subject, asked["verb"], resource) not in self.denied}}

    def _custom(
        self, method: str, kind: str, namespace: str, name: str | None, query: dict[str, str], body: Object
    ) -> Object:
        match method, name:
            case "GET", None:
                return self._list(kind, namespace, query.get("labelSelector", ""))
            case "GET", str():
                return self._read(kind, namespace, name)
            case "POST", None:
                return self._create(kind, namespace, body)
            case "PUT", str():
                return self._replace(kind, namespace, name, body)
            case "DELETE", str():
                return self._delete(kind, namespace, name, body)
        raise RefusalError(405, "MethodNotAllowed", f"{method} is not allowed here")

    def _deployment(self, namespace: str, name: str) -> Object:
        if (namespace, name) not in self.deployments:
            raise RefusalError(404, "NotFound", f'deployments.apps "{name}" not found')
        return self.deployments[namespace, name]

    def _endpoint_slices(self, selector: str) -> Object:
        """Answer with the EndpointSlice of a Service; a Service without pods has one whose endpoints are null."""
        backend = dict(pair.split("=", 1) for pair in selector.split(",") if pair)["kubernetes.io/service-name"]
        service, _, component = backend.rpartition("-")
        items = []
        if service in self.named("InferenceService"):
            pods = self.behaviour.get(service, self.default).replicas[component]
            ready = self._component_is_ready(service, component)
            endpoints = [{"addresses": [f"10.0.0.{pod}"], "conditions": {"ready": ready}} for pod in range(pods)]
            metadata = {"name": f"{backend}-x7k2p", "labels": {"kubernetes.io/service-name": backend}}
            items.append({"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints or None, "ports": None})
        return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList", "metadata": {}, "items": items}

    def fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault_ in self.faults:
                if fault_.times > 0 and fault_.method in ("", method) and fault_.path in path:
                    fault_.times -= 1
                    return fault_
        return None

    def _authorize(
        self, account: str, method: str, group: str, resource: str, namespace: str, name: str | None
    ) -> None:
        """Refuse what no role allows; whoever names no account may everything."""
        verb = kube_rbac.verb_of(method, name)
        # The roles are shipped for the namespace `shortlist`; the specs of the tests live in others.
        role_namespace = namespace if namespace in ("kserve", "envoy-gateway-system") else kube_rbac.NAMESPACE
        starting = time.monotonic() < self.starting_until
        if starting or (account and not kube_rbac.is_allowed(account, verb, group, resource, role_namespace, name)):
            subject = f'"{resource}" in API group "{group}" in the namespace "{namespace}"'
            message = f'{resource}.{group} is forbidden: User "{account}" cannot {verb} resource {subject}'
            if not starting:
                self.forbidden.append(message)
            raise RefusalError(403, "Forbidden", message)

    def _list(self, kind: str, namespace: str, selector: str) -> Object:
        labels = dict(pair.split("=", 1) for pair in selector.split(",") if pair)
        selected = [
            self._as_answered(object_)
            for (stored_kind, stored_namespace, name), object_ in sorted(self.objects.items())
            if (stored_kind, stored_namespace) == (kind, namespace) and self._exists(kind, name)
            and labels.items() <= (object_["metadata"].get("labels") or {}).items()
        ]  # fmt: skip
        return {"apiVersion": "v1", "kind": f"{kind}List", "metadata": {}, "items": selected}

    def _read(self, kind: str, namespace: str, name: str) -> Object:
        stored = self.objects.get((kind, namespace, name))
        if stored is None or not self._exists(kind, name):
            raise RefusalError(404, "NotFound", f'{kind} "{name}" not found')
        return self._as_answered(stored)

    def _create(self, kind: str, namespace: str, body: Object) -> Object:
        name = body.get("metadata", {}).get("name", "")
        key = (kind, namespace, name)
        if key in self.objects and self._exists(kind, name):
            raise RefusalError(409, "AlreadyExists", f'{kind} "{name}" already exists')
        self._validate(kind, body)
        if kind == "InferenceService" and (denied := kserve_rules.denial(body)):
            raise RefusalError(403, "Forbidden", denied)
        self._times[name] = time.monotonic()
        if kind == "Job":
            self._start_job(body)
        return self._as_answered(self._store(key, body, generation=1))

    def _start_job(self, body: Object) -> None:
        if pod := self.make_job_pod(body):
            self.job_pods.append(pod)
            return
        involved = {"kind": "Job", "name": body["metadata"]["name"]}
        message = "pods is forbidden: exceeded quota: small"
        event = {"reason": "FailedCreate", "type": "Warning", "message": message, "involvedObject": involved}
        self.events.append({"metadata": {"name": "event-1"}, **event})

    def job_pod(self, name: str) -> JobPod:
        """Return a pod by its name."""
        return next(pod for pod in self.job_pods if pod.name == name)

    def _replace(self, kind: str, namespace: str, name: str, body: Object) -> Object:
        existing = self._read(kind, namespace, name)
        if body["metadata"].get("resourceVersion") != existing["metadata"]["resourceVersion"]:
            raise RefusalError(
                409, "Conflict", f'cannot be fulfilled on "{name}": the object has been modified; please apply'
                " your changes to the latest version and try again",
            )  # fmt: skip
        self._validate(kind, body)
        changed = _defaulted(kind, body)["spec"] != existing["spec"]
        generation = existing["metadata"]["generation"] + changed
        return self._as_answered(self._store((kind, namespace, name), body, generation))

    def _delete(self, kind: str, namespace: str, name: str, options: Object) -> Object:
        existing = self._read(kind, namespace, name)
        expected_uid = (options.get("preconditions") or {}).get("uid")
        if expected_uid is not None and expected_uid != existing["metadata"]["uid"]:
            raise RefusalError(409, "Conflict", f"the UID in the precondition ({expected_uid}) does not match")
        if kind == "InferenceService":
            weights = self.sent[-1].weights if self.sent and self.named("HTTPRoute") else {}
            if f"{name}-transformer" in weights:
                self.wrong.append(f"{name} was deleted while users were sent to it")
        if kind == "Job":
            if options.get("propagationPolicy") not in ("Background", "Foreground"):
                self.wrong.append(f"Job {name} was deleted, and its pods were not")
            for pod in self.job_pods:
                if pod.job == name:
                    pod.end()
        seconds = self.behaviour.get(name, self.default).gone_after
        if kind == "InferenceService" and seconds:
            self._deleted_at.setdefault(name, time.monotonic() + seconds)
            self.objects[kind, namespace, name]["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
        else:
            del self.objects[kind, namespace, name]
        return {"apiVersion": "v1", "kind": "Status", "status": "Success"}

    def _core(self, plural: str, query: dict[str, str]) -> Object:
        if plural == "events":
            name = query.get("fieldSelector", "").rpartition("=")[2]
            items = [object_ for object_ in self.events if object_["involvedObject"]["name"] == name]
            return {"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": items}
        label, _, name = query.get("labelSelector", "").rpartition("=")
        if label == "batch.kubernetes.io/job-name":
            items = [pod.as_object() for pod in self.job_pods if pod.job == name and not pod.is_gone]
            return {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items}
        exists = any(
            stored_kind == "InferenceService" and stored_name == name for stored_kind, _, stored_name in self.objects
        )
        return {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [self._pod(name)] if exists else []}

    # --- what a cluster does by itself

    def _store(self, key: tuple[str, str, str], body: Object, generation: int) -> Object:
        self._version += 1
        existing = self.objects.get(key)
        stored = _defaulted(key[0], body)
        stored["metadata"] = {
            **body["metadata"],
            "uid": existing["metadata"]["uid"] if existing else str(uuid.uuid4()),
            "resourceVersion": str(self._version),
            "generation": generation,
            "creationTimestamp": "2026-11-21T12:00:00Z",
        }
        stored.pop("status", None)
        self.objects[key] = stored
        if key[0] == "HTTPRoute":
            self._watch(stored)
        return stored

    def _watch(self, route: Object) -> None:
        backends = route["spec"]["rules"][0].get("backendRefs", [])
        weights: dict[str, int] = {}
        for backend in backends:
            weights[backend["name"]] = weights.get(backend["name"], 0) + backend["weight"]
        weights = {name: weight for name, weight in weights.items() if weight}
        ready, weights_before = self.ready(), self.sent[-1].weights if self.sent else {}
        if sum(weights.values()) == 0:
            self.wrong.append("nobody is sent anywhere, and there is a route")
        for name, weight in weights.items():
            gets_more = weight > weights_before.get(name, 0) and name.removesuffix("-transformer") not in ready
            # With no other version left, everybody goes back: that is nobody's fault.
            if gets_more and (name not in weights_before or len(weights) > 1):
                self.wrong.append(f"more users are sent to {name}, which is not ready")
        if not all(backend.get("filters") for backend in backends):
            self.wrong.append("a backend without filters: stickiness would be lost")
        self.sent.append(Sent(weights, ready, backends))

    def _as_answered(self, stored: Object) -> Object:
        answer = copy.deepcopy(stored)
        if answer["kind"] == "InferenceService":
            answer["status"] = self._service_status(answer)
        elif answer["kind"] == "HTTPRoute":
            answer["status"] = self._route_status(answer)
        return answer

    def _exists(self, kind: str, name: str) -> bool:
        if kind != "InferenceService" or time.monotonic() < self._deleted_at.get(name, float("inf")):
            return True
        self._deleted_at.pop(name)
        self.objects = {key: object_ for key, object_ in self.objects.items() if key[::2] != (kind, name)}
        return False

    def _component_is_ready(self, name: str, component: str) -> bool:
        behaviour = self.behaviour.get(name, self.default)
        if behaviour.failing or behaviour.waiting or self._broken(name):
            return False
        seconds = behaviour.ready_after + (behaviour.transformer_after if component == "transformer" else 0.0)
        return time.monotonic() >= self._times.get(name, 0.0) + seconds

    def _answers(self, name: str) -> bool:
        """Whether requests to the version are answered, whatever its conditions say."""
        return all(
            pods > 0 and self._component_is_ready(name, component)
            for component, pods in self.behaviour.get(name, self.default).replicas.items()
        )

    def _broken(self, name: str) -> str | None:
        broken = [
            object_
            for (kind, _, stored_name), object_ in self.objects.items()
            if (kind, stored_name) == ("InferenceService", name)
        ]
        return kserve_rules.broken_pods(copy.deepcopy(broken[0])) if broken else None

    def _service_status(self, service: Object) -> Object:
        name, generation = service["metadata"]["name"], service["metadata"]["generation"]
        if self._component_is_ready(name, "predictor"):
            is_transformer_ready = self._component_is_ready(name, "transformer")
            return {"observedGeneration": generation, "conditions": kserve_rules.conditions(is_transformer_ready)}
        message = "revision failed" if self.behaviour.get(name, self.default).failing else "waiting for pods"
        message = self._broken(name) or message
        conditions = [
            {"type": "PredictorReady", "status": "False", "reason": "Deployment", "message": message},
            {"type": "TransformerReady", "status": str(self._component_is_ready(name, "transformer"))},
            {"type": "Ready", "status": "False", "reason": "PredictorNotReady", "message": message},
        ]
        status: Object = {"observedGeneration": generation, "conditions": conditions}
        if self.behaviour.get(name, self.default).failing:
            failure = {"reason": "ModelLoadFailed", "message": "digest differs"}
            status["modelStatus"] = {"transitionStatus": "BlockedByFailedLoad", "lastFailureInfo": failure}
        return status

    def _route_status(self, route: Object) -> Object:
        says = ("True", "Accepted", "taken") if self.takes_routes else ("False", "NoMatchingParent", "no such Gateway")
        condition = {
            "status": says[0], "reason": says[1], "message": says[2], "lastTransitionTime": "2026-11-21T12:00:00Z",
            "observedGeneration": route["metadata"]["generation"],
        }  # fmt: skip
        conditions = [{"type": name, **condition} for name in ("Accepted", "ResolvedRefs")]
        parent = {"parentRef": {"name": "shortlist"}, "controllerName": "gateway.envoyproxy.io/controller"}
        return {"parents": [{**parent, "conditions": conditions}]}

    def _pod(self, name: str) -> Object:
        behaviour = self.behaviour.get(name, self.default)
        reason = behaviour.waiting or ("CrashLoopBackOff" if behaviour.failing else "")
        state = {"waiting": {"reason": reason, "message": "as the test wants"}} if reason else {"running": {}}
        status = {
            "name": "kserve-container", "image": "triton", "imageID": "", "ready": not behaviour.failing,
            "restartCount": behaviour.restarts, "state": state,
        }  # fmt: skip
        labels = {"serving.kserve.io/inferenceservice": name}
        metadata = {"name": f"{name}-predictor-0", "namespace": "ml", "labels": labels}
        return {"metadata": metadata, "status": {"containerStatuses": [status]}}

    def _validate(self, kind: str, body: Object) -> None:
        problems = crd_schemas.problems(body) if kind != "Job" else _core_problems(body)
        metadata = body["metadata"]
        if not _NAME.fullmatch(metadata.get("name", "")):
            problems.append(f"metadata.name: {metadata.get('name')!r}")
        problems += kserve_rules.metadata_problems(metadata)
        if problems:
            raise RefusalError(
                422, "Invalid", f'{kind} "{metadata.get("name")}" is invalid: {"; ".join(problems)[:2000]}'
            )


def _defaulted(kind: str, body: Object) -> Object:
    """Return an object with what API servers and webhooks fill in."""
    filled = copy.deepcopy(body)
    if kind == "HTTPRoute":
        for parent in filled["spec"].get("parentRefs", []):
            parent.update({"group": "gateway.networking.k8s.io", "kind": "Gateway", **parent})
        for rule in filled["spec"].get("rules", []):
            for backend in rule.get("backendRefs", []):
                backend.update({"group": "", "kind": "Service", "weight": 1, **backend})
    elif kind == "InferenceService":
        filled = kserve_rules.defaulted(filled)
    return filled


def _core_problems(body: Object) -> list[str]:
    """Return what the schema of Kubernetes itself says against an object."""
    try:
        kubernetes_validate.validate(body, "1.34", strict=True)
    except kubernetes_validate.ValidationError as error:
        return [str(error)]
    return []


def _deployment(image: str) -> Object:
    pod = {"spec": {"containers": [{"name": "manager", "image": image}]}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {}, "spec": {"selector": {}, "template": pod}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or every answer takes 40 ms
    state: KubeServer

    def _handle(self) -> None:
        state, path = self.state, self.path
        length = int(self.headers.get("content-length") or 0)
        content = self.rfile.read(length)
        state.requests.append((self.command, path))
        state.on_request(self.command, path)
        fault = state.fault(self.command, path)
        if time.monotonic() < state.down_until or (fault and fault.effect == "lost before"):
            self._lose()
            return
        try:
            if fault and fault.effect.isdigit():
                raise RefusalError(int(fault.effect), "Fault", fault.message)
            if fault and fault.effect == "conflict":
                self._somebody_else()
            status, answer = (
                200,
                state.answer(self.command, path, json.loads(content) if content else None, self._account()),
            )
        except RefusalError as refusal:
            status = refusal.status
            answer = {
                "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": str(refusal),
                "reason": refusal.reason, "code": status,
            }  # fmt: skip
        if status == 200 and path.partition("?")[0].endswith("/log"):
            self._write_log(state.job_pod(path.split("/")[6]))
            return
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if fault and fault.effect == "lost after":
            self.wfile.write(body[: len(body) // 2])
            self._lose()
            return
        self.wfile.write(body)

    def _write_log(self, pod: JobPod) -> None:
        """Write a log while it grows."""
        self.send_response(200)
        self.send_header("content-type", "text/plain")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for line in pod.follow():
            if line is None:  # the connection is cut
                self._lose()
                return
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _account(self) -> str:
        return str(self.headers.get("authorization") or "").removeprefix("Bearer ")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815

    def _somebody_else(self) -> None:
        """Touch the object in the path, as a controller that writes annotations does."""
        name = urlsplit(self.path).path.rpartition("/")[2]
        kind = KINDS[tuple(self.path.split("/")[i] for i in (2, 3, 6))]  # type: ignore[index]
        self.state.edit(
            kind, name, lambda object_: object_["metadata"].setdefault("annotations", {}).update(touched="yes")
        )

    def _lose(self) -> None:
        self.close_connection = True
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of ours."""


def handler_of(state: KubeServer) -> type[BaseHTTPRequestHandler]:
    """Return what answers requests from a state."""
    return type("Handler", (_Handler,), {"state": state})


@contextmanager
def running() -> Iterator[KubeServer]:
    """Run a server on a free port while the block runs."""
    state = KubeServer()
    with listening(_Server(("127.0.0.1", 0), handler_of(state))) as state.port:
        yield state
        for pod in state.job_pods:
            pod.kill()
