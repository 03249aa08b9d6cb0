"""The edges of a stack's life: one command at a time, a port of its own, and an end that leaves nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import partial

from shortlist.rollout.local.envoy import ENVOYS
from shortlist.rollout.local.record import DeployedVersion, StackRecord, VersionPorts, server_name, triton_name
from shortlist.rollout.local.supervisor import Supervisor
from shortlist.rollout.local.version import shared_memory_of
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.adoption import BUSY_SECONDS, silent
from shortlist.serving.processes.errors import StackError
from shortlist.serving.processes.launch import clear_shared_memory
from shortlist.serving.processes.orphan_processes import (
    orphan_processes,
    stop_orphan_processes,
    wait_for_process_groups,
)
from shortlist.serving.processes.ports import free_ports, is_free, require_free
from shortlist.serving.processes.probe import LIVE, READY, answers
from shortlist.storage.artefacts import IntegrityError


def stack_supervisor(paths: ServingPaths, record: StackRecord) -> Supervisor:
    """Return the supervisor of a stack, whether it runs or not."""
    return Supervisor(paths.programs, paths.logs, record.sockets / "supervisor.sock")


@contextmanager
def exclusive_stack_lock(paths: ServingPaths) -> Iterator[None]:
    """Hold the stack for a block; a killed process lets go of it.

    Raises:
        StackError: Another command holds it for very long.
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
    """Stop everything of a stack, also what a killed supervisor left; return the names of what was stopped."""
    try:
        record = StackRecord.read(paths.record)
    except IntegrityError:  # what runs is known without it
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
    """Return in a sentence why there is no stack to connect to."""
    if left := orphan_processes(paths.programs):
        return f"the supervisor was killed; still running: {', '.join(sorted(left))}. Serve again or stop to clean up."
    return "nothing is being served."


def choose_port(paths: ServingPaths, before: StackRecord | None, port: int) -> int:
    """Return the port to listen on: the one asked for, or for 0 the one that the stack had, or a free one.

    Raises:
        PortTakenError: Somebody else listens on it.
    """
    if before is not None and port in {0, before.port}:
        # Our own Envoys, of this stack or of one whose supervisor was killed, are not somebody else.
        ours = stack_supervisor(paths, before).is_up() or any(
            name in orphan_processes(paths.programs) for name in ENVOYS
        )
        if ours or (port == 0 and is_free(before.port)):
            return before.port
    if port:
        require_free(port)
        return port
    return free_ports(1, before.ports if before else ())[0]


def replica_ports(record: StackRecord, count: int, known: tuple[VersionPorts, ...] = ()) -> tuple[VersionPorts, ...]:
    """Return the ports of so many replicas of a version: those that are known, then free ones.

    Raises:
        StackError: There are not that many free ports.
    """
    names = tuple(VersionPorts.model_fields)
    missing = max(0, count - len(known))
    free = iter(free_ports(missing * len(names), record.ports))
    new = tuple(VersionPorts(**{name: next(free) for name in names}) for _ in range(missing))
    return (*known[:count], *new)


def with_replicas(record: StackRecord) -> StackRecord:
    """Return the record with as many replicas of every version as its serving section says."""
    for version, deployed in record.versions.items():
        replicas = replica_ports(record, record.serving.replicas, deployed.replicas)
        record = _with(record, version, deployed.model_copy(update={"replicas": replicas}))
    return record


def reassign_taken_ports(record: StackRecord, kept: Set[str] = frozenset()) -> StackRecord:
    """Return the record with other ports for versions of which somebody has taken one while nothing of it ran.

    Args:
        record: Of a stack whose supervisor does not run.
        kept: Programs whose processes still run, and hold their ports.
    """
    for version, deployed in record.versions.items():
        if not kept & _programs_of(version, deployed) and not all(map(is_free, deployed.all_ports())):
            moved = replica_ports(record, len(deployed.replicas))
            record = _with(record, version, deployed.model_copy(update={"replicas": moved}))
    return record


def keep_what_is_well(
    paths: ServingPaths, record: StackRecord, is_envoy_ready: Mapping[str, Callable[[], bool]]
) -> set[str]:
    """Stop what a killed supervisor left and what does not answer; return the programs that go on running.

    Args:
        paths: Of the stack.
        record: What should run.
        is_envoy_ready: Asks each Envoy.
    """
    left = orphan_processes(paths.programs)
    asked = {name: is_ready for name, is_ready in is_envoy_ready.items() if name in left}
    for version, deployed in record.versions.items():
        for replica, ports in enumerate(deployed.replicas):
            triton, server = triton_name(version, replica), server_name(version, replica)
            if triton in left:
                asked[triton] = partial(answers, record.triton_socket(version, replica), READY)
            if server in left:
                # Without its Triton a server is not ready, and still need not be started again.
                asked[server] = partial(answers, ports.health, READY if triton in left else LIVE)
    kept = set(asked) - set(silent(asked, BUSY_SECONDS))
    stop_orphan_processes(paths.programs, kept)
    return kept


def _programs_of(version: int, deployed: DeployedVersion) -> set[str]:
    replicas = range(len(deployed.replicas))
    return {name(version, replica) for name in (triton_name, server_name) for replica in replicas}


def _with(record: StackRecord, version: int, deployed: DeployedVersion) -> StackRecord:
    return record.model_copy(update={"versions": {**record.versions, version: deployed}})
