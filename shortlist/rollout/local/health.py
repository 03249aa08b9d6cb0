"""How the stack and its versions are, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from shortlist.rollout.local.envoy import ENVOYS
from shortlist.rollout.local.record import StackRecord, server_name, triton_name
from shortlist.rollout.local.supervisor import Process
from shortlist.serving.processes.errors import last_lines
from shortlist.serving.processes.probe import READY, answers, said


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProgramHealth(_Part):
    """One process."""

    program: str
    state: str
    """As its supervisor has it: RUNNING, STARTING, BACKOFF, ..., or MISSING."""
    pid: int | None
    uptime_seconds: float
    restarts: int
    """How often it had to be started again."""
    ready: bool
    """Whether it says so itself."""


class ReplicaHealth(_Part):
    """The two processes of one replica of a version."""

    triton: ProgramHealth
    server: ProgramHealth
    complaints: tuple[str, ...] = ()
    """What its server says is wrong though it answers: features it cannot read, a log it cannot write."""


class VersionHealth(_Part):
    """The processes of a version."""

    version: int
    replicas: tuple[ReplicaHealth, ...] = Field(min_length=1)

    @property
    def programs(self) -> tuple[ProgramHealth, ...]:
        """Every process, each Triton before its server."""
        return tuple(part for each in self.replicas for part in (each.triton, each.server))

    @property
    def triton(self) -> ProgramHealth:
        """The first replica's."""
        return self.replicas[0].triton

    @property
    def server(self) -> ProgramHealth:
        """The first replica's."""
        return self.replicas[0].server

    @property
    def ready(self) -> bool:
        """Whether all of it can answer."""
        return all(part.ready for part in self.programs)

    @property
    def restarts(self) -> int:
        """How often any of it had to be started again."""
        return sum(part.restarts for part in self.programs)


class VersionStatus(_Part):
    """A deployed version and who gets it."""

    version: int
    kind: str
    track: str | None
    """`stable`, `canary`, or None: deployed, but nobody gets it."""
    percent: int
    """Share of the users."""
    health: VersionHealth


class StackStatus(_Part):
    """Everything about a stack that runs."""

    model: str
    url: str
    rollout: str | None
    step: int | None
    versions: tuple[VersionStatus, ...]
    envoys: tuple[ProgramHealth, ...]
    problems: tuple[str, ...]
    """What is wrong, one sentence each; empty when nothing is."""
    logs: Path
    """Folder of `<program>.log` and the access logs."""


def version_health(record: StackRecord, version: int, processes: Mapping[str, Process]) -> VersionHealth:
    """Return how a deployed version is, by asking all of its processes."""
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
    word, triton = said(port, READY), answers(record.triton_socket(version, replica), READY)
    return ReplicaHealth(
        triton=_program(triton_name(version, replica), processes, triton),
        server=_program(server_name(version, replica), processes, word is not None),
        complaints=_complaints(word or b""),
    )


def stack_status(
    record: StackRecord,
    url: str,
    processes: Mapping[str, Process],
    ready: Mapping[str, bool],
    behind: Sequence[str],
    logs: Path,
) -> StackStatus:
    """Return how everything is.

    Args:
        record: What should run.
        url: Where clients ask.
        processes: What its supervisor runs, by program.
        ready: Whether each Envoy says that it is ready.
        behind: The Envoys that send users elsewhere.
        logs: Folder of the logs.
    """
    versions = tuple(
        _version_status(record, version, version_health(record, version, processes))
        for version in sorted(record.versions)
    )
    envoys = tuple(_program(name, processes, ready[name]) for name in ENVOYS)
    return StackStatus(
        model=record.model,
        url=url,
        rollout=record.route.rollout if record.route else None,
        step=record.route.step if record.route else None,
        versions=versions,
        envoys=envoys,
        problems=(
            *(f"{name} sends users elsewhere than is written down: serve again." for name in behind),
            *_problems(record, versions, envoys, logs),
        ),
        logs=logs,
    )


def _complaints(word: bytes) -> tuple[str, ...]:
    """Return what a server adds when it says that it is ready; nothing where it says it in another form."""
    try:
        problems = json.loads(word)["problems"]
        return tuple(f"{about}: {problem}" for about, problem in sorted(problems.items()))
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
        # Somebody else may answer on the port of a process that is gone.
        ready=ready and process.is_up,
    )


def _problems(
    record: StackRecord, versions: tuple[VersionStatus, ...], envoys: tuple[ProgramHealth, ...], logs: Path
) -> Iterator[str]:
    if record.route is None:
        yield "No version is routed: every request is answered with 503 until one is deployed."
    for each in versions:
        for replica in each.health.replicas:
            server = replica.server.program
            yield from (f"{server} answers, but {one}. See {logs / server}.log" for one in replica.complaints)
    programs = [*envoys, *(part for each in versions for part in each.health.programs)]
    for part in programs:
        log = logs / f"{part.program}.log"
        if not part.ready:
            said = last_lines(log, 1).strip()
            yield f"{part.program} is not ready ({part.state}, {part.restarts} restarts): {said}. See {log}"
        elif part.restarts:
            yield (
                f"{part.program} had to be started again {part.restarts} times,"
                f" the last time {part.uptime_seconds:.0f} s ago. See {log}"
            )
