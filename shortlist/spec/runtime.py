"""The `runtime` section: where and with how much a run happens."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, field_validator, model_validator

from shortlist.spec.base import OneOf, Section
from shortlist.spec.cluster import Cluster
from shortlist.system.registry import Registry

Variable = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
"""Name of an environment variable that holds an address or a secret; the spec itself never does."""

_OBJECT_STORES: Final = "shortlist.storage.objects:OBJECT_STORES"
"""Named and not imported, for it lies above this layer."""
_BUCKETS: Final = ("s3", "gs")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._/-]*[A-Za-z0-9])?")


class Gpu(Section):
    """How feature queries use GPUs, where `engine` chose one."""

    executor: Literal["single", "ray", "dask"] = "single"
    """`single`: the first visible GPU. `ray` and `dask`: every visible GPU, by cudf-polars' engines of these names; a
    cluster of either that is running already is used."""
    memory_mib: int | None = Field(default=None, ge=256)
    """Device memory that queries may take on each GPU, in MiB; more is refused before any work where it is not free.
    Not given: what cudf-polars takes by itself, with host memory behind it where the driver can."""
    fallback: Literal["report", "refuse"] = "report"
    """A query that cuDF cannot run: `report` runs it on the CPU and counts it by operation, on the page and in
    `summary.json`; `refuse` stops the step and names the operation."""


FileOf = Callable[[str], Path]
"""Gives the path of a file of a spec's Feast store by its name; raises ShortlistError where no disk is shared."""


class OnlineStore(Section):
    """Where Feast keeps what serving reads; `shortlist.features.online_stores` holds the kinds."""

    if TYPE_CHECKING:  # a field of every kind
        kind: str

    is_shared: ClassVar[bool] = True
    """Whether it is a server, which many machines can ask."""

    @property
    def address_variable(self) -> str:
        """The environment variable with the address of its server; empty: there is none."""
        return ""

    def configuration(self, file: FileOf) -> dict[str, Any]:
        """Return the `online_store` section of Feast's configuration; it may hold a password.

        Raises:
            ShortlistError: The variable with the address is not set, or no disk is shared.
        """
        raise NotImplementedError

    def files(self, file: FileOf) -> tuple[Path, ...]:
        """Return the files on this machine without which nothing can be read."""
        return ()

    def prepare(self, file: FileOf) -> None:
        """Do what is left to do after Feast made its tables."""

    def probe(self, file: FileOf) -> Callable[[], None] | None:
        """Return a check that raises where a read would have to wait for a lock; None for reads that take their time.

        It is made before each read of a few users' rows, so it must take microseconds; such reads are then done at once
        and not by another thread.
        """
        return None

    def reach(self) -> None:
        """See that the server answers.

        Raises:
            ShortlistError: It does not, or the variable with its address is not set.
        """

    @classmethod
    def explained(cls, error: Exception) -> str:
        """Return what an error of its client means; empty when it is not one."""
        return ""


class SQLiteTracking(Section):
    """MLflow in a file."""

    kind: Literal["sqlite"] = "sqlite"
    """`mlflow.db` and a folder beside it, in the folder of runs."""


class ServerTracking(Section):
    """MLflow elsewhere."""

    kind: Literal["server"]
    """An MLflow server, or its PostgreSQL database directly; artefacts go into the object store."""
    uri_variable: Variable = "MLFLOW_TRACKING_URI"
    """Environment variable that holds `http(s)://...` or `postgresql://...`."""


class Database(Section):
    """Where records of monitoring, retraining and rollouts are kept; `shortlist.storage.records` holds the kinds."""

    if TYPE_CHECKING:  # a field of every kind
        kind: str

    opened_by: ClassVar[Mapping[str, str]] = {}
    """By the scheme of an address, the `module:function` that opens it; imported when it is needed, for it loads the
    database's client. It is given the address, the cluster, the area and the spec, and returns a `RecordStore`."""
    keeps_feast_registry: ClassVar[bool] = False
    """Whether Feast's registry is there too; else it is a file in the folder of runs."""

    @property
    def address_variable(self) -> str:
        """The environment variable with the address; empty: files in the folder of runs."""
        return ""


