"""Connection to the local stack, for the rollouts of a spec."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from shortlist.contracts import Files, ShortlistError
from shortlist.features.declared.plan import Plan
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.rollout.deployment import Deployment
from shortlist.rollout.fleet_connection import FleetConnection, FleetContext
from shortlist.rollout.local.fleet import LocalFleet
from shortlist.rollout.local.observer import LocalObserver
from shortlist.rollout.local.stack import Stack
from shortlist.rollout.local.version import RELEASE
from shortlist.rollout.record import RolloutRecord
from shortlist.serving.log.logs import REPLAYED_ID
from shortlist.serving.traffic.background import replay_folder, run_replay
from shortlist.serving.traffic.replay import ReplaySettings
from shortlist.serving.traffic.sessions import SlateRequests
from shortlist.slates.release import SOURCES
from shortlist.slates.retrieval.retriever import read_released_section
from shortlist.spec.retrieval import Retrieval
from shortlist.spec.serving import ReplayTraffic


class StackConnection(FleetConnection):
    """The running local stack of a spec.

    Args:
        context: The spec and its storage.
        stack: The running stack.
    """

    def __init__(self, context: FleetContext, stack: Stack) -> None:
        self._context, self.stack = context, stack
        self.fleet = LocalFleet(stack, context.serving)

    @classmethod
    def connect(cls, context: FleetContext) -> Self | None:
        """Return the spec's stack; None when it is not up."""
        stack = Stack.connect(context.paths)
        return None if stack is None else cls(context, stack)

    @property
    def url(self) -> str:
        """The gateway's address."""
        return self.stack.url

    def observe(self, record: RolloutRecord) -> LocalObserver:
        """Return the observer of a rollout."""
        return LocalObserver(self.stack, record, self._context.serving)

    def load_failures(self, deployment: Deployment) -> list[str]:
        """Return the reasons to hold a version whose servers run."""
        port = self.stack.record.versions[deployment.version].ports.http
        return self._context.load_failures(deployment, port)

    def notices(self, deployment: Deployment) -> list[str]:
        """Return a sentence on the columns that a version reads and no request carries, if there are any."""
        route = self.stack.record.route
        return [] if route is None else self._context.unsent_inputs(deployment, route.stable, self.stack.paths)

    @contextmanager
    def traffic(self) -> Iterator[None]:
        """Replay the log while the block runs, if the spec has no users of its own; also ask for slates that it has."""
        traffic = self._context.serving.traffic
        if not isinstance(traffic, ReplayTraffic) or self.stack.record.route is None:
            yield
            return
        retrieval = self.retrieval(self.stack.record.route.stable)
        slates = None if retrieval is None else SlateRequests.from_section(retrieval)
        additions = {"id_prefix": REPLAYED_ID, "slates": slates}
        with run_replay(self.replay_settings(traffic).model_copy(update=additions)):
            yield

    def replay_settings(self, traffic: ReplayTraffic | None = None) -> ReplaySettings:
        """Return the settings with which the log is replayed to the serving version.

        Args:
            traffic: Rate and days; the spec's by default.

        Raises:
            ShortlistError: Nothing serves.
        """
        declared, route, spec = self._context.serving.traffic, self.stack.record.route, self._context.spec
        if route is None:
            raise ShortlistError(f"spec '{spec}': nothing is served yet; make serve SPEC={spec}")
        if traffic is None:
            traffic = declared if isinstance(declared, ReplayTraffic) else ReplayTraffic(kind="replay")
        return ReplaySettings(
            data=self.feature_plan(route.stable).declared.data,
            log=self._context.log_folder(),
            traffic=traffic,
            endpoint=self.stack.backend_endpoint(),
            outcomes=self._context.paths.outcomes,
            out=replay_folder(self._context.paths.root),
        )

    def retrieval(self, version: int) -> Retrieval | None:
        """Return the section that a deployed version finds its candidates by; None where requests bring them."""
        sources = self.stack.paths.versions / f"v{version}" / RELEASE / SOURCES
        return read_released_section(sources) if sources.is_dir() else None

    def feature_plan(self, version: int) -> Plan:
        """Return the features of a deployed version, with the declaration of the log that it was trained with."""
        folder = self.stack.paths.versions / f"v{version}" / "model"
        return Preprocessing.load(folder / Files.PREPROCESSING).plan
