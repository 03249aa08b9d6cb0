"""A Kubernetes API server over real HTTP that knows TrainJobs, checks their schema, and runs or fails them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from crd_schemas import problems
from listening import listening

Object = dict[str, Any]
_BASE = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/shortlist/trainjobs"
_NOW = "2026-11-21T12:00:00Z"


class TrainJobs:
    """The state behind the server."""

    def __init__(self) -> None:
        self.jobs: dict[str, Object] = {}
        self.created: list[str] = []
        self.events: list[Object] = []
        self.may_read_events = True
        self.ends: list[Object | None] = []
        """Conditions that end the next jobs, in order; None: the processes of the job run on this machine."""
        self.forget = False
        """Whether a job is deleted as soon as it is created."""
        self.status: Object | None = None
        """The `status` of running jobs; None: they have none."""
        self.logs: list[str] = []
        self.port = 0

    def answer(self, method: str, url: str, body: Object | None) -> tuple[int, Object]:
        path = urlsplit(url).path
        name = path.removeprefix(_BASE).strip("/")
        if path.endswith("/events"):
            event_list = {"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": self.events}
            return (200, event_list) if self.may_read_events else _refusal(403, "events is forbidden")
        if not path.startswith(_BASE):
            return _refusal(404, "the server could not find the requested resource")
        if method == "POST" and body is not None:
            return self._create(body)
        if name not in self.jobs:
            return _refusal(404, f'trainjobs "{name}" not found')
        if method == "DELETE":
            del self.jobs[name]
            return 200, {"apiVersion": "v1", "kind": "Status", "status": "Success"}
        return 200, self.jobs[name]

    def _create(self, body: Object) -> tuple[int, Object]:
        name = body["metadata"]["name"]
        if violations := problems(body):
            return _refusal(422, f"TrainJob {name} is invalid: {'; '.join(violations)}")
        if name in self.jobs:
            return _refusal(409, f'trainjobs "{name}" already exists')
        self.created.append(name)
        train_job = {**body, "metadata": {**body["metadata"], "uid": f"uid-{len(self.created)}"}}
        if self.forget:
            return 201, train_job
        self.jobs[name] = train_job
        if self.status:
            train_job["status"] = self.status
        end = self.ends.pop(0) if self.ends else None
        if end is not None:
            train_job["status"] = {"conditions": [end]}
        elif self.status is None:
            threading.Thread(target=self._run, args=(train_job,), daemon=True).start()
        return 201, train_job

    def _run(self, train_job: Object) -> None:
        """Do what Kubeflow Trainer does, with all pods' processes on this machine."""
        trainer = train_job["spec"]["trainer"]
        world = trainer["numNodes"] * trainer["numProcPerNode"]
        assert trainer["command"][:2] == ["torchrun", "-m"]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(
            [*launcher, *trainer["command"][1:], *trainer["args"]], env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        self.logs.append(ran.stderr)
        kind, reason = ("Complete", "JobsCompleted") if ran.returncode == 0 else ("Failed", "BackoffLimitExceeded")
        train_job["status"] = {"conditions": [condition(kind, reason, "as its processes ended")]}


def condition(kind: str, reason: str, message: str) -> Object:
    """Return a condition that holds."""
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": _NOW}


def _refusal(status: int, message: str) -> tuple[int, Object]:
    return status, {"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": message, "code": status}


@contextmanager
def running() -> Iterator[TrainJobs]:
    """Run a server on a free port while the block runs."""
    state = TrainJobs()

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
