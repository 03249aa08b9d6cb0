"""The laptop's stack: brought up, told which versions to run and who gets them, stopped."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Final

from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.local.envoy import ENVOYS
from shortlist.rollout.local.gateway import Gateway
from shortlist.rollout.local.health import StackStatus, VersionHealth, stack_status, version_health
from shortlist.rollout.local.lifecycle import (
    choose_port,
    exclusive_stack_lock,
    keep_what_is_well,
    reassign_taken_ports,
    replica_ports,
    stack_supervisor,
    stop_stack,
    with_replicas,
)
from shortlist.rollout.local.record import StackRecord, VersionPorts, server_name, triton_name
from shortlist.rollout.local.version import install, shared_memory_of, version_programs
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.adoption import silent
from shortlist.serving.processes.errors import StackError, last_lines
from shortlist.serving.processes.launch import clear_shared_memory
from shortlist.serving.processes.orphan_processes import orphan_processes
from shortlist.serving.processes.ports import HOST
from shortlist.serving.processes.probe import READY, answers
from shortlist.serving.processes.program import Program
from shortlist.serving.processes.sockets import socket_folder
from shortlist.spec.runtime import OnlineStore
from shortlist.spec.serving import Serving

SERVER = (sys.executable, "-m", "shortlist.serving.server.server")
"""Command of a version's server; the path of its settings is added."""
_RESTART_SECONDS = 60.0
"""Longest wait for a restarted program before the next one is restarted."""
_TRIES = 3
"""Starts after which a version that is waited for counts as unable to start."""


class Stack:
    """A stack that is up.

    Every operation may be repeated, and may be killed at any point: what should run is written down first
    (`paths.record`), then made so, and the next operation, or `up`, makes the rest so.
    """

    def __init__(self, paths: ServingPaths, record: StackRecord) -> None:
        """Use `up` or `connect`."""
        self.paths = paths
        self.port = record.port
        self._gateway = Gateway(paths, record.sockets)
        self._supervisor = stack_supervisor(paths, record)

    @classmethod
    def up(
        cls,
        paths: ServingPaths,
        model: str,
        serving: Serving,
        online_store: OnlineStore,
        project: str,
        port: int = 0,
        server: tuple[str, ...] = SERVER,
        log_objects: str = "",
    ) -> Stack:
        """Bring a stack up, with the versions and the route that it had, and return it; one that is up stays up.

        Where only the supervisor died, its programs that answer are kept as they are.

        Args:
            paths: Where it keeps its files.
            model: Name under which clients ask.
            serving: The spec's section.
            online_store: Where Feast keeps users' rows.
            project: Feast project.
            port: Of Envoy, on 127.0.0.1; 0 takes the one it had, or any free one.
            server: Command of a version's server; the path of its settings is added.
            log_objects: Root of the object store that the logs are brought to; empty: they stay on this disk.

        Raises:
            PortTakenError: Somebody else listens there; nothing was started.
            StackError: Something does not start; what ran before goes on running, else nothing is left running.
        """
        paths.logs.mkdir(parents=True, exist_ok=True)
        with exclusive_stack_lock(paths):
            before = StackRecord.read(paths.record)
            record = StackRecord(
                model=model,
                project=project,
                online_store=online_store,
                serving=serving,
                port=choose_port(paths, before, port),
                sockets=socket_folder(paths.root),
                server=server,
                versions=before.versions if before else {},
                route=before.route if before else None,
                log_objects=log_objects,
            )
            stack = cls(paths, record)
            serves = bool(orphan_processes(paths.programs))
            try:
                stack._start(record)
            except BaseException:
                if not serves:  # what answered before goes on answering
                    stop_stack(paths)
                raise
            return stack

    @classmethod
    def connect(cls, paths: ServingPaths) -> Stack | None:
        """Return the stack that is up; None when there is none."""
        record = StackRecord.read(paths.record)
        if record is None or not stack_supervisor(paths, record).is_up():
            return None
        return cls(paths, record)

    @property
    def url(self) -> str:
        """Where clients ask, over HTTP and, without the scheme, over gRPC."""
        return f"http://{HOST}:{self.port}"

    @property
    def record(self) -> StackRecord:
        """What should run, as it is written down now."""
        record = StackRecord.read(self.paths.record)
        if record is None:
            raise StackError(f"{self.paths.record}: missing; stop the stack and serve again.")
        return record

    def stop(self) -> list[str]:
        """Stop everything and return the names of what was stopped; `up` brings the same versions back."""
        with exclusive_stack_lock(self.paths):
            return stop_stack(self.paths)

    def deploy(self, deployment: Deployment, serving: Serving) -> VersionPorts:
        """Start the processes of a version, which nobody gets yet, and return the ports of its first replica.

        Args:
            deployment: The version; its model folder is copied, and verified before and after.
            serving: The settings that its server gets.

        Raises:
            IntegrityError: The model folder, or the repository made of it, is not what it was.
            StackError: Another model is deployed under this version, or there is no Triton here.
        """
        with exclusive_stack_lock(self.paths):
            record = self.record
            version = deployment.version
            known = record.versions.get(version)
            if known is not None and _digests(known.deployment) != _digests(deployment):
                raise StackError(
                    f"version {version} is deployed with digest {_digests(known.deployment)}, not"
                    f" {_digests(deployment)};"
                    " a registered version never changes. Retire it first."
                )
            replicas = replica_ports(record, record.serving.replicas, known.replicas if known else ())
            deployed = install(self.paths, record, deployment, serving, replicas)
            record = record.model_copy(update={"versions": {**record.versions, version: deployed}})
            self._apply(record)
            for replica in range(len(replicas)):
                self._supervisor.start_again(triton_name(version, replica))
                self._supervisor.start_again(server_name(version, replica))
            return deployed.ports

    def wait_ready(self, version: int, seconds: float) -> VersionHealth:
        """Return when a version is ready.

        Raises:
            StackError: It is not within this time, or it cannot start; the message ends with its log.
        """
        deadline = time.monotonic() + seconds
        while True:
            health = self.health(version)
            if health.ready:
                return health
            waiting = next(one for one in health.programs if not one.ready)
            log = self.paths.logs / f"{waiting.program}.log"
            if waiting.state != "RUNNING" and waiting.restarts >= _TRIES - 1:
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
        """Return how a deployed version is; it is ready when all of its replicas are.

        Raises:
            StackError: It is not deployed.
        """
        record = self.record
        if version not in record.versions:
            raise StackError(f"version {version} is not deployed; deployed: {sorted(record.versions) or 'none'}")
        return version_health(record, version, self._supervisor.processes())

    def route(self, route: Route) -> None:
        """Give users their versions; returns when Envoy does so.

        An Envoy that is dead is not waited for: it reads the route when it is started again.

        Raises:
            StackError: A version is not deployed, or no Envoy takes the route.
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
        """Give nobody a version; Envoy says that nothing is served."""
        with exclusive_stack_lock(self.paths):
            record = self.record.model_copy(update={"route": None})
            record.write(self.paths.record)
            self._gateway.send(record)

    def retire(self, version: int) -> None:
        """Stop the processes of a version that nobody gets; its folder stays.

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
        """Return how everything is."""
        record, gateway = self.record, self._gateway
        processes = self._supervisor.processes()
        return stack_status(record, self.url, processes, gateway.ready(), gateway.behind(record), self.paths.logs)

    def _start(self, record: StackRecord) -> None:
        record = with_replicas(record)
        if not self._supervisor.is_up():
            kept = keep_what_is_well(self.paths, record, self._gateway.questions())
            record = reassign_taken_ports(record, kept)
            self._supervisor.start()
        self._apply(record)
        for name in self._supervisor.processes():
            self._supervisor.start_again(name)
        self._gateway.wait_ready()

    def _apply(self, record: StackRecord) -> None:
        """Write down what should run, then make it so."""
        # First what may fail: what cannot be started is not written down.
        programs = self._gateway.programs(record.port, record.serving) | shipping_programs(self.paths, record)
        for version, deployed in record.versions.items():
            programs |= version_programs(self.paths, record, version, deployed)
        record.write(self.paths.record)
        self._gateway.send(record)
        self._supervisor.apply(programs, self._finish_requests, partial(self._wait_restarted, record))

    def _finish_requests(self, name: str) -> None:
        """Return when a program that is about to be stopped may be: servers finish what is under way by themselves."""
        if name in ENVOYS:
            self._gateway.drain(name)

    def _wait_restarted(self, record: StackRecord, name: str) -> None:
        """Return when a program that was restarted does its work, or after a while; at once if nothing stands in."""
        asked = self._gateway.questions()
        for version, deployed in record.versions.items():
            if len(deployed.replicas) > 1:
                for replica, ports in enumerate(deployed.replicas):
                    asked[server_name(version, replica)] = partial(answers, ports.health, READY)
                    triton = record.triton_socket(version, replica)
                    asked[triton_name(version, replica)] = partial(answers, triton, READY)
        if name in asked:
            silent({name: asked[name]}, _RESTART_SECONDS)


def _digests(deployment: Deployment) -> str:
    """Return the digests of a version's model and of what is released with it."""
    return "+".join(filter(None, (deployment.digest, deployment.release_digest)))


_KEEP_SECONDS: Final = 86_400
"""A rollout on this machine reads the logs on this disk; it lasts no longer."""


def shipping_programs(paths: ServingPaths, record: StackRecord) -> dict[str, Program]:
    """Return a program for each log; none where logs stay on this disk."""
    if not record.log_objects:
        return {}
    folders = {"predictions": paths.predictions, "outcomes": paths.outcomes}
    return {
        f"shipper-{kind}": Program(
            name=f"shipper-{kind}",
            # What is left when it stops is shipped by the next one: the disk is the same.
            command=(
                sys.executable, "-m", "shortlist.serving.log.log_shipper", "--folder", str(folder), "--kind", kind,
                "--objects", record.log_objects, "--spec", record.model, "--keep-seconds", str(_KEEP_SECONDS),
                "--quiet-seconds", "0",
            ),
            environment={"PYTHONUNBUFFERED": "1"},
        )
        for kind, folder in folders.items()
    }  # fmt: skip
