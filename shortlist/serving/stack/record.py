"""What should run: the one file from which the stack can be put right after anything."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shortlist.artefacts import IntegrityError, read_json, write_json
from shortlist.config.runtime import RedisOnline, SQLiteOnline
from shortlist.config.serving import Serving
from shortlist.serving.stack.deployment import Deployment, Route


class VersionPorts(BaseModel):
    """The ports of a version, all on 127.0.0.1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    http: int
    """Of the server."""
    grpc: int
    """Of the server."""
    triton_http: int
    triton_grpc: int
    triton_metrics: int

    def all(self) -> tuple[int, ...]:
        """Return every one of them."""
        return (self.http, self.grpc, self.triton_http, self.triton_grpc, self.triton_metrics)


class DeployedVersion(BaseModel):
    """A version whose processes should run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deployment: Deployment
    serving: Serving
    """The settings of its server."""
    ports: VersionPorts
    repository_digest: str
    """`folder_digest` of its Triton repository when it was written."""


class StackRecord(BaseModel):
    """The stack as it should be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    """Name under which clients ask: the spec's name."""
    project: str
    """Feast project."""
    online_store: SQLiteOnline | RedisOnline
    serving: Serving
    port: int
    """Of Envoy, on 127.0.0.1."""
    sockets: Path
    """Folder of the Unix sockets."""
    server: tuple[str, ...]
    """Command of a version's server; its settings file is added."""
    versions: dict[int, DeployedVersion] = {}
    route: Route | None = None
    log_objects: str = Field(default="", exclude_if=lambda root: not root)
    """Root of the object store that the logs are brought to; empty: they stay on this disk."""

    @classmethod
    def read(cls, path: Path) -> StackRecord | None:
        """Return the record in a file; None when there is none.

        Raises:
            IntegrityError: It is broken.
        """
        if not path.exists():
            return None
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            raise IntegrityError(
                f"{path}: {error.errors()[0]['msg']}; stop the stack, delete this file, and serve again."
            ) from None

    def write(self, path: Path) -> None:
        """Write the record whole."""
        write_json(path, self.model_dump(mode="json"))

    @property
    def ports(self) -> frozenset[int]:
        """Every port that is spoken for."""
        return frozenset({self.port}.union(*(version.ports.all() for version in self.versions.values())))
