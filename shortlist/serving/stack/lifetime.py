"""The edges of a stack's life: one command at a time, a port of its own, and an end that leaves nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from shortlist.serving.places import Places
from shortlist.serving.stack.envoy import ENVOYS
from shortlist.serving.stack.errors import StackError
from shortlist.serving.stack.launch import clear_shared_memory
from shortlist.serving.stack.leftovers import leftovers, stop_leftovers, wait_for_groups
from shortlist.serving.stack.ports import free_ports, is_free, require_free
from shortlist.serving.stack.record import DeployedVersion, StackRecord, VersionPorts
from shortlist.serving.stack.supervisor import Supervisor
from shortlist.serving.stack.version import shared_memory_of


def supervisor_of(places: Places, record: StackRecord) -> Supervisor:
    """Return the supervisor of a stack, whether it runs or not."""
    return Supervisor(places.programs, places.logs, record.sockets / "supervisor.sock")


@contextmanager
def one_command_at_a_time(places: Places) -> Iterator[None]:
    """Hold the stack for a block; a killed process lets go of it.

    Raises:
        StackError: Another command holds it for very long.
    """
    from filelock import FileLock, Timeout

    places.root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(places.root / "stack.lock", timeout=60)
    try:
        lock.acquire()
    except Timeout:
        raise StackError(f"{places.root}: another command has been working on this stack for a minute; wait.") from None
    try:
        yield
    finally:
        lock.release()


def stop_stack(places: Places) -> list[str]:
    """Stop everything of a stack, also what a killed supervisor left; return the names of what was stopped."""
    record = StackRecord.read(places.record)
    stopped: set[str] = set()
    if record is not None and (supervisor := supervisor_of(places, record)).is_up():
        stopped |= {"supervisord", *(name for name, process in supervisor.processes().items() if process.is_up)}
        supervisor.shut_down()
    stopped |= set(stop_leftovers(places.programs))
    wait_for_groups(places.programs)
    clear_shared_memory(shared_memory_of(places))
    if record is not None:
        shutil.rmtree(record.sockets, ignore_errors=True)
    return sorted(stopped)


def why_down(places: Places) -> str:
    """Return in a sentence why there is no stack to connect to."""
    if left := leftovers(places.programs):
        return f"the supervisor was killed; still running: {', '.join(sorted(left))}. Serve again or stop to clean up."
    return "nothing is being served."


def choose_port(places: Places, before: StackRecord | None, port: int) -> int:
    """Return the port to listen on: the one asked for, or for 0 the one that the stack had, or a free one.

    Raises:
        PortTakenError: Somebody else listens on it.
    """
    if before is not None and port in {0, before.port}:
        # Our own Envoys, of this stack or of one whose supervisor was killed, are not somebody else.
        ours = supervisor_of(places, before).is_up() or any(name in leftovers(places.programs) for name in ENVOYS)
        if ours or (port == 0 and is_free(before.port)):
            return before.port
    if port:
        require_free(port)
        return port
    return free_ports(1, before.ports if before else ())[0]


def version_ports(record: StackRecord) -> VersionPorts:
    """Return free ports for another version."""
    names = ("http", "grpc", "triton_http", "triton_grpc", "triton_metrics")
    return VersionPorts(**dict(zip(names, free_ports(len(names), record.ports), strict=True)))


def with_free_ports(record: StackRecord) -> StackRecord:
    """Return the record with other ports for versions of which somebody has taken one while nothing of it ran."""
    for version, deployed in record.versions.items():
        if not all(is_free(port) for port in deployed.ports.all()):
            moved: DeployedVersion = deployed.model_copy(update={"ports": version_ports(record)})
            record = record.model_copy(update={"versions": {**record.versions, version: moved}})
    return record
