"""The `runtime` section: engine, memory, stores and target of a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, field_validator, model_validator

from shortlist.spec.base import RegisteredSection, Section
from shortlist.spec.cluster import Cluster
from shortlist.spec.feature_job import EngineJob, JobEnvironment
from shortlist.system.partitions import PartitionEngine
from shortlist.system.registry import Registry, resolve_address

Variable = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
"""Name of an environment variable that holds an address or a secret; the spec itself never holds one."""

"""Registry of the object stores. Named, not imported, because it is in a layer above."""
_BUCKET_SCHEMES: Final = ("s3", "gs")
_BUCKET_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._/-]*[A-Za-z0-9])?")


class Gpu(Section):
    """How feature queries use the first visible GPU, where `engine` selects one."""

    memory_mib: int | None = Field(default=None, ge=256)
    """Device memory that queries may use on each GPU, in MiB; refused before any work where it is not free. null:
    cudf-polars' default, which spills to host memory where the driver supports it."""
    fallback: Literal["report", "refuse"] = "report"
    """What happens with a query that cuDF cannot run: `report` runs it on the CPU and counts it by operation, on the
    page and in `summary.json`; `refuse` stops the step and names the operation."""


FileOf = Callable[[str], Path]
"""Returns the path of a file of a spec's Feast store by its name; raises ShortlistError where no disk is shared."""


class OnlineStore(Section):
    """Feast's online store; the kinds are in `shortlist.features.online_stores`."""

    if TYPE_CHECKING:  # a field of every kind
        kind: str

    is_shared: ClassVar[bool] = True
    """Whether it is a server that several machines can reach."""

    @property
    def address_variable(self) -> str:
        """Environment variable with the address of its server; empty: it has no server."""
        return ""

    def configuration(self, file: FileOf) -> dict[str, Any]:
        """Return the `online_store` section of Feast's configuration; it may hold a password.

        Raises:
            ShortlistError: The variable with the address is not set, or no disk is shared.
        """
        raise NotImplementedError

    def files(self, file: FileOf) -> tuple[Path, ...]:
        """Return the files on this machine that must exist before anything can be read."""
        return ()

    def prepare(self, file: FileOf) -> None:
        """Finish the setup after Feast has created its tables."""

    def probe(self, file: FileOf) -> Callable[[], None] | None:
        """Return a check that raises where a read would have to wait for a lock; None where reads are slow anyway.

        It is called before each read of a few users' rows, so it must take microseconds; after it, such reads are done
        in the calling thread.
        """
        return None

    def check_reachable(self) -> None:
        """Check that the server answers.

        Raises:
            ShortlistError: It does not, or the variable with its address is not set.
        """

    @classmethod
    def explain_error(cls, error: Exception) -> str:
        """Return an explanation of an error of its client; empty for other errors."""
        return ""


class SQLiteTracking(Section):
    """MLflow in a SQLite file."""

    kind: Literal["sqlite"] = "sqlite"
    """`mlflow.db` and a folder beside it, in the folder of runs."""


class ServerTracking(Section):
    """MLflow on a server."""

    kind: Literal["server"]
    """An MLflow server, or its PostgreSQL database directly; artefacts are in the object store."""
    uri_variable: Variable = "MLFLOW_TRACKING_URI"
    """Environment variable that holds `http(s)://...` or `postgresql://...`."""


class Database(Section):
    """Store of the records of monitoring, retraining and rollouts; the kinds are in `shortlist.storage.records`."""

    if TYPE_CHECKING:  # a field of every kind
        kind: str

    opened_by: ClassVar[Mapping[str, str]] = {}
    """Scheme of an address -> the `module:function` that opens it. It is imported when needed, because it loads the
    database's client; its arguments are the address, the cluster, the area and the spec; it returns a `RecordStore`."""
    keeps_feast_registry: ClassVar[bool] = False
    """Whether it also holds Feast's registry; otherwise that is a file in the folder of runs."""

    @property
    def address_variable(self) -> str:
        """Environment variable with the address; empty: files in the folder of runs."""
        return ""


