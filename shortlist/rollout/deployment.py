"""A deployed version, and the route that splits users between versions."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shortlist.storage.storage_config import StorageConfig


class Deployment(BaseModel):
    """A registered version with everything that is needed to serve it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = Field(ge=1)
    kind: str
    model_folder: Path
    """Verified against its blessing; copied when deployed."""
    digest: str
    """`folder_digest` of the model folder when it was verified."""
    store: Path | StorageConfig | None
    """Folder of the spec's Feast store, or its storage configuration."""
    release: Path | None = None
    """Folder of the sources, filters and ordering; copied when deployed. None: clients bring their candidates."""
    release_digest: str = ""
    """`folder_digest` of that folder when it was verified."""
    unjudged_gates: tuple[str, ...] = ()
    """Gates that are required now, and gave no result when the version was blessed."""


class Route(BaseModel):
    """Share of the users for each version."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stable: int
    """Version of the stable track."""
    canary: int | None = None
    """Version of the canary track."""
    percent: int = Field(default=0, ge=0, le=100)
    """Share of the users that get the canary."""
    rollout: str | None = None
    """Id of the unfinished rollout."""
    salt: str = Field(default="", exclude_if=lambda salt: not salt)
    """Secret salt of the hash that assigns users to the canary; empty for rollouts of earlier versions: the id."""
    step: int | None = None
    """Step of the rollout, from 0."""

    @property
    def hash_salt(self) -> str:
        """Salt of the hash that assigns users to the canary."""
        return self.salt or self.rollout or ""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.percent and (self.canary is None or self.rollout is None):
            raise ValueError("a share for a canary needs the canary's version and the rollout's id")
        return self
