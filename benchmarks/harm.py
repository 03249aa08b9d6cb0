"""What may happen to a stack that serves: its processes are killed, its disk is full or slow."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from shortlist.deployment.local_deployer import LocalDeployer
from shortlist.rollout.local.health import ReplicaHealth
from shortlist.rollout.local.stack import Stack
from shortlist.serving.log.serving_log import stream_folder
from shortlist.storage.append_log.writer import ROTATE_SECONDS

READY_SECONDS: Final = 300.0
"""Longest wait until everything is ready after a fault."""
SETTLE_SECONDS: Final = 3.0
"""After that, so that what a fault delayed is not blamed on the next one."""
SLOW_SECONDS: Final = 10.0
"""How long the disk is full, or kept busy."""
_PIECE: Final = 32 * 1024 * 1024


@dataclass(frozen=True)
class Fault:
    """Something that was done, and when; of the clock that the ledger uses."""

    name: str
    began: float
    ended: float
    """Everything was ready again, and had time to settle."""


class NotPossibleError(Exception):
    """A fault that cannot be done on this machine."""


class Rollouts:
    """Rolls the version out that does not serve, again and again, each time by a controller that may be killed."""

    def __init__(self, deployer: LocalDeployer, spec_file: Path, runs: Path, versions: tuple[int, int]) -> None:
        self._deployer, self._versions = deployer, versions
        self._command = [
            sys.executable, "-c", "from shortlist.cli import main; main()", "deploy-canary", str(spec_file),
            "--runs", str(runs),
        ]  # fmt: skip
        self._log = runs / "controllers.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._ended: set[str] = set()

    @property
    def ended(self) -> int:
        """Number of rollouts that came to an end."""
        return len(self._ended)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Roll out while the block runs."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(READY_SECONDS)
            self.kill()

    def kill(self) -> None:
        """Kill the controller, if one is at work."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    def _run(self) -> None:
        while not self._stop.is_set():
            unfinished = self._deployer.rollouts.unfinished()
            latest = self._deployer.rollouts.latest()
            arguments = self._command
            if unfinished is None and latest is not None:
                serves = latest.state.stable
                arguments = [*arguments, "--version", str(min(set(self._versions) - {serves}))]
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(arguments, stdout=log, stderr=log)  # noqa: S603 - ourselves
                self._process.wait()
            latest = self._deployer.rollouts.latest()
            if latest is not None and latest.state.final:
                self._ended.add(latest.id)
            self._stop.wait(1)


class Harm:
    """What may happen to a stack, by name; each returns when it is done."""

    def __init__(self, deployer: LocalDeployer, rollouts: Rollouts, chance: random.Random) -> None:
        self._deployer, self._rollouts, self._chance = deployer, rollouts, chance
        self.kinds: dict[str, Callable[[], None]] = {
            "controller": rollouts.kill,
            "Triton": lambda: _kill(self._replica().triton.pid),
            "Triton's Python process": self._kill_backend,
            "server": lambda: _kill(self._replica().server.pid),
            "Envoy": lambda: _kill(self._chance.choice(self.stack.status().gateway).pid),
            "supervisor": self._kill_supervisor,
            "full disk": self._fill_disk,
            "slow disk": self._slow_disk,
        }

    @property
    def stack(self) -> Stack:
        """The stack that is up."""
        stack = Stack.connect(self._deployer.paths)
        assert stack is not None, "the stack is not up"
        return stack

    def wait_ready(self) -> None:
        """Return when nothing is wrong with what serves users."""
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_well():
            assert time.monotonic() < deadline, f"not ready after {READY_SECONDS:g} s: {self.stack.status().problems}"
            time.sleep(0.5)

    def _is_well(self) -> bool:
        status = self.stack.status()
        serving = [version.health.ready for version in status.versions if version.track is not None]
        return all(envoy.ready for envoy in status.gateway) and bool(serving) and all(serving)

    def _replica(self) -> ReplicaHealth:
        stack = self.stack
        route = stack.record.route
        assert route is not None
        return self._chance.choice(stack.health(route.stable).replicas)

    def _kill_backend(self) -> None:
        triton = psutil.Process(self._replica().triton.pid)
        backends = [
            process for process in triton.children(recursive=True) if process.name().startswith("triton_python")
        ]
        _kill(self._chance.choice(backends).pid)

    def _kill_supervisor(self) -> None:
        _kill(int((self._deployer.paths.programs / "supervisord.pid").read_text(encoding="ascii")))
        time.sleep(1)
        self._deployer.serve()

    def _fill_disk(self) -> None:
        folder = stream_folder(self._deployer.paths.predictions)
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "shortlist-soak", str(folder)]
        completed = subprocess.run(mount, capture_output=True, text=True, check=False)  # noqa: S603
        if completed.returncode:
            raise NotPossibleError(completed.stderr.strip())
        try:
            with suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
                while filler.write(bytes(4096)):
                    pass
            time.sleep(ROTATE_SECONDS + SLOW_SECONDS)  # until the open segment is full of age
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)  # noqa: S603, S607

    def _slow_disk(self) -> None:
        """Keep the disk busy: write and sync as much as it takes."""
        until = time.monotonic() + SLOW_SECONDS
        path = self._deployer.paths.root / "busy"
        try:
            with path.open("wb", buffering=0) as file:
                while time.monotonic() < until:
                    file.seek(0)
                    file.write(os.urandom(_PIECE))
                    os.fsync(file.fileno())
        finally:
            path.unlink(missing_ok=True)


def do_harm(harm: Harm, seconds: float, chance: random.Random, report: Callable[[str], None]) -> list[Fault]:
    """Do one fault after another for so long, each kind before any a second time; return what was done."""
    faults: list[Fault] = []
    impossible: set[str] = set()
    end = time.monotonic() + seconds
    while True:
        names = [name for name in harm.kinds if name not in impossible]
        chance.shuffle(names)
        for name in names:
            if time.monotonic() > end and len(faults) >= len(names):
                return faults
            began = time.monotonic()
            try:
                harm.kinds[name]()
            except NotPossibleError as error:
                impossible.add(name)
                report(f"{name}: not possible here ({error})")
                continue
            except (psutil.Error, ProcessLookupError, IndexError):  # it is being started again already
                continue
            time.sleep(1)  # before a death is noticed everything looks well
            harm.wait_ready()
            time.sleep(SETTLE_SECONDS)
            faults.append(Fault(name, began, time.monotonic()))
            report(f"{name}: ready after {faults[-1].ended - began - SETTLE_SECONDS:.1f} s")


def _kill(pid: int | None) -> None:
    if pid is None:
        raise ProcessLookupError("there is no process")
    os.kill(pid, signal.SIGKILL)
