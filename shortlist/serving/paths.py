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
    log_objects: str = ""
    """Address of the object store with the tables of the logs; empty: they are on this disk."""

    @classmethod
    def for_spec(cls, runs: Path, spec: str, log_objects: str = "") -> ServingPaths:
        """Return the paths of a spec below a folder of runs; nothing is created."""
        runs = runs.resolve()
        return cls(root=runs / "serving" / spec, rollouts=runs / "rollouts", log_objects=log_objects)

    @property
    def logs(self) -> Path:
        """Output of every process, and Envoy's access logs."""
        return self.root / "logs"

    @property
    def predictions(self) -> Path:
        """Table of the prediction log; its streams are in `streams/predictions`."""
        return self.root / "predictions"

    @property
    def outcomes(self) -> Path:
        """Table of the outcome log; its streams are in `streams/outcomes`."""
        return self.root / "outcomes"

    @property
    def events(self) -> Path:
        """The event log: streams of rows answered by servers with live counts."""
        return self.root / "events"

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
    def secrets(self) -> Path:
        """Secrets of the stack, such as the token of the application's backend."""
        return self.root / "secrets.json"

    @property
    def record(self) -> Path:
        """Declared state of the stack: versions, ports, weights."""
        return self.root / "stack.json"
