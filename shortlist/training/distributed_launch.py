"""The launcher of a distributed training: processes of this machine, or pods of a cluster."""

from __future__ import annotations

import os
from functools import partial

from shortlist.spec.cluster import Cluster
from shortlist.storage.objects import open_object_store
from shortlist.storage.storage_config import StorageConfig
from shortlist.training.distributed.local_workers import train_locally
from shortlist.training.train import DistributedLaunch


def distributed_launch_for(name: str, cluster: str, stores: str) -> DistributedLaunch | None:
    """Return the launcher of a distributed training; None when one process trains.

    Args:
        name: Name of the declared model.
        cluster: `runtime.cluster` as JSON; empty: nothing is declared there.
        stores: Stores, from the graph's parameter.
    """
    declared = Cluster.model_validate_json(cluster) if cluster else Cluster()
    workers = declared.workers.get(name)
    world = workers.nodes * workers.processes if workers else 1
    if workers is None or world == 1:
        return None
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        return DistributedLaunch(world, train_locally, workers.wait_seconds)
    from shortlist.system.kubernetes_api import KubernetesAPI, connect
    from shortlist.training.distributed.cluster_workers import (  # loads the cluster's client
        TrainJobContext,
        train_on_cluster,
    )

    kubernetes = KubernetesAPI(connect(), declared.namespace)
    return DistributedLaunch(
        world,
        partial(
            train_on_cluster,
            TrainJobContext(kubernetes, open_object_store(StorageConfig.parse(stores)), declared, workers),
        ),
        workers.wait_seconds,
    )
