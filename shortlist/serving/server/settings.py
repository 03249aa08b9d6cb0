"""What one server process in front of Triton is told when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from shortlist.features.feast_store_location import FeastStoreLocation, feast_store_location, spec_feast_store_location
from shortlist.spec.runtime import AnyOnlineStore
from shortlist.spec.serving import Serving
from shortlist.storage.storage_config import StorageConfig

SERVER_ENVIRONMENT: Final[Mapping[str, str]] = {
    "PYTHONUNBUFFERED": "1",
    # A server searches for one query at a time; OpenBLAS's other threads would wait for the next one, busily.
    "OPENBLAS_NUM_THREADS": "1",
    # A scan of an index reads 8 000 small pages or 16 large ones; Linux gives large ones to who asks for them.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Variables that every server is started with."""


class ServerSettings(BaseModel):
    """The settings file of a version's server; read once, at its start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    """Name under which clients ask, and of the model in Triton: the spec's name."""
    version: int
    """Registered version."""
    model_folder: Path
    """The blessed model folder: `preprocessing/` and `serving/`."""
    release: Path | None = Field(default=None, exclude_if=lambda folder: folder is None)
    """Folder of the sources, filters and ordering; None: clients bring their candidates."""
    predictor: str
    """`host:port` of Triton's HTTP, or `unix:` and the path of its socket."""
    spare_predictors: tuple[str, ...] = ()
    """Other Tritons of the version, asked while its own cannot be reached; they need not be there."""
    host: str = "127.0.0.1"
    """Address that both ports are on; in a pod all of its own."""
    http_port: int
    grpc_port: int
    health_port: int | None = None
    """Where health and metrics are answered by a thread of their own; None: only by the one that answers requests."""
    store: Path | StorageConfig | None
    """Folder of the spec's Feast store, or the stores it is in; None for a model that looks nothing up."""
    project: str
    """Feast project."""
    online_store: AnyOnlineStore = Field(default={"kind": "sqlite"}, validate_default=True)
    """Where Feast keeps users' rows."""
    predictions: Path
    """Folder of the prediction log; this process makes one of its own inside."""
    serving: Serving = Serving()
    """The spec's section."""

    @cached_property
    def place(self) -> FeastStoreLocation | None:
        """The spec's Feast store; None for a model that looks nothing up."""
        if isinstance(self.store, StorageConfig):
            return spec_feast_store_location(self.store, self.project)
        return None if self.store is None else feast_store_location(self.store)
