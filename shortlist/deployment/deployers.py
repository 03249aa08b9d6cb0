"""Which servers a spec's versions are brought to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Serving
from shortlist.training.training import RunContext

if TYPE_CHECKING:
    from shortlist.deployment.cluster_deployment import ClusterDeployer
    from shortlist.deployment.deployment import Deployer


def make_deployer(origin: RunContext, serving: Serving, gates: Gates, runtime: Runtime) -> Deployer | ClusterDeployer:
    """Return what drives the servers that `runtime.target` names."""
    if runtime.target == "kserve":
        from shortlist.deployment.cluster_deployment import ClusterDeployer  # loads Kubernetes' client

        return ClusterDeployer(origin, serving, gates, runtime)
    from shortlist.deployment.deployment import Deployer  # loads what runs Envoy and Triton here

    return Deployer(origin, serving, gates, runtime)
