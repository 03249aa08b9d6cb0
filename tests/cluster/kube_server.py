"""A Kubernetes API server over real HTTP: few kinds, real schemas, real conflicts, and faults to order.

It does what a rollout sees of a cluster: resource versions, generations, 404, 409, 422, defaults that are filled in,
KServe that makes versions ready after a while (or never), a gateway that takes routes. It watches its HTTPRoutes, too:
whatever would be wrong for users is noted in `wrong`.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from jsonschema import Draft202012Validator
from listening import listening

Object = dict[str, Any]
SCHEMAS = Path(__file__).parents[2].parent / "shared" / "schemas"
KINDS = {
    ("serving.kserve.io", "v1beta1", "inferenceservices"): "InferenceService",
    ("gateway.networking.k8s.io", "v1", "httproutes"): "HTTPRoute",
}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")


class RefusalError(Exception):
    """An answer that is not 2xx."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


@dataclass
class Fault:
    """What happens to the next requests that fit."""

    what: str
    """A status (`500`), `lost before`, `lost after`, or `conflict`."""
    method: str = ""
    path: str = ""
    times: int = 1
    message: str = "a fault of the test"


@dataclass
class Behaviour:
    """What becomes of a new InferenceService."""

    ready_after: float = 0.0
    """Seconds; infinite: never."""
    failing: bool = False
    gone_after: float = 0.0
    """Seconds that a deletion takes."""
    restarts: int = 0


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
        self.faults: list[Fault] = []
        self.down_until = 0.0
        self.requests: list[tuple[str, str]] = []
        self.sent: list[Sent] = []
        self.wrong: list[str] = []
        self.on_request: Callable[[str, str], None] = lambda method, path: None
        self.lock = threading.RLock()
        self.port = 0
        self._version = 100
        self._times: dict[str, float] = {}
        self._gone: dict[str, float] = {}
        self._validators = {kind: _validator(*key, kind) for key, kind in KINDS.items()}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # --- for tests

    def down(self, seconds: float) -> None:
        """Be away: connections end without an answer."""
        self.down_until = time.monotonic() + seconds

    def named(self, kind: str) -> list[str]:
        with self.lock:
            return sorted(name for known, _, name in self.objects if known == kind and self._there(known, name))

    def object(self, kind: str, name: str) -> Object:
        with self.lock:
            return next(one for (known, _, own), one in self.objects.items() if (known, own) == (kind, name))

    def put(self, body: Object) -> None:
        """Write an object as somebody else would, past all checks of who may."""
        with self.lock:
            key = (body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])
            known = self.objects.get(key)
            self._store(key, body, generation=1 if known is None else known["metadata"]["generation"] + 1)

    def edit(self, kind: str, name: str, change: Callable[[Object], None]) -> None:
        """Change an object as somebody with kubectl would."""
        with self.lock:
            body = copy.deepcopy(self.object(kind, name))
            change(body)
            self.put(body)

    def ready(self) -> frozenset[str]:
        with self.lock:
            names = [name for kind, _, name in self.objects if kind == "InferenceService"]
            return frozenset(name for name in names if self._is_ready(name) and name not in self._gone)

    # --- requests

    def answer(self, method: str, url: str, body: Object | None) -> Object:
        parts = urlsplit(url)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        with self.lock:
            if found := re.fullmatch(r"/api/v1/namespaces/([^/]+)/(pods|events)", parts.path):
                return self._core(found[2], query)
            found = re.fullmatch(r"/apis/([^/]+)/([^/]+)/namespaces/([^/]+)/([^/]+)(?:/([^/]+))?", parts.path)
            kind = KINDS.get((found[1], found[2], found[4])) if found else None
            if found is None or kind is None:
                raise RefusalError(404, "NotFound", "the server could not find the requested resource")
            namespace, name = found[3], found[5]
            match method, name:
                case "GET", None:
                    return self._list(kind, namespace, query.get("labelSelector", ""))
                case "GET", str():
                    return self._read(kind, namespace, name)
                case "POST", None:
                    return self._create(kind, namespace, body or {})
                case "PUT", str():
                    return self._replace(kind, namespace, name, body or {})
                case "DELETE", str():
                    return self._delete(kind, namespace, name, body or {})
            raise RefusalError(405, "MethodNotAllowed", f"{method} is not allowed here")

    def fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for one in self.faults:
                if one.times > 0 and one.method in ("", method) and one.path in path:
                    one.times -= 1
                    return one
        return None

    def _list(self, kind: str, namespace: str, selector: str) -> Object:
        wanted = dict(pair.split("=", 1) for pair in selector.split(",") if pair)
        found = [
            self._seen(one)
            for (known, where, name), one in sorted(self.objects.items())
            if (known, where) == (kind, namespace) and self._there(kind, name)
            and wanted.items() <= (one["metadata"].get("labels") or {}).items()
        ]  # fmt: skip
        return {"apiVersion": "v1", "kind": f"{kind}List", "metadata": {}, "items": found}

    def _read(self, kind: str, namespace: str, name: str) -> Object:
        one = self.objects.get((kind, namespace, name))
        if one is None or not self._there(kind, name):
            raise RefusalError(404, "NotFound", f'{kind} "{name}" not found')
        return self._seen(one)

    def _create(self, kind: str, namespace: str, body: Object) -> Object:
        name = body.get("metadata", {}).get("name", "")
        key = (kind, namespace, name)
        if key in self.objects and self._there(kind, name):
            raise RefusalError(409, "AlreadyExists", f'{kind} "{name}" already exists')
        self._validate(kind, body)
        self._times[name] = time.monotonic()
        return self._seen(self._store(key, body, generation=1))

    def _replace(self, kind: str, namespace: str, name: str, body: Object) -> Object:
        known = self._read(kind, namespace, name)
        if body["metadata"].get("resourceVersion") != known["metadata"]["resourceVersion"]:
            raise RefusalError(
                409, "Conflict", f'cannot be fulfilled on "{name}": the object has been modified; please apply'
                " your changes to the latest version and try again",
            )  # fmt: skip
        self._validate(kind, body)
        changed = _defaulted(kind, body)["spec"] != known["spec"]
        generation = known["metadata"]["generation"] + changed
        return self._seen(self._store((kind, namespace, name), body, generation))

    def _delete(self, kind: str, namespace: str, name: str, options: Object) -> Object:
        known = self._read(kind, namespace, name)
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted is not None and wanted != known["metadata"]["uid"]:
            raise RefusalError(409, "Conflict", f"the UID in the precondition ({wanted}) does not match")
        if kind == "InferenceService":
            weights = self.sent[-1].weights if self.sent and self.named("HTTPRoute") else {}
            if f"{name}-transformer" in weights:
                self.wrong.append(f"{name} was deleted while users were sent to it")
        after = self.behaviour.get(name, self.default).gone_after
        if kind == "InferenceService" and after:
            self._gone.setdefault(name, time.monotonic() + after)
            self.objects[kind, namespace, name]["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
        else:
            del self.objects[kind, namespace, name]
        return {"apiVersion": "v1", "kind": "Status", "status": "Success"}

    def _core(self, plural: str, query: dict[str, str]) -> Object:
        if plural == "events":
            name = query.get("fieldSelector", "").rpartition("=")[2]
            items = [one for one in self.events if one["involvedObject"]["name"] == name]
            return {"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": items}
        name = query.get("labelSelector", "").rpartition("=")[2]
        there = any(known == "InferenceService" and own == name for known, _, own in self.objects)
        return {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [self._pod(name)] if there else []}

    # --- what a cluster does by itself

    def _store(self, key: tuple[str, str, str], body: Object, generation: int) -> Object:
        self._version += 1
        known = self.objects.get(key)
        stored = _defaulted(key[0], body)
        stored["metadata"] = {
            **body["metadata"],
            "uid": known["metadata"]["uid"] if known else str(uuid.uuid4()),
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
        for one in backends:
            weights[one["name"]] = weights.get(one["name"], 0) + one["weight"]
        weights = {name: weight for name, weight in weights.items() if weight}
        ready, before = self.ready(), self.sent[-1].weights if self.sent else {}
        if sum(weights.values()) == 0:
            self.wrong.append("nobody is sent anywhere, and there is a route")
        for name in weights.keys() - before.keys():
            if name.removesuffix("-transformer") not in ready:
                self.wrong.append(f"users are newly sent to {name}, which is not ready")
        if any(len(one.get("filters", [])) < 2 for one in backends):
            self.wrong.append("a backend without filters: stickiness would be lost")
        self.sent.append(Sent(weights, ready, backends))

    def _seen(self, one: Object) -> Object:
        seen = copy.deepcopy(one)
        if seen["kind"] == "InferenceService":
            seen["status"] = self._service_status(seen)
        else:
            seen["status"] = self._route_status(seen)
        return seen

    def _there(self, kind: str, name: str) -> bool:
        if kind != "InferenceService" or time.monotonic() < self._gone.get(name, float("inf")):
            return True
        self._gone.pop(name)
        self.objects = {key: one for key, one in self.objects.items() if key[::2] != (kind, name)}
        return False

    def _is_ready(self, name: str) -> bool:
        behaviour = self.behaviour.get(name, self.default)
        return not behaviour.failing and time.monotonic() >= self._times.get(name, 0.0) + behaviour.ready_after

    def _service_status(self, one: Object) -> Object:
        name, generation = one["metadata"]["name"], one["metadata"]["generation"]
        if self._is_ready(name):
            conditions = [{"type": kind, "status": "True"} for kind in ("PredictorReady", "TransformerReady", "Ready")]
            return {"observedGeneration": generation, "conditions": conditions}
        message = "revision failed" if self.behaviour.get(name, self.default).failing else "waiting for pods"
        conditions = [
            {"type": "PredictorReady", "status": "False", "reason": "Deployment", "message": message},
            {"type": "Ready", "status": "False", "reason": "PredictorNotReady", "message": message},
        ]
        status: Object = {"observedGeneration": generation, "conditions": conditions}
        if self.behaviour.get(name, self.default).failing:
            failure = {"reason": "ModelLoadFailed", "message": "digest differs"}
            status["modelStatus"] = {"transitionStatus": "BlockedByFailedLoad", "lastFailureInfo": failure}
        return status

    def _route_status(self, one: Object) -> Object:
        says = ("True", "Accepted", "taken") if self.takes_routes else ("False", "NoMatchingParent", "no such Gateway")
        condition = {
            "status": says[0], "reason": says[1], "message": says[2], "lastTransitionTime": "2026-11-21T12:00:00Z",
            "observedGeneration": one["metadata"]["generation"],
        }  # fmt: skip
        conditions = [{"type": name, **condition} for name in ("Accepted", "ResolvedRefs")]
        parent = {"parentRef": {"name": "shortlist"}, "controllerName": "gateway.envoyproxy.io/controller"}
        return {"parents": [{**parent, "conditions": conditions}]}

    def _pod(self, name: str) -> Object:
        behaviour = self.behaviour.get(name, self.default)
        state = {"waiting": {"reason": "CrashLoopBackOff"}} if behaviour.failing else {"running": {}}
        status = {
            "name": "kserve-container", "image": "triton", "imageID": "", "ready": not behaviour.failing,
            "restartCount": behaviour.restarts, "state": state,
        }  # fmt: skip
        labels = {"serving.kserve.io/inferenceservice": name}
        metadata = {"name": f"{name}-predictor-0", "namespace": "ml", "labels": labels}
        return {"metadata": metadata, "status": {"containerStatuses": [status]}}

    def _validate(self, kind: str, body: Object) -> None:
        found = self._validators[kind].iter_errors(body)
        problems = [f"{'.'.join(map(str, one.path))}: {one.message}" for one in found]
        metadata = body["metadata"]
        if not _NAME.fullmatch(metadata.get("name", "")):
            problems.append(f"metadata.name: {metadata.get('name')!r}")
        for name, value in (metadata.get("labels") or {}).items():
            if len(value) > 63 or not _LABEL.fullmatch(value):
                problems.append(f"metadata.labels.{name}: {value!r}")
        if sum(map(len, (metadata.get("annotations") or {}).values())) > 256 * 1024:
            problems.append("metadata.annotations: Too long")
        if problems:
            raise RefusalError(
                422, "Invalid", f'{kind} "{metadata.get("name")}" is invalid: {"; ".join(problems)[:2000]}'
            )


def _validator(group: str, version: str, plural: str, kind: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((SCHEMAS / f"{group}_{version}_{kind}.json").read_text()))


def _defaulted(kind: str, body: Object) -> Object:
    """Return an object with what API servers and webhooks fill in."""
    filled = copy.deepcopy(body)
    if kind == "HTTPRoute":
        for parent in filled["spec"].get("parentRefs", []):
            parent.update({"group": "gateway.networking.k8s.io", "kind": "Gateway", **parent})
        for rule in filled["spec"].get("rules", []):
            for backend in rule.get("backendRefs", []):
                backend.update({"group": "", "kind": "Service", "weight": 1, **backend})
    else:
        filled["spec"]["predictor"].setdefault("model", {}).setdefault("imagePullPolicy", "IfNotPresent")
        for container in filled["spec"].get("transformer", {}).get("containers", []):
            container.setdefault("terminationMessagePath", "/dev/termination-log")
    return filled


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
        if time.monotonic() < state.down_until or (fault and fault.what == "lost before"):
            self._lose()
            return
        try:
            if fault and fault.what.isdigit():
                raise RefusalError(int(fault.what), "Fault", fault.message)
            if fault and fault.what == "conflict":
                self._somebody_else()
            status, answer = 200, state.answer(self.command, path, json.loads(content) if content else None)
        except RefusalError as refusal:
            status = refusal.status
            answer = {
                "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": str(refusal),
                "reason": refusal.reason, "code": status,
            }  # fmt: skip
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if fault and fault.what == "lost after":
            self.wfile.write(body[: len(body) // 2])
            self._lose()
            return
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = _handle  # noqa: N815

    def _somebody_else(self) -> None:
        """Touch the object in the path, as a controller that writes annotations does."""
        name = urlsplit(self.path).path.rpartition("/")[2]
        kind = KINDS[tuple(self.path.split("/")[i] for i in (2, 3, 6))]  # type: ignore[index]
        self.state.edit(kind, name, lambda one: one["metadata"].setdefault("annotations", {}).update(touched="yes"))

    def _lose(self) -> None:
        self.close_connection = True
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of ours."""


@contextmanager
def running() -> Iterator[KubeServer]:
    """Run a server on a free port while the block runs."""
    state = KubeServer()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": state}))
    with listening(server) as state.port:
        yield state
