"""A spec's versions in front of users: served, rolled out, promoted, rolled back on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from shortlist.contracts import Files, ShortlistError
from shortlist.deployment.registration import promote
from shortlist.features.feast_store_location import FeastStoreLocation, spec_feast_store_location
from shortlist.features.preprocessing import Preprocessing
from shortlist.recommending.release import SOURCES
from shortlist.retrieval.retriever import released_section
from shortlist.rollout.commands import RolloutCommands
from shortlist.rollout.controller_context import ControllerContext
from shortlist.rollout.local.deployment import Deployment
from shortlist.rollout.local.stack import Stack
from shortlist.rollout.local.version import RELEASE
from shortlist.rollout.local_fleet import LocalFleet
from shortlist.rollout.local_observer import LocalObserver
from shortlist.rollout.phases import Phase
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import open_rollouts
from shortlist.serving.paths import ServingPaths
from shortlist.serving.traffic.background import replay_folder, replaying
from shortlist.serving.traffic.client import Endpoint
from shortlist.serving.traffic.example import example_requests
from shortlist.serving.traffic.replay import ReplaySettings, describe, replay
from shortlist.serving.validation.live_load_test import live_load_failures
from shortlist.spec.data import Data
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import ReplayTraffic, Serving
from shortlist.storage.objects import local_copy
from shortlist.storage.storage_config import StorageConfig
from shortlist.training.training import RunContext

OnChange = Callable[[RolloutRecord], None]

_ALL_DAYS = 100_000


class TrainingOutcome(NamedTuple):
    """What became of a training."""

    state: Literal["promoted", "not_promoted", "held"]
    version: int | None
    sentence: str
    """For the user."""


class Deployer:
    """What can be done with a spec's registered versions on this machine.

    Args:
        origin: Spec and stores.
        serving: The spec's section.
        gates: The spec's section; names the load of the infra gate.
        runtime: The spec's section; names the online store.
    """

    def __init__(self, origin: RunContext, serving: Serving, gates: Gates, runtime: Runtime) -> None:
        self._stores = StorageConfig.parse(origin.stores)
        self.name = origin.name
        self.places = ServingPaths.of(self._stores.runs, origin.name)
        self.rollouts = open_rollouts(origin.stores, origin.name)
        self._origin = origin
        self._serving = serving
        self._gates = gates
        self._runtime = runtime

    @cached_property
    def store(self) -> FeastStoreLocation:
        """Where the spec's features and refreshed releases are kept."""
        return spec_feast_store_location(self._stores, self.name)

    def serve(self, port: int = 0, on_change: OnChange = lambda _: None) -> tuple[Stack, RolloutRecord | None]:
        """Bring the stack up, with the versions it had; with none yet, roll the champion out as the first.

        Args:
            port: Of Envoy; 0 takes the one it had, or any free one.
            on_change: Told of every change of the rollout.

        Returns:
            The stack, and the rollout if there was one.

        Raises:
            ShortlistError: No model is registered, or something does not start.
        """
        registry = self._origin.tracker.registry
        first = registry.version_of("champion") or registry.version_of("candidate")
        if first is None:
            raise ShortlistError(f"spec '{self.name}' has no blessed model to serve yet; make run SPEC={self.name}")
        logs = self._stores.objects if self._stores.has_remote_log else ""
        online = self._runtime.online_store
        stack = Stack.up(self.places, self.name, self._serving, online, self.name, port, log_objects=logs)
        route = stack.record.route
        if route is not None:
            stack.wait_ready(route.stable, 90)
            return stack, None
        return stack, self._rolling(stack, on_change).canary(first)

    def canary(self, version: int | None = None, on_change: OnChange = lambda _: None) -> RolloutRecord:
        """Roll a version (the candidate by default) out, with the log as traffic where the spec says so.

        Raises:
            ShortlistError: The stack is not up, or the rollout cannot begin.
        """
        stack = self._stack()
        with self._traffic(stack):
            return self._rolling(stack, on_change).canary(version)

    def promote(self) -> RolloutRecord | int:
        """Promote now, without evidence; return the rollout, or just the version where nothing is served."""
        stack = Stack.connect(self.places)
        if stack is None:
            return promote(self._origin)
        return self._rolling(stack).promote()

    def rollback(self) -> RolloutRecord:
        """Abort the rollout under way, or return to the champion before.

        Raises:
            ShortlistError: The stack is not up, or there is nothing to return to.
        """
        return self._rolling(self._stack()).rollback()

    def after_training(self, version: str) -> TrainingOutcome:
        """Roll a version out where a stack is up.

        Args:
            version: Registered version; empty when no candidate passed the gates.
        """
        if not version:
            return TrainingOutcome("held", None, "Nothing to roll out: no candidate passed the gates.")
        number, stack = int(version), Stack.connect(self.places)
        if stack is None:
            return TrainingOutcome("not_promoted", number, f"To serve it: make serve SPEC={self.name}")
        route = stack.record.route
        if route is not None and route.stable == number:
            return TrainingOutcome("promoted", number, f"Version {version} serves already, at {stack.url}")
        record = self.canary(number)
        word = record.state.phase.value.replace("_", " ")
        said = f"Version {version} was {word}: {record.state.reason} ({self.rollouts.folder_of(record.id)})"
        return TrainingOutcome("promoted" if record.state.phase is Phase.PROMOTED else "not_promoted", number, said)

    def _stack(self) -> Stack:
        stack = Stack.connect(self.places)
        if stack is None:
            raise ShortlistError(f"spec '{self.name}' is not being served; make serve SPEC={self.name} first")
        return stack

    def _rolling(self, stack: Stack, on_change: OnChange = lambda _: None) -> RolloutCommands:
        tools = ControllerContext(
            fleet=LocalFleet(stack, self._serving),
            models=self._origin.tracker.registry,
            observe=lambda record: LocalObserver(stack, record, self._serving.log.sampling),
            load_test=lambda deployment: self._load_failures(stack, deployment),
            store=self._store(),
            on_change=on_change,
        )
        return RolloutCommands(self.rollouts, self._serving.canary, tools)

    def _load_failures(self, stack: Stack, deployment: Deployment) -> list[str]:
        version = deployment.version
        port = stack.record.versions[version].ports.http
        data = self._declared(stack, version)
        return live_load_failures(port, self.name, data, self._log_folder(), self._gates.infra, deployment.release)

    @contextmanager
    def _traffic(self, stack: Stack) -> Iterator[None]:
        """Play the log while the block runs, if the spec has no users."""
        if not isinstance(self._serving.traffic, ReplayTraffic) or stack.record.route is None:
            yield
            return
        with replaying(self._replay(stack, self._serving.traffic)):
            yield

    def replay(self, seconds: float, rate: float | None = None) -> str:
        """Play the log as users would for some seconds; return one line about it.

        Args:
            seconds: How long.
            rate: Requests per second; the spec's by default.

        Raises:
            ShortlistError: The stack is not up, or serves nothing.
        """
        declared = self._serving.traffic
        traffic = declared if isinstance(declared, ReplayTraffic) else ReplayTraffic(kind="replay")
        traffic = traffic if rate is None else traffic.model_copy(update={"rate": rate})
        settings = self._replay(self._stack(), traffic).model_copy(update={"seconds": seconds})
        return describe(replay(settings))

    def play(self, log: Path) -> dict[str, Any]:
        """Play a log once, whatever its days, as users would; return what became of the requests.

        Raises:
            ShortlistError: The stack is not up, or serves nothing.
        """
        declared = self._serving.traffic
        traffic = declared if isinstance(declared, ReplayTraffic) else ReplayTraffic(kind="replay")
        changes = {"log": log, "rounds": 1, "traffic": traffic.model_copy(update={"days": _ALL_DAYS})}
        return replay(self._replay(self._stack(), traffic).model_copy(update=changes))

    def example(self, stack: Stack) -> str:
        """Return commands that ask the model, for a slate too where the version recommends; empty without a version."""
        route = stack.record.route
        if route is None:
            return ""
        sources = stack.places.versions / f"v{route.stable}" / RELEASE / SOURCES
        context = released_section(sources).context if sources.is_dir() else None
        declared = self._declared(stack, route.stable)
        return example_requests(stack.url, self.name, declared, self._log_folder(), context)

    def _replay(self, stack: Stack, traffic: ReplayTraffic) -> ReplaySettings:
        route = stack.record.route
        if route is None:
            raise ShortlistError(f"spec '{self.name}': nothing is served yet; make serve SPEC={self.name}")
        return ReplaySettings(
            data=self._declared(stack, route.stable),
            log=self._log_folder(),
            traffic=traffic,
            endpoint=Endpoint(port=stack.port, model=self.name),
            outcomes=self.places.outcomes,
            out=replay_folder(self.places.root),
        )

    def _declared(self, stack: Stack, version: int) -> Data:
        return Preprocessing.load(
            stack.places.versions / f"v{version}" / "model" / Files.PREPROCESSING
        ).plan.declared.data

    def _store(self) -> Path | StorageConfig | None:
        """Return where servers find users' rows and the views; None when nothing was ever put there."""
        if self.store.announced() is None:
            return None
        plain = self.store.folder is not None and not self.store.shares and self.store.database is None
        return self.store.folder if plain else self._stores

    def _log_folder(self) -> Path:
        return local_copy(self.store.expected()["log"])
