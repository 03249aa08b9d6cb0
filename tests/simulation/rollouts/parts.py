"""Simulated store, fleet, registry and observer: every call may fail, and is checked against the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol, TypeVar

from shortlist.contracts import ShortlistError
from shortlist.rollout.checks.observations import Observation
from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.evidence.counts import RequestTotals, TrackCounts
from shortlist.rollout.interruption import Interruption
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import Rollouts
from shortlist.serving.processes.errors import StackError
from shortlist.storage.artefacts import IntegrityError
from shortlist.storage.records.store import LockedError
from shortlist.tracking.registry import Alias, RegisteredModel
from tests.simulation.rollouts.rules import RolloutInvariants

T = TypeVar("T")

SPEC: Final = "demo"


class CallHandler(Protocol):
    """Handles every call of a controller, and injects the faults of the history."""

    tampered: set[int]
    disturbed: bool

    @property
    def rules(self) -> RolloutInvariants:
        """The rules that are checked."""

    def call(self, kind: str, effect: Callable[[], T], error: Callable[[], Exception] | None = None) -> T:
        """Execute a call of a controller, unless the history has a fault for it."""

    def expect(self, holds: bool, rule: str, message: str) -> None:
        """Raise `BrokenRuleError` unless a condition holds."""

    def on_write(self, name: str) -> None:
        """Check that a record may be written."""

    def observe(self, rollout: str, step: int, at_step_seconds: float) -> Observation:
        """Return the observation of a step that the history declares."""


class MemoryStore:
    """A `RecordStore` in memory; the lock of a killed process is released."""

    def __init__(self, world: CallHandler) -> None:
        self._world = world
        self.texts_by_name: dict[str, str] = {}
        self._locked = False

    def create(self, name: str, text: str) -> bool:
        """Write a text unless the name exists."""
        if name in self.texts_by_name:
            return False
        self.replace(name, text)
        return True

    def replace(self, name: str, text: str) -> None:
        """Write a text."""
        self._world.on_write(name)
        self._world.call("write", lambda: self.texts_by_name.update({name: text}), _disk_full)

    def read(self, name: str) -> str | None:
        """Return a text."""
        return self._world.call("read", lambda: self.texts_by_name.get(name), _disk_broken)

    def remove(self, name: str) -> None:
        """Remove a text."""
        self._world.call("write", lambda: self.texts_by_name.pop(name, None), _disk_full)

    def move(self, name: str, to: str) -> None:
        """Rename a text."""
        if name in self.texts_by_name:
            self.texts_by_name[to] = self.texts_by_name.pop(name)

    def names(self, prefix: str) -> list[str]:
        """Return the names that begin with a prefix."""
        return sorted(name for name in self.texts_by_name if name.startswith(prefix))

    def texts(self, prefix: str) -> dict[str, str]:
        """Return the texts whose names begin with a prefix."""
        return {name: self.texts_by_name[name] for name in self.names(prefix)}

    def written(self, _: str) -> datetime | None:
        """Return None; not used in simulations."""
        return None

    @contextmanager
    def lock(self, name: str, seconds: float | None = None) -> Iterator[None]:
        """Hold the lock."""
        if self._locked:
            raise LockedError(f"{name} is held for {seconds} s")
        self._locked = True
        try:
            yield
        finally:
            self._locked = False

    def is_locked(self, _: str) -> bool:
        """Whether it is held."""
        return self._locked

    def where(self, name: str) -> str:
        """Return its name."""
        return name


class SimulatedRollouts(Rollouts):
    """Rollouts without files on disk."""

    def write_page(self, record: RolloutRecord) -> None:
        """Write nothing."""

    def log_fault(self, rollout: str, text: str) -> None:
        """Write nothing."""

    def remove_files(self, rollout: str) -> None:
        """Do nothing: there are no files."""

    def temporary_folder(self) -> AbstractContextManager[str]:
        """Return the name of no folder."""
        return nullcontext("nowhere")

    def _make_folder(self, rollout: str) -> None:
        pass


class SimulatedFleet:
    """A `Fleet` in memory."""

    def __init__(self, world: CallHandler) -> None:
        self._world = world
        self.deployed: set[int] = set()
        self.ready: set[int] = set()
        self.now: Route | None = None

    def serving(self) -> Route | None:
        """Return the route."""
        return self._world.call("serving", lambda: self.now, _no_stack)

    def deploy(self, deployment: Deployment) -> None:
        """Start servers."""
        self._world.call("deploy", lambda: self.deployed.add(deployment.version), _no_stack)

    def wait_ready(self, version: int) -> None:
        """Wait for servers."""
        self._world.expect(version in self.deployed, "servers", f"version {version} is waited for and not deployed")
        self._world.call("wait_ready", lambda: self.ready.add(version), _no_stack)

    def verify(self, version: int) -> None:
        """Compare the served files."""

        def compare() -> None:
            if version in self._world.tampered:
                self._world.disturbed = True
                raise IntegrityError(f"version {version}: changed after it was deployed")

        self._world.call("verify", compare, _no_stack)

    def route(self, route: Route) -> None:
        """Apply a route."""
        self._world.call("route", lambda: self._send(route), _no_stack)

    def withdraw(self) -> None:
        """Remove the route."""
        self._world.call("withdraw", lambda: self._send(None), _no_stack)

    def retire(self, version: int) -> None:
        """Stop servers."""

        def stop() -> None:
            self._world.rules.check_retire(version)
            self._world.tampered.discard(version)
            self.deployed.discard(version)
            self.ready.discard(version)

        self._world.call("retire", stop, _no_stack)

    def _send(self, route: Route | None) -> None:
        self._world.rules.check_route(route)
        self.now = route


class SimulatedRegistry:
    """A registry in memory."""

    name = f"shortlist-{SPEC}"

    def __init__(self, world: CallHandler) -> None:
        self._world = world
        self.aliases: dict[str, int] = {}

    def version_of(self, alias: Alias) -> int | None:
        """Return the version that an alias points at."""
        return self._world.call("version_of", lambda: self.aliases.get(alias), _no_mlflow)

    def retirement_of(self, version: int) -> str:
        """Return that no version is retired."""
        return ""

    def set_alias(self, alias: Alias, version: int | None) -> None:
        """Point an alias at a version."""

        def point() -> None:
            self._world.rules.check_alias(version)
            if version is None:
                self.aliases.pop(alias, None)
            else:
                self.aliases[alias] = version

        self._world.call("set_alias", point, _no_mlflow)

    def fetch(self, version: int, to: Path | None = None) -> RegisteredModel:
        """Not used: the world prepares deployments."""
        raise NotImplementedError

    def retrieval_of(self, version: int, to: Path | None = None) -> Path | None:
        """Return None: nothing is released with these models."""
        return None

    def blessing_of(self, version: int, to: Path | None = None) -> Path | None:
        """Not used in simulations."""
        raise NotImplementedError


class ScriptedObserver:
    """An `Observer` that returns the decisions of the history."""

    def __init__(self, world: CallHandler, rollout: str) -> None:
        self._world, self._rollout = world, rollout

    def observe_step(self, step: int, at_step_seconds: float) -> Observation:
        """Return the observation of a step."""
        return self._world.call("look", lambda: self._world.observe(self._rollout, step, at_step_seconds), _blind)

    def total(self) -> RequestTotals:
        """Return counts."""
        return self._world.call("total", lambda: _COUNTED, _blind)


class SimulatedInterruption(Interruption):
    """An interruption that reacts to simulated signals only."""

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle no signals of this process."""
        yield


_COUNTED: Final = RequestTotals(stable=TrackCounts(requests=1_000), logged=1_000)


def _disk_full() -> Exception:
    return OSError(28, "No space left on device")


def _disk_broken() -> Exception:
    return OSError(5, "Input/output error")


def _no_stack() -> Exception:
    return StackError("no answer")


def _no_mlflow() -> Exception:
    return ShortlistError("MLflow is unavailable")


def _blind() -> Exception:
    return RuntimeError("no logs")
