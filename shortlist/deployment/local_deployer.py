"""Deployment on this machine: starts the local stack, and replays the log as traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shortlist.contracts import ShortlistError
from shortlist.deployment.deployer import Deployer, OnChange
from shortlist.rollout.candidates import describe_versions
from shortlist.rollout.local.connection import StackConnection
from shortlist.rollout.local.section import StackSection
from shortlist.rollout.local.stack import Stack
from shortlist.rollout.record import RolloutRecord
from shortlist.serving.traffic.example import example_requests
from shortlist.serving.traffic.replay import replay
from shortlist.spec.gates import Gates
from shortlist.spec.log_shape import FurtherLabel
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Serving
from shortlist.tracking.run_context import RunContext


class LocalDeployer(Deployer):
    """Deployer for the local stack, whatever fleet the spec names; it can also start the stack.

    Args:
        run: Spec and storage.
        serving: The spec's section.
        gates: The spec's section.
        runtime: The spec's section, with the online store.
        labels: The spec's further labels.
    """

    def __init__(
        self,
        run: RunContext,
        serving: Serving,
        gates: Gates,
        runtime: Runtime,
        labels: Mapping[str, FurtherLabel] | None = None,
    ) -> None:
        self._target = runtime.target if isinstance(runtime.target, StackSection) else StackSection()
        super().__init__(run, serving, gates, runtime.model_copy(update={"target": self._target}), labels)

    def serve(self, port: int = 0, on_change: OnChange = lambda _: None) -> tuple[Stack, RolloutRecord | None]:
        """Start the stack with its previous versions; without any, roll out the champion as the first version.

        Args:
            port: Port of the gateway; 0 takes the previous one, or any free one.
            on_change: Called after every change of the rollout.

        Returns:
            The stack, and the rollout if there was one.

        Raises:
            ShortlistError: No model is registered, or a program does not start.
        """
        registry = self._run.tracker.registry
        first = registry.version_to_beat() or registry.version_of("candidate")
        if first is None:
            champion = registry.version_of("champion")
            state = f"version {champion}, which was retired, and no other" if champion else "no"
            raise ShortlistError(
                f"spec '{self.name}' has {state} blessed model to serve yet, one that passed every gate; make run"
                f" SPEC={self.name}"
            )
        stores, serving = self.context.stores, self.context.serving
        logs = stores.objects if stores.has_remote_log else ""
        online = self.context.runtime.online_store
        gateway = self._target.gateway
        stack = Stack.up(self.paths, self.name, serving, online, port, log_objects=logs, gateway=gateway)
        route = stack.record.route
        if route is not None:
            stack.wait_ready(route.stable, 90)
            return stack, None
        return stack, self._commands(StackConnection(self.context, stack), on_change).canary(first)

    def replay(
        self, seconds: float | None, rate: float | None = None, rounds: int | None = None, days: int | None = None
    ) -> dict[str, Any]:
        """Replay the log's newest days as traffic; return the counts of the requests.

        Args:
            seconds: Longest duration; None for no limit.
            rate: Requests per second; the spec's by default.
            rounds: Number of times that the days are replayed; None for no limit.
            days: Number of newest days with rows of the declared source; the spec's by default.

        Raises:
            ShortlistError: The stack does not run, or serves nothing; or all rows of the log were collected.
        """
        settings = self._stack().replay_settings()
        changes = {name: value for name, value in (("rate", rate), ("days", days)) if value is not None}
        traffic = settings.traffic.model_copy(update=changes)
        return replay(settings.model_copy(update={"traffic": traffic, "seconds": seconds, "rounds": rounds}))

    def versions(self, stack: Stack) -> list[str]:
        """Return which version serves and why, and which one waits, in sentences; none where nothing serves."""
        route = stack.record.route
        return [] if route is None else list(describe_versions(self._run.tracker.registry, self.rollouts, route.stable))

    def example(self, stack: Stack) -> str:
        """Return example commands for inference, and for a slate if the version recommends; empty without a version."""
        route = stack.record.route
        if route is None:
            return ""
        connection = StackConnection(self.context, stack)
        retrieval, planned = connection.retrieval(route.stable), connection.feature_plan(route.stable)
        log, declared = self.context.log_folder(), planned.declared.data
        return example_requests(stack.url, self.name, declared, planned.columns_of_log, log, retrieval)

    def _stack(self) -> StackConnection:
        connection = self._connected()
        assert isinstance(connection, StackConnection)
        return connection
