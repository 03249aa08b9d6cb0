"""What the cluster says about a version's servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shortlist.rollout.checks import Health
from shortlist.rollout.kserve.owner import Object

_TERMINAL_REASONS: Final = frozenset({"InvalidSpec", "BlockedByFailedLoad"})
"""KServe's words for a model that does not become ready by waiting."""
_GIVEN_UP: Final = frozenset({"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError"})
_MOST_EVENTS: Final = 5


def is_going(service: Object) -> bool:
    """Whether the InferenceService is being deleted: a finalizer may take its time, and the status stays as it was."""
    return "deletionTimestamp" in service["metadata"]


def is_ready(service: Object) -> bool:
    """Whether KServe says so of the InferenceService as it is now, and it is to stay."""
    if is_going(service):
        return False
    status = service.get("status") or {}
    generation = service["metadata"].get("generation", 0)
    if status.get("observedGeneration", generation) < generation:
        return False
    return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", []))


def is_terminal_failure(service: Object) -> bool:
    """Whether waiting longer cannot help."""
    if is_going(service):
        return True
    model = (service.get("status") or {}).get("modelStatus") or {}
    return model.get("transitionStatus") in _TERMINAL_REASONS


def health(service: Object | None, pods: Sequence[Object]) -> Health:
    """Return how a version's servers are.

    Args:
        service: Its InferenceService; None when it is gone.
        pods: Its pods.
    """
    statuses = [status for pod in pods for status in _containers(pod)]
    return Health(
        ready=service is not None and is_ready(service),
        restarts=sum(int(status.get("restartCount", 0)) for status in statuses),
        fatal=tuple(sorted({str(status["name"]) for status in statuses if _waiting(status) in _GIVEN_UP})),
    )


def describe(service: Object | None, pods: Sequence[Object], events: Sequence[Object]) -> str:
    """Return the last that the cluster said, a line each, indented."""
    return "\n".join(f"  {line[:300]}" for line in _lines(service, pods, events)) or "  (the cluster says nothing)"


def _lines(service: Object | None, pods: Sequence[Object], events: Sequence[Object]) -> Iterator[str]:
    if service is None:
        yield "the InferenceService is gone"
        return
    if is_going(service):
        yield f"somebody is deleting the InferenceService since {service['metadata']['deletionTimestamp']}"
    status = service.get("status") or {}
    for one in status.get("conditions", []):
        if one["status"] != "True":
            yield f"{one['type']} is {one['status']}: {one.get('reason', '')} {one.get('message', '')}".rstrip()
    if failure := (status.get("modelStatus") or {}).get("lastFailureInfo"):
        yield f"model: {failure.get('reason', '')} {failure.get('message', '')}".rstrip()
    for pod in pods:
        for container in _containers(pod):
            if reason := _waiting(container):
                yield f"pod {pod['metadata']['name']}, {container['name']}: {reason}"
    for event in list(events)[-_MOST_EVENTS:]:
        if event.get("type") != "Normal":
            yield f"event {event.get('reason', '')}: {event.get('message', '')}"


def _containers(pod: Object) -> Iterator[Object]:
    status = pod.get("status") or {}
    yield from status.get("initContainerStatuses") or []
    yield from status.get("containerStatuses") or []


def _waiting(status: Object) -> str | None:
    reason = ((status.get("state") or {}).get("waiting") or {}).get("reason")
    return None if reason is None else str(reason)
