"""Triton's command line, and a Triton that runs while a block runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shortlist.serving.processes.errors import EndedEarlyError, StackError, last_lines
from shortlist.serving.processes.launch import clear_bytecode, clear_shared_memory
from shortlist.serving.processes.orphan_processes import wait_for_group
from shortlist.serving.processes.ports import HOST, free_ports
from shortlist.serving.processes.probe import is_answered
from shortlist.serving.processes.program import Program
from shortlist.serving.server.requests.paths import READY
from shortlist.serving.triton.shell_safe_path import shell_safe_path
from shortlist.serving.triton.triton_home import find_triton
from shortlist.storage.artefacts import folder_digest

_MIB = 1024 * 1024


@dataclass(frozen=True)
class TritonPorts:
    """The three ports of a Triton, all on 127.0.0.1."""

    http: int
    grpc: int
    metrics: int

    @property
    def options(self) -> tuple[str, ...]:
        """Triton's options."""
        return (
            f"--http-address={HOST}",
            f"--http-port={self.http}",
            f"--grpc-address={HOST}",
            f"--grpc-port={self.grpc}",
            f"--metrics-address={HOST}",
            f"--metrics-port={self.metrics}",
        )


@dataclass(frozen=True)
class TritonSocket:
    """A Unix socket for Triton that only this user's processes can reach.

    Triton's protocol has no authentication: with access to a port, anyone can read its shared memory, models and logs.
    So it listens on a Unix socket in a folder that is closed to others; only its metrics have a port.
    """

    http: Path
    metrics: int

    @property
    def options(self) -> tuple[str, ...]:
        """Triton's options."""
        return (
            f"--http-address=unix:{self.http}",
            "--allow-grpc=false",
            f"--metrics-address={HOST}",
            f"--metrics-port={self.metrics}",
        )


def triton_program(
    name: str,
    repository: Path,
    digest: str,
    endpoint: TritonPorts | TritonSocket,
    shared_memory: str,
    dies_with_parent: bool = False,
) -> Program:
    """Return the program that serves a model repository.

    Args:
        name: Name of the program and its log.
        repository: The folder with the models' folders.
        digest: `folder_digest` of the repository; compared before every start.
        endpoint: Where it listens.
        shared_memory: Prefix of its shared-memory regions, which no other process uses.
        dies_with_parent: Whether it ends when its parent ends; if not, a watchdog ends its processes.

    Raises:
        StackError: There is no Triton on this machine.
    """
    home = find_triton()
    command = [
        str(home.server),
        f"--id={name}",
        f"--model-repository={shell_safe_path(repository)}",
        f"--backend-directory={shell_safe_path(home.backends)}",
        "--model-control-mode=none",  # clients cannot load other models
        "--disable-auto-complete-config",
        "--strict-readiness=true",
        "--exit-on-error=true",
        "--exit-timeout-secs=10",
        *endpoint.options,
        "--allow-gpu-metrics=false",
        "--pinned-memory-pool-byte-size=0",
        f"--backend-config=python,shm-region-prefix-name={shared_memory}",
    ]
    return Program(
        name=name,
        command=tuple(command),
        environment=home.environment,
        inherits=False,
        repository=str(repository),
        digest=digest,
        shared_memory=shared_memory,
        socket=str(endpoint.http) if isinstance(endpoint, TritonSocket) else None,
        dies_with_parent=dies_with_parent,
        dies_with_children=not dies_with_parent,
    )


