"""Paths of a served spec's files on this machine."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict


class ServingPaths(BaseModel):
    """Paths below `<runs>/serving/<spec>/`, and the folder of rollouts."""

    model_config = ConfigDict(frozen=True)

    root: Path
    """`<runs>/serving/<spec>`."""
    rollouts: Path
    """`<runs>/rollouts`: one folder per rollout, whose id names the spec."""

    @classmethod
    def for_spec(cls, runs: Path, spec: str) -> ServingPaths:
        """Return the paths of a spec below a folder of runs; nothing is created."""
        runs = runs.resolve()
        return cls(root=runs / "serving" / spec, rollouts=runs / "rollouts")

    @property
    def logs(self) -> Path:
        """Output of every process, and Envoy's access logs."""
        return self.root / "logs"

    @property
    def predictions(self) -> Path:
        """The prediction log: one folder per server process."""
        return self.root / "predictions"

    @property
    def outcomes(self) -> Path:
        """The outcome log: Parquet files written by the application or the replay."""
        return self.root / "outcomes"

    @property
    def events(self) -> Path:
        """The event log: rows answered by servers with live counts."""
        return self.root / "events"

    @property
    def mirror(self) -> ServingPaths:
        """Paths whose logs are copies of those in the object store."""
        return self.model_copy(update={"root": self.root / "mirror"})

    @property
    def versions(self) -> Path:
        """One folder per deployed version: its model folder, Triton repository and settings."""
        return self.root / "versions"

    @property
    def envoy(self) -> Path:
        """Envoy's configuration."""
        return self.root / "envoy"

    @property
    def programs(self) -> Path:
        """The supervisor's configuration."""
        return self.root / "supervisor"

    @property
    def record(self) -> Path:
        """Declared state of the stack: versions, ports, weights."""
        return self.root / "stack.json"
