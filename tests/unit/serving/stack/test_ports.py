import socket

import pytest

from shortlist.serving.processes.errors import PortTakenError
from shortlist.serving.processes.ports import free_ports, is_free, require_free


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert all(is_free(port) for port in ports)


def test_free_ports_are_never_the_systems_own_choice_for_an_outgoing_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert all(port < client.getsockname()[1] for port in free_ports(50))


def test_a_port_that_is_shared_by_others_is_taken() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", free_ports(1)[0]))
        other.listen()
        port = other.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(PortTakenError, match=rf"port {port} of 127.0.0.1 is taken by .*\(pid \d+\); nothing was"):
            require_free(port)


def test_a_number_that_is_no_port_is_refused() -> None:
    with pytest.raises(PortTakenError, match="wanted a number from 1 to 65535"):
        require_free(70_000)
