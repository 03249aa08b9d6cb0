"""A second gateway for the local stack: one small proxy that reads the route from a file before each request."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from shortlist.rollout.evidence.access_log import ACCESS_LOG
from shortlist.rollout.local.record import StackRecord
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.probe import is_answered
from shortlist.serving.processes.program import Program
from shortlist.serving.stack_secrets import StackSecrets
from shortlist.spec.serving import Serving

NAME = "proxy"
PROGRAM = Path(__file__).with_name("proxy.py")


class ProxyGateway:
    """A `shortlist.rollout.local.gateway.Gateway` of one process."""

    names = (NAME,)

    def __init__(self, paths: ServingPaths, sockets: Path) -> None:
        self._logs = paths.logs
        self._secrets = paths.secrets
        self._route, self._port = paths.root / "proxy.json", paths.root / "proxy.port"

    def programs(self, port: int, serving: Serving) -> dict[str, Program]:
        self._port.write_text(str(port))
        log = self._logs / f"{NAME}{ACCESS_LOG}"
        command = (sys.executable, str(PROGRAM), str(port), str(self._route), str(log))
        return {NAME: Program(name=NAME, command=command)}

    def send(self, record: StackRecord) -> None:
        ports = {version: deployed.ports.http for version, deployed in record.versions.items()}
        route = None if record.route is None else record.route.model_dump()
        staged = self._route.with_suffix(".staged")
        stack_secrets = StackSecrets.open(self._secrets).model_dump()
        staged.write_text(json.dumps({"model": record.model, "route": route, "ports": ports, **stack_secrets}))
        staged.replace(self._route)  # read before each request: applied from here on

    def readiness_probes(self) -> dict[str, Callable[[], bool]]:
        return {NAME: self._is_ready}

    def _is_ready(self) -> bool:
        return self._port.exists() and is_answered(int(self._port.read_text()), "/proxy/ready")

    def stale_processes(self, record: StackRecord) -> list[str]:
        return []

    def access_logs(self) -> Mapping[Path, Path]:
        return {}

    def drain(self, name: str) -> None:
        time.sleep(0.2)  # its requests end within that
