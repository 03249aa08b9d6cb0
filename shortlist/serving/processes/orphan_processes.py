"""Processes of a stack whose supervisor was killed."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from shortlist.serving.processes.program import is_running, process_birth, read_starts

_TERMINATION_SECONDS = 20
"""Seconds between SIGTERM and SIGKILL."""


def orphan_processes(folder: Path) -> dict[str, psutil.Process]:
    """Return the running processes recorded in a supervisor's folder, by program."""
    process_by_program = {}
    for record in sorted((folder / "programs").glob("*.starts")):
        for start in read_starts(record):
            if is_running(start):
                process_by_program[record.stem] = psutil.Process(start.pid)
    if (supervisor := _supervisor(folder)) is not None:
        process_by_program["supervisord"] = supervisor
    return process_by_program


def stop_orphan_processes(folder: Path, kept_programs: Collection[str] = ()) -> list[str]:
    """Stop these processes and their children, except the kept programs; return the stopped names."""
    if kept_programs and (supervisor := _supervisor(folder)) is not None:
        # It does not respond any more. With SIGTERM it would also stop the kept programs.
        _kill([supervisor])
    process_by_program = {
        name: process for name, process in orphan_processes(folder).items() if name not in kept_programs
    }
    # First the supervisor, or it would restart the others.
    supervisor = process_by_program.get("supervisord")
    if supervisor is not None:
        _stop([supervisor])
    processes = []
    for process in process_by_program.values():
        try:
            processes += [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    _stop(processes)
    return sorted(process_by_program)


def wait_for_process_groups(folder: Path) -> None:
    """Wait until the children of the programs have ended, which their watchdogs ensure."""
    groups = {start.pid for record in (folder / "programs").glob("*.starts") for start in read_starts(record)}
    deadline = time.monotonic() + 2
    # A pid that is in use again belongs to another process, and so may its group.
    while any(_exists(group) for group in groups if process_birth(group) is None) and time.monotonic() < deadline:
        time.sleep(0.02)


def wait_for_group(group: int, seconds: float = 5) -> None:
    """Wait until every process of a group has ended, at most `seconds`.

    Zombies do not count: they hold no resources.
    """
    deadline = time.monotonic() + seconds
    while _exists(group) and any(_iter_memberships(group)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def _iter_memberships(group: int) -> Iterator[bool]:
    for process in psutil.process_iter():
        try:
            yield os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
        except (OSError, psutil.Error):  # it has ended meanwhile
            continue


def _stop(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(processes, timeout=_TERMINATION_SECONDS)
    _kill(alive)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=_TERMINATION_SECONDS)


def _supervisor(folder: Path) -> psutil.Process | None:
    try:
        process = psutil.Process(int((folder / "supervisord.pid").read_text(encoding="ascii")))
        is_ours = str(folder / "supervisord.conf") in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, ValueError, psutil.Error):
        return None
    return process if is_ours else None
