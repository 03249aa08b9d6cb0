"""The gateway of the local stack: what stands between users and the servers of all versions, on one port.

Its processes split users by a route, so that a user stays on one track (`shortlist.rollout.deployment.Route`); tell
each request's server the track, version, rollout and step by the headers of
`shortlist.serving.server.requests.headers`, with the stack's gateway key (`StackSecrets`), without which servers ignore
them, and the client's address by `x-forwarded-for`; let only inference and health through; and write a line per ended
request to `<process>.access.jsonl` in the folder of logs, with the columns of
`shortlist.rollout.evidence.access_log.SCHEMA`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from shortlist.rollout.local.record import StackRecord
from shortlist.rollout.local.section import GATEWAYS
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.errors import StackError, last_lines
from shortlist.serving.processes.program import Program
from shortlist.spec.serving import Serving

READY_SECONDS: Final = 15.0
"""Longest wait for the processes of a gateway that was started."""


class Gateway(Protocol):
    """The processes that all requests of users go through; created with the stack's paths and folder of sockets."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its processes."""

    def programs(self, port: int, serving: Serving) -> dict[str, Program]:
        """Write the configurations and return the program of each process.

        Args:
            port: Port of 127.0.0.1 on which users' requests arrive.
            serving: The spec's section with the limits of requests and connections.
        """

    def send(self, record: StackRecord) -> None:
        """Apply the route of a record; returns when the processes have applied it, or when none runs yet.

        Raises:
            StackError: They do not apply it.
        """

    def readiness_probes(self) -> dict[str, Callable[[], bool]]:
        """Return the readiness probe of each process."""

    def stale_processes(self, record: StackRecord) -> list[str]:
        """Return the processes that answer but apply another route than the record's."""

    def access_logs(self) -> Mapping[Path, Path]:
        """Return the access logs that have to be rotated, each with the Unix socket of the process that writes it.

        When its log was renamed, the process is asked to begin a new one: `POST /reopen_logs`.
        """

    def drain(self, name: str) -> None:
        """Let requests in flight of a process that will be stopped end, at most some time."""


def open_gateway(paths: ServingPaths, record: StackRecord) -> Gateway:
    """Return the gateway of a stack; nothing is started."""
    gateway: Gateway = GATEWAYS.complete().load(record.gateway)(paths, record.sockets)
    return gateway


def readiness(gateway: Gateway) -> dict[str, bool]:
    """Return whether each process of a gateway is ready."""
    return {name: probe() for name, probe in gateway.readiness_probes().items()}


def wait_ready(gateway: Gateway, logs: Path) -> None:
    """Wait until all processes of a gateway are ready.

    Raises:
        StackError: They are not within some seconds; the message ends with a log.
    """
    deadline = time.monotonic() + READY_SECONDS
    while not_ready := [name for name, ready in readiness(gateway).items() if not ready]:
        if time.monotonic() > deadline:
            log = logs / f"{not_ready[0]}.log"
            raise StackError(f"{not_ready[0]} is not ready after {READY_SECONDS:g} s; {log} ends:\n{last_lines(log)}")
        time.sleep(0.02)
