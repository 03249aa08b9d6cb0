"""Processes under test: the server, and an Envoy in front of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psutil

from shortlist.rollout.deployment import Route
from shortlist.rollout.local.envoy.bootstrap import CLUSTERS_FILE, ROUTES_FILE, bootstrap, envoy_program, is_ready
from shortlist.rollout.local.envoy.routes import clusters, routes
from shortlist.rollout.local.record import VersionPorts
from shortlist.serving.stack_secrets import StackSecrets
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import write_json
from tests.fuzz.world import MODEL, FuzzWorld

VERSION: Final = 3
_ALL: Final = Route(stable=VERSION)
SECRETS: Final = StackSecrets()
"""Token of the backend, and the gateway's key."""
_READY_SECONDS: Final = 300.0


@dataclass
class Running:
    """A server process."""

    process: subprocess.Popen[bytes]
    http: int
    grpc: int
    log: Path

    def metric(self, name: str, *labels: str) -> float:
        """Return the sum of a metric's samples that have some labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            float(line.split()[-1])
            for line in lines
            if line.startswith(name) and all(label in line for label in labels)
        )

    @property
    def megabytes(self) -> float:
        """Of memory, at this moment."""
        return float(psutil.Process(self.process.pid).memory_info().rss / 2**20)


@contextmanager
def running_server(
    folder: Path, world: FuzzWorld, serving: Mapping[str, Any], module: str = "tests.fuzz.server"
) -> Iterator[Running]:
    """Run a server until the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    http, grpc = free_ports(2)
    settings = {
        "model": MODEL, "version": VERSION, "model_folder": str(world.model), "predictor": "127.0.0.1:9",
        "http_port": http, "grpc_port": grpc, "store": str(world.store), "project": MODEL,
        "predictions": str(folder / "predictions"), "release": str(world.release),
        "serving": {"refresh_seconds": 0.2, **serving},
    }  # fmt: skip
    write_json(folder / "settings.json", settings)
    log = folder / "server.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", module, str(folder / "settings.json")]
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
    running = Running(process, http, grpc, log)
    try:
        _until(lambda: _is_up(running), running.log)
        yield running
    finally:
        process.kill()
        process.wait()


@contextmanager
def running_envoy(folder: Path, http: int, grpc: int, serving: Serving, route: Route = _ALL) -> Iterator[int]:
    """Run an Envoy in front of a server's two ports until the end of the block; give its port."""
    (port,) = free_ports(1)
    folder.mkdir(parents=True, exist_ok=True)
    ports = VersionPorts(
        http=http, grpc=grpc, health=0, triton_metrics=0
    )  # the only server is not asked for its health
    for name, content in (
        (CLUSTERS_FILE, clusters({VERSION: [ports]}, serving.overload.max_requests)),
        (ROUTES_FILE, routes(MODEL, route, serving.model_copy(update={"hold_seconds": 1.0}), SECRETS)),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_json(folder / name, content)
    with ExitStack() as stack:
        # A Unix socket's path has at most 107 characters.
        admin = Path(stack.enter_context(TemporaryDirectory(prefix="shortlist-"))) / "admin.sock"
        log, token = folder / "access.jsonl", SECRETS.backend_token
        write_json(folder / "envoy.json", bootstrap("envoy-a", port, folder, admin, log, serving, token))
        program = envoy_program("envoy-a", folder / "envoy.json")
        log = folder / "envoy.log"
        with log.open("wb") as output:
            environment = program.process_environment(os.environ)
            process = subprocess.Popen(program.command, env=environment, stdout=output, stderr=output)
        try:
            _until(lambda: is_ready(admin) and _listens(port), log)
            yield port
        finally:
            process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    """Return ports that nobody uses."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()


def _is_up(running: Running) -> bool:
    assert running.process.poll() is None, running.log.read_text()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{running.http}/v2/health/ready", timeout=5) as answer:
            ready: bool = json.load(answer)["ready"]
            return ready
    except OSError:
        return False


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _until(holds: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not holds():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