class FolderObjects(Section):
    """Published views, deployed versions and logs in a folder."""

    kind: Literal["folder"] = "folder"
    """In the folder of runs."""

    @property
    def address(self) -> str:
        """Address of the folder; empty: the folder of runs."""
        return ""


class BucketObjects(Section):
    """Published views, deployed versions and logs in an object store."""

    kind: Literal["bucket"]
    """S3, GCS or whatever speaks S3, or another kind of `OBJECT_STORES`. Credentials come from the environment
    (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`), as the stores' own clients read
    them."""
    url: str = Field(pattern=r"^[a-z][a-z0-9+.-]*://[^\s#]+$")
    """Bucket and prefix, e.g. `s3://models/shortlist`; one prefix per cluster, never shared by two."""

    @property
    def address(self) -> str:
        """Address of the bucket."""
        return self.url

    @field_validator("url")
    @classmethod
    def _scheme_is_registered(cls, url: str) -> str:
        scheme, _, bucket_path = url.partition("://")
        registered_stores: Registry[str] = resolve_address("object_stores")
        if scheme == "file" or (scheme not in registered_stores and scheme not in registered_stores.complete()):
            schemes = " or ".join(f"{name}://" for name in registered_stores if name != "file")
            raise ValueError(f"no object store is known by '{scheme}'; wanted {schemes}")
        if scheme in _BUCKET_SCHEMES and not _BUCKET_PATTERN.fullmatch(bucket_path):
            raise ValueError(f"got '{url}'; wanted a bucket and perhaps a prefix, e.g. {scheme}://models/shortlist")
        return url


class FleetSection(Section):
    """Servers to which releases are deployed; the kinds are in `shortlist.deployment.fleets`."""

    if TYPE_CHECKING:  # a field of every kind
        kind: str

    option: ClassVar[str] = ""
    """Name of the fleet for `--target`; empty: its kind."""
    connection: ClassVar[str]
    """`module:class` of its `shortlist.rollout.fleet_connection.FleetConnection`, imported when it is needed."""
    command_runner: ClassVar[str] = ""
    """`module:function` that runs a command of a rollout where the fleet can be reached, for machines outside; empty:
    it can be reached from everywhere."""
    is_remote: ClassVar[bool] = False
    """Whether it is on other machines: versions are fetched from the object store, prediction logs are shipped there,
    and each server knows only its own answers."""


class FeatureEngine(Section):
    """The engine that makes features of the raw log; the kinds are in `shortlist.features.engines`."""

    if TYPE_CHECKING:  # a field of every kind
        engine: str

    def open(self) -> AbstractContextManager[PartitionEngine]:
        """Return a context in which the engine can be used.

        Raises:
            EngineError: It cannot be reached, is too small, or has other versions.
        """
        raise NotImplementedError

    @property
    def job(self) -> EngineJob | None:
        """The job that does the work on Kubernetes; None: the step's pod does it."""
        return None

    def inside_job(self) -> FeatureEngine:
        """Return the section for the process in the job that does the step's work."""
        raise NotImplementedError

    def run_job(self, name: str, program: str, environment: JobEnvironment, *, is_finished: bool) -> None:
        """Run a program in a job, or wait for the job of that name that an earlier attempt of the step created.

        No job is left where it succeeds. One that failed stays, to be looked at, until it is deleted (`is_finished`) or
        the step runs again.

        Args:
            name: Name of the job, a DNS label; a digest of all inputs is in it.
            program: Command line, for a shell.
            environment: What the step's pod knows of its cluster.
            is_finished: Whether the work has ended, and its result or error was read; then the job, if there is one, is
                only deleted.

        Raises:
            EngineError: The job failed, took too long, or cannot be created; it does not run any more.
            ShortlistError: The cluster refuses, or does not answer.
        """
        raise NotImplementedError


Profile = Literal["laptop", "cluster"]

_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "laptop": {},
    "cluster": {
        "online_store": {"kind": "redis"},
        "tracking": {"kind": "server"},
        "database": {"kind": "postgres"},
        "prediction_log": "objects",
        "target": "kserve",
        # "objects" has no default: only the user knows the bucket.
    },
}
"""Defaults of each profile."""


