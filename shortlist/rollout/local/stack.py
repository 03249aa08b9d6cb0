"""The local stack: start, deployment of versions, routing, and stop."""

from __future__ import annotations

import http.client
import os
import sys
import time
import xmlrpc.client
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.local.gateway import open_gateway, readiness, wait_ready
from shortlist.rollout.local.health import StackStatus, VersionHealth, stack_status, version_health
from shortlist.rollout.local.lifecycle import (
    choose_port,
    exclusive_stack_lock,
    keep_healthy_programs,
    reassign_taken_ports,
    replica_ports,
    stack_supervisor,
    stop_locked_stack,
    stop_stack,
    with_replicas,
)
from shortlist.rollout.local.record import StackRecord, VersionPorts, server_name, triton_name
from shortlist.rollout.local.supervisor import Process
from shortlist.rollout.local.version import install, shared_memory_of, version_programs
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.adoption import unresponsive
from shortlist.serving.processes.errors import StackError, last_lines
from shortlist.serving.processes.launch import clear_shared_memory
from shortlist.serving.processes.orphan_processes import orphan_processes
from shortlist.serving.processes.ports import HOST
from shortlist.serving.processes.probe import is_answered
from shortlist.serving.processes.program import Program
from shortlist.serving.processes.sockets import socket_folder
from shortlist.serving.server.requests.paths import READY
from shortlist.serving.stack_secrets import StackSecrets
from shortlist.serving.traffic.client import Endpoint
from shortlist.spec.runtime import OnlineStore
from shortlist.spec.serving import Serving
from shortlist.spec.text.durations import parse_duration

SERVER = (sys.executable, "-m", "shortlist.serving.server.server")
"""Command of a version's server, without the path of its settings."""
_RESTART_SECONDS = 60.0
"""Longest wait for a restarted program before the next one is restarted."""
_MAX_STARTS = 3
"""Number of starts after which a version that is waited for counts as unable to start."""


