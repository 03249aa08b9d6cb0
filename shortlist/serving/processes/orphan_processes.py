"""Processes of a stack whose supervisor was killed."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from shortlist.serving.processes.program import born, is_running, starts

_PATIENCE = 20
"""Seconds between asking and killing."""


def orphan_processes(folder: Path) -> dict[str, psutil.Process]:
    """Return the processes that a supervisor's folder tells of and that still run, by program."""
    found = {}
    for record in sorted((folder / "programs").glob("*.starts")):
        for start in starts(record):
            if is_running(start):
                found[record.stem] = psutil.Process(start.pid)
    if (supervisor := _supervisor(folder)) is not None:
        found["supervisord"] = supervisor
    return found


def stop_orphan_processes(folder: Path, kept: Collection[str] = ()) -> list[str]:
    """Stop them, with the processes that they started, but for the programs that are kept; return their names."""
    if kept and (supervisor := _supervisor(folder)) is not None:
        # One that does not answer any more: asked politely, it would stop what is kept too.
        _kill([supervisor])
    found = {name: process for name, process in orphan_processes(folder).items() if name not in kept}
    # First the supervisor, or it would start the others again.
    supervisor = found.get("supervisord")
    if supervisor is not None:
        _stop([supervisor])
    processes = []
    for process in found.values():
        try:
            processes += [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    _stop(processes)
    return sorted(found)


def wait_for_process_groups(folder: Path) -> None:
    """Return when what the programs started has ended too; a watchdog sees to it within moments."""
    groups = {start.pid for record in (folder / "programs").glob("*.starts") for start in starts(record)}
    deadline = time.monotonic() + 2
    # A process of that number is somebody else by now; so may its group be.
    while any(_exists(group) for group in groups if born(group) is None) and time.monotonic() < deadline:
        time.sleep(0.02)


def wait_for_group(group: int, seconds: float = 5) -> None:
    """Return when every process of a group has ended, or after so many seconds.

    One that has ended and that nobody has collected yet does not count: it holds nothing.
    """
    deadline = time.monotonic() + seconds
    while _exists(group) and any(_lives_in(group)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def _lives_in(group: int) -> Iterator[bool]:
    for process in psutil.process_iter():
        try:
            yield os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
        except (OSError, psutil.Error):  # gone meanwhile
            continue


def _stop(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(processes, timeout=_PATIENCE)
    _kill(alive)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=_PATIENCE)


def _supervisor(folder: Path) -> psutil.Process | None:
    try:
        process = psutil.Process(int((folder / "supervisord.pid").read_text(encoding="ascii")))
        is_ours = str(folder / "supervisord.conf") in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, ValueError, psutil.Error):
        return None
    return process if is_ours else None
