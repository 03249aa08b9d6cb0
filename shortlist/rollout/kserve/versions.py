"""Check that a cluster's KServe and Envoy Gateway are new enough for a rollout."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from shortlist.spec.cluster import Cluster
from shortlist.system.kubernetes_api import ClusterError, KubernetesAPI, Object

_LABEL: Final = "app.kubernetes.io/version"


class Requirement(NamedTuple):
    """A controller and its oldest supported version."""

    key: str
    """Key in `runtime.cluster.controllers`."""
    title: str
    image: str
    """Word in the name of its image, which a sidecar's image does not have."""
    oldest: tuple[int, int]
    reason: str


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
        api: Client of the cluster.
        cluster: The spec's section; a controller that it leaves empty is not checked.

    Raises:
        ClusterError: A controller is too old or missing, may not be read, or does not name its version.
    """
    versions = {}
    for requirement in REQUIREMENTS:
        location = getattr(cluster.controllers, requirement.key)
        if location:
            versions[requirement.title] = _check_version(api, location, requirement)
    return versions


def version_of(deployment: Object, image_word: str) -> str | None:
    """Return the version of a controller's Deployment, from its label or from the tag of its image.

    Args:
        deployment: The Deployment.
        image_word: Word in the name of the controller's own image.

    >>> pod = {"spec": {"containers": [{"image": "host:5000/kserve/kserve-controller:v0.20.1"}]}}
    >>> version_of({"metadata": {}, "spec": {"template": pod}}, "kserve")
    '0.20.1'
    """
    label = (deployment["metadata"].get("labels") or {}).get(_LABEL, "")
    images = [str(container["image"]) for container in deployment["spec"]["template"]["spec"]["containers"]]
    tags = [re.sub(r"@.*", "", image).rpartition("/")[2].partition(":")[2] for image in images if image_word in image]
    for text in (label, *tags):
        if match := re.match(r"v?(\d+\.\d+(?:\.\d+)?)", text):
            return match[1]
    return None


def _check_version(api: KubernetesAPI, location: str, requirement: Requirement) -> str:
    title, key = requirement.title, f"runtime.cluster.controllers.{requirement.key}"
    namespace, _, name = location.partition("/")
    oldest_text = ".".join(map(str, requirement.oldest))
    try:
        deployment = api.deployment(namespace, name)
    except ClusterError as error:
        raise ClusterError(
            f"{title}: its version cannot be read ({error}) kubectl apply -f deploy/k8s/version-readers.yaml lets this"
            f" account read it; or see that it is {oldest_text} or later, and set {key}: '' to skip this check."
        ) from None
    if deployment is None:
        raise ClusterError(
            f"{title}: there is no Deployment {location}, whose version says whether users can be split; name it in"
            f" {key}. {title} {oldest_text} or later is needed."
        )
    version = version_of(deployment, requirement.image)
    if version is None:
        raise ClusterError(
            f"{title}: Deployment {location} names no version, neither by the label {_LABEL} nor by its image's tag."
            f" See that it is {oldest_text} or later, and set {key}: '' to skip this check."
        )
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < requirement.oldest:
        raise ClusterError(
            f"{title}: {location} is version {version}, and {oldest_text} or later is needed: {requirement.reason}."
            " Nothing was rolled out; upgrade it first."
        )
    return version
