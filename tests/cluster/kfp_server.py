"""A stand-in for Kubeflow Pipelines' API server: real HTTP, every request checked, with injected faults; no pods."""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import kfp_server_api
import kube_rbac
import yaml
from croniter import croniter
from kfp_schema import Operation, Refused, check, check_cron, check_graph, check_parameters, check_query, operations
from listening import listening

_LISTS = {"experiments": "experiment_id", "pipelines": "pipeline_id", "pipeline_versions": "pipeline_version_id"}
_LISTS |= {"runs": "run_id", "recurring_runs": "recurring_run_id"}
API_GROUP = "pipelines.kubeflow.org"
"""Group of the resources in the server's SubjectAccessReviews (`RbacPipelinesGroup`, backend/src/apiserver/common)."""
_REVIEWED_RESOURCES = {
    "experiment": "experiments", "pipeline": "pipelines", "pipeline_version": "pipelines", "run": "runs",
    "recurring_run": "jobs",
}  # fmt: skip
"""Resource in the server's SubjectAccessReview, by the subject of the operation (backend/src/apiserver/server)."""


@dataclass
class Fault:
    """Fault of the next requests of an operation."""

    operation: str
    """Regular expression of its name."""
    status: int = 500
    message: str = "something broke"
    times: int = 1
    seconds: float = 0.0
    """Wait before the answer."""
    carried_out: bool = False
    """Whether the request is carried out all the same, and only its answer is lost."""
    drop: bool = False
    """Whether the connection is closed without an answer."""


