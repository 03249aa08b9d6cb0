"""Start and stop of a stack: the lock for commands, the ports, and the cleanup of processes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import partial

from shortlist.rollout.local.gateway import open_gateway
from shortlist.rollout.local.record import DeployedVersion, StackRecord, VersionPorts, server_name, triton_name
from shortlist.rollout.local.supervisor import Supervisor
from shortlist.rollout.local.version import shared_memory_of
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.adoption import BUSY_SECONDS, unresponsive
from shortlist.serving.processes.errors import StackError
from shortlist.serving.processes.launch import clear_shared_memory
from shortlist.serving.processes.orphan_processes import (
    orphan_processes,
    stop_orphan_processes,
    wait_for_process_groups,
)
from shortlist.serving.processes.ports import free_ports, is_free, require_free
from shortlist.serving.processes.probe import is_answered
from shortlist.serving.server.requests.paths import LIVE, READY
from shortlist.storage.artefacts import IntegrityError


def stack_supervisor(paths: ServingPaths, record: StackRecord) -> Supervisor:
    """Return the supervisor of a stack, whether it runs or not."""
    return Supervisor(paths.programs, paths.logs, record.sockets / "supervisor.sock")


@contextmanager
def exclusive_stack_lock(paths: ServingPaths) -> Iterator[None]:
    """Hold the lock of the stack inside the block; the lock of a killed process is released.

    Raises:
        StackError: Another command has held the lock for a minute.
    """
    from filelock import FileLock, Timeout

    paths.root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(paths.root / "stack.lock", timeout=60)
    try:
        lock.acquire()
    except Timeout:
        raise StackError(f"{paths.root}: another command has been working on this stack for a minute; wait.") from None
    try:
        yield
    finally:
        lock.release()


def stop_stack(paths: ServingPaths) -> list[str]:
    """Stop all processes of a stack, also orphans of a killed supervisor; return the names of the stopped ones.

    Raises:
        StackError: Another command has held the lock of the stack for a minute.
    """
    with exclusive_stack_lock(paths):
        return stop_locked_stack(paths)


def stop_locked_stack(paths: ServingPaths) -> list[str]:
    """Stop all processes of a stack whose lock is held; return the names of the stopped ones."""
    try:
        record = StackRecord.read(paths.record)
    except IntegrityError:  # running processes are found without it
        record = None
    stopped: set[str] = set()
    if record is not None and (supervisor := stack_supervisor(paths, record)).is_up():
        stopped |= {"supervisord", *(name for name, process in supervisor.processes().items() if process.is_up)}
        supervisor.shut_down()
    stopped |= set(stop_orphan_processes(paths.programs))
    wait_for_process_groups(paths.programs)
    clear_shared_memory(shared_memory_of(paths))
    if record is not None:
        shutil.rmtree(record.sockets, ignore_errors=True)
    return sorted(stopped)


def stack_down_reason(paths: ServingPaths) -> str:
    """Return one sentence that says why there is no stack to connect to."""
    if orphans := orphan_processes(paths.programs):
        return (
            f"the supervisor was killed; still running: {', '.join(sorted(orphans))}. Serve again or stop to clean up."
        )
    return "nothing is being served."


def choose_port(paths: ServingPaths, previous: StackRecord | None, port: int) -> int:
    """Return the port to listen on: the requested one; for 0 the previous one of the stack, or a free one.

    Raises:
        PortTakenError: Another program listens on it.
    """
    if previous is not None and port in {0, previous.port}:
        # The processes of the stack's own gateway, also orphans of a killed supervisor, may hold the port.
        is_held_by_us = stack_supervisor(paths, previous).is_up() or any(
            name in orphan_processes(paths.programs) for name in open_gateway(paths, previous).names
        )
        if is_held_by_us or (port == 0 and is_free(previous.port)):
            return previous.port
    if port:
        require_free(port)
        return port
    return free_ports(1, previous.ports if previous else ())[0]


def replica_ports(
    record: StackRecord, count: int, known_ports: tuple[VersionPorts, ...] = ()
) -> tuple[VersionPorts, ...]:
    """Return the ports of a number of replicas of a version: the known ones first, then free ports.

    Raises:
        StackError: There are not enough free ports.
    """
    names = tuple(VersionPorts.model_fields)
    missing = max(0, count - len(known_ports))
    free = iter(free_ports(missing * len(names), record.ports))
    new = tuple(VersionPorts(**{name: next(free) for name in names}) for _ in range(missing))
    return (*known_ports[:count], *new)


def with_replicas(record: StackRecord) -> StackRecord:
    """Return the record with the number of replicas of every version that its serving section declares."""
    for version, deployed in record.versions.items():
        replicas = replica_ports(record, record.serving.replicas, deployed.replicas)
        record = _with_version(record, version, deployed.model_copy(update={"replicas": replicas}))
    return record


def reassign_taken_ports(record: StackRecord, running: Set[str] = frozenset()) -> StackRecord:
    """Return the record with new ports for versions that do not run and of which another program took a port.

    Args:
        record: Record of a stack whose supervisor does not run.
        running: Programs whose processes still run and hold their ports.
    """
    for version, deployed in record.versions.items():
        if not running & _programs_of(version, deployed) and not all(map(is_free, deployed.all_ports())):
            new_replicas = replica_ports(record, len(deployed.replicas))
            record = _with_version(record, version, deployed.model_copy(update={"replicas": new_replicas}))
    return record


def keep_healthy_programs(
    paths: ServingPaths, record: StackRecord, is_envoy_ready: Mapping[str, Callable[[], bool]]
) -> set[str]:
    """Stop orphans of a killed supervisor that do not answer or are not needed; return the programs that keep running.

    Args:
        paths: Paths of the stack.
        record: What should run.
        is_envoy_ready: Readiness probe of each Envoy.
    """
    orphans = orphan_processes(paths.programs)
    probes = {name: is_ready for name, is_ready in is_envoy_ready.items() if name in orphans}
    for version, deployed in record.versions.items():
        for replica, ports in enumerate(deployed.replicas):
            triton, server = triton_name(version, replica), server_name(version, replica)
            if triton in orphans:
                probes[triton] = partial(is_answered, record.triton_socket(version, replica), READY)
            if server in orphans:
                # Without its Triton a server is not ready, but need not be restarted.
                probes[server] = partial(is_answered, ports.health, READY if triton in orphans else LIVE)
    running = set(probes) - set(unresponsive(probes, BUSY_SECONDS))
    stop_orphan_processes(paths.programs, running)
    return running


def _programs_of(version: int, deployed: DeployedVersion) -> set[str]:
    replicas = range(len(deployed.replicas))
    return {name(version, replica) for name in (triton_name, server_name) for replica in replicas}


def _with_version(record: StackRecord, version: int, deployed: DeployedVersion) -> StackRecord:
    return record.model_copy(update={"versions": {**record.versions, version: deployed}})