class Stack:
    """A running stack.

    Every operation is idempotent and crash-safe: the desired state is written first (`paths.record`), then applied;
    after a crash the next operation, or `up`, completes it.
    """

    def __init__(self, paths: ServingPaths, record: StackRecord) -> None:
        """Called by `up` and `connect`."""
        self.paths = paths
        self.port = record.port
        self._gateway = open_gateway(paths, record)
        self._supervisor = stack_supervisor(paths, record)

    @classmethod
    def up(
        cls,
        paths: ServingPaths,
        model: str,
        serving: Serving,
        online_store: OnlineStore,
        port: int = 0,
        server: tuple[str, ...] = SERVER,
        log_objects: str = "",
        gateway: str = "envoy",
    ) -> Stack:
        """Start a stack with its previous versions and route, and return it; a running stack keeps running.

        If only the supervisor died, programs that answer are kept.

        Args:
            paths: Paths of the stack's files.
            model: Model name in requests; also the Feast project.
            serving: The spec's section.
            online_store: Feast's online store.
            port: Port of the gateway on 127.0.0.1; 0 takes the previous one, or any free one.
            server: Command of a version's server, without the path of its settings.
            log_objects: Root of the object store with the logs' tables; empty: they are on this disk.
            gateway: Name of the gateway (`shortlist.rollout.local.section.GATEWAYS`).

        Raises:
            IntegrityError: A served file was changed, and the registered version it was copied from is not there.
            PortTakenError: Another program listens there; nothing was started.
            StackError: A program does not start; a stack that ran before keeps running, else everything is stopped.
        """
        paths.logs.mkdir(parents=True, exist_ok=True)
        paths.root.chmod(0o700)  # logs and secrets are read by nobody else
        token_variable = serving.events.token_variable
        StackSecrets.open(paths.secrets, os.environ.get(token_variable) if token_variable else None)
        with exclusive_stack_lock(paths):
            previous = StackRecord.read(paths.record)
            record = StackRecord(
                model=model,
                online_store=online_store,
                serving=serving,
                port=choose_port(paths, previous, port),
                sockets=socket_folder(paths.root),
                server=server,
                versions=previous.versions if previous else {},
                route=previous.route if previous else None,
                log_objects=log_objects,
                gateway=gateway,
            )
            stack = cls(paths, record)
            is_running = bool(orphan_processes(paths.programs))
            try:
                stack._start(record)
            except BaseException:
                if not is_running:  # a stack that ran before keeps running
                    stop_locked_stack(paths)
                raise
            return stack

    @classmethod
    def connect(cls, paths: ServingPaths) -> Stack | None:
        """Return the running stack; None when none runs."""
        record = StackRecord.read(paths.record)
        if record is None or not stack_supervisor(paths, record).is_up():
            return None
        return cls(paths, record)

    @property
    def url(self) -> str:
        """Address of the service over HTTP; without the scheme also for gRPC."""
        return f"http://{HOST}:{self.port}"

    def backend_endpoint(self) -> Endpoint:
        """Return the endpoint of the stack for the application's backend, with its token."""
        token = StackSecrets.open(self.paths.secrets).backend_token
        return Endpoint(port=self.port, model=self.record.model, token=token)

    @property
    def record(self) -> StackRecord:
        """The record on disk: what should run."""
        record = StackRecord.read(self.paths.record)
        if record is None:
            raise StackError(f"{self.paths.record}: missing; stop the stack and serve again.")
        return record

    def stop(self) -> list[str]:
        """Stop all programs and return their names; `up` starts the same versions again."""
        return stop_stack(self.paths)

    def deploy(self, deployment: Deployment, serving: Serving) -> VersionPorts:
        """Start the processes of a version, without users, and return the ports of its first replica.

        Args:
            deployment: The version; its model folder is copied, and verified before and after.
            serving: Settings of its server.

        Raises:
            IntegrityError: The model folder, or the repository written from it, was changed.
            StackError: Another model is deployed under this version, Triton is not installed, or the stack was stopped.
        """
        with exclusive_stack_lock(self.paths):
            record, version = self.record, deployment.version
            self._check_started(record)
            deployed_before = record.versions.get(version)
            if deployed_before is not None and _digests(deployed_before.deployment) != _digests(deployment):
                raise StackError(
                    f"version {version} is deployed with digest {_digests(deployed_before.deployment)}, not"
                    f" {_digests(deployment)};"
                    " a registered version never changes. Retire it first."
                )
            replicas = replica_ports(
                record, record.serving.replicas, deployed_before.replicas if deployed_before else ()
            )
            deployed = install(self.paths, record, deployment, serving, replicas)
            record = record.model_copy(update={"versions": {**record.versions, version: deployed}})
            self._apply(record)
            for replica in range(len(replicas)):
                self._supervisor.restart_now(triton_name(version, replica))
                self._supervisor.restart_now(server_name(version, replica))
            return deployed.ports

    def wait_ready(self, version: int, seconds: float) -> VersionHealth:
        """Wait until a version is ready, and return its health.

        Raises:
            StackError: It is not ready in time, or cannot start; the message ends with its log.
        """
        deadline = time.monotonic() + seconds
        while True:
            health = self.health(version)
            if health.ready:
                return health
            waiting = next(program for program in health.programs if not program.ready)
            log = self.paths.logs / f"{waiting.program}.log"
            if waiting.state != "RUNNING" and waiting.restarts >= _MAX_STARTS - 1:
                raise StackError(
                    f"version {version} does not start: {waiting.program} ended {waiting.restarts} times;"
                    f" {log} ends:\n{last_lines(log)}"
                )
            if time.monotonic() > deadline:
                raise StackError(
                    f"version {version} is not ready after {seconds:g} s: {waiting.program} is {waiting.state};"
                    f" {log} ends:\n{last_lines(log)}"
                )
            time.sleep(0.05)

    def health(self, version: int) -> VersionHealth:
        """Return the health of a deployed version; it is ready when all of its replicas are.

        Raises:
            StackError: It is not deployed.
        """
        record = self.record
        if version not in record.versions:
            raise StackError(f"version {version} is not deployed; deployed: {sorted(record.versions) or 'none'}")
        return version_health(record, version, self._processes())

    def route(self, route: Route) -> None:
        """Apply a route; returns when the gateway has applied it.

        A dead process is not waited for: it reads the route when it is started again.

        Raises:
            StackError: A version is not deployed, or the gateway does not apply the route.
        """
        with exclusive_stack_lock(self.paths):
            record = self.record
            for version in {route.stable, route.canary} - {None}:
                if version not in record.versions:
                    raise StackError(f"version {version} is not deployed; deploy it before it gets users")
            record = record.model_copy(update={"route": route})
            record.write(self.paths.record)
            self._gateway.send(record)

    def withdraw(self) -> None:
        """Remove the route; the gateway then answers that no version is served."""
        with exclusive_stack_lock(self.paths):
            record = self.record.model_copy(update={"route": None})
            record.write(self.paths.record)
            self._gateway.send(record)

    def retire(self, version: int) -> None:
        """Stop the processes of a version without users; its folder stays.

        Raises:
            StackError: It has users.
        """
        with exclusive_stack_lock(self.paths):
            record = self.record
            if record.route is not None and version in {record.route.stable, record.route.canary}:
                raise StackError(f"version {version} is routed; route its users elsewhere before retiring it")
            versions = {key: value for key, value in record.versions.items() if key != version}
            self._apply(record.model_copy(update={"versions": versions}))
            clear_shared_memory(shared_memory_of(self.paths, version))

    def status(self) -> StackStatus:
        """Return the status of the stack."""
        record, gateway = self.record, self._gateway
        processes = self._processes()
        stale = gateway.stale_processes(record)
        return stack_status(record, self.url, processes, readiness(gateway), stale, self.paths.logs)

    def _processes(self) -> dict[str, Process]:
        """Return all programs by name; a supervisor that was killed is started again, and what answers runs on.

        Raises:
            StackError: The stack was stopped.
        """
        try:
            return self._supervisor.processes()
        except (OSError, http.client.HTTPException, xmlrpc.client.Error):
            with exclusive_stack_lock(self.paths):  # while it is being stopped, until it has been
                record = self.record
                self._check_started(record)
                if not self._supervisor.is_up():
                    self._start(record)
            return self._supervisor.processes()

    def _check_started(self, record: StackRecord) -> None:
        if not _is_started(record):
            raise StackError(
                f"{self.paths.root}: the stack was stopped; make serve SPEC={self.paths.root.name} brings it back"
            )

    def _start(self, record: StackRecord) -> None:
        record = with_replicas(record)
        for deployed in record.versions.values():
            install(self.paths, record, deployed.deployment, deployed.serving, deployed.replicas)
        self._apply(record)
        for name in self._supervisor.processes():
            self._supervisor.restart_now(name)
        wait_ready(self._gateway, self.paths.logs)

    def _apply(self, record: StackRecord) -> None:
        """Write the record of what should run, then apply it; a supervisor that does not run is started."""
        is_started = _is_started(record)
        if is_started and not self._supervisor.is_up():
            running = keep_healthy_programs(self.paths, record, self._gateway.readiness_probes())
            record = reassign_taken_ports(record, running)
            self._supervisor.start()
        # Programs first: when their files cannot be written, neither is the record.
        programs = self._gateway.programs(record.port, record.serving)
        committer = committing_program(self.paths, record, self._gateway.access_logs())
        programs[committer.name] = committer
        for version, deployed in record.versions.items():
            programs |= version_programs(self.paths, record, version, deployed)
        record.write(self.paths.record)
        self._gateway.send(record)
        if is_started:  # else `up` applies what was written
            self._supervisor.apply(programs, self._drain_program, partial(self._wait_restarted, record))

    def _drain_program(self, name: str) -> None:
        """Drain a process of the gateway before it is stopped; servers finish their requests by themselves."""
        if name in self._gateway.names:
            self._gateway.drain(name)

    def _wait_restarted(self, record: StackRecord, name: str) -> None:
        """Wait until a restarted program answers, at most some time; not for one without another replica."""
        probes = self._gateway.readiness_probes()
        for version, deployed in record.versions.items():
            if len(deployed.replicas) > 1:
                for replica, ports in enumerate(deployed.replicas):
                    probes[server_name(version, replica)] = partial(is_answered, ports.health, READY)
                    triton = record.triton_socket(version, replica)
                    probes[triton_name(version, replica)] = partial(is_answered, triton, READY)
        if name in probes:
            unresponsive({name: probes[name]}, _RESTART_SECONDS)


