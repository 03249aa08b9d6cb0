"""The settings of the engine `ray`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from pydantic import Field

from shortlist.spec.cluster import Name
from shortlist.spec.feature_job import EngineJob, JobEnvironment
from shortlist.spec.runtime import FeatureEngine
from shortlist.system.partitions import PartitionEngine

_PARTITIONS_PER_WORKER: Final = 4
"""Small enough that a repeated partition costs little, and that a large one does not keep the others waiting."""


class RayEngine(FeatureEngine):
    """Features as tasks of Ray, on this machine or on many."""

    engine: Literal["ray"]
    """Ray; `requirements/cluster.txt` installs it."""
    address: str = Field(default="", pattern=r"^(auto|[A-Za-z0-9.-]+:\d{1,5})?$")
    """Address of a running cluster, `host:port` of its head, or `auto` on one of its machines. Empty: on Kubernetes a
    RayJob is submitted; elsewhere Ray is started on this machine and stopped with the step."""
    workers: int = Field(default=2, ge=1, le=100_000)
    """Tasks at the same time, each in a process with one core."""
    memory_gb: float = Field(default=2.0, ge=0.25)
    """Memory of a worker, in 10^9 bytes, besides the object store. A shuffle is divided so that a task stays below."""
    object_store_gb: float = Field(default=1.0, ge=0.1)
    """Shared memory of a machine for the blocks of shuffles, in 10^9 bytes; what does not fit goes to its disk."""
    partitions: int | None = Field(default=None, ge=2, le=10_000)
    """Partitions of a shuffle; null: four per worker."""
    workers_per_pod: int = Field(default=8, ge=1, le=256)
    """Most workers of a pod, where a RayJob is submitted."""
    volume_claim: Name = "shortlist-features"
    """PersistentVolumeClaim, ReadWriteMany, that the step and all pods of a RayJob mount: copies of the log and of what
    is made of it, while the job runs."""
    timeout_minutes: int = Field(default=360, ge=1)
    """A RayJob that takes longer is deleted, and its step fails. The time limit of a step grows by as much for each job
    that it may run: four of `score_champion`, three of `fit_features`, one of the others."""

    @property
    def shuffle_partitions(self) -> int:
        """Partitions of a shuffle."""
        return self.partitions or max(2, _PARTITIONS_PER_WORKER * self.workers)

    @property
    def memory_bytes(self) -> int:
        """Memory of a worker."""
        return int(self.memory_gb * 1e9)

    @property
    def object_store_bytes(self) -> int:
        """Shared memory of a machine."""
        return int(self.object_store_gb * 1e9)

    @property
    def job(self) -> EngineJob | None:
        """The RayJob; none where a running cluster is declared."""
        if self.address:
            return None
        return EngineJob("ray.io/v1", "RayJob", "KubeRay 1.6 or later", self.volume_claim, self.timeout_minutes)

    def inside_job(self) -> RayEngine:
        """Return the section with the cluster of the job as address."""
        return self.model_copy(update={"address": "auto"})

    def run_job(self, name: str, program: str, environment: JobEnvironment, *, is_finished: bool) -> None:
        """Run a program as a RayJob; see `FeatureEngine.run_job`."""
        from shortlist.features.engines.ray.ray_job import RayWorkers, run_ray_job

        workers = RayWorkers(
            self.workers, self.workers_per_pod, self.memory_bytes, self.object_store_bytes, self.volume_claim,
            self.timeout_minutes,
        )  # fmt: skip
        run_ray_job(name, program, workers, environment, is_finished=is_finished)

    @contextmanager
    def open(self) -> Iterator[PartitionEngine]:
        """Connect to the cluster, or start one here, until the context ends.

        Raises:
            EngineError: Ray is not installed, the cluster cannot be reached, is too small, or has other versions.
        """
        from shortlist.features.engines.ray.cluster import RaySettings, connect_cluster

        with connect_cluster(
            RaySettings(self.address, self.workers, self.shuffle_partitions, self.memory_bytes, self.object_store_bytes)
        ) as engine:
            yield engine
