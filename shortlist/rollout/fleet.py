"""What a rollout needs of others: a fleet of servers, a load test, and an observer with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.observations import Observation, Requests
from shortlist.tracking.registry import Alias, RegisteredModel


class Fleet(Protocol):
    """Servers of model versions behind one address. Every call may be made again and changes nothing then."""

    def serving(self) -> Route | None:
        """Return who gets what at present; None when nothing serves."""

    def deploy(self, deployment: Deployment) -> None:
        """See that a version's files are in place, and that its servers are started; whole or not at all."""

    def wait_ready(self, version: int) -> None:
        """Wait until a version's servers answer.

        Raises:
            ShortlistError: They stopped or took too long; with the last lines that they printed.
        """

    def verify(self, version: int) -> None:
        """Raise `IntegrityError` when the files that a version is served from are not those that were deployed."""

    def route(self, route: Route) -> None:
        """Send users where a route says."""

    def withdraw(self) -> None:
        """Send nobody anywhere: the first model ever is taken back."""

    def retire(self, version: int) -> None:
        """See that a version's servers are stopped and its files gone; also of one that was never deployed."""


class Models(Protocol):
    """The registry of a spec's versions; `shortlist.tracking.registry.Registry` is one."""

    name: str

    def version_of(self, alias: Alias) -> int | None:
        """Return the version that an alias points at."""

    def fetch(self, version: int, to: Path | None = None) -> RegisteredModel:
        """Return a version with its files."""

    def blessing_of(self, version: int, to: Path | None = None) -> Path | None:
        """Return the file of a version's blessing."""

    def retrieval_of(self, version: int, to: Path | None = None) -> Path | None:
        """Return the folder of what is released with a version's model."""

    def set_alias(self, alias: Alias, version: int | None) -> None:
        """Point an alias at a version; None: at nothing."""


class Observer(Protocol):
    """The canary analysis with its evidence, for one rollout."""

    def observe_step(self, step: int, at_step_seconds: float) -> Observation:
        """Return what was observed of a step, with the decision of the canary analysis.

        Args:
            step: Its number, from 0.
            at_step_seconds: How long the rollout has been there.
        """

    def total(self) -> Requests:
        """Return the count of all requests so far."""


class LoadTester(Protocol):
    """The infra gate on running servers."""

    def __call__(self, deployment: Deployment) -> Sequence[str]:
        """Return the reasons to hold a version whose servers run; none when it stands the declared load."""
