"""The two Envoys of a stack: writes their configuration and confirms that they apply it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from shortlist.rollout.evidence.access_log import ACCESS_LOG
from shortlist.rollout.local.envoy.bootstrap import (
    CLUSTERS_FILE,
    ENVOYS,
    ROUTES_FILE,
    applied_version,
    begin_draining,
    bootstrap,
    count_in_flight,
    envoy_program,
    is_ready,
)
from shortlist.rollout.local.envoy.routes import clusters, routes
from shortlist.rollout.local.record import StackRecord
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.errors import StackError, last_lines
from shortlist.serving.processes.program import Program
from shortlist.serving.stack_secrets import StackSecrets
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import write_json

_APPLY_SECONDS = 5.0
_IDLE_SECONDS = 2.0
"""Time that clients with idle connections get to send another request, whose answer closes the connection."""
_DRAIN_SECONDS = 30.0
"""Longest time that requests in flight get before their Envoy is stopped."""


class EnvoyGateway:
    """Two Envoys as the `Gateway` of a stack."""

    names = ENVOYS

    def __init__(self, paths: ServingPaths, sockets: Path) -> None:
        """Keep the paths of its files and the folder of its Unix sockets."""
        self._paths = paths
        self._sockets = sockets

    def programs(self, port: int, serving: Serving) -> dict[str, Program]:
        """Write the configurations of the two Envoys and return their programs.

        Args:
            port: Port on which both listen.
            serving: The spec's section with the limits of requests and connections.
        """
        self._paths.envoy.mkdir(parents=True, exist_ok=True)
        programs_by_name, token = {}, StackSecrets.open(self._paths.secrets).backend_token
        for name in ENVOYS:
            config = self._paths.envoy / f"{name}.json"
            admin, log = self._admin(name), self._access_log(name)
            write_json(config, bootstrap(name, port, self._paths.envoy, admin, log, serving, token))
            programs_by_name[name] = envoy_program(name, config)
        return programs_by_name

    def send(self, record: StackRecord) -> None:
        """Apply the route of a record; returns when the Envoys have applied it, or when none runs yet.

        Raises:
            StackError: They do not apply it.
        """
        starting = not any(probe() for probe in self.readiness_probes().values())
        # In this order no route ever names a server that Envoy does not know.
        for resource, file, content in (
            ("clusters", CLUSTERS_FILE, _clusters(record)),
            ("routes", ROUTES_FILE, self._routes(record)),
        ):
            path = self._paths.envoy / file
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, content)
            if not starting:
                self._confirm(resource, content["version_info"])

    def readiness_probes(self) -> dict[str, Callable[[], bool]]:
        """Return the readiness probe of each Envoy."""
        return {name: partial(is_ready, self._admin(name)) for name in ENVOYS}

    def stale_processes(self, record: StackRecord) -> list[str]:
        """Return the Envoys that answer but apply another route than the record's."""
        expected_version = self._routes(record)["version_info"]
        return [name for name in ENVOYS if applied_version(self._admin(name), "routes") not in {expected_version, None}]

    def access_logs(self) -> Mapping[Path, Path]:
        """Return both access logs, each with the administration socket of its Envoy."""
        return {self._access_log(name): self._admin(name) for name in ENVOYS}

    def drain(self, name: str) -> None:
        """Let clients of an Envoy that will be stopped move to the other one.

        Returns when no request is in flight and no connection, or only idle ones, are left; or after 30 s.
        """
        admin = self._admin(name)
        begin_draining(admin)
        began = time.monotonic()
        while (waited := time.monotonic() - began) < _DRAIN_SECONDS:
            connections, requests = count_in_flight(admin)
            if not connections or (waited > _IDLE_SECONDS and not requests):
                return
            time.sleep(0.02)

    def _routes(self, record: StackRecord) -> dict[str, Any]:
        return routes(record.model, record.route, record.serving, StackSecrets.open(self._paths.secrets))

    def _confirm(self, resource: str, version: str) -> None:
        deadline = time.monotonic() + _APPLY_SECONDS
        while True:
            versions = [applied_version(self._admin(name), resource) for name in ENVOYS]
            # One that does not answer reads the file when it starts: it was written before we asked.
            if version in versions and set(versions) <= {version, None}:
                return
            if time.monotonic() > deadline:
                log = self._paths.logs / f"{ENVOYS[0]}.log"
                raise StackError(
                    f"Envoy does not take the new {resource} ({version}; it has {versions}); {log} ends:\n"
                    f"{last_lines(log)}"
                )
            time.sleep(0.005)

    def _access_log(self, name: str) -> Path:
        return self._paths.logs / f"{name}{ACCESS_LOG}"

    def _admin(self, name: str) -> Path:
        return self._sockets / f"{name}.sock"


def _clusters(record: StackRecord) -> dict[str, Any]:
    replicas = {version: deployed.replicas for version, deployed in record.versions.items()}
    return clusters(replicas, record.serving.overload.max_requests)
