"""The one HTTPRoute of a spec: read, checked against what was asked, changed only by whoever saw its latest state."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from pydantic import ValidationError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from shortlist.rollout.deployment import Route
from shortlist.rollout.kserve.api import HTTP_ROUTE, KubernetesAPI
from shortlist.rollout.kserve.errors import ClusterError, ConflictError, ForeignError
from shortlist.rollout.kserve.owner import (
    ASKED_ANNOTATION,
    ROUTE_ANNOTATION,
    Object,
    ObjectOwner,
    annotations_of,
    holds,
    was_changed,
)
from shortlist.rollout.kserve.routing import sent_to

ACCEPTED_SECONDS: Final = 60.0
"""Longest wait for the gateway to take a route."""
_CONFLICTS: Final = 10
"""Times that somebody else may be faster (KServe, Envoy Gateway and Argo CD write to objects too)."""


class RouteWriter:
    """Who gets what, as the cluster has it.

    Args:
        api: Of the spec's namespace.
        owner: Of the spec.
        accepted_seconds: Longest wait for the gateway.
    """

    def __init__(self, api: KubernetesAPI, owner: ObjectOwner, accepted_seconds: float = ACCEPTED_SECONDS) -> None:
        self._api, self._owner, self._accepted_seconds = api, owner, accepted_seconds

    def read(self) -> Route | None:
        """Return the route in force; None when there is none.

        Raises:
            ForeignError: It is another's, or somebody changed it since it was asked for.
        """
        live = self._live()
        if live is None:
            return None
        if was_changed(live):
            raise self._moved(live)
        return asked_route(live)

    def weights(self) -> dict[str, int]:
        """Return the weights in force by Service, whoever set them; empty when there is no route."""
        live = self._live()
        return {} if live is None else sent_to(live)

    def write(self, body: Object, check: Callable[[Mapping[str, int], bool], None]) -> None:
        """See that the route is as in a manifest, and that the gateway has taken it.

        Args:
            body: The manifest.
            check: Called before anything is changed, with the weights in force by Service, and with whether everybody
                goes back to the version that was stable; raises to refuse.

        Raises:
            ForeignError: The route is another's, or somebody else moved users meanwhile.
            ClusterError: The gateway does not take it, or the API does not answer.
        """
        tries = Retrying(
            retry=retry_if_exception_type(ConflictError),
            stop=stop_after_attempt(_CONFLICTS),
            wait=wait_random_exponential(multiplier=0.05, max=2),
            reraise=True,
        )
        tries(self._write, body, check)
        self._wait_accepted()

    def remove(self) -> None:
        """See that there is none."""
        live = self._live()
        if live is not None:
            self._api.delete(HTTP_ROUTE, live)

    def _write(self, body: Object, check: Callable[[Mapping[str, int], bool], None]) -> None:
        live = self._live()
        if live is None:
            check({}, False)
            self._api.create(HTTP_ROUTE, body)
            return
        check(sent_to(live), self._goes_back(live, body))
        wanted = annotations_of(body)
        if holds(live["spec"], body["spec"]) and holds(annotations_of(live), wanted):
            return  # also when an earlier try got through and its answer was lost
        if was_changed(live) and not self._goes_back(live, body):
            raise self._moved(live)
        metadata = live["metadata"]
        labels = {**(metadata.get("labels") or {}), **body["metadata"]["labels"]}
        annotations = {**(metadata.get("annotations") or {}), **wanted}
        # With the resourceVersion that was read: a change in between is a conflict, never overwritten.
        kept = {**metadata, "labels": labels, "annotations": annotations}
        self._api.replace(HTTP_ROUTE, {**live, "metadata": kept, "spec": body["spec"]})

    def _goes_back(self, live: Object, body: Object) -> bool:
        """Whether a manifest sends everybody to the version that was stable: that always may, whoever moved what."""
        try:
            before, after = asked_route(live), asked_route(body)
        except ForeignError:  # its annotations were edited; what it was asked for is not known
            return False
        return after.canary is None and after.stable == before.stable

    def _live(self) -> Object | None:
        live = self._api.get(HTTP_ROUTE, self._owner.route_name)
        return None if live is None else self._owner.check(live)

    def _moved(self, live: Object) -> ForeignError:
        asked = asked_route(live)
        now = ", ".join(f"{name} {weight}" for name, weight in sent_to(live).items()) or "nobody"
        return ForeignError(
            f"HTTPRoute {self._owner.namespace}/{live['metadata']['name']}: somebody else changed it (now: {now}; asked"
            f" for: {asked.percent} % at version {asked.canary}, the others at version {asked.stable}). It is left as"
            " it is. Put it back, or delete it, and run again."
        )

    def _wait_accepted(self) -> None:
        """Wait until every gateway says that it has taken the route as it is now."""
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


def asked_route(found: Object) -> Route:
    """Return the route that an HTTPRoute was made for.

    Raises:
        ForeignError: It does not say.
    """
    try:
        return Route.model_validate_json(annotations_of(found).get(ROUTE_ANNOTATION, ""))
    except ValidationError:
        raise ForeignError(
            f"HTTPRoute {found['metadata']['name']}: its annotations {ROUTE_ANNOTATION} and {ASKED_ANNOTATION} do not"
            " say what was asked for; somebody edited them. Delete it, and run again."
        ) from None


def _not_accepted(live: Object) -> str | None:
    """Return why a route is not in force; None when it is."""
    parents = (live.get("status") or {}).get("parents") or []
    if not parents:
        return "no gateway has processed it"
    generation = live["metadata"].get("generation", 0)
    for parent in parents:
        conditions = {one["type"]: one for one in parent.get("conditions", [])}
        for name in ("Accepted", "ResolvedRefs"):
            one = conditions.get(name)
            if one is None or one.get("observedGeneration", generation) < generation:
                return f"{name} is not known yet"
            if one["status"] != "True":
                return f"{name} is {one['status']}: {one.get('reason')}: {one.get('message')}"
    return None
