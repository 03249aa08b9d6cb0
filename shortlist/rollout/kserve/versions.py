"""Whether a cluster's KServe and Envoy Gateway are new enough for a rollout."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from shortlist.rollout.kserve.api import KubernetesAPI
from shortlist.rollout.kserve.errors import ClusterError
from shortlist.rollout.kserve.owner import Object
from shortlist.spec.cluster import Cluster

_LABEL: Final = "app.kubernetes.io/version"


class Requirement(NamedTuple):
    """A controller and the oldest version that does what a rollout needs."""

    key: str
    """Of `runtime.cluster.controllers`."""
    title: str
    image: str
    """Word in the name of its image, which tells it from that of a proxy beside it."""
    oldest: tuple[int, int]
    why: str


REQUIREMENTS: Final = (
    Requirement("kserve", "KServe", "kserve", (0, 20), "older ones were never tried with these manifests"),
    Requirement(
        "envoy_gateway",
        "Envoy Gateway",
        "gateway",
        (1, 9),
        "older ones split users at random, so nobody keeps a version",
    ),
)


def check_versions(api: KubernetesAPI, cluster: Cluster) -> dict[str, str]:
    """Return the versions of the controllers that a rollout depends on, by name.

    Args:
        api: Of the cluster.
        cluster: The spec's section; a controller that it leaves empty is not looked at.

    Raises:
        ClusterError: One is too old, is not there, may not be read, or does not say its version.
    """
    found = {}
    for requirement in REQUIREMENTS:
        where = getattr(cluster.controllers, requirement.key)
        if where:
            found[requirement.title] = _checked(api, where, requirement)
    return found


def version_of(deployment: Object, word: str) -> str | None:
    """Return the version that a controller's Deployment names: by its label, else by the tag of its image.

    Args:
        deployment: The object.
        word: In the name of the controller's own image.

    >>> pod = {"spec": {"containers": [{"image": "host:5000/kserve/kserve-controller:v0.20.1"}]}}
    >>> version_of({"metadata": {}, "spec": {"template": pod}}, "kserve")
    '0.20.1'
    """
    label = (deployment["metadata"].get("labels") or {}).get(_LABEL, "")
    images = [str(one["image"]) for one in deployment["spec"]["template"]["spec"]["containers"]]
    tags = [re.sub(r"@.*", "", image).rpartition("/")[2].partition(":")[2] for image in images if word in image]
    for text in (label, *tags):
        if said := re.match(r"v?(\d+\.\d+(?:\.\d+)?)", text):
            return said[1]
    return None


def _checked(api: KubernetesAPI, where: str, requirement: Requirement) -> str:
    title, key = requirement.title, f"runtime.cluster.controllers.{requirement.key}"
    namespace, _, name = where.partition("/")
    wanted = ".".join(map(str, requirement.oldest))
    try:
        deployment = api.deployment(namespace, name)
    except ClusterError as error:
        raise ClusterError(
            f"{title}: its version cannot be read ({error}) kubectl apply -f deploy/k8s/version-readers.yaml lets this"
            f" account read it; or see that it is {wanted} or later, and set {key}: '' to skip this check."
        ) from None
    if deployment is None:
        raise ClusterError(
            f"{title}: there is no Deployment {where}, whose version says whether users can be split; name it in {key}."
            f" {title} {wanted} or later is needed."
        )
    version = version_of(deployment, requirement.image)
    if version is None:
        raise ClusterError(
            f"{title}: Deployment {where} names no version, neither by the label {_LABEL} nor by its image's tag. See"
            f" that it is {wanted} or later, and set {key}: '' to skip this check."
        )
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < requirement.oldest:
        raise ClusterError(
            f"{title}: {where} is version {version}, and {wanted} or later is needed: {requirement.why}. Nothing was"
            " rolled out; upgrade it first."
        )
    return version
