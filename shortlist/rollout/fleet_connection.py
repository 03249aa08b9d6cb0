"""What a fleet has to offer so that releases can be rolled out on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from shortlist.contracts import Files
from shortlist.features.feast_store_location import FeastStoreLocation, spec_feast_store_location
from shortlist.features.preprocessing import Preprocessing
from shortlist.rollout.deployment import Deployment
from shortlist.rollout.fleet import Fleet, Observer
from shortlist.rollout.record import RolloutRecord
from shortlist.serving.paths import ServingPaths
from shortlist.serving.validation.live_load_test import live_load_failures
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Serving
from shortlist.storage.objects import local_copy
from shortlist.storage.storage_config import StorageConfig


@dataclass(frozen=True)
class FleetContext:
    """The spec whose releases are rolled out, and its stores."""

    spec: str
    """Its name."""
    stores: StorageConfig
    serving: Serving
    gates: Gates
    """Names the load of the infra gate."""
    runtime: Runtime
    """Names the fleet, in `target`."""

    @property
    def paths(self) -> ServingPaths:
        """Where files of serving are on this machine."""
        return ServingPaths.of(self.stores.runs, self.spec)

    @cached_property
    def feast(self) -> FeastStoreLocation:
        """Where the spec's features and refreshed releases are kept."""
        return spec_feast_store_location(self.stores, self.spec)

    @property
    def served_store(self) -> Path | StorageConfig | None:
        """Where servers find users' rows and the views; None when nothing was ever put there."""
        if self.feast.announced() is None:
            return None
        plain = self.feast.folder is not None and not self.feast.shares and self.feast.database is None
        return self.feast.folder if plain else self.stores

    def log_folder(self) -> Path:
        """Return the valid log behind what is served; fetched where it is elsewhere."""
        return local_copy(self.feast.expected()["log"])

    def load_failures(self, deployment: Deployment, port: int, host: str = "127.0.0.1") -> list[str]:
        """Put a version's own server under the declared load; return the reasons to hold the version.

        Args:
            deployment: The version.
            port: HTTP port of its server; nobody's requests go there yet.
            host: Of the server.
        """
        data = Preprocessing.load(deployment.model_folder / Files.PREPROCESSING).plan.declared.data
        return live_load_failures(port, self.spec, data, self.log_folder(), self.gates.infra, deployment.release, host)


class FleetConnection(ABC):
    """A fleet that can be reached, how a rollout on it is observed, and how a version on it is tested."""

    poll_seconds: ClassVar[float] = 1.0
    """Between two analyses of a step."""
    fleet: Fleet

    @classmethod
    @abstractmethod
    def connect(cls, context: FleetContext) -> Self | None:
        """Return the fleet of a spec; None when no server of it runs, and a user has to start one.

        Raises:
            ShortlistError: It cannot be reached.
        """

    @property
    def url(self) -> str:
        """Where users ask; empty when nobody knows here."""
        return ""

    def check(self) -> None:  # noqa: B027 - most fleets have nothing to check
        """See that a rollout can begin; one that is under way is not asked.

        Raises:
            ShortlistError: It cannot.
        """

    @abstractmethod
    def observe(self, record: RolloutRecord) -> Observer:
        """Return what observes a rollout."""

    @abstractmethod
    def load_failures(self, deployment: Deployment) -> Sequence[str]:
        """Return the reasons to hold a version whose servers run; none when it stands the declared load."""

    def traffic(self) -> AbstractContextManager[None]:
        """Return a block in which users ask, where a spec has no users of its own."""
        return nullcontext()