class FolderObjects(Section):
    """Published views, deployed versions and logs in a folder."""

    kind: Literal["folder"] = "folder"
    """In the folder of runs."""

    @property
    def address(self) -> str:
        """Where they are; empty: in the folder of runs."""
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
        """Where they are."""
        return self.url

    @field_validator("url")
    @classmethod
    def _somebody_keeps_it(cls, url: str) -> str:
        scheme, _, rest = url.partition("://")
        kept: Registry[str] = resolve_name(_OBJECT_STORES)
        if scheme == "file" or (scheme not in kept and scheme not in kept.complete()):
            known = " or ".join(f"{each}://" for each in kept if each != "file")
            raise ValueError(f"no object store is known by '{scheme}'; wanted {known}")
        if scheme in _BUCKETS and not _BUCKET.fullmatch(rest):
            raise ValueError(f"got '{url}'; wanted a bucket and perhaps a prefix, e.g. {scheme}://models/shortlist")
        return url


class Fleet(Section):
    """Servers that releases are brought to; `shortlist.deployment.fleets` holds the kinds."""

    if TYPE_CHECKING:  # a field of every kind
        kind: str

    option: ClassVar[str] = ""
    """What `--target` calls it; empty: its kind."""
    connection: ClassVar[str]
    """`module:class` of its `shortlist.rollout.fleet_connection.FleetConnection`, imported when it is needed."""
    is_remote: ClassVar[bool] = False
    """Whether it is on other machines: versions are fetched from the object store, the prediction log is shipped there,
    and each server knows of its own answers only."""


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
"""What a profile says where the spec says nothing."""


_SQLITE: Final[Any] = {"kind": "sqlite"}  # a default is read as a spec is
_FILES: Final[Any] = {"kind": "files"}
_STACK: Final[Any] = {"kind": "stack"}
AnyOnlineStore = Annotated[OnlineStore, OneOf("shortlist.features.online_stores.registry:ONLINE_STORES")]
AnyDatabase = Annotated[Database, OneOf("shortlist.storage.records.opening:RECORD_STORES")]
AnyFleet = Annotated[Fleet, OneOf("shortlist.deployment.fleets:FLEETS", by_name=True)]


class Runtime(Section):
    """Engine, memory, threads and stores."""

    profile: Profile = "laptop"
    """`laptop`: files and local servers. `cluster`: Redis, PostgreSQL, object storage, KServe. It only chooses the
    defaults of `online_store`, `tracking`, `database`, `objects`, `prediction_log` and `target`; each may be given."""
    engine: Literal["auto", "cpu", "gpu"] = "auto"
    """Executor of feature queries; `auto` takes a GPU when there is one."""
    gpu: Gpu = Gpu()
    """How GPUs are used."""
    memory_budget_mib: int = Field(default=2_048, ge=64)
    """A training table larger than this is read from disk in pieces."""
    chunk_rows: int = Field(default=250_000, ge=1_000)
    """Rows per file of every table; the unit of reading, so it bounds memory."""
    seed: int = Field(default=17, ge=0)
    """Seed of everything random."""
    online_store: AnyOnlineStore = _SQLITE
    """Where Feast keeps what serving reads."""
    tracking: Annotated[SQLiteTracking | ServerTracking, Field(discriminator="kind")] = SQLiteTracking()
    """Where MLflow keeps trainings and versions."""
    database: AnyDatabase = _FILES
    """Where Feast's registry, the monitoring store and the rollouts' states are."""
    objects: Annotated[FolderObjects | BucketObjects, Field(discriminator="kind")] = FolderObjects()
    """Where files live that outlast a run."""
    prediction_log: Literal["files", "objects"] = "files"
    """Where servers leave the prediction log: their own disk, or the object store."""
    target: AnyFleet = _STACK
    """The fleet that `make deploy-canary` drives: `stack`, this machine's Triton and Envoy; `kserve`, KServe behind
    Envoy Gateway; or another kind, by its name or as a section with its settings."""
    cluster: Cluster = Cluster()
    """What Kubernetes is asked for."""

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
