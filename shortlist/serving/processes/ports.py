"""Ports of 127.0.0.1: which are free, and who holds the others."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from pathlib import Path

from shortlist.serving.processes.errors import PortTakenError, StackError

HOST = "127.0.0.1"
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_BELOW = 12_000


def free_ports(count: int, spoken_for: Collection[int] = ()) -> tuple[int, ...]:
    """Return ports on which nobody listens, all different.

    They lie below the range from which the system takes the ports of outgoing connections: a server that is being
    restarted must find its port as it left it, however busy the machine.

    Raises:
        StackError: There are not that many.
    """
    first = int(_EPHEMERAL.read_text(encoding="ascii").split()[0]) if _EPHEMERAL.exists() else 32_768
    candidates = range(max(1_025, first - _BELOW), max(first, 2_000))
    found: list[int] = []
    for port in random.sample(candidates, len(candidates)):
        if len(found) == count:
            return tuple(found)
        if port not in spoken_for and is_free(port):
            found.append(port)
    raise StackError(f"no {count} free ports between {candidates.start} and {candidates.stop}; stop what listens there")


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port: nobody does, not even one that would share it."""
    with socket.socket() as probe:
        # Connections that linger from an earlier server do not count; SO_REUSEPORT is left off on purpose.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def require_free(port: int) -> None:
    """Pass when the port is free.

    Raises:
        PortTakenError: It is not; the message says who holds it, if that can be known.
    """
    if not 1 <= port <= 65_535:
        raise PortTakenError(f"port {port}: wanted a number from 1 to 65535, or 0 for any free one")
    if not is_free(port):
        raise PortTakenError(
            f"port {port} of {HOST} is taken{_holder(port)}; nothing was started."
            " Stop whoever holds it, or serve on another port (0 takes any free one)."
        )


def _holder(port: int) -> str:
    import psutil  # type: ignore[import-untyped]

    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:
        return ""
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            try:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
            except psutil.Error:
                break
    return ""
