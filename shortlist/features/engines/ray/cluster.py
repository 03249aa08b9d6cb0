"""Connection to a Ray cluster, and the checks before any work is sent to it."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from shortlist.contracts import ShortlistError
from shortlist.features.engines.ray.tasks import execute, unpack
from shortlist.system.accelerator import EngineError
from shortlist.system.partitions import Block, Work
from shortlist.system.progress import progress
from shortlist.tracking.steps import note

_REACH_SECONDS: Final = 5
_RETRIES: Final = 3
"""How often a task is run again whose worker was killed."""
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - where Ray keeps its objects
_WORKER_VARIABLES: Final = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""A worker has one core."""
_PACKAGES: Final = ("shortlist", "polars", "pyarrow", "numpy")
"""Packages whose versions must be the same everywhere; Ray compares its own, and Python's."""


class RaySettings(NamedTuple):
    """The settings of a connection; see `shortlist.features.engines.ray.section`."""

    address: str
    workers: int
    partitions: int
    memory_bytes: int
    object_store_bytes: int

    @property
    def memory_gb(self) -> float:
        """Memory of a worker, in 10^9 bytes."""
        return self.memory_bytes / 1e9

    @property
    def object_store_gb(self) -> float:
        """Shared memory of a machine, in 10^9 bytes."""
        return self.object_store_bytes / 1e9


class RayPartitions:
    """Runs functions over partitions as tasks of Ray; see `shortlist.system.partitions.PartitionEngine`."""

    def __init__(self, settings: RaySettings) -> None:
        self.partitions = settings.partitions
        self.workers = settings.workers
        self.peak_mib = 0
        """Largest memory of a worker so far, without the object store."""
        self.tasks = 0
        """Number of tasks so far."""
        self._settings = settings

    def run(
        self, work: Work, tasks: Sequence[tuple[Any, ...]], inputs: Sequence[Sequence[Block]] = (),
        outputs: int | None = None,
    ) -> list[list[Block]]:  # fmt: skip
        """See `PartitionEngine.run`. All tasks have ended when it returns."""
        import ray

        remote = ray.remote(execute).options(
            name=work.__name__, num_cpus=1, memory=self._settings.memory_bytes, max_retries=_RETRIES,
            num_returns=(outputs or 1) + 1,
        )  # fmt: skip
        label = work.__name__.replace("_", " ")
        references = [
            remote.remote(work, task, list(inputs[number]) if inputs else None, outputs)
            for number, task in enumerate(tasks)
        ]
        with self._explained_errors(), progress(label, len(tasks), "partitions") as advance:
            pending = [blocks[-1] for blocks in references]
            while pending:
                ended, pending = ray.wait(pending, num_returns=1)
                self.peak_mib = max(self.peak_mib, *ray.get(ended))
                advance(len(ended), label)
        self.tasks += len(tasks)
        return [blocks[:-1] for blocks in references]

    def fetch(self, blocks: Sequence[Block]) -> Iterator[Any]:
        """See `PartitionEngine.fetch`."""
        import ray

        for block in blocks:
            with self._explained_errors():
                contents = ray.get(block)
            yield unpack(contents)

    @contextmanager
    def _explained_errors(self) -> Iterator[None]:
        """Raise the error of a task as itself, and errors of Ray with the next step."""
        from ray import exceptions

        try:
            yield
        except exceptions.RayTaskError as error:
            raise _task_error(error) from None
        except (exceptions.OutOfMemoryError, exceptions.ObjectStoreFullError, exceptions.OutOfDiskError) as error:
            raise EngineError(
                f"runtime.features: a machine of the Ray cluster has too little memory or disk"
                f" ({type(error).__name__}); a worker has {self._settings.memory_gb:g} GB, and a machine's object store"
                f" {self._settings.object_store_gb:g} GB. Declare more runtime.features.partitions (now"
                f" {self.partitions}), a larger memory_gb or object_store_gb, or fewer workers per machine"
            ) from None
        except exceptions.RayError as error:
            first_line = str(error).strip().partition("\n")[0]
            raise EngineError(
                f"runtime.features: Ray lost a task {_RETRIES + 1} times, or the cluster itself"
                f" ({type(error).__name__}: {first_line}). See Ray's log at its head; nothing half made is kept: run"
                " the step again"
            ) from None


@contextmanager
def connect_cluster(settings: RaySettings) -> Iterator[RayPartitions]:
    """Connect to a running cluster, or start one on this machine, until the context ends.

    Raises:
        EngineError: Ray is not installed, the cluster cannot be reached, is too small, or has other versions.
    """
    if find_spec("ray") is None:
        raise EngineError(
            "runtime.features.engine is ray, but the package ray is not installed. Install requirements/cluster.txt, or"
            " declare engine: local"
        )
    import ray

    engine = RayPartitions(settings)
    if settings.address:
        _connect(settings)
    else:
        _start(settings)
    try:
        _check_size(settings, ray.cluster_resources())
        _check_versions()
        yield engine
        note(
            f"Ray ran {engine.tasks} tasks; the largest worker had {engine.peak_mib:,} MiB of"
            f" {settings.memory_bytes >> 20:,}."
        )
    finally:
        ray.shutdown()


