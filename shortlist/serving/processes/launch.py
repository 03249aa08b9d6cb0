"""`python -m shortlist.serving.processes.launch PROGRAM.json`: check, clean up, and execute a program."""

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
from shortlist.serving.processes.adoption import adopt_or_end_predecessor
from shortlist.serving.processes.program import Program, process_birth, record_start
from shortlist.storage.artefacts import IntegrityError, folder_digest, verify_manifest

REFUSED = 3
"""Exit code of a start that was refused."""
_PR_SET_PDEATHSIG = 1
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (where Linux keeps it)


def check_repository(folder: Path, digest: str) -> None:
    """Check that a folder is unchanged since it was written.

    Raises:
        IntegrityError: It was changed, or is missing.
    """
    if not folder.is_dir():
        raise IntegrityError(f"{folder}: missing; deploy the version again.")
    clear_bytecode(folder)
    found_digest = folder_digest(folder)
    if found_digest == digest:
        return
    if (folder / Files.MANIFEST).exists():
        verify_manifest(folder)  # Names the file, unless its manifest was changed with it.
    raise IntegrityError(
        f"{folder}: changed since it was deployed (got digest {found_digest}, wanted {digest}). Deploy it again."
    )


def launch(path: Path) -> None:
    """Replace this process by the program in a file; returns only with an error.

    A running process of the program, left by a killed supervisor, is adopted instead.

    Raises:
        IntegrityError: Its repository was changed.
    """
    program = Program.read(path)
    if not program.dies_with_parent:
        adopt_or_end_predecessor(path)
    record_start(path)
    if program.dies_with_parent:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if program.repository is not None:
        check_repository(Path(program.repository), program.digest or "")
    if program.shared_memory:
        clear_shared_memory(program.shared_memory)
    if program.socket:
        Path(program.socket).unlink(missing_ok=True)
    _, max_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))
    if program.dies_with_children:
        start_watchdog(program.shared_memory)
    environment = program.process_environment(os.environ)
    os.execve(program.command[0], list(program.command), environment)  # noqa: S606  (no shell is the point)


def clear_bytecode(folder: Path) -> None:
    """Remove Python bytecode from a repository, so that its digest stays the same."""
    for compiled in sorted(folder.rglob("__pycache__")):
        shutil.rmtree(compiled, ignore_errors=True)


def clear_shared_memory(prefix: str) -> None:
    """Remove the shared-memory regions with a prefix, which a killed Triton leaves."""
    for region in _SHARED_MEMORY.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


def main() -> None:
    """Run as a program."""
    try:
        launch(Path(sys.argv[1]))
    except (IntegrityError, OSError) as error:
        sys.stderr.write(f"refused to start: {error}\n")
        sys.exit(REFUSED)


_POLL_SECONDS = 0.2
"""Seconds between two checks of the known children."""
_POLLS_PER_SEARCH = 10
"""Checks between two searches for new children, which read all processes."""


_BACKEND = "triton_python"
"""Prefix of the names of the backend's processes; Triton also has other, short-lived children."""


def start_watchdog(shared_memory: str | None) -> None:
    """Start a child that kills this process' group as soon as the process or one of its backend dies.

    The child also closes regions of shared memory to other users, to whom Triton gives them whatever its umask says.
    Returns at once. The process must lead its group, as the supervisor's programs do. Without it, a Triton that ends
    while it loads a model would leave its backend running for ever.

    Args:
        shared_memory: Prefix of the regions; None without any.
    """
    parent = os.getpid()
    assert os.getpgrp() == parent, "whose group would be killed?"
    if os.fork() == 0:
        try:
            # A stop signals the whole group; this process must outlive the others to clean up after them.
            stop_signals: list[int] = []
            signal.signal(signal.SIGTERM, lambda number, _: stop_signals.append(number))
            _wait_for_exit(parent, shared_memory)
            # The reader of Triton's output may have gone when it died.
            with suppress(OSError):
                if not stop_signals:
                    os.write(2, b"Triton, or a process of its model's backend, died: ending what is left of it\n")
            os.killpg(parent, signal.SIGKILL)
        finally:
            os._exit(0)  # Never return into the code of the parent.


def _wait_for_exit(parent: int, shared_memory: str | None) -> None:
    backend_pids: list[int] = []
    poll_number = 0
    while os.getppid() == parent:
        if poll_number % _POLLS_PER_SEARCH == 0:  # every two seconds
            backend_pids = _find_backend_pids(parent)
            for region in _SHARED_MEMORY.glob(f"{shared_memory}*") if shared_memory else ():
                with suppress(OSError):  # it may be removed meanwhile
                    region.chmod(0o600)
        poll_number += 1
        if any(process_birth(process) is None for process in backend_pids):
            return
        time.sleep(_POLL_SECONDS)


def _find_backend_pids(parent: int) -> list[int]:
    import psutil  # type: ignore[import-untyped]

    try:
        return [child.pid for child in psutil.Process(parent).children() if child.name().startswith(_BACKEND)]
    except psutil.NoSuchProcess:
        return []


if __name__ == "__main__":
    main()
