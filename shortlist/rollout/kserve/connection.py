"""Connection to KServe on a cluster, for the rollouts of a spec."""

from __future__ import annotations

from typing import ClassVar, Final, Self

from shortlist.rollout.deployment import Deployment
from shortlist.rollout.fleet_connection import FleetConnection, FleetContext
from shortlist.rollout.kserve.fleet import KubeFleet
from shortlist.rollout.kserve.observer import KubeObserver
from shortlist.rollout.kserve.versions import check_versions
from shortlist.rollout.record import RolloutRecord
from shortlist.serving.paths import ServingPaths
from shortlist.storage.objects import open_object_store
from shortlist.system.kubernetes_api import KubernetesAPI, connect
from shortlist.system.prometheus import Prometheus

_SERVICE_PORT: Final = 80


class KServeConnection(FleetConnection):
    """A connected cluster with KServe.

    Args:
        context: The spec and its storage.
    """

    poll_seconds: ClassVar[float] = 10.0
    """Time between two analyses: Prometheus scrapes every 15 s, and listing a bucket costs money."""

    def __init__(self, context: FleetContext) -> None:
        self._context, self._cluster = context, context.runtime.cluster
        self._api = KubernetesAPI(connect(), self._cluster.namespace)
        self._objects = open_object_store(context.stores)
        self.fleet: KubeFleet = KubeFleet(self._api, self._objects, context.spec, context.runtime, context.serving)

    @classmethod
    def connect(cls, context: FleetContext) -> Self:
        """Connect to the spec's fleet.

        Raises:
            ClusterError: No cluster is configured here, or it cannot be reached.
        """
        return cls(context)

    def check(self) -> None:
        """Check that the cluster's controllers have supported versions.

        Raises:
            ClusterError: A controller is too old.
        """
        check_versions(self._api, self._cluster)

    def observe(self, record: RolloutRecord) -> KubeObserver:
        """Return the observer of a rollout."""
        prometheus = Prometheus(self._cluster.prometheus)
        return KubeObserver(self.fleet, prometheus, record, self._paths, self._context.serving)

    def notices(self, deployment: Deployment) -> list[str]:
        """Return a sentence on the columns that a version reads and no request carries, if there are any."""
        route = self.fleet.serving()
        return [] if route is None else self._context.unsent_inputs(deployment, route.stable, self._paths)

    def load_failures(self, deployment: Deployment) -> list[str]:
        """Return the reasons to hold a version; runs inside the cluster, as it sends requests to the Service."""
        return self._context.load_failures(deployment, _SERVICE_PORT, self._host(deployment))

    def answer_failures(self, deployment: Deployment) -> list[str]:
        """Return why the servers of a version do not answer now; runs inside the cluster, as the load test does."""
        return self.fleet.readiness_failures(deployment.version) or self._context.answer_failures(
            deployment, _SERVICE_PORT, self._host(deployment)
        )

    @property
    def keep_former_seconds(self) -> float:
        """How long the former servers run on after a promotion."""
        return self._cluster.keep_former_seconds

    @property
    def _paths(self) -> ServingPaths:
        return self._context.paths.model_copy(update={"log_objects": self._objects.root})

    def _host(self, deployment: Deployment) -> str:
        return f"{self.fleet.service_of(deployment.version)}.{self.fleet.owner.namespace}"
