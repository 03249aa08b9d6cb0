"""The HTTPRoute of a spec: reads it, detects foreign changes, and replaces it with optimistic concurrency."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from pydantic import ValidationError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from shortlist.rollout.deployment import Route
from shortlist.rollout.kserve.objects.owner import (
    ROUTE_ANNOTATION,
    SPEC_ANNOTATION,
    ObjectOwner,
    annotations_of,
    contains,
    was_modified,
)
from shortlist.rollout.kserve.objects.routing import weights_by_service
from shortlist.system.kubernetes_api import HTTP_ROUTE, ClusterError, ConflictError, ForeignError, KubernetesAPI, Object

ACCEPTED_SECONDS: Final = 60.0
"""Longest wait for the gateway to accept a route."""
_CONFLICTS: Final = 10
"""Most conflicts with other writers (KServe, Envoy Gateway and Argo CD write to objects too)."""


class RouteWriter:
    """Reads and writes the HTTPRoute of a spec.

    Args:
        api: Client of the spec's namespace.
        owner: Owner of the HTTPRoute.
        accepted_seconds: Longest wait for the gateway to accept a route.
    """

    def __init__(self, api: KubernetesAPI, owner: ObjectOwner, accepted_seconds: float = ACCEPTED_SECONDS) -> None:
        self._api, self._owner, self._accepted_seconds = api, owner, accepted_seconds

    def read(self) -> Route | None:
        """Return the present route; None when there is none.

        Raises:
            ForeignError: It belongs to another owner, or somebody else changed it.
        """
        live = self._live()
        if live is None:
            return None
        if was_modified(live):
            raise self._modified_error(live)
        return wanted_route_of(live)

    def weights(self) -> dict[str, int]:
        """Return the present weights by Service, whoever set them; empty without a route."""
        live = self._live()
        return {} if live is None else weights_by_service(live)

    def write(self, body: Object, check: Callable[[Mapping[str, int], bool], None]) -> None:
        """Apply the manifest of a route, and wait until the gateway has accepted it.

        Args:
            body: The manifest.
            check: Called before a change with the present weights by Service and with whether all users return to the
                stable version; raises to refuse.

        Raises:
            ForeignError: The route belongs to another owner, or somebody else changed its weights.
            ClusterError: The gateway does not accept it, or the API does not answer.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(ConflictError),
            stop=stop_after_attempt(_CONFLICTS),
            wait=wait_random_exponential(multiplier=0.05, max=2),
            reraise=True,
        )
        retrying(self._write, body, check)
        self._wait_accepted()

    def remove(self) -> None:
        """Delete the HTTPRoute, if it exists."""
        live = self._live()
        if live is not None:
            self._api.delete(HTTP_ROUTE, live)

    def _write(self, body: Object, check: Callable[[Mapping[str, int], bool], None]) -> None:
        live = self._live()
        if live is None:
            check({}, False)
            self._api.create(HTTP_ROUTE, body)
            return
        check(weights_by_service(live), self._goes_back(live, body))
        wanted_annotations = annotations_of(body)
        if contains(live["spec"], body["spec"]) and contains(annotations_of(live), wanted_annotations):
            return  # also when an earlier attempt succeeded and its answer was lost
        if was_modified(live) and not self._goes_back(live, body):
            raise self._modified_error(live)
        metadata = live["metadata"]
        labels = {**(metadata.get("labels") or {}), **body["metadata"]["labels"]}
        annotations = {**(metadata.get("annotations") or {}), **wanted_annotations}
        # With the resourceVersion that was read: a change in between causes a conflict and is never overwritten.
        metadata_with_claims = {**metadata, "labels": labels, "annotations": annotations}
        self._api.replace(HTTP_ROUTE, {**live, "metadata": metadata_with_claims, "spec": body["spec"]})

    def _goes_back(self, live: Object, body: Object) -> bool:
        """Whether a manifest returns all users to the stable version, which is always allowed."""
        try:
            live_route, new_route = wanted_route_of(live), wanted_route_of(body)
        except ForeignError:  # its annotations were edited, so the stable version is unknown
            return False
        return new_route.canary is None and new_route.stable == live_route.stable

    def _live(self) -> Object | None:
        live = self._api.get(HTTP_ROUTE, self._owner.route_name)
        return None if live is None else self._owner.check(live)

    def _modified_error(self, live: Object) -> ForeignError:
        wanted_route = wanted_route_of(live)
        live_weights = ", ".join(f"{name} {weight}" for name, weight in weights_by_service(live).items()) or "nobody"
        return ForeignError(
            f"HTTPRoute {self._owner.namespace}/{live['metadata']['name']}: somebody else changed it (now:"
            f" {live_weights}; asked for: {wanted_route.percent} % at version {wanted_route.canary}, the others at"
            f" version {wanted_route.stable}). It is left as it is. Put it back, or delete it, and run again."
        )

    def _wait_accepted(self) -> None:
        """Wait until every gateway has accepted the present generation of the route."""
        deadline = time.monotonic() + self._accepted_seconds
        while True:
            live = self._live()
            problem = "it is gone" if live is None else _not_accepted(live)
            if problem is None:
                return
            if time.monotonic() >= deadline:
                raise ClusterError(
                    f"HTTPRoute {self._owner.namespace}/{self._owner.route_name}: the gateway has not taken it after"
                    f" {self._accepted_seconds:g} s: {problem}. Is runtime.cluster.gateway right?"
                )
            time.sleep(min(0.5, self._accepted_seconds / 20))


def wanted_route_of(live: Object) -> Route:
    """Return the route in the annotation of an HTTPRoute.

    Raises:
        ForeignError: The annotation is missing or invalid.
    """
    try:
        return Route.model_validate_json(annotations_of(live).get(ROUTE_ANNOTATION, ""))
    except ValidationError:
        raise ForeignError(
            f"HTTPRoute {live['metadata']['name']}: its annotations {ROUTE_ANNOTATION} and {SPEC_ANNOTATION} do not"
            " say what was asked for; somebody edited them. Delete it, and run again."
        ) from None


def _not_accepted(live: Object) -> str | None:
    """Return why a route is not accepted; None when it is."""
    parents = (live.get("status") or {}).get("parents") or []
    if not parents:
        return "no gateway has processed it"
    generation = live["metadata"].get("generation", 0)
    for parent in parents:
        conditions = {condition["type"]: condition for condition in parent.get("conditions", [])}
        for name in ("Accepted", "ResolvedRefs"):
            condition = conditions.get(name)
            if condition is None or condition.get("observedGeneration", generation) < generation:
                return f"{name} is not known yet"
            if condition["status"] != "True":
                return f"{name} is {condition['status']}: {condition.get('reason')}: {condition.get('message')}"
    return None
