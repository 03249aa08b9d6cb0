from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from shortlist.rollout.local.supervisor import Supervisor

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("answer", [b"<?xml version='1.0'?><methodResponse><params", b""], ids=["cut", "empty"])
def test_an_answer_that_ends_early_is_a_lost_connection(tmp_path: Path, answer: bytes) -> None:
    """As where it is stopped while it answers: whoever asks then looks whether the stack was stopped."""
    path = tmp_path / "supervisor.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer_all() -> None:
            with suppress(OSError):  # until the listener is closed
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        request = b""
                        while b"</methodCall>" not in request:
                            request += connection.recv(65_536)
                        connection.sendall(HEAD + answer)

        threading.Thread(target=answer_all, daemon=True).start()
        supervisor = Supervisor(tmp_path, tmp_path / "logs", path)
        assert not supervisor.is_up()
        with pytest.raises(ConnectionResetError, match="the answer ended early"):
            supervisor.processes()
