"""A spec's versions in front of users on a cluster: rolled out, promoted, rolled back on KServe behind a gateway."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Final

from shortlist.contracts import Files, ShortlistError
from shortlist.deployment.deployment import OnChange, TrainingOutcome
from shortlist.features.feast_store_location import FeastStoreLocation, spec_feast_store_location
from shortlist.features.preprocessing import Preprocessing
from shortlist.rollout.commands import RolloutCommands
from shortlist.rollout.controller_context import ControllerContext
from shortlist.rollout.kserve.api import KubernetesAPI, connect
from shortlist.rollout.kserve.errors import ClusterError
from shortlist.rollout.kserve.fleet import KubeFleet
from shortlist.rollout.kserve.observer import KubeObserver
from shortlist.rollout.kserve.prometheus import Prometheus
from shortlist.rollout.kserve.versions import check_versions
from shortlist.rollout.local.deployment import Deployment
from shortlist.rollout.phases import Phase
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import open_rollouts
from shortlist.serving.paths import ServingPaths
from shortlist.serving.validation.live_load_test import live_load_failures
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Serving
from shortlist.storage.objects import ObjectStore, local_copy, open_object_store
from shortlist.storage.storage_config import StorageConfig
from shortlist.training.training import RunContext

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

    def __init__(self, origin: RunContext, serving: Serving, gates: Gates, runtime: Runtime) -> None:
        self._stores = StorageConfig.parse(origin.stores)
        self.name = origin.name
        self.places = ServingPaths.of(self._stores.runs, origin.name)
        self.rollouts = open_rollouts(origin.stores, origin.name)
        self._origin, self._serving, self._gates, self._runtime = origin, serving, gates, runtime
        if not self._stores.has_remote_log:
            raise ShortlistError(
                "runtime.prediction_log: got 'files'; the judge of a cluster reads the log in the object store, so"
                " runtime.target: kserve needs prediction_log: objects"
            )

    def canary(self, version: int | None = None, on_change: OnChange = lambda _: None) -> RolloutRecord:
        """Roll a version (the candidate by default) out on the users of the cluster.

        Raises:
            ShortlistError: The cluster cannot be reached or refuses, its controllers are too old, or it cannot begin.
        """
        self._check_versions()
        return self._rolling(on_change).canary(version)

    def promote(self) -> RolloutRecord:
        """Promote now, without evidence.

        Raises:
            ShortlistError: The cluster cannot be reached or refuses, its controllers are too old, or nothing is there.
        """
        self._check_versions()
        return self._rolling().promote()

    def rollback(self) -> RolloutRecord:
        """Abort the rollout under way, or return to the champion before.

        Raises:
            ShortlistError: The cluster cannot be reached or refuses, or there is nothing to return to.
        """
        return self._rolling().rollback()

    def after_training(self, version: str) -> TrainingOutcome:
        """Roll a version out where there is a cluster.

        Args:
            version: Registered version; empty when no candidate passed the gates.
        """
        if not version:
            return TrainingOutcome("held", None, "Nothing to roll out: no candidate passed the gates.")
        number = int(version)
        try:
            route = self._fleet.serving()
            self._check_versions()
        except ClusterError as error:
            return TrainingOutcome("not_promoted", number, f"Version {version} was not rolled out: {error}")
        if route is not None and route.stable == number:
            return TrainingOutcome("promoted", number, f"Version {version} serves already")
        record = self.canary(number)
        word = record.state.phase.value.replace("_", " ")
        said = f"Version {version} was {word}: {record.state.reason} ({self.rollouts.where(record.id)})"
        return TrainingOutcome("promoted" if record.state.phase is Phase.PROMOTED else "not_promoted", number, said)

    def _check_versions(self) -> None:
        """Refuse to begin on a cluster that is too old; what is under way is brought to its end."""
        if self.rollouts.unfinished() is None:
            check_versions(self._api, self._runtime.cluster)

    @cached_property
    def _api(self) -> KubernetesAPI:
        return KubernetesAPI(connect(), self._runtime.cluster.namespace)

    @cached_property
    def _fleet(self) -> KubeFleet:
        return KubeFleet(self._api, self._objects, self.name, self._runtime, self._serving)

    @cached_property
    def _objects(self) -> ObjectStore:
        return open_object_store(self._stores)

    @cached_property
    def _feast(self) -> FeastStoreLocation:
        return spec_feast_store_location(self._stores, self.name)

    def _rolling(self, on_change: OnChange = lambda _: None) -> RolloutCommands:
        tools = ControllerContext(
            fleet=self._fleet,
            models=self._origin.tracker.registry,
            observe=self._observer,
            load_test=self._load_failures,
            store=None if self._feast.announced() is None else self._stores,
            on_change=on_change,
            poll_seconds=_LOOK_SECONDS,
        )
        return RolloutCommands(self.rollouts, self._serving.canary, tools)

    def _observer(self, record: RolloutRecord) -> KubeObserver:
        prometheus = Prometheus(self._runtime.cluster.prometheus)
        return KubeObserver(self._fleet, self._objects, prometheus, record, self.places, self._serving.log.sampling)

    def _load_failures(self, deployment: Deployment) -> list[str]:
        """Return the reasons to hold a version; its Service is asked directly, so this runs inside the cluster."""
        data = Preprocessing.load(deployment.model_folder / Files.PREPROCESSING).plan.declared.data
        log: Path = local_copy(self._feast.expected()["log"])
        host = f"{self._fleet.service_of(deployment.version)}.{self._fleet.owner.namespace}"
        return live_load_failures(_SERVICE_PORT, self.name, data, log, self._gates.infra, deployment.release, host)
