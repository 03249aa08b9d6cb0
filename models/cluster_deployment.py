"""A spec's versions in front of users on a cluster: rolled out, promoted, rolled back on KServe behind a gateway."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Final

from models.deployment import Ending, OnChange
from models.training import Origin
from shortlist.config.gates import Gates
from shortlist.config.runtime import Runtime
from shortlist.config.serving import Serving
from shortlist.contracts import Files, ShortlistError
from shortlist.features.place import FeastPlace, place_in
from shortlist.features.preprocessing import Preprocessing
from shortlist.objects import Objects, local_copy, open_objects
from shortlist.serving.cluster.api import KubernetesAPI, connect
from shortlist.serving.cluster.errors import ClusterError
from shortlist.serving.cluster.fleet import KubeFleet
from shortlist.serving.cluster.observer import KubeObserver
from shortlist.serving.cluster.prometheus import Prometheus
from shortlist.serving.places import Places
from shortlist.serving.proof.live import reasons_to_hold
from shortlist.serving.rollout.commands import RollOut
from shortlist.serving.rollout.phases import Phase
from shortlist.serving.rollout.record import RolloutRecord
from shortlist.serving.rollout.rollouts import rollouts_of
from shortlist.serving.rollout.tools import Tools
from shortlist.serving.stack.deployment import Deployment
from shortlist.stores import Stores

_LOOK_SECONDS: Final = 10.0
"""Between two looks of the judge: Prometheus scrapes every 15 s, and listing a bucket costs money."""
_SERVICE_PORT: Final = 80


class ClusterDeployer:
    """What can be done with a spec's registered versions on a cluster; the twin of `Deployer`.

    Args:
        origin: Spec and stores.
        serving: The spec's section.
        gates: The spec's section; names the load of the infra gate.
        runtime: The spec's section; names the cluster.
    """

    def __init__(self, origin: Origin, serving: Serving, gates: Gates, runtime: Runtime) -> None:
        self._stores = Stores.parse(origin.stores)
        self.name = origin.name
        self.places = Places.of(self._stores.runs, origin.name)
        self.rollouts = rollouts_of(origin.stores, origin.name)
        self._origin, self._serving, self._gates, self._runtime = origin, serving, gates, runtime
        if not self._stores.has_remote_log:
            raise ShortlistError(
                "runtime.prediction_log: got 'files'; the judge of a cluster reads the log in the object store, so"
                " runtime.target: kserve needs prediction_log: objects"
            )

    def canary(self, version: int | None = None, on_change: OnChange = lambda _: None) -> RolloutRecord:
        """Roll a version (the candidate by default) out on the users of the cluster.

        Raises:
            ShortlistError: The cluster cannot be reached or refuses, or the rollout cannot begin.
        """
        return self._rolling(on_change).canary(version)

    def promote(self) -> RolloutRecord:
        """Promote now, without evidence.

        Raises:
            ShortlistError: The cluster cannot be reached or refuses, or there is nothing to promote.
        """
        return self._rolling().promote()

    def rollback(self) -> RolloutRecord:
        """Abort the rollout under way, or return to the champion before.

        Raises:
            ShortlistError: The cluster cannot be reached or refuses, or there is nothing to return to.
        """
        return self._rolling().rollback()

    def after_training(self, version: str) -> Ending:
        """Roll a version out where there is a cluster.

        Args:
            version: Registered version; empty when no candidate passed the gates.
        """
        if not version:
            return Ending("held", None, "Nothing to roll out: no candidate passed the gates.")
        number = int(version)
        try:
            route = self._fleet.serving()
        except ClusterError as error:
            return Ending("not_promoted", number, f"Version {version} was not rolled out: {error}")
        if route is not None and route.stable == number:
            return Ending("promoted", number, f"Version {version} serves already")
        record = self.canary(number)
        word = record.state.phase.value.replace("_", " ")
        said = f"Version {version} was {word}: {record.state.reason} ({self.rollouts.where(record.id)})"
        return Ending("promoted" if record.state.phase is Phase.PROMOTED else "not_promoted", number, said)

    @cached_property
    def _fleet(self) -> KubeFleet:
        api = KubernetesAPI(connect(), self._runtime.cluster.namespace)
        return KubeFleet(api, self._objects, self.name, self._runtime, self._serving)

    @cached_property
    def _objects(self) -> Objects:
        return open_objects(self._stores)

    @cached_property
    def _feast(self) -> FeastPlace:
        return place_in(self._stores, self.name)

    def _rolling(self, on_change: OnChange = lambda _: None) -> RollOut:
        tools = Tools(
            fleet=self._fleet,
            models=self._origin.tracker.registry,
            observe=self._observer,
            prove=self._prove,
            store=None if self._feast.announced() is None else self._stores,
            on_change=on_change,
            poll_seconds=_LOOK_SECONDS,
        )
        return RollOut(self.rollouts, self._serving.canary, tools)

    def _observer(self, record: RolloutRecord) -> KubeObserver:
        prometheus = Prometheus(self._runtime.cluster.prometheus)
        return KubeObserver(self._fleet, self._objects, prometheus, record, self.places, self._serving.log.sampling)

    def _prove(self, deployment: Deployment) -> list[str]:
        """Return the reasons to hold a version; its Service is asked directly, so this runs inside the cluster."""
        data = Preprocessing.load(deployment.model_folder / Files.PREPROCESSING).plan.declared.data
        log: Path = local_copy(self._feast.expected()["log"])
        host = f"{self._fleet.service_of(deployment.version)}.{self._fleet.owner.namespace}"
        return reasons_to_hold(_SERVICE_PORT, self.name, data, log, self._gates.infra, host)
