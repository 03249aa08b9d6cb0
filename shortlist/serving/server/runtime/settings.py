"""Settings of a server process in front of Triton."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from shortlist.features.feast.feast_store_location import (
    FeastStoreLocation,
    feast_store_location,
    spec_feast_store_location,
)
from shortlist.serving.stack_secrets import StackSecrets
from shortlist.spec.runtime import AnyOnlineStore
from shortlist.spec.serving import Serving
from shortlist.storage.storage_config import StorageConfig

SERVER_ENVIRONMENT: Final[Mapping[str, str]] = {
    "PYTHONUNBUFFERED": "1",
    # A server searches one query at a time; further OpenBLAS threads would only spin.
    "OPENBLAS_NUM_THREADS": "1",
    # A scan of an index reads 8 000 small pages or 16 large ones; Linux gives large pages on request.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Environment variables of every server process."""


class ServerSettings(BaseModel):
    """Settings of a version's server, read from a file at its start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    """Name of the model for clients and in Triton: the spec's name."""
    version: int
    """Registered version."""
    model_folder: Path
    """The blessed model folder: `preprocessing/` and `serving/`."""
    release: Path | None = Field(default=None, exclude_if=lambda folder: folder is None)
    """Folder of the sources, filters and ordering; None when clients send candidates."""
    predictor: str
    """`host:port` of Triton's HTTP, or `unix:` and the path of its socket."""
    spare_predictors: tuple[str, ...] = ()
    """Other Tritons of the version, used while its own cannot be reached; they need not run."""
    host: str = "127.0.0.1"
    """Address of the HTTP and gRPC ports; in a pod, all its addresses."""
    http_port: int
    grpc_port: int
    health_port: int | None = None
    """Port of the health server, which has its own thread; None: health is served on the HTTP port only."""
    store: Path | StorageConfig | None
    """Folder of the spec's Feast store, or its storage configuration; None for a model without look-ups."""
    project: str
    """Feast project."""
    online_store: AnyOnlineStore = Field(default={"kind": "sqlite"}, validate_default=True)
    """Feast's online store, which holds the users' features."""
    predictions: Path
    """Folder of the prediction log; the process creates its own folder inside."""
    serving: Serving = Serving()
    """The spec's section `serving`."""
    secrets: Path | None = Field(default=None, exclude_if=lambda path: path is None)
    """File of the stack's secrets; None where only the gateway reaches the server."""

    @cached_property
    def stack_secrets(self) -> StackSecrets | None:
        """Secrets of the stack; None where only the gateway reaches the server."""
        return None if self.secrets is None else StackSecrets.open(self.secrets)

    @cached_property
    def store_location(self) -> FeastStoreLocation | None:
        """Location of the spec's Feast store; None for a model without look-ups."""
        if isinstance(self.store, StorageConfig):
            return spec_feast_store_location(self.store, self.project)
        return None if self.store is None else feast_store_location(self.store)
