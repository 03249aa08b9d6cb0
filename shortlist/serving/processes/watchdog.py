"""A Triton whose Python backend died answers every request with an error and still calls itself ready: end it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from shortlist.serving.processes.program import born

_EVERY = 0.2
"""Seconds between two looks at the known children."""
_LOOKS = 10
"""Looks between two searches for new ones, which cost a walk over all processes."""


_BACKEND = "triton_python"
"""Begins the names of the backend's processes; Triton has other children for moments."""


def start_watchdog() -> None:
    """Start a child that kills this process' group as soon as the process, or one of its backend, has died.

    Returns at once. The process must lead its group, as the supervisor's programs do. A Triton that ends while its
    model is loaded would leave its backend running for ever.
    """
    parent = os.getpid()
    assert os.getpgrp() == parent, "whose group would be killed?"
    if os.fork() == 0:
        try:
            # Who stops the group asks all of it at once; this process must outlive the others to clear up after them.
            asked_to_stop: list[int] = []
            signal.signal(signal.SIGTERM, lambda number, _: asked_to_stop.append(number))
            _wait_for_exit(parent)
            # Whoever read what Triton printed may have stopped reading when it died.
            with suppress(OSError):
                if not asked_to_stop:
                    os.write(2, b"Triton, or a process of its model's backend, died: ending what is left of it\n")
            os.killpg(parent, signal.SIGKILL)
        finally:
            os._exit(0)  # Never back into the code of whoever forked.


def _wait_for_exit(parent: int) -> None:
    backend: list[int] = []
    look = 0
    while os.getppid() == parent:
        if look % _LOOKS == 0:
            backend = _backend_of(parent)
        look += 1
        if any(born(process) is None for process in backend):
            return
        time.sleep(_EVERY)


def _backend_of(parent: int) -> list[int]:
    import psutil  # type: ignore[import-untyped]

    try:
        return [child.pid for child in psutil.Process(parent).children() if child.name().startswith(_BACKEND)]
    except psutil.NoSuchProcess:
        return []
