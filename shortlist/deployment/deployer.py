"""Rolls out, promotes and rolls back the versions of a spec, on the fleet that the spec names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Literal, NamedTuple

from shortlist.contracts import ShortlistError
from shortlist.deployment.registration import promote
from shortlist.rollout.commands import RolloutCommands, describe_older_versions
from shortlist.rollout.controller_context import ControllerContext
from shortlist.rollout.fleet_connection import FleetConnection, FleetContext
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import open_rollouts
from shortlist.rollout.states.phases import Phase
from shortlist.spec.gates import Gates
from shortlist.spec.log_shape import FurtherLabel
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Serving, check_guards
from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.run_context import RunContext

OnChange = Callable[[RolloutRecord], None]


class TrainingOutcome(NamedTuple):
    """Outcome of a training: whether its version was promoted."""

    state: Literal["promoted", "not_promoted", "held"]
    version: int | None
    sentence: str
    """The outcome in one sentence, for the user."""


class Deployer:
    """Deploys a spec's registered versions on its fleet.

    Args:
        run: Spec and storage.
        serving: The spec's section.
        gates: The spec's section, with the load of the infra gate.
        runtime: The spec's section, with the fleet.
        labels: The spec's further labels (`data.labels`), which the canary's guards name.

    Raises:
        ShortlistError: The fleet is remote but the prediction log is on this machine, or a guard names a label that is
            not declared.
    """

    def __init__(
        self,
        run: RunContext,
        serving: Serving,
        gates: Gates,
        runtime: Runtime,
        labels: Mapping[str, FurtherLabel] | None = None,
    ) -> None:
        self._labels = labels or {}
        try:
            check_guards(serving.canary, self._labels)
        except ValueError as error:
            raise ShortlistError(str(error)) from None
        stores = StorageConfig.parse(run.stores)
        self.name = run.name
        self.context = FleetContext(run.name, stores, serving, gates, runtime)
        self.paths = self.context.paths
        self.rollouts = open_rollouts(run.stores, run.name)
        self._run = run
        if runtime.target.is_remote and not stores.has_remote_log:
            raise ShortlistError(
                "runtime.prediction_log: got 'files'; the canary analysis reads the log in the object store, so"
                f" runtime.target: {runtime.target.kind} needs prediction_log: objects"
            )

    def candidate_version(self) -> int | None:
        """Return the newest blessed version; None where no version was blessed."""
        return self._run.tracker.registry.version_of("candidate")

    def canary(self, version: int | None = None, on_change: OnChange = lambda _: None) -> RolloutRecord:
        """Roll a version out, by default the candidate; the log is replayed as traffic if the spec declares it.

        Raises:
            ShortlistError: The fleet cannot be reached or refuses, or the rollout cannot begin.
        """
        connection = self._connected()
        self._check(connection)
        with connection.traffic():
            return self._commands(connection, on_change).canary(version)

    def promote(self, on_change: OnChange = lambda _: None) -> RolloutRecord | int:
        """Promote without evidence; return the rollout, or the version where nothing is served.

        Raises:
            ShortlistError: The fleet cannot be reached or refuses, or there is nothing to promote.
        """
        connection = self._connection()
        if connection is None:
            return promote(self._run)
        self._check(connection)
        return self._commands(connection, on_change).promote()

    def rollback(
        self, version: int | None = None, degraded: bool = False, on_change: OnChange = lambda _: None
    ) -> RolloutRecord:
        """Abort the unfinished rollout, or return to the previous champion or to a version that is named.

        Args:
            version: Version to return to; the previous champion by default.
            degraded: Whether to return to a version some of whose features are not published.
            on_change: Called with the rollout when its state changes.

        Raises:
            ShortlistError: The fleet cannot be reached or refuses, or there is no version to return to.
        """
        return self._commands(self._connected(), on_change).rollback(version=version, degraded=degraded)

    def describe_older_versions(self, serving: int | None) -> str:
        """Return how to return to a version that is named, and which served before; retired ones are marked."""
        return describe_older_versions(self.rollouts, self._run.tracker.registry, serving)

    def after_training(self, version: str, with_rollout: bool = True) -> TrainingOutcome:
        """Roll out the version of a training, if the spec is served.

        Args:
            version: Registered version; empty when no candidate passed the gates.
            with_rollout: Whether it is rolled out at all.
        """
        if not version:
            return TrainingOutcome("held", None, "Nothing to roll out: no candidate passed the gates.")
        number = int(version)
        if not with_rollout:
            notice = (
                f"Version {version} was not rolled out, as --no-rollout says; make deploy-canary SPEC={self.name} does."
            )
            return TrainingOutcome("not_promoted", number, notice)
        try:
            connection = self._connection()
            if connection is None:
                unserved = f"Version {version} was not rolled out: {self.name} is not served."
                return TrainingOutcome("not_promoted", number, unserved)
            route = connection.fleet.serving()
            self._check(connection)
        except ShortlistError as error:
            return TrainingOutcome("not_promoted", number, f"Version {version} was not rolled out: {error}")
        if route is not None and route.stable == number:
            address_text = f", at {connection.url}" if connection.url else ""
            return TrainingOutcome("promoted", number, f"Version {version} serves already{address_text}")
        record = self.canary(number)
        outcome_text = record.state.phase.value.replace("_", " ")
        sentence = f"Version {version} was {outcome_text}: {record.state.reason} ({self.rollouts.location(record.id)})"
        return TrainingOutcome("promoted" if record.state.phase is Phase.PROMOTED else "not_promoted", number, sentence)

    def _connection(self) -> FleetConnection | None:
        kind: type[FleetConnection] = resolve_name(self.context.runtime.target.connection)
        return kind.connect(self.context)

    def _connected(self) -> FleetConnection:
        connection = self._connection()
        if connection is None:
            raise ShortlistError(f"spec '{self.name}' is not being served; make serve SPEC={self.name} first")
        return connection

    def _check(self, connection: FleetConnection) -> None:
        """Check that a new rollout can begin on the fleet; an unfinished one is resumed without this check."""
        if self.rollouts.unfinished() is None:
            connection.check()

    def _commands(self, connection: FleetConnection, on_change: OnChange = lambda _: None) -> RolloutCommands:
        controller_context = ControllerContext(
            fleet=connection.fleet,
            models=self._run.tracker.registry,
            observe=connection.observe,
            load_test=connection.load_failures,
            answer_failures=connection.answer_failures,
            notices=connection.notices,
            unpublished_features=self.context.unpublished_features,
            keep_former_seconds=connection.keep_former_seconds,
            store=self.context.served_store,
            on_change=on_change,
            poll_seconds=connection.poll_seconds,
        )
        return RolloutCommands(self.rollouts, self.context.serving.canary, controller_context, self._labels)
