"""Whether the cluster's controllers are new enough is known before anything is rolled out."""

from __future__ import annotations

from typing import Any

import pytest
from kserve_world import World
from kube_server import KubeServer

from shortlist.rollout.kserve.versions import check_versions
from shortlist.spec.cluster import Controllers
from shortlist.system.kubernetes_api import ClusterError

ENVOY = ("envoy-gateway-system", "envoy-gateway")
KSERVE = ("kserve", "kserve-controller-manager")


def deployment(image: str, label: str = "") -> dict[str, Any]:
    proxy = {"name": "proxy", "image": "quay.io/brancz/kube-rbac-proxy:v0.18.0"}
    labels = {"app.kubernetes.io/version": label} if label else {}
    pod = {"spec": {"containers": [proxy, {"name": "manager", "image": image}]}}
    return {"metadata": {"labels": labels}, "spec": {"selector": {}, "template": pod}}


def checked(world: World, **controllers: str) -> dict[str, str]:
    cluster = world.cluster.model_copy(update={"controllers": Controllers(**controllers)})
    return check_versions(world.fleet()._api, cluster)


def test_what_is_new_enough_passes(world: World, kube: KubeServer) -> None:
    assert checked(world) == {"KServe": "0.20.0", "Envoy Gateway": "1.9.0"}
    kube.deployments[ENVOY] = deployment("mirror:5000/envoyproxy/gateway@sha256:" + "0" * 64, label="v1.10.2")
    kube.deployments[KSERVE] = deployment("kserve/kserve-controller:v1.0.0-rc1")
    assert checked(world) == {"KServe": "1.0.0", "Envoy Gateway": "1.10.2"}


@pytest.mark.parametrize(
    ("place", "deployments", "message"),
    [
        (ENVOY, deployment("envoyproxy/gateway:v1.8.4"), r"1\.8\.4, and 1\.9 or later is needed: older ones split"),
        (KSERVE, deployment("kserve/kserve-controller:v0.19.1"), r"is version 0\.19\.1, and 0\.20 or later"),
        (KSERVE, deployment("kserve/kserve-controller:latest"), r"names no version, neither by the label app"),
        (KSERVE, None, r"there is no Deployment kserve/kserve-controller-manager, .* name it in runtime\.cluster"),
    ],
)  # fmt: skip
def test_what_is_too_old_or_unknown_is_refused(
    world: World, kube: KubeServer, place: tuple[str, str], deployments: dict[str, Any] | None, message: str
) -> None:
    if deployments is None:
        del kube.deployments[place]
    else:
        kube.deployments[place] = deployments
    with pytest.raises(ClusterError, match=message):
        checked(world)


def test_what_may_not_be_read_says_what_lets_it_be_read(world: World) -> None:
    world.settling = 0.1
    with pytest.raises(ClusterError, match=r"its version cannot be read \(.*version-readers\.yaml lets this account"):
        checked(world, kserve="other/kserve")


def test_what_the_spec_leaves_empty_is_not_looked_at(world: World, kube: KubeServer) -> None:
    kube.deployments.clear()
    assert checked(world, kserve="", envoy_gateway="") == {}
