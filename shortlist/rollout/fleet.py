"""Interfaces that a rollout needs: a fleet of servers, a registry, a load test and an observer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shortlist.rollout.checks.observations import Observation
from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.evidence.counts import RequestTotals
from shortlist.tracking.registry import Alias, RegisteredModel


class Fleet(Protocol):
    """Servers of model versions behind one address. Every method is idempotent."""

    def serving(self) -> Route | None:
        """Return the present route; None when nothing serves."""

    def deploy(self, deployment: Deployment) -> None:
        """Install the files of a version and start its servers; completely or not at all."""

    def wait_ready(self, version: int) -> None:
        """Wait until the servers of a version answer.

        Raises:
            ShortlistError: They stopped or took too long; the message has the last lines of their log.
        """

    def verify(self, version: int) -> None:
        """Raise `IntegrityError` when the served files of a version are not those that were deployed."""

    def route(self, route: Route) -> None:
        """Apply a route."""

    def withdraw(self) -> None:
        """Remove the route: no version serves. Used when the first model is withdrawn."""

    def retire(self, version: int) -> None:
        """Stop the servers of a version and remove its files; does nothing when it was never deployed."""


class Models(Protocol):
    """The registry of a spec's versions; implemented by `shortlist.tracking.registry`."""

    name: str

    def version_of(self, alias: Alias) -> int | None:
        """Return the version that an alias points at."""

    def fetch(self, version: int, to: Path | None = None) -> RegisteredModel:
        """Return a version with its files."""

    def blessing_of(self, version: int, to: Path | None = None) -> Path | None:
        """Return the blessing file of a version; None when it was never blessed."""

    def retrieval_of(self, version: int, to: Path | None = None) -> Path | None:
        """Return the release folder of a version: sources, filters and ordering; None when it has none."""

    def retirement_of(self, version: int) -> str:
        """Return the reason for which a version was retired; empty when it was not."""

    def set_alias(self, alias: Alias, version: int | None) -> None:
        """Point an alias at a version; None: at nothing."""


class Observer(Protocol):
    """Collects the evidence of one rollout and runs the canary analysis."""

    def observe_step(self, step: int, at_step_seconds: float) -> Observation:
        """Return the observation of a step, with the decision of the canary analysis.

        Args:
            step: Number of the step, from 0.
            at_step_seconds: Time that the rollout has spent at this step.
        """

    def total(self) -> RequestTotals:
        """Return the counts of all requests so far."""


class LoadTester(Protocol):
    """Load test of a version's running servers."""

    def __call__(self, deployment: Deployment) -> Sequence[str]:
        """Return the reasons to hold a version; none when it passes the declared load test."""
