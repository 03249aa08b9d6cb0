"""`python -m shortlist.serving.processes.launch PROGRAM.json`: check, clean up, and become a program of the stack."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from shortlist.contracts import Files
from shortlist.serving.processes.adoption import adopt_or_end_earlier
from shortlist.serving.processes.program import Program, born, note_start
from shortlist.storage.artefacts import IntegrityError, folder_digest, verify_manifest

REFUSED = 3
"""Exit code of a start that was refused."""
_PR_SET_PDEATHSIG = 1


def check_repository(folder: Path, digest: str) -> None:
    """Pass when the folder holds what it held when it was written.

    Raises:
        IntegrityError: It does not.
    """
    if not folder.is_dir():
        raise IntegrityError(f"{folder}: missing; deploy the version again.")
    clear_bytecode(folder)
    got = folder_digest(folder)
    if got == digest:
        return
    if (folder / Files.MANIFEST).exists():
        verify_manifest(folder)  # Names the file, unless its manifest was changed with it.
    raise IntegrityError(
        f"{folder}: not what was deployed (digest {got}, wanted {digest}); somebody changed it. Deploy it again."
    )


def launch(path: Path) -> None:
    """Become the program in a file; returns only by an error.

    A process of it that a killed supervisor left is kept: this process then stands in for it until it ends.

    Raises:
        IntegrityError: Its repository was changed.
    """
    program = Program.read(path)
    if not program.dies_with_parent:
        adopt_or_end_earlier(path)
    note_start(path)
    if program.dies_with_parent:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if program.repository is not None:
        check_repository(Path(program.repository), program.digest or "")
    if program.shared_memory:
        clear_shared_memory(program.shared_memory)
    if program.socket:
        Path(program.socket).unlink(missing_ok=True)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if program.dies_with_children:
        start_watchdog()
    environment = {**(os.environ if program.inherits else {}), **program.environment}
    os.execve(program.command[0], list(program.command), environment)  # noqa: S606  (no shell is the point)


def clear_bytecode(folder: Path) -> None:
    """Remove what Triton's Python compiled beside its sources: a repository holds what was written, nothing else."""
    for compiled in sorted(folder.rglob("__pycache__")):
        shutil.rmtree(compiled, ignore_errors=True)


def clear_shared_memory(prefix: str) -> None:
    """Remove the shared-memory regions whose names begin like this; a killed Triton leaves its own."""
    for region in Path("/dev/shm").glob(f"{prefix}*"):  # noqa: S108  (where Linux keeps them)
        region.unlink(missing_ok=True)


def main() -> None:
    """Run as a program."""
    try:
        launch(Path(sys.argv[1]))
    except (IntegrityError, OSError) as error:
        sys.stderr.write(f"refused to start: {error}\n")
        sys.exit(REFUSED)


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


if __name__ == "__main__":
    main()