def _start(settings: RaySettings) -> None:
    free = shutil.disk_usage(_SHARED_MEMORY).free if Path(_SHARED_MEMORY).is_dir() else 0
    if free < settings.object_store_bytes:
        raise EngineError(
            f"runtime.features.object_store_gb: wanted {settings.object_store_gb:g} GB of shared memory, but"
            f" {_SHARED_MEMORY} has {free / 1e9:.2g} GB. Declare less, or mount a larger {_SHARED_MEMORY}"
        )
    # Workers inherit the environment in which Ray starts them.
    with _environment({**_WORKER_VARIABLES, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": None}):
        _initialise(
            lambda ray: ray.init(
                num_cpus=settings.workers, object_store_memory=settings.object_store_bytes,
                _memory=settings.workers * settings.memory_bytes, include_dashboard=False, log_to_driver=False,
                configure_logging=False,
            ),
            "this machine",
        )  # fmt: skip


def _connect(settings: RaySettings) -> None:
    address = settings.address
    host, _, port = address.rpartition(":")
    if host:  # Ray itself would wait for minutes, and then end the process
        try:
            socket.create_connection((host, int(port)), timeout=_REACH_SECONDS).close()
        except OSError as error:
            raise EngineError(
                f"runtime.features.address: no Ray cluster at {address} ({error.strerror or error}); wanted host:port"
                " of a running head. Start it (ray start --head), or leave the address out to start Ray on this machine"
            ) from None
    _initialise(
        lambda ray: ray.init(
            address=address, log_to_driver=False, configure_logging=False,
            runtime_env={"env_vars": _WORKER_VARIABLES},
        ),
        address,
    )  # fmt: skip


def _initialise(start: Callable[[Any], Any], place: str) -> None:
    import ray

    try:
        start(ray)
    except (ConnectionError, SystemExit) as error:
        raise EngineError(
            f"runtime.features.address: no Ray cluster answers at {place} ({error}). Start one (ray start --head), or"
            " leave the address out to start Ray on this machine"
        ) from None
    except (RuntimeError, ValueError) as error:
        first_lines = " ".join(line.strip() for line in str(error).strip().splitlines()[:5])
        raise EngineError(
            f"runtime.features: Ray refuses to start or to connect at {place}: {first_lines}. The step and all machines"
            " of the cluster need the same Ray and the same Python: use the pipeline image"
        ) from None


def _check_size(settings: RaySettings, cluster: Mapping[str, float]) -> None:
    wanted = {"CPU": 1, "memory": settings.memory_bytes, "object_store_memory": settings.object_store_bytes}
    names = {"CPU": "cores", "memory": "memory_gb", "object_store_memory": "object_store_gb"}
    for resource, least in wanted.items():
        available = cluster.get(resource, 0)
        if available < least * 0.99:  # Ray rounds
            unit = 1 if resource == "CPU" else 1e9
            raise EngineError(
                f"runtime.features.{names[resource]}: wanted {least / unit:.3g}, but the whole Ray cluster has"
                f" {available / unit:.3g}. Declare less, or add machines with more"
            )


def _check_versions() -> None:
    """Check that every machine of the cluster has the packages of this process.

    Raises:
        EngineError: One has others, or none; names the machine, the package and both versions.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = package_versions(_PACKAGES)
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU"):
            strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(_by_value(package_versions)).options(num_cpus=0, scheduling_strategy=strategy)
            check_versions(here, ray.get(task.remote(_PACKAGES)), node["NodeManagerAddress"])


def package_versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the version of every package; empty where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    versions = {}
    for name in packages:
        try:
            versions[name] = version(name) if find_spec(name) is not None else ""
        except PackageNotFoundError:
            versions[name] = ""
    return versions


def check_versions(here: Mapping[str, str], there: Mapping[str, str], machine: str) -> None:
    """Check the versions of a machine's packages against those of this process.

    Raises:
        EngineError: They differ, or a package is missing there.
    """
    for name, version in here.items():
        if there[name] != version:
            problem = f"has {name} {there[name]}" if there[name] else f"has no package {name}"
            raise EngineError(
                f"runtime.features.address: machine {machine} of the Ray cluster {problem}, and this step {version}."
                " Results would not be the same: install the same packages there (use the pipeline image), and start"
                " the cluster again"
            )


def _by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is sent with its code, for workers that may lack this package."""
    from types import FunctionType

    assert isinstance(function, FunctionType)
    copy = FunctionType(function.__code__, {"__builtins__": __builtins__}, function.__name__)
    copy.__module__ = "__main__"
    return copy


def _task_error(error: Any) -> Exception:
    cause = error.cause
    if isinstance(cause, FileNotFoundError):
        return EngineError(
            f"runtime.features: {cause.filename or cause} is not on a machine of the Ray cluster; wanted the folder of"
            " runs on a disk that all machines mount at the same path. Mount it, or declare engine: local"
        )
    if isinstance(cause, ModuleNotFoundError):
        return EngineError(
            f"runtime.features: a machine of the Ray cluster lacks a package ({cause}); install the same packages there"
            " (use the pipeline image)"
        )
    return cause if isinstance(cause, Exception) else ShortlistError(str(error))


@contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    try:
        _set_environment(variables)
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
