"""Runs an HTTP server in a thread during a block, for the servers that tests share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer


@contextmanager
def listening(server: ThreadingHTTPServer) -> Iterator[int]:
    """Give the port on which a server listens; nothing of it is left after the block."""
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
