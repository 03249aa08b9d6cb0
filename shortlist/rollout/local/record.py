"""The record of a stack: what should run, in one file from which it can be restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shortlist.rollout.deployment import Deployment, Route
from shortlist.spec.runtime import AnyOnlineStore
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import IntegrityError, read_json, write_json


class VersionPorts(BaseModel):
    """The ports of one replica of a version, all on 127.0.0.1; its Triton has a Unix socket."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    http: int
    """HTTP port of the server."""
    grpc: int
    """gRPC port of the server."""
    health: int
    """Port of the server for health and metrics only."""
    triton_metrics: int

    def all(self) -> tuple[int, ...]:
        """Return all ports."""
        return (self.http, self.grpc, self.health, self.triton_metrics)


class DeployedVersion(BaseModel):
    """A deployed version, whose processes should run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deployment: Deployment
    serving: Serving
    """Settings of its server."""
    replicas: tuple[VersionPorts, ...] = Field(min_length=1)
    """Ports of each replica, which is a server with its Triton."""
    repository_digest: str
    """`folder_digest` of its Triton repository when it was written."""

    @model_validator(mode="before")
    @classmethod
    def _convert_single_replica(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(ports := values.get("ports"), dict):
            # Triton's former HTTP port is free: it listens on a Unix socket now.
            replica_ports = {name: port for name, port in ports.items() if name in VersionPorts.model_fields}
            replica_ports.setdefault("health", ports.get("triton_http"))
            values = {key: value for key, value in values.items() if key != "ports"} | {"replicas": [replica_ports]}
        return values

    @property
    def ports(self) -> VersionPorts:
        """Ports of the first replica."""
        return self.replicas[0]

    def all_ports(self) -> tuple[int, ...]:
        """Return the ports of all replicas."""
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
    """What should run in a stack."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    """Model name in requests, and Feast project: the spec's name."""
    online_store: AnyOnlineStore
    serving: Serving
    port: int
    """Port of the gateway, on 127.0.0.1."""
    sockets: Path
    """Folder of the Unix sockets."""
    server: tuple[str, ...]
    """Command of a version's server, without the path of its settings."""
    versions: dict[int, DeployedVersion] = {}
    route: Route | None = None
    log_objects: str = Field(default="", exclude_if=lambda root: not root)
    """Root of the object store that the logs are shipped to; empty: they stay on this disk."""

    gateway: str = "envoy"
    """Name of the gateway in `shortlist.rollout.local.section.GATEWAYS`."""

    @classmethod
    def read(cls, path: Path) -> StackRecord | None:
        """Return the record in a file; None when there is no file.

        Raises:
            IntegrityError: The file is invalid.
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
        """Write the record atomically."""
        write_json(path, self.model_dump(mode="json"))

    def triton_socket(self, version: int, replica: int = 0) -> Path:
        """Return the Unix socket of a replica's Triton."""
        return self.sockets / f"{triton_name(version, replica)}.sock"

    @property
    def ports(self) -> frozenset[int]:
        """All ports of the stack."""
        return frozenset({self.port}.union(*(version.all_ports() for version in self.versions.values())))
