"""The TrainJob that asks Kubeflow Trainer for the processes of one training."""

from __future__ import annotations

import os
from typing import Any, Final

from shortlist.contracts import ShortlistError
from shortlist.pods.settings import LABEL, declared_variables, job_pod, resources, whole_cores
from shortlist.spec.cluster import Cluster, Workers

API_VERSION: Final = "trainer.kubeflow.org/v1alpha1"
RUNTIME: Final = "torch-distributed"
"""The ClusterTrainingRuntime of Kubeflow Trainer that sets torchrun's nodes, processes and addresses."""
_CONTAINER: Final = "node"
"""Name of the job and the container in this runtime."""
_SCRATCH: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "tmp": ("/tmp", {"emptyDir": {}}),  # noqa: S108 - a volume of the pod's own
    "shm": ("/dev/shm", {"emptyDir": {"medium": "Memory"}}),  # noqa: S108
}
"""Scratch space, and shared memory for NCCL between the processes of a pod; Docker's default is 64 MB."""
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
    threads = {"name": "OMP_NUM_THREADS", "value": str(max(1, whole_cores(task) // workers.processes))}
    patch = {
        "metadata": {"labels": {LABEL: "shortlist"}},
        "spec": job_pod(cluster, task, {"name": _CONTAINER}, _SCRATCH),
    }
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
                "env": [threads, *declared_variables(cluster)],
                "numNodes": workers.nodes,
                "numProcPerNode": workers.processes,
                "resourcesPerNode": resources(task),
            },
            "runtimePatches": [
                {"manager": _MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}
            ],
        },
    }


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
