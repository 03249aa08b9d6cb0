import socket

import pytest

from shortlist.serving.processes.errors import PortTakenError
from shortlist.serving.processes.ports import free_ports, is_free, require_free


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert all(is_free(port) for port in ports)


def test_free_ports_are_outside_the_ephemeral_range() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert all(port < client.getsockname()[1] for port in free_ports(50))


def test_a_port_shared_by_other_processes_is_not_free() -> None:
    with socket.socket() as other_socket:
        other_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other_socket.bind(("127.0.0.1", free_ports(1)[0]))
        other_socket.listen()
        port = other_socket.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(PortTakenError, match=rf"port {port} of 127.0.0.1 is taken by .*\(pid \d+\); nothing was"):
            require_free(port)


def test_an_invalid_port_number_is_refused() -> None:
    with pytest.raises(PortTakenError, match="wanted a number from 1 to 65535"):
        require_free(70_000)
