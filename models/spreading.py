"""Where the processes of a declared training run: beside this one, or as pods of the cluster it runs in."""

from __future__ import annotations

import os
from functools import partial
from typing import Literal, cast

from models.local_workers import train_here
from models.train import Spread
from shortlist.config.cluster import Cluster
from shortlist.objects import open_objects
from shortlist.stores import Stores


def spread_of(kind: str, cluster: str, stores: str) -> Spread | None:
    """Return the processes that train a kind of model together; None when one process does.

    Args:
        kind: A key of `models.train.KINDS`.
        cluster: `runtime.cluster` as JSON; empty: nothing is declared there.
        stores: As the graph's parameter says it.
    """
    declared = Cluster.model_validate_json(cluster) if cluster else Cluster()
    workers = declared.workers.get(cast(Literal["dlrm", "xgboost"], kind))
    world = workers.nodes * workers.processes if workers else 1
    if workers is None or world == 1:
        return None
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        return Spread(world, train_here)
    from models.cluster_workers import Place, train_there  # loads the cluster's client
    from shortlist.serving.cluster.api import KubernetesAPI, connect

    kubernetes = KubernetesAPI(connect(), declared.namespace)
    return Spread(world, partial(train_there, Place(kubernetes, open_objects(Stores.parse(stores)), declared, workers)))
