"""Reads from the status of pods why their containers do not run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shortlist.system.kubernetes_api import Object

CRASHING: Final = "CrashLoopBackOff"
UNSTARTABLE_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"}
)
"""The kubelet's reasons for a container whose image or Secret is missing: waiting longer does not help."""


def container_statuses(pod: Object) -> Iterator[Object]:
    """Yield the statuses of a pod's containers, those of its init containers first."""
    status = pod.get("status") or {}
    yield from status.get("initContainerStatuses") or []
    yield from status.get("containerStatuses") or []


def waiting_reason(status: Object) -> str | None:
    """Return why a container waits; None when it does not."""
    reason = ((status.get("state") or {}).get("waiting") or {}).get("reason")
    return None if reason is None else str(reason)


def waiting_lines(pods: Sequence[Object]) -> list[str]:
    """Return a line for each container that waits, with the cluster's reason and message."""
    return [_waiting_line(pod, status) for pod in pods for status in container_statuses(pod) if waiting_reason(status)]


def unstartable_lines(pods: Sequence[Object]) -> list[str]:
    """Return a line for each container that cannot start: its image cannot be pulled, or its Secret is missing."""
    return [
        _waiting_line(pod, status)
        for pod in pods
        for status in container_statuses(pod)
        if waiting_reason(status) in UNSTARTABLE_REASONS
    ]


def _waiting_line(pod: Object, status: Object) -> str:
    message = " ".join(str(status["state"]["waiting"].get("message") or "").split())
    line = f"pod {pod['metadata']['name']}, {status['name']}: {waiting_reason(status)}"
    return f"{line}: {message}" if message else line