def _is_started(record: StackRecord) -> bool:
    """Whether a stack was not stopped since it was started: stopping it removes its sockets."""
    return record.sockets.is_dir()


def _digests(deployment: Deployment) -> str:
    """Return the digests of a version's model and release, joined by a plus."""
    return "+".join(filter(None, (deployment.digest, deployment.release_digest)))


_KEEP_SECONDS: Final = 86_400
"""How long committed streams stay on this disk where the tables are in an object store: a rollout on this machine reads
the streams, and lasts no longer."""


def committing_program(paths: ServingPaths, record: StackRecord, access_logs: Mapping[Path, Path]) -> Program:
    """Return the program that commits the logs of this machine to their tables, and rotates access logs.

    Args:
        paths: Paths of the stack.
        record: What should run.
        access_logs: See `Gateway.access_logs`.
    """
    command = [sys.executable, "-m", "shortlist.serving.log.committer", "--folder", str(paths.root), "--maintain"]
    command += ["--retention-seconds", f"{parse_duration(record.serving.log.retention).total_seconds():.0f}"]
    if record.log_objects:
        command += ["--objects", record.log_objects, "--spec", record.model, "--keep-seconds", str(_KEEP_SECONDS)]
    for log, socket in access_logs.items():
        command += ["--rotate", str(log), str(socket)]
    # No quiet time at its end: the next committer on this disk commits the rest.
    command += ["--quiet-seconds", "0"]
    return Program(name="log-committer", command=tuple(command), environment={"PYTHONUNBUFFERED": "1"})
