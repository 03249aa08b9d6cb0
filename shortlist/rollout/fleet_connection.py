"""Interface of a fleet on which releases are rolled out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from shortlist.contracts import Files
from shortlist.features.feast.feast_store_location import FeastStoreLocation, spec_feast_store_location
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.rollout.deployment import Deployment
from shortlist.rollout.fleet import Fleet, Observer
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.unpublished_features import describe_unpublished_features
from shortlist.rollout.unsent_inputs import describe_unsent_inputs
from shortlist.serving.paths import ServingPaths
from shortlist.serving.traffic.requests import Array
from shortlist.serving.validation.live_load_test import live_load_failures, live_row, live_row_failures
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Serving
from shortlist.storage.objects import local_copy
from shortlist.storage.storage_config import StorageConfig


@dataclass(frozen=True)
class FleetContext:
    """The spec whose releases are rolled out, with its storage."""

    spec: str
    """Name of the spec."""
    stores: StorageConfig
    serving: Serving
    gates: Gates
    """The spec's section with the load of the infra gate."""
    runtime: Runtime
    """The spec's section with the fleet, in `target`."""

    @property
    def paths(self) -> ServingPaths:
        """Paths of the serving files on this machine."""
        return ServingPaths.for_spec(self.stores.runs, self.spec)

    @cached_property
    def feast(self) -> FeastStoreLocation:
        """Location of the spec's Feast store and refreshed releases."""
        return spec_feast_store_location(self.stores, self.spec)

    @property
    def served_store(self) -> Path | StorageConfig | None:
        """Store from which servers read features; None when it was never filled."""
        if self.feast.read_announcement() is None:
            return None
        plain = self.feast.folder is not None and not self.feast.publishes and self.feast.database is None
        return self.feast.folder if plain else self.stores

    def log_folder(self) -> Path:
        """Return the folder of the valid log that the served features were made from; fetched if it is remote."""
        return local_copy(self.feast.require_announcement()["log"])

    def load_failures(self, deployment: Deployment, port: int, host: str = "127.0.0.1") -> list[str]:
        """Load-test the server of a version; return the reasons to hold the version.

        Args:
            deployment: The version.
            port: HTTP port of its server, which gets no users yet.
            host: Host of the server.
        """
        data = Preprocessing.load(deployment.model_folder / Files.PREPROCESSING).plan.declared.data
        return live_load_failures(port, self.spec, data, self.log_folder(), self.gates.infra, deployment.release, host)

    def unsent_inputs(self, deployment: Deployment, stable: int, paths: ServingPaths) -> list[str]:
        """Return a sentence on the columns that a version reads and no request carries, if there are any.

        Args:
            deployment: The version; its servers run.
            stable: The version that serves.
            paths: Location of the prediction log.
        """
        data = Preprocessing.load(deployment.model_folder / Files.PREPROCESSING).plan.declared.data
        sentence = describe_unsent_inputs(self.feast.objects, paths, stable, deployment.version, data)
        return [sentence] if sentence else []

    def unpublished_features(self, deployment: Deployment) -> list[str]:
        """Return a sentence on the features that a version looks up and servers could not read, if there are any."""
        sentence = describe_unpublished_features(deployment.model_folder, self.feast)
        return [sentence] if sentence else []

    @cached_property
    def _rows_by_version(self) -> dict[int, Mapping[str, Array]]:
        return {}

    def answer_failures(self, deployment: Deployment, port: int, host: str = "127.0.0.1") -> list[str]:
        """Send one row to the server of a version; return why it was not scored, or nothing.

        Args:
            deployment: The version.
            port: HTTP port of its server.
            host: Host of the server.
        """
        if deployment.version not in self._rows_by_version:  # the log is read once: the row is sent at every check
            data = Preprocessing.load(deployment.model_folder / Files.PREPROCESSING).plan.declared.data
            self._rows_by_version[deployment.version] = live_row(data, self.log_folder())
        return live_row_failures(port, self.spec, self._rows_by_version[deployment.version], host)


class FleetConnection(ABC):
    """A connected fleet, with the observer and the load test of its rollouts."""

    poll_seconds: ClassVar[float] = 1.0
    """Time between two analyses of a step."""
    fleet: Fleet

    @classmethod
    @abstractmethod
    def connect(cls, context: FleetContext) -> Self | None:
        """Connect to the fleet of a spec; None when it does not run and the user has to start it.

        Raises:
            ShortlistError: The fleet cannot be reached.
        """

    @property
    def url(self) -> str:
        """Address of the service; empty when it is not known here."""
        return ""

    def check(self) -> None:  # noqa: B027 - most fleets have nothing to check
        """Check that a new rollout can begin; not called for an unfinished one.

        Raises:
            ShortlistError: It cannot begin.
        """

    @abstractmethod
    def observe(self, record: RolloutRecord) -> Observer:
        """Return the observer of a rollout."""

    @abstractmethod
    def load_failures(self, deployment: Deployment) -> Sequence[str]:
        """Return the reasons to hold a version whose servers run; none when it passes the declared load test."""

    def answer_failures(self, deployment: Deployment) -> Sequence[str]:
        """Return why the servers of a version do not answer now; none when they do, or are not asked."""
        return ()

    def notices(self, deployment: Deployment) -> Sequence[str]:
        """Return what should be known of a version before users get it, in sentences; its servers run."""
        return ()

    @property
    def keep_former_seconds(self) -> float:
        """How long the former servers run on after a promotion."""
        return 0.0

    def traffic(self) -> AbstractContextManager[None]:
        """Return a context in which traffic is replayed, for a spec without users of its own."""
        return nullcontext()