_SQLITE: Final[Any] = {"kind": "sqlite"}  # a default is read as a spec is
_FILES: Final[Any] = {"kind": "files"}
_STACK: Final[Any] = {"kind": "stack"}
_LOCAL: Final[Any] = {"engine": "local"}
AnyOnlineStore = Annotated[OnlineStore, RegisteredSection("online_stores")]
AnyFeatureEngine = Annotated[FeatureEngine, RegisteredSection("feature_engines", key="engine")]
AnyDatabase = Annotated[Database, RegisteredSection("record_stores")]
AnyFleet = Annotated[FleetSection, RegisteredSection("fleets", by_name=True)]


class Runtime(Section):
    """Engine, memory, threads and stores."""

    profile: Profile = "laptop"
    """`laptop`: files and local servers. `cluster`: Redis, PostgreSQL, object storage, KServe. It only sets the
    defaults of `online_store`, `tracking`, `database`, `objects`, `prediction_log` and `target`."""
    engine: Literal["auto", "cpu", "gpu"] = "auto"
    """Engine of feature queries; `auto` uses a GPU when there is one."""
    gpu: Gpu = Gpu()
    """How GPUs are used."""
    features: AnyFeatureEngine = _LOCAL
    """What makes features of the raw log: `local`, the process of the step, or `ray`, tasks on many machines."""
    memory_budget_mib: int = Field(default=2_048, ge=64)
    """Size above which a training table is read from disk in chunks."""
    chunk_rows: int = Field(default=250_000, ge=1_000)
    """Rows per file of every table. Tables are read file by file, so this bounds memory."""
    steps_at_once: int = Field(default=2, ge=1, le=16)
    """Steps of a run that this machine executes at the same time, where they do not wait for each other; 1 needs the
    least memory. On Kubernetes all of them do."""
    share_cores: bool = False
    """Whether each of these steps computes with its part of the cores, one of `steps_at_once`. Small models are then
    trained with less waiting for each other; a long training that is left alone uses no more than its part."""
    seed: int = Field(default=17, ge=0)
    """Seed of all random numbers."""
    online_store: AnyOnlineStore = _SQLITE
    """Feast's online store."""
    tracking: Annotated[SQLiteTracking | ServerTracking, Field(discriminator="kind")] = SQLiteTracking()
    """MLflow's tracking store and model registry."""
    database: AnyDatabase = _FILES
    """Database of Feast's registry, the monitoring store and the rollouts' states."""
    objects: Annotated[FolderObjects | BucketObjects, Field(discriminator="kind")] = FolderObjects()
    """Store of files that are kept beyond a run."""
    prediction_log: Literal["files", "objects"] = "files"
    """Where servers write the prediction log: their own disk, or the object store."""
    target: AnyFleet = _STACK
    """The fleet to which `make deploy-canary` deploys: `stack`, this machine's Triton and Envoy; `kserve`, KServe
    behind Envoy Gateway; or another kind, by its name or as a section with its settings."""
    cluster: Cluster = Cluster()
    """Settings of Kubernetes."""

    @model_validator(mode="before")
    @classmethod
    def _profile_fills_in(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        filled = {**_DEFAULTS.get(str(raw.get("profile", "laptop")), {}), **raw}
        if filled.get("profile") == "cluster" and "objects" not in filled:
            raise ValueError(
                "objects: the cluster profile needs a bucket, e.g. objects: {kind: bucket, url: s3://models/shortlist}"
            )
        return filled

    @model_validator(mode="after")
    def _stores_fit(self) -> Runtime:
        if self.prediction_log == "objects" and not self.objects.address:
            raise ValueError("prediction_log: objects needs objects: {kind: bucket, url: ...}")
        if self.target.is_remote and not self.objects.address:
            raise ValueError(
                f"target: {self.target.kind} needs objects: {{kind: bucket, url: ...}}; its servers fetch versions"
                " from there"
            )
        return self
