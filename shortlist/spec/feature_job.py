"""Jobs on Kubernetes that make features for a step: what an engine needs, and what a step's pod knows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple, Self

from pydantic import BaseModel, ConfigDict

from shortlist.contracts import ShortlistError
from shortlist.spec.cluster import Cluster, Task

VARIABLE: Final = "SHORTLIST_FEATURE_JOBS"
"""Environment variable with a pod's `JobEnvironment` as JSON."""
VOLUME_FOLDER: Final = "/mnt/shortlist-features"
"""Where the step and the pods of its jobs mount the volume; the path is the same in all of them."""


class EngineJob(NamedTuple):
    """The kind of job that does an engine's work, and its volume."""

    api_version: str
    """Such as `ray.io/v1`."""
    kind: str
    """Such as `RayJob`."""
    operator: str
    """What has to be installed for it."""
    claim: str
    """PersistentVolumeClaim, ReadWriteMany, that the step and the job's pods mount."""
    timeout_minutes: int
    """Longest time of a job."""


class JobEnvironment(BaseModel):
    """What a step's pod knows of its cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str
    """Where the volume is mounted."""
    image: str
    """Image of the job's pods."""
    cluster: Cluster
    """Namespace, service account, variables and secrets."""
    task: Task
    """Resources of the process that does the step's work, and its nodes."""

    @classmethod
    def of_pod(cls, claim: str) -> Self:
        """Return the environment of this pod.

        Args:
            claim: PersistentVolumeClaim that it should mount.

        Raises:
            ShortlistError: It does not mount the volume.
        """
        text = os.environ.get(VARIABLE, "")
        environment = cls.model_validate_json(text) if text else None
        if environment is None or not Path(environment.folder).is_dir():
            place = environment.folder if environment else VOLUME_FOLDER
            raise ShortlistError(
                f"runtime.features.volume_claim: the pod of this step has no folder {place}; wanted the"
                f" PersistentVolumeClaim {claim} there. Submit the spec again: steps that make features mount it since"
                " runtime.features is declared so"
            )
        return environment
