"""Common settings of pods: no privileges, resource limits, variables, and a read-only root file system."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shortlist.contracts import ShortlistError
from shortlist.spec.cluster import Cluster, Task
from shortlist.spec.text.quantity import quantity_value
from shortlist.system.kubernetes_api import Object

LABEL: Final = "app.kubernetes.io/managed-by"
"""Label of what Shortlist creates for a step."""
_USER: Final = 1000
"""User id of the images in deploy/docker."""


def pod_security() -> Object:
    """Return the security context of a pod that does not run as root."""
    return {
        "runAsNonRoot": True,
        "runAsUser": _USER,
        "fsGroup": _USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Object:
    """Return the security context of a container without privileges."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def resources(task: Task) -> Object:
    """Return requests and limits, which are equal: pods are not evicted for what others use."""
    amounts = {"cpu": task.cpu, "memory": task.memory}
    if task.gpus:
        amounts[task.accelerator] = str(task.gpus)
    return {"requests": amounts, "limits": amounts}


def whole_cores(task: Task) -> int:
    """Return the number of threads that a pod's cores can run, at least one.

    Raises:
        ShortlistError: `cpu` is no number of cores.
    """
    if not re.fullmatch(r"\d+(\.\d+)?m?", task.cpu):
        raise ShortlistError(f"runtime.cluster: cpu: got '{task.cpu}', wanted cores such as 2, 0.5 or 500m")
    return max(1, int(quantity_value(task.cpu)))


def tolerations(task: Task) -> list[Object]:
    """Return the taints that a pod tolerates."""
    return [
        toleration.model_dump(exclude_defaults=True) | {"operator": toleration.operator}
        for toleration in task.tolerations
    ]


def declared_variables(cluster: Cluster) -> list[Object]:
    """Return the declared variables, and those of the secrets, whose values are never written into a manifest."""
    declared: list[Object] = [{"name": name, "value": value} for name, value in cluster.variables.items()]
    return declared + [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": key}}}
        for secret in cluster.secrets
        for variable, key in secret.variables.items()
    ]


def job_pod(cluster: Cluster, task: Task, container: Object, volumes: Mapping[str, tuple[str, Object]]) -> Object:
    """Return the pod of a step's job; it may do what the step may.

    Args:
        cluster: Service account.
        task: Nodes on which it may run.
        container: Name of its container, and whatever else is known of it.
        volumes: Name of a volume -> where it is mounted, and what it is.
    """
    mounts = [{"name": name, "mountPath": path} for name, (path, _) in volumes.items()]
    spec: Object = {
        "serviceAccountName": cluster.service_account,
        "securityContext": pod_security(),
        "containers": [{**container, "securityContext": container_security(), "volumeMounts": mounts}],
        "volumes": [{"name": name, **source} for name, (_, source) in volumes.items()],
    }
    spec |= {"nodeSelector": task.node_selector} if task.node_selector else {}
    return spec | ({"tolerations": tolerations(task)} if task.tolerations else {})
