"""Status of the stack and health of its versions, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from shortlist.rollout.local.record import StackRecord, server_name, triton_name
from shortlist.rollout.local.supervisor import Process
from shortlist.serving.processes.errors import last_lines
from shortlist.serving.processes.probe import get_body, is_answered
from shortlist.serving.server.requests.paths import READY


class _HealthModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProgramHealth(_HealthModel):
    """One process."""

    program: str
    state: str
    """State according to its supervisor: RUNNING, STARTING, BACKOFF, ..., or MISSING."""
    pid: int | None
    uptime_seconds: float
    restarts: int
    """Number of restarts."""
    ready: bool
    """Whether its readiness endpoint says so."""


class ReplicaHealth(_HealthModel):
    """The two processes of one replica of a version."""

    triton: ProgramHealth
    server: ProgramHealth
    complaints: tuple[str, ...] = ()
    """Problems that its server reports although it answers: unreadable features, an unwritable log."""


class VersionHealth(_HealthModel):
    """The processes of a version."""

    version: int
    replicas: tuple[ReplicaHealth, ...] = Field(min_length=1)

    @property
    def programs(self) -> tuple[ProgramHealth, ...]:
        """All processes, each Triton before its server."""
        return tuple(program for replica in self.replicas for program in (replica.triton, replica.server))

    @property
    def triton(self) -> ProgramHealth:
        """Triton of the first replica."""
        return self.replicas[0].triton

    @property
    def server(self) -> ProgramHealth:
        """Server of the first replica."""
        return self.replicas[0].server

    @property
    def ready(self) -> bool:
        """Whether all processes are ready."""
        return all(program.ready for program in self.programs)

    @property
    def restarts(self) -> int:
        """Number of restarts of all processes."""
        return sum(program.restarts for program in self.programs)


class VersionStatus(_HealthModel):
    """A deployed version with its share of the users."""

    version: int
    kind: str
    track: str | None
    """`stable`, `canary`, or None when it is deployed without users."""
    percent: int
    """Share of the users."""
    health: VersionHealth


class StackStatus(_HealthModel):
    """Status of a running stack."""

    model: str
    url: str
    rollout: str | None
    step: int | None
    versions: tuple[VersionStatus, ...]
    gateway: tuple[ProgramHealth, ...]
    problems: tuple[str, ...]
    """One sentence per problem; empty without problems."""
    logs: Path
    """Folder of `<program>.log` and the access logs."""


def version_health(record: StackRecord, version: int, processes: Mapping[str, Process]) -> VersionHealth:
    """Return the health of a deployed version, from the readiness of all its processes."""
    replicas = record.versions[version].replicas
    return VersionHealth(
        version=version,
        replicas=tuple(
            _replica(record, version, replica, ports.health, processes) for replica, ports in enumerate(replicas)
        ),
    )


def _replica(
    record: StackRecord, version: int, replica: int, port: int, processes: Mapping[str, Process]
) -> ReplicaHealth:
    readiness_body, triton = get_body(port, READY), is_answered(record.triton_socket(version, replica), READY)
    return ReplicaHealth(
        triton=_program(triton_name(version, replica), processes, triton),
        server=_program(server_name(version, replica), processes, readiness_body is not None),
        complaints=_complaints(readiness_body or b""),
    )


def stack_status(
    record: StackRecord,
    url: str,
    processes: Mapping[str, Process],
    ready: Mapping[str, bool],
    behind: Sequence[str],
    logs: Path,
) -> StackStatus:
    """Return the status of the stack.

    Args:
        record: What should run.
        url: Address of the service.
        processes: Processes of the supervisor, by program.
        ready: Whether each process of the gateway is ready.
        behind: Processes of the gateway that apply another route than the record's.
        logs: Folder of the logs.
    """
    versions = tuple(
        _version_status(record, version, version_health(record, version, processes))
        for version in sorted(record.versions)
    )
    gateway = tuple(_program(name, processes, is_ready) for name, is_ready in ready.items())
    return StackStatus(
        model=record.model,
        url=url,
        rollout=record.route.rollout if record.route else None,
        step=record.route.step if record.route else None,
        versions=versions,
        gateway=gateway,
        problems=(
            *(f"{name} sends users elsewhere than is written down: serve again." for name in behind),
            *_problems(record, versions, gateway, logs),
        ),
        logs=logs,
    )


def _complaints(readiness_body: bytes) -> tuple[str, ...]:
    """Return the problems in the body of a readiness answer; none when it has another form."""
    try:
        problems = json.loads(readiness_body)["problems"]
        return tuple(f"{subject}: {problem}" for subject, problem in sorted(problems.items()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


def _version_status(record: StackRecord, version: int, health: VersionHealth) -> VersionStatus:
    track, percent = None, 0
    if record.route is not None:
        if version == record.route.stable:
            track, percent = "stable", 100 - record.route.percent
        elif version == record.route.canary:
            track, percent = "canary", record.route.percent
    kind = record.versions[version].deployment.kind
    return VersionStatus(version=version, kind=kind, track=track, percent=percent, health=health)


def _program(name: str, processes: Mapping[str, Process], ready: bool) -> ProgramHealth:
    process = processes.get(name)
    if process is None:
        return ProgramHealth(program=name, state="MISSING", pid=None, uptime_seconds=0, restarts=0, ready=False)
    return ProgramHealth(
        program=name,
        state=process.state,
        pid=process.pid,
        uptime_seconds=process.uptime_seconds,
        restarts=process.restarts,
        # Another program may answer on the port of a process that has ended.
        ready=ready and process.is_up,
    )


def _problems(
    record: StackRecord, versions: tuple[VersionStatus, ...], gateway: tuple[ProgramHealth, ...], logs: Path
) -> Iterator[str]:
    if record.route is None:
        yield "No version is routed: every request is answered with 503 until one is deployed."
    for version_status in versions:
        for replica in version_status.health.replicas:
            server = replica.server.program
            yield from (
                f"{server} answers, but {complaint}. See {logs / server}.log" for complaint in replica.complaints
            )
    programs = [*gateway, *(program for version_status in versions for program in version_status.health.programs)]
    for program in programs:
        log = logs / f"{program.program}.log"
        if not program.ready:
            last_line = last_lines(log, 1).strip()
            state_text = f"{program.state}, {program.restarts} restarts"
            yield f"{program.program} is not ready ({state_text}): {last_line}. See {log}"
        elif program.restarts:
            yield (
                f"{program.program} had to be started again {program.restarts} times,"
                f" the last time {program.uptime_seconds:.0f} s ago. See {log}"
            )
