"""KServe's servers on a cluster, as rollouts of a spec use them."""

from __future__ import annotations

from typing import ClassVar, Final, Self

from shortlist.rollout.deployment import Deployment
from shortlist.rollout.fleet_connection import FleetConnection, FleetContext
from shortlist.rollout.kserve.api import KubernetesAPI, connect
from shortlist.rollout.kserve.fleet import KubeFleet
from shortlist.rollout.kserve.observer import KubeObserver
from shortlist.rollout.kserve.prometheus import Prometheus
from shortlist.rollout.kserve.versions import check_versions
from shortlist.rollout.record import RolloutRecord
from shortlist.storage.objects import open_object_store

_SERVICE_PORT: Final = 80


class KServeConnection(FleetConnection):
    """A cluster that can be reached.

    Args:
        context: The spec and its stores.
    """

    poll_seconds: ClassVar[float] = 10.0
    """Prometheus scrapes every 15 s, and listing a bucket costs money."""

    def __init__(self, context: FleetContext) -> None:
        self._context, self._cluster = context, context.runtime.cluster
        self._api = KubernetesAPI(connect(), self._cluster.namespace)
        self._objects = open_object_store(context.stores)
        self.fleet: KubeFleet = KubeFleet(self._api, self._objects, context.spec, context.runtime, context.serving)

    @classmethod
    def connect(cls, context: FleetContext) -> Self:
        """Return the spec's fleet.

        Raises:
            ClusterError: No cluster is configured here, or it cannot be reached.
        """
        return cls(context)

    def check(self) -> None:
        """See that the cluster's controllers are of versions that are known to work.

        Raises:
            ClusterError: One is too old.
        """
        check_versions(self._api, self._cluster)

    def observe(self, record: RolloutRecord) -> KubeObserver:
        """Return what observes a rollout."""
        prometheus = Prometheus(self._cluster.prometheus)
        sampling = self._context.serving.log.sampling
        return KubeObserver(self.fleet, self._objects, prometheus, record, self._context.paths, sampling)

    def load_failures(self, deployment: Deployment) -> list[str]:
        """Return the reasons to hold a version; its Service is asked directly, so this runs inside the cluster."""
        host = f"{self.fleet.service_of(deployment.version)}.{self.fleet.owner.namespace}"
        return self._context.load_failures(deployment, _SERVICE_PORT, host)
