"""The servers of this machine, as a rollout sees them."""

from __future__ import annotations

from typing import Final

from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.local.stack import Stack
from shortlist.rollout.local.version import verify_deployed
from shortlist.serving.processes.launch import check_repository
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import IntegrityError

READY_SECONDS: Final = 90.0
"""Longest wait for a version's servers."""


class LocalFleet:
    """A stack as a `Fleet`.

    Args:
        stack: It is up.
        serving: What servers of new versions are told.
    """

    def __init__(self, stack: Stack, serving: Serving) -> None:
        self._stack = stack
        self._serving = serving

    def serving(self) -> Route | None:
        """Return who gets what at present; None when nothing serves."""
        return self._stack.record.route

    def deploy(self, deployment: Deployment) -> None:
        """See that a version's files are in place and its servers started."""
        self._stack.deploy(deployment, self._serving)

    def wait_ready(self, version: int) -> None:
        """Wait until a version's servers answer; raises `StackError` when they do not."""
        self._stack.wait_ready(version, READY_SECONDS)

    def verify(self, version: int) -> None:
        """Raise `IntegrityError` when a served file is not the one that was deployed."""
        deployed = self._stack.record.versions.get(version)
        if deployed is None:
            raise IntegrityError(f"version {version} is not deployed any more; make deploy-canary deploys it again")
        folder = self._stack.paths.versions / f"v{version}"
        check_repository(folder / "repository", deployed.repository_digest)
        verify_deployed(folder, deployed.deployment)

    def route(self, route: Route) -> None:
        """Send users where a route says."""
        self._stack.route(route)

    def withdraw(self) -> None:
        """Send nobody anywhere."""
        self._stack.withdraw()

    def retire(self, version: int) -> None:
        """See that a version's servers are stopped."""
        self._stack.retire(version)
