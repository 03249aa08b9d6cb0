"""Ports of 127.0.0.1: finding free ones, and the processes that use the others."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from pathlib import Path

from shortlist.serving.processes.errors import PortTakenError, StackError

HOST = "127.0.0.1"
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_RANGE_SIZE = 12_000


def free_ports(count: int, reserved: Collection[int] = ()) -> tuple[int, ...]:
    """Return different free ports.

    They lie below the system's range for outgoing connections, so that no connection takes the port of a server while
    it restarts.

    Raises:
        StackError: There are not enough free ports.
    """
    first_ephemeral = int(_EPHEMERAL.read_text(encoding="ascii").split()[0]) if _EPHEMERAL.exists() else 32_768
    candidates = range(max(1_025, first_ephemeral - _RANGE_SIZE), max(first_ephemeral, 2_000))
    ports: list[int] = []
    for port in random.sample(candidates, len(candidates)):
        if len(ports) == count:
            return tuple(ports)
        if port not in reserved and is_free(port):
            ports.append(port)
    raise StackError(f"no {count} free ports between {candidates.start} and {candidates.stop}; stop what listens there")


def is_free(port: int) -> bool:
    """Return whether no process listens on the port, not even one that would share it."""
    with socket.socket() as probe:
        # Lingering connections of an earlier server do not count; SO_REUSEPORT is off on purpose.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def require_free(port: int) -> None:
    """Check that the port is free.

    Raises:
        PortTakenError: It is in use; the message names the process, if it can be found.
    """
    if not 1 <= port <= 65_535:
        raise PortTakenError(f"port {port}: wanted a number from 1 to 65535, or 0 for any free one")
    if not is_free(port):
        raise PortTakenError(
            f"port {port} of {HOST} is taken{_holder(port)}; nothing was started."
            " Stop that process, or serve on another port (0 takes any free one)."
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