@dataclass
class KubeflowServer:
    """State of the server, in memory."""

    url: str = ""
    token: str = ""
    """The token it wants; empty: none."""
    multi_user: bool = False
    reviews_access: bool = False
    """Whether each call is allowed only by the roles of deploy/k8s; the bearer token is a service account's name."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    """Its clock; a second passes with each thing it makes."""
    stored: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {name: [] for name in _LISTS})
    faults: list[Fault] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)
    """Names of the operations that were asked for, in order; every changing one and every listing."""
    page: str = ""
    """Answered in place of everything, as a proxy does that wants a login; empty: there is no such proxy."""
    on_operation: Callable[[str], None] = lambda _: None
    """Called with each operation's name before it is carried out."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    operations_by_name: list[Operation] = field(default_factory=operations)

    @property
    def changes(self) -> list[str]:
        """Names of the operations that changed something or tried to."""
        return [name for name in self.requested if not re.search(r"_(list|get)_", name)]

    def handle(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, dict[str, Any], Fault | None]:
        """Return status, answer, and the fault that spoils it."""
        parts = urlsplit(target)
        fault = None
        try:
            if self.token and headers.get("authorization") != f"Bearer {self.token}":
                raise Refused(401, f"Unauthenticated: {headers.get('authorization')}")
            operation, path = self._operation(method, parts.path)
            self.requested.append(operation.name)
            if self.reviews_access:
                _review_access(operation.name, headers.get("authorization", "").removeprefix("Bearer "))
            fault = next(
                (fault for fault in self.faults if fault.times and re.fullmatch(fault.operation, operation.name)), None
            )
            if fault is not None:
                fault.times -= 1
                if not fault.carried_out:
                    raise Refused(fault.status, fault.message)
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            check_query(operation, query)
            with self.lock:
                self.on_operation(operation.name)
                return 200, self._answer(operation, path, query, headers, body), fault
        except Refused as refused:
            return refused.status, {"error": str(refused), "code": 13, "message": str(refused), "details": []}, fault

    def _operation(self, method: str, path: str) -> tuple[Operation, dict[str, str]]:
        for operation in self.operations_by_name:
            match = operation.match(method, path)
            if match is not None:
                return operation, match
        raise Refused(404, "Not Found")

    def _answer(
        self, operation: Operation, path: dict[str, str], query: dict[str, str], headers: Any, body: bytes
    ) -> Any:
        name = operation.name
        if name == "healthz_service_get_healthz":
            return {"multi_user": self.multi_user}
        if name == "upload_pipeline_version":
            return self._upload(query, headers, body)
        content: dict[str, Any] = json.loads(body) if operation.body else {}
        if operation.body:
            check(content, operation.body, "body")
        if match := re.search(r"_list_(\w+)", name):
            return self._list(match[1], {**query, **path})
        makers = {
            "experiment_service_create_experiment": self._create_experiment,
            "pipeline_service_create_pipeline": self._create_pipeline,
            "run_service_create_run": self._create_run,
            "recurring_run_service_create_recurring_run": self._create_recurring_run,
        }
        if name in makers:
            return makers[name](content)
        if match := re.fullmatch(r"(run|recurring_run|pipeline|experiment)_service_(delete|enable|disable)_\w+", name):
            return self._change(f"{match[1]}s", match[2], path[f"{match[1]}_id"])
        raise Refused(501, f"this server does not do {name}")

    def _list(self, kind: str, query: dict[str, str]) -> dict[str, Any]:
        if self.multi_user and kind in ("experiments", "pipelines") and not query.get("namespace"):
            raise Refused(400, "Namespace cannot be empty in multi-user mode")
        selected = list(self.stored[kind])
        for predicate in json.loads(query["filter"])["predicates"] if query.get("filter") else ():
            selected = [object_ for object_ in selected if object_[predicate["key"]] == predicate["stringValue"]]
        for name in ("experiment_id", "pipeline_id", "namespace"):
            if query.get(name):
                selected = [object_ for object_ in selected if object_.get(name, query[name]) == query[name]]
        if query.get("sort_by", "").endswith(" desc"):
            selected.reverse()
        start, size = int(query.get("page_token") or 0), int(query.get("page_size") or 20)
        following = {"next_page_token": str(start + size)} if start + size < len(selected) else {}
        definition = getattr(kfp_server_api, f"V2beta1List{kind.title().replace('_', '')}Response")
        return {
            definition.attribute_map[kind]: selected[start : start + size],
            "total_size": len(selected),
            **following,
        }

    def _create_experiment(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.multi_user and not body.get("namespace"):
            raise Refused(400, "Namespace cannot be empty")
        self._unique("experiments", body["display_name"])
        return self._add("experiments", body)

    def _create_pipeline(self, body: dict[str, Any]) -> dict[str, Any]:
        _refuse_bad_name(body["name"])
        self._unique("pipelines", body["display_name"])
        return self._add("pipelines", body)

    def _upload(self, query: dict[str, str], headers: Any, body: bytes) -> dict[str, Any]:
        form = message_from_bytes(f"Content-Type: {headers['content-type']}\r\n\r\n".encode() + body)
        file = next(
            part for part in form.get_payload() if part.get_param("name", header="content-disposition") == "uploadfile"
        )  # type: ignore[union-attr, union-attr]
        documents = list(yaml.load_all(file.get_payload(decode=True), Loader=yaml.CSafeLoader))  # type: ignore[union-attr, arg-type]
        check_graph(documents)
        _refuse_bad_name(query["name"])
        self._find("pipelines", query["pipelineid"])
        self._unique("pipeline_versions", query["display_name"])
        fields = {"pipeline_id": query["pipelineid"], "name": query["name"], "display_name": query["display_name"]}
        return self._add("pipeline_versions", {**fields, "pipeline_spec": documents[0]})

    def _create_run(self, body: dict[str, Any]) -> dict[str, Any]:
        self._check_what_runs(body)
        return self._add("runs", {**body, "state": "PENDING"})

    def _create_recurring_run(self, body: dict[str, Any]) -> dict[str, Any]:
        self._check_what_runs(body)
        if not 1 <= int(body.get("max_concurrency", 0)) <= 10:
            raise Refused(400, "The max concurrency of the recurring run is out of range. Support 1-10")
        check_cron(body["trigger"]["cron_schedule"]["cron"])
        if body.get("mode") not in ("ENABLE", "DISABLE"):
            raise Refused(400, "Mode is unspecified")
        return self._add("recurring_runs", {**body, "status": f"{body['mode']}D"})

    def _check_what_runs(self, body: dict[str, Any]) -> None:
        if not body.get("display_name"):
            raise Refused(400, "The display name is empty")
        self._find("experiments", body["experiment_id"])
        version = self._find("pipeline_versions", body["pipeline_version_reference"]["pipeline_version_id"])
        check_parameters(body["runtime_config"]["parameters"], version["pipeline_spec"])

    def _change(self, kind: str, action: str, ident: str) -> dict[str, Any]:
        object_ = self._find(kind, ident)
        if action == "delete":
            self.stored[kind].remove(object_)
        else:
            object_["status"] = f"{action.upper()}D"
        return {}

    def _find(self, kind: str, ident: str) -> dict[str, Any]:
        for object_ in self.stored[kind]:
            if object_[_LISTS[kind]] == ident:
                return object_
        raise Refused(404, f"{kind} {ident} not found")

    def _unique(self, kind: str, name: str) -> None:
        if any(object_["display_name"] == name for object_ in self.stored[kind]):
            raise Refused(409, f"Already exist error: {kind} with the name {name} already exists")

    def _add(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        self.now += timedelta(seconds=1)
        created = {**body, _LISTS[kind]: str(uuid.uuid4()), "created_at": self.now.isoformat()}
        self.stored[kind].append(created)
        return created

    def pass_time(self, until: datetime) -> list[tuple[datetime, str]]:
        """Let the clock go on; return the starts of recurring runs: moment and name.

        As Kubeflow's controller does it without catching up: a recurring run that is on starts its newest moment that
        is past, counted from its own last one or, before the first, from when it was made.
        """
        started = []
        with self.lock:
            while self.now < until:
                self.now = min(until, self.now + timedelta(seconds=10))  # how often the controller looks
                for recurring_run in self.stored["recurring_runs"]:
                    last_start = recurring_run.get("last", datetime.fromisoformat(recurring_run["created_at"]))
                    cron = recurring_run["trigger"]["cron_schedule"]["cron"]
                    newest = croniter(cron, self.now + timedelta(seconds=1), second_at_beginning=True).get_prev(
                        datetime
                    )
                    if recurring_run["status"] == "ENABLED" and newest > last_start:
                        recurring_run["last"] = newest
                        started.append((newest, recurring_run["recurring_run_id"]))
        return started


def access_review(operation: str) -> tuple[str, str] | None:
    """Return resource and verb of the SubjectAccessReview that an operation causes; None for one without.

    >>> access_review("recurring_run_service_enable_recurring_run"), access_review("upload_pipeline_version")
    (('jobs', 'enable'), ('pipelines', 'create'))
    """
    if operation == "healthz_service_get_healthz":
        return None
    verb, _, subject = re.sub(r"^\w+_service_", "", operation).partition("_")
    return _REVIEWED_RESOURCES[subject.removesuffix("s")], "create" if verb == "upload" else verb


def _review_access(operation: str, account: str) -> None:
    review = access_review(operation)
    if review is None:
        return
    resource, verb = review
    if not kube_rbac.is_allowed(account, verb, API_GROUP, resource, kube_rbac.NAMESPACE, None):
        raise Refused(403, f"User '{account}' is not authorized with reason: (verb {verb}, resource {resource})")


def _refuse_bad_name(name: str) -> None:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name) or len(name) > 128:
        raise Refused(400, f"the name {name} is no lowercase RFC 1123 name of at most 128 characters")


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        status, answer, fault = self.server.kubeflow.handle(self.command, self.path, self.headers, body)
        if fault is not None:
            time.sleep(fault.seconds)
            if fault.drop:
                self.close_connection = True
                return
            if fault.carried_out:
                status, answer = fault.status, {"error": fault.message, "message": fault.message}
        content = (self.server.kubeflow.page or json.dumps(answer, default=str)).encode()
        try:
            self.send_response(status)
            self.send_header("content-type", "text/html" if self.server.kubeflow.page else "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            self.close_connection = True  # the client did not wait

    do_GET = do_POST = do_DELETE = do_PATCH = _serve  # noqa: N815 - names of the standard library

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    kubeflow: KubeflowServer


@contextmanager
def running(**options: Any) -> Iterator[KubeflowServer]:
    """Give a server that listens on a free port of the loopback."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.kubeflow = KubeflowServer(url=f"http://127.0.0.1:{server.server_address[1]}", **options)
    with listening(server):
        yield server.kubeflow
