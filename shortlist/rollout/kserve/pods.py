"""What all pods of a version have: nobody's rights, limits, and files that are verified before anything starts."""

from __future__ import annotations

import re
from typing import Final

from shortlist.rollout.kserve.errors import ClusterError
from shortlist.rollout.kserve.owner import Object
from shortlist.rollout.kserve.settings import FILES, HTTP_PORT
from shortlist.spec.cluster import Cluster, Secret, Task

SERVICE_ACCOUNT: Final = "shortlist-server"
"""Of both pods: no rights in the cluster, perhaps an identity for the object store."""
CONTAINER: Final = "kserve-container"
"""The name by which KServe knows the container that serves."""
TMP: Final = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108  (the pod's own)
_TMP_LIMIT: Final = "4Gi"
_USER: Final = 1000


def checked_image(image: str, name: str, allow_tags: bool) -> str:
    """Return an image that may be used.

    Raises:
        ClusterError: There is none, or its name can mean another image tomorrow.

    >>> checked_image("registry/triton@sha256:" + "0" * 64, "triton", allow_tags=False)[:23]
    'registry/triton@sha256:'
    """
    where = f"runtime.cluster.images.{name}"
    if not image:
        raise ClusterError(f"{where}: no image is declared; make images builds one and prints its digest")
    if not allow_tags and not re.search(r"@sha256:[0-9a-f]{64}$", image):
        raise ClusterError(
            f"{where}: got '{image}'; wanted it by digest (name@sha256:...): a tag can mean another image when a pod is"
            " started again. For a trial: runtime.cluster.images.allow_tags: true"
        )
    return image


def pod(name: str, cluster: Cluster, source: str, key: str, digest: str, folder: str) -> Object:
    """Return what both pods have: nobody's rights, own folders, and files that are verified before anything starts.

    Args:
        name: Of the InferenceService.
        cluster: The spec's section.
        source: Root of the object store.
        key: Of the published folder that the pod serves from.
        digest: Of its files.
        folder: Its name in the pod.
    """
    task, scaling = cluster.serving, cluster.autoscaling
    limits = {"log": {"sizeLimit": cluster.log_volume}, "tmp": {"sizeLimit": _TMP_LIMIT}}
    empty: list[Object] = [{"name": volume, "emptyDir": limits.get(volume, {})} for volume in ("files", "log", "tmp")]
    return {
        "minReplicas": scaling.min_replicas,
        "maxReplicas": scaling.max_replicas,
        "serviceAccountName": SERVICE_ACCOUNT,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": task.node_selector,
        "tolerations": [one.model_dump(exclude_defaults=True) | {"operator": one.operator} for one in task.tolerations],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"serving.kserve.io/inferenceservice": name}},
            }
        ],
        "terminationGracePeriodSeconds": 60,  # what is under way ends, and the log is written
        "volumes": empty,
        "initContainers": [fetching("verify", cluster, source, key, digest, folder)],
    }


def fetching(name: str, cluster: Cluster, source: str, key: str, digest: str, folder: str) -> Object:
    """Return the init container that fetches a published folder and verifies it.

    Args:
        name: Of the container.
        cluster: The spec's section.
        source: Root of the object store.
        key: Of the folder.
        digest: Of its files.
        folder: Its name in the pod.
    """
    return {
        "name": name,
        "image": checked_image(cluster.images.pipeline, "pipeline", cluster.images.allow_tags),
        "command": ["python", "-m", "shortlist.rollout.kserve.fetch"],
        "args": ["--source", source, "--key", key, "--digest", digest, "--to", f"{FILES}/{folder}"],
        "env": variables(cluster),
        "resources": resources(Task(cpu="500m", memory="1Gi")),
        "securityContext": container_security(),
        "volumeMounts": [{"name": "files", "mountPath": FILES}, TMP],
    }


def variables(cluster: Cluster) -> list[Object]:
    """Return a container's environment: where it may write, and what comes from secrets, by reference."""
    secret = [_variable(one, name, key) for one in cluster.secrets for name, key in one.variables.items()]
    return [home(), *secret]


def home() -> Object:
    """Return the variable that says where a container may write: the rest of its disk is read-only."""
    return {"name": "HOME", "value": "/tmp"}  # noqa: S108  (the pod's own)


def _variable(secret: Secret, name: str, key: str) -> Object:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": key}}}


def resources(task: Task) -> Object:
    """Return requests and limits, which are the same: nobody is evicted for what another uses."""
    amounts = {"cpu": task.cpu, "memory": task.memory}
    if task.gpus:
        amounts[task.accelerator] = str(task.gpus)
    return {"requests": amounts, "limits": amounts}


def container_security() -> Object:
    """Return what takes every right from a container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def probe(path: str, failures: int = 3) -> Object:
    """Return a probe that asks over HTTP every five seconds."""
    return {
        "httpGet": {"path": path, "port": HTTP_PORT},
        "periodSeconds": 5,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }
