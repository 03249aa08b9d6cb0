"""The TrainJob that asks Kubeflow Trainer for the processes of one training."""

from __future__ import annotations

import os
from typing import Any, Final

from shortlist.contracts import ShortlistError
from shortlist.spec.cluster import Cluster, Task, Workers

API_VERSION: Final = "trainer.kubeflow.org/v1alpha1"
RUNTIME: Final = "torch-distributed"
"""The ClusterTrainingRuntime of Kubeflow Trainer that sets torchrun's nodes, processes and addresses."""
LABEL: Final = "app.kubernetes.io/managed-by"
_CONTAINER: Final = "node"
"""Name of the job and the container in this runtime."""
_USER: Final = 1000
"""User id of the images in deploy/docker."""
_MANAGER: Final = "shortlist.dev/training"
_IMAGES: Final = {"gpu": "SHORTLIST_GPU_IMAGE", "pipeline": "SHORTLIST_IMAGE"}


def train_job(name: str, cluster: Cluster, workers: Workers, objects: str, key: str) -> dict[str, Any]:
    """Return the manifest of a training.

    Args:
        name: Name of the TrainJob, a DNS label.
        cluster: Namespace, images, secrets.
        workers: Number of pods, their resources, and processes per pod.
        objects: Root of the object store.
        key: Key of the job's inputs below the root.

    Raises:
        ShortlistError: No image is declared, or an image has no digest.
    """
    task = workers.pod
    threads = {"name": "OMP_NUM_THREADS", "value": str(max(1, int(_cores(task) / workers.processes)))}
    resources = {"cpu": task.cpu, "memory": task.memory} | ({task.accelerator: str(task.gpus)} if task.gpus else {})
    patch = {"metadata": {"labels": {LABEL: "shortlist"}}, "spec": _pod(cluster, task)}
    job = {"name": _CONTAINER, "template": {"spec": {"template": patch}}}
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainJob",
        "metadata": {"name": name, "namespace": cluster.namespace, "labels": {LABEL: "shortlist"}},
        "spec": {
            "runtimeRef": {"name": RUNTIME},
            "activeDeadlineSeconds": task.timeout_minutes * 60,
            "trainer": {
                "image": _image(cluster, "gpu" if task.gpus else "pipeline"),
                "command": ["torchrun", "-m", "shortlist.training.distributed.remote_worker"],
                "args": [objects, key],
                "env": [threads, *_environment(cluster)],
                "numNodes": workers.nodes,
                "numProcPerNode": workers.processes,
                "resourcesPerNode": {"requests": resources, "limits": resources},
            },
            "runtimePatches": [
                {"manager": _MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}
            ],
        },
    }


def _pod(cluster: Cluster, task: Task) -> dict[str, Any]:
    tolerations = [
        {name: value for name, value in toleration.model_dump().items() if value} for toleration in task.tolerations
    ]
    # Scratch space, and shared memory for NCCL between the processes of a pod; Docker's default is 64 MB.
    volumes = {"tmp": ("/tmp", {}), "shm": ("/dev/shm", {"medium": "Memory"})}  # noqa: S108 - a volume of the pod's own
    spec: dict[str, Any] = {
        "serviceAccountName": cluster.service_account,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": _CONTAINER,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [{"name": name, "mountPath": path} for name, (path, _) in volumes.items()],
            }
        ],
        "volumes": [{"name": name, "emptyDir": kind} for name, (_, kind) in volumes.items()],
    }
    spec |= {"nodeSelector": task.node_selector} if task.node_selector else {}
    return spec | ({"tolerations": tolerations} if tolerations else {})


def _cores(task: Task) -> float:
    return float(task.cpu.removesuffix("m")) / (1_000 if task.cpu.endswith("m") else 1)


def _environment(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the declared variables, and those of the secrets, whose values are never written into a manifest."""
    declared: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in cluster.variables.items()]
    return declared + [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": key}}}
        for secret in cluster.secrets
        for variable, key in secret.variables.items()
    ]


def _image(cluster: Cluster, kind: str) -> str:
    image = getattr(cluster.images, kind) or os.environ.get(_IMAGES[kind], "")
    if not image:
        raise ShortlistError(
            f"runtime.cluster.images.{kind}: workers need this image and nothing names it. Write it into the spec or"
            f" into {_IMAGES[kind]}, by digest."
        )
    if "@sha256:" not in image and not cluster.images.allow_tags:
        raise ShortlistError(
            f"runtime.cluster.images.{kind}: '{image}' has no digest; wanted name@sha256:<64 hex digits>"
        )
    return str(image)
