"""What should run: the one file from which the stack can be put right after anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shortlist.rollout.deployment import Deployment, Route
from shortlist.spec.runtime import AnyOnlineStore
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import IntegrityError, read_json, write_json


class VersionPorts(BaseModel):
    """The ports of one replica of a version, all on 127.0.0.1; its Triton is spoken to through a Unix socket."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    http: int
    """Of the server."""
    grpc: int
    """Of the server."""
    health: int
    """Of the server; for its health and metrics alone."""
    triton_metrics: int

    def all(self) -> tuple[int, ...]:
        """Return every one of them."""
        return (self.http, self.grpc, self.health, self.triton_metrics)


class DeployedVersion(BaseModel):
    """A version whose processes should run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deployment: Deployment
    serving: Serving
    """The settings of its server."""
    replicas: tuple[VersionPorts, ...] = Field(min_length=1)
    """One for each server with its Triton."""
    repository_digest: str
    """`folder_digest` of its Triton repository when it was written."""

    @model_validator(mode="before")
    @classmethod
    def _as_it_was_written_before_replicas(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(ports := values.get("ports"), dict):
            # The port of Triton's HTTP is free: it listens on a socket now.
            kept = {name: port for name, port in ports.items() if name in VersionPorts.model_fields}
            kept.setdefault("health", ports.get("triton_http"))
            values = {key: value for key, value in values.items() if key != "ports"} | {"replicas": [kept]}
        return values

    @property
    def ports(self) -> VersionPorts:
        """Those of the first replica."""
        return self.replicas[0]

    def all_ports(self) -> tuple[int, ...]:
        """Return those of all replicas."""
        return tuple(port for ports in self.replicas for port in ports.all())


def triton_name(version: int, replica: int = 0) -> str:
    """Return the name of the program of a replica's Triton.

    >>> triton_name(3), triton_name(3, 1)
    ('triton-v3', 'triton-v3-2')
    """
    return f"triton-v{version}" + (f"-{replica + 1}" if replica else "")


def server_name(version: int, replica: int = 0) -> str:
    """Return the name of the program of a replica's server.

    >>> server_name(3), server_name(3, 1)
    ('server-v3', 'server-v3-2')
    """
    return f"server-v{version}" + (f"-{replica + 1}" if replica else "")


class StackRecord(BaseModel):
    """The stack as it should be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    """Name under which clients ask: the spec's name."""
    project: str
    """Feast project."""
    online_store: AnyOnlineStore
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

    def triton_socket(self, version: int, replica: int = 0) -> Path:
        """Return the Unix socket through which a replica's Triton is spoken to."""
        return self.sockets / f"{triton_name(version, replica)}.sock"

    @property
    def ports(self) -> frozenset[int]:
        """Every port that is spoken for."""
        return frozenset({self.port}.union(*(version.all_ports() for version in self.versions.values())))
