"""The local stack as a `Fleet`."""

from __future__ import annotations

from typing import Final

from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.local.stack import Stack
from shortlist.rollout.local.version import verify_deployed
from shortlist.serving.processes.launch import check_repository
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import IntegrityError

READY_SECONDS: Final = 90.0
"""Longest wait for the servers of a version."""


class LocalFleet:
    """The local stack as a `Fleet`.

    Args:
        stack: The running stack.
        serving: Settings of the servers of new versions.
    """

    def __init__(self, stack: Stack, serving: Serving) -> None:
        self._stack = stack
        self._serving = serving

    def serving(self) -> Route | None:
        """Return the present route; None when nothing serves."""
        return self._stack.record.route

    def deploy(self, deployment: Deployment) -> None:
        """Install the files of a version and start its servers."""
        self._stack.deploy(deployment, self._serving)

    def wait_ready(self, version: int) -> None:
        """Wait until the servers of a version answer; raises `StackError` when they do not."""
        self._stack.wait_ready(version, READY_SECONDS)

    def verify(self, version: int) -> None:
        """Raise `IntegrityError` when a served file is not the one that was deployed."""
        deployed = self._stack.record.versions.get(version)
        if deployed is None:
            raise IntegrityError(
                f"version {version} is not deployed any more; make deploy-canary SPEC={self._stack.paths.root.name}"
                " deploys it again"
            )
        folder = self._stack.paths.versions / f"v{version}"
        check_repository(folder / "repository", deployed.repository_digest)
        verify_deployed(folder, deployed.deployment)

    def route(self, route: Route) -> None:
        """Apply a route."""
        self._stack.route(route)

    def withdraw(self) -> None:
        """Remove the route: no version serves."""
        self._stack.withdraw()

    def retire(self, version: int) -> None:
        """Stop the servers of a version."""
        self._stack.retire(version)
