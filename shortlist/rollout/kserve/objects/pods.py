"""Common settings of a version's pods: no privileges, resource limits, and files that are verified before the start."""

from __future__ import annotations

import re
from typing import Final

from shortlist.pods.settings import container_security, declared_variables, pod_security, resources, tolerations
from shortlist.rollout.kserve.servers.settings import FILES, HTTP_PORT
from shortlist.spec.cluster import Cluster, Task
from shortlist.system.kubernetes_api import ClusterError, Object

SERVICE_ACCOUNT: Final = "shortlist-server"
"""Service account of both pods: no rights in the cluster, perhaps an identity for the object store."""
CONTAINER: Final = "kserve-container"
"""Name of the serving container, required by KServe."""
TMP: Final = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108  (the pod's own)
_TMP_LIMIT: Final = "4Gi"


def checked_image(image: str, name: str, allow_tags: bool) -> str:
    """Return an image after checking that it is declared, and by digest.

    Raises:
        ClusterError: No image is declared, or it is named by a tag where tags are not allowed.

    >>> checked_image("registry/triton@sha256:" + "0" * 64, "triton", allow_tags=False)[:23]
    'registry/triton@sha256:'
    """
    setting = f"runtime.cluster.images.{name}"
    if not image:
        raise ClusterError(f"{setting}: no image is declared; make images builds one and prints its digest")
    if not allow_tags and not re.search(r"@sha256:[0-9a-f]{64}$", image):
        raise ClusterError(
            f"{setting}: got '{image}'; wanted it by digest (name@sha256:...): a tag can mean another image when a pod"
            " is started again. For a trial: runtime.cluster.images.allow_tags: true"
        )
    return image


def pod(name: str, cluster: Cluster, source: str, key: str, digest: str, folder: str) -> Object:
    """Return the common settings of both pods: no privileges, own volumes, and verified files.

    Args:
        name: Name of the InferenceService.
        cluster: The spec's section.
        source: Root of the object store.
        key: Key of the published folder that the pod serves from.
        digest: Digest of its files.
        folder: Name of the folder in the pod.
    """
    task, scaling = cluster.serving, cluster.autoscaling
    limits = {"log": {"sizeLimit": cluster.log_volume}, "tmp": {"sizeLimit": _TMP_LIMIT}}
    empty: list[Object] = [{"name": volume, "emptyDir": limits.get(volume, {})} for volume in ("files", "log", "tmp")]
    return {
        "minReplicas": scaling.min_replicas,
        "maxReplicas": scaling.max_replicas,
        "serviceAccountName": SERVICE_ACCOUNT,
        "automountServiceAccountToken": False,
        "securityContext": pod_security(),
        "nodeSelector": task.node_selector,
        "tolerations": tolerations(task),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"serving.kserve.io/inferenceservice": name}},
            }
        ],
        "terminationGracePeriodSeconds": 60,  # requests in flight end, and the log is written
        "volumes": empty,
        "initContainers": [fetching("verify", cluster, source, key, digest, folder)],
    }


def fetching(name: str, cluster: Cluster, source: str, key: str, digest: str, folder: str) -> Object:
    """Return the init container that fetches a published folder and verifies it.

    Args:
        name: Name of the container.
        cluster: The spec's section.
        source: Root of the object store.
        key: Key of the folder.
        digest: Digest of its files.
        folder: Name of the folder in the pod.
    """
    return {
        "name": name,
        "image": checked_image(cluster.images.pipeline, "pipeline", cluster.images.allow_tags),
        "command": ["python", "-m", "shortlist.rollout.kserve.servers.fetch"],
        "args": ["--source", source, "--key", key, "--digest", digest, "--to", f"{FILES}/{folder}"],
        "env": variables(cluster),
        "resources": resources(Task(cpu="500m", memory="1Gi")),
        "securityContext": container_security(),
        "volumeMounts": [{"name": "files", "mountPath": FILES}, TMP],
    }


def variables(cluster: Cluster) -> list[Object]:
    """Return the environment of a container: its home, declared variables, and those from secrets, by reference."""
    return [home(), *declared_variables(cluster)]


def home() -> Object:
    """Return the variable HOME: the only writable folder, as the root file system is read-only."""
    return {"name": "HOME", "value": "/tmp"}  # noqa: S108  (the pod's own)


def probe(path: str, *, seconds: int = 5, timeout_seconds: int = 3, failures: int = 3) -> Object:
    """Return an HTTP probe.

    Args:
        path: What is asked.
        seconds: Time between two requests.
        timeout_seconds: Longest wait for an answer.
        failures: Failures in a row that count.
    """
    return {
        "httpGet": {"path": path, "port": HTTP_PORT},
        "periodSeconds": seconds,
        "timeoutSeconds": timeout_seconds,
        "failureThreshold": failures,
    }
