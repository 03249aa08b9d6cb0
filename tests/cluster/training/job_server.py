"""A Kubernetes API server over real HTTP that knows one kind of job, checks its schema, and runs or fails it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import urlsplit

from crd_schemas import problems
from listening import listening

Object = dict[str, Any]


class Jobs:
    """The state behind the server."""

    api_version: str
    kind: str

    def __init__(self) -> None:
        self.plural = f"{self.kind.lower()}s"
        self.base = f"/apis/{self.api_version}/namespaces/shortlist/{self.plural}"
        self.jobs: dict[str, Object] = {}
        self.created: list[str] = []
        self.requests: list[tuple[str, str]] = []
        """Methods and paths."""
        self.events: list[Object] = []
        self.may_read_events = True
        self.ends: list[Object | None] = []
        """`status` of the next jobs, in order; None: the processes of the job run on this machine."""
        self.forget = False
        """Whether a job is deleted as soon as it is created."""
        self.status: Object | None = None
        """The `status` of running jobs; None: they have none."""
        self.is_installed = True
        """Whether the kind is known."""
        self.logs: list[str] = []
        self.port = 0

    def run(self, job: Object) -> Object:
        """Run the processes of a job on this machine; return its `status`."""
        raise NotImplementedError

    def answer(self, method: str, url: str, body: Object | None) -> tuple[int, Object]:  # noqa: PLR0911 - a path each
        path = urlsplit(url).path
        self.requests.append((method, path))
        name = path.removeprefix(self.base).strip("/")
        if path.endswith("/events"):
            event_list = {"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": self.events}
            return (200, event_list) if self.may_read_events else _refusal(403, "events is forbidden")
        if path == f"/apis/{self.api_version}" and self.is_installed:
            return 200, {"kind": "APIResourceList", "resources": [{"kind": self.kind}]}
        if not path.startswith(self.base) or not self.is_installed:
            return _refusal(404, "the server could not find the requested resource")
        if method == "POST" and body is not None:
            return self._create(body)
        if name not in self.jobs:
            return _refusal(404, f'{self.plural} "{name}" not found')
        if method == "DELETE":
            del self.jobs[name]
            return 200, {"apiVersion": "v1", "kind": "Status", "status": "Success"}
        return 200, self.jobs[name]

    def _create(self, body: Object) -> tuple[int, Object]:
        name = body["metadata"]["name"]
        if violations := problems(body):
            return _refusal(422, f"{self.kind} {name} is invalid: {'; '.join(violations)}")
        if name in self.jobs:
            return _refusal(409, f'{self.plural} "{name}" already exists')
        self.created.append(name)
        job = {**body, "metadata": {**body["metadata"], "uid": f"uid-{len(self.created)}"}}
        if self.forget:
            return 201, job
        self.jobs[name] = job
        if self.status:
            job["status"] = self.status
        end = self.ends.pop(0) if self.ends else None
        if end is not None:
            job["status"] = end
        elif self.status is None:
            threading.Thread(target=self._run, args=(name, job), daemon=True).start()
        return 201, job

    def _run(self, name: str, job: Object) -> None:
        try:
            job["status"] = self.run(job)
        except BaseException:
            self.jobs.pop(name, None)  # what waits for it ends, and pytest reports the error
            raise


J = TypeVar("J", bound=Jobs)


def _refusal(status: int, message: str) -> tuple[int, Object]:
    return status, {"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": message, "code": status}


@contextmanager
def running(state: J) -> Iterator[J]:
    """Run a server on a free port while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, answer = state.answer(self.command, self.path, json.loads(content) if content else None)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = _handle  # noqa: N815 - names that http.server calls

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with listening(server) as state.port:
        yield state