@dataclass(frozen=True)
class RunningTriton:
    """A running Triton that is ready."""

    ports: TritonPorts
    pid: int
    cold_start_seconds: float
    """Time from the start of the process until it was ready."""
    log: Path
    backends: frozenset[int]
    """Processes of its backends, by pid: it starts another one where one dies, and answers nothing meanwhile."""

    @property
    def http(self) -> str:
        """`host:port`, as clients take it."""
        return f"{HOST}:{self.ports.http}"

    @property
    def grpc(self) -> str:
        """`host:port`, as clients take it."""
        return f"{HOST}:{self.ports.grpc}"

    def memory_mib(self) -> float:
        """Return the resident memory of its processes; shared memory counts once (PSS).

        Raises:
            StackError: It died, or a process of its backends did.
        """
        return sum(self._of_processes(lambda process: float(process.memory_full_info().pss))) / _MIB

    def cpu_seconds(self) -> float:
        """Return the processor time that its processes have used.

        Raises:
            StackError: It died, or a process of its backends did.
        """
        return sum(self._of_processes(lambda process: float(sum(process.cpu_times()[:2]))))

    def _of_processes(self, measure: Callable[[Any], float]) -> list[float]:
        import psutil  # type: ignore[import-untyped]

        try:
            top = psutil.Process(self.pid)
            backends = [psutil.Process(pid) for pid in self.backends]
            values = [measure(process) for process in (top, *top.children(recursive=True))]
            # A killed process that is not waited for has no memory, which reads as 0 and raises nothing.
            if any(process.status() == psutil.STATUS_ZOMBIE for process in (top, *backends)):
                raise psutil.ZombieProcess(self.pid)
        except psutil.NoSuchProcess:
            raise StackError(f"Triton (pid {self.pid}) died; its log ends:\n{last_lines(self.log)}") from None
        return values


@contextmanager
def running_triton(repository: Path, seconds: float = 60, log: Path | None = None) -> Iterator[RunningTriton]:
    """Run a real Triton that serves a repository while the block runs; it is always stopped afterwards.

    Args:
        repository: A model repository for this machine's Triton.
        seconds: Longest time to wait until it is ready.
        log: File for its output; None for a temporary file.

    Raises:
        StackError: There is no Triton here, it died, or did not become ready in time; the message ends with its log.
    """
    name = f"triton-{uuid.uuid4().hex[:10]}"
    with tempfile.TemporaryDirectory(prefix="shortlist-") as folder:
        log = log or Path(folder) / "triton.log"
        ports = TritonPorts(*free_ports(3))
        repository = repository.resolve()
        clear_bytecode(repository)
        digest = folder_digest(repository)
        program = triton_program(name, repository, digest, ports, f"shortlist-{name}-", dies_with_parent=True)
        path = Path(folder) / "program.json"
        program.write(path)
        started_at = time.perf_counter()
        with log.open("ab") as output, _start_process(path, output.fileno()) as process:
            try:
                _wait_ready(process, ports.http, seconds, log, repository)
                cold_start_seconds = time.perf_counter() - started_at
                yield RunningTriton(ports, process.pid, cold_start_seconds, log, _children(process.pid))
            finally:
                _stop(process, program)


def _children(pid: int) -> frozenset[int]:
    import psutil

    with suppress(psutil.NoSuchProcess):  # it died at once, which the first measurement says
        return frozenset(child.pid for child in psutil.Process(pid).children(recursive=True))
    return frozenset()


def _start_process(path: Path, output: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  (our own launcher)
        [sys.executable, "-m", "shortlist.serving.processes.launch", str(path)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _wait_ready(process: subprocess.Popen[bytes], port: int, seconds: float, log: Path, repository: Path) -> None:
    deadline = time.monotonic() + seconds
    while not is_answered(port, READY):
        if process.poll() is not None:
            raise EndedEarlyError(
                f"{repository}: Triton ended with code {process.returncode} before it was ready; its log ends:\n"
                f"{last_lines(log)}"
            )
        if time.monotonic() > deadline:
            raise StackError(
                f"{repository}: Triton was not ready within {seconds:g} s; its log ends:\n{last_lines(log)}"
            )
        time.sleep(0.02)


def _stop(process: subprocess.Popen[bytes], program: Program) -> None:
    # Killed at once, which saves the three seconds of a graceful end. It leads its own session, so its backend's
    # processes are killed too; they need a moment to end, and their memory and ports are free only then.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_for_group(process.pid)
    clear_shared_memory(program.shared_memory or "")
    clear_bytecode(Path(program.repository or ""))
