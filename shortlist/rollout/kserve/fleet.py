"""KServe's servers and the Gateway's route, as a rollout sees them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from shortlist.rollout.checks import Health
from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.kserve.api import INFERENCE_SERVICE, KubernetesAPI
from shortlist.rollout.kserve.errors import ClusterError, ConflictError
from shortlist.rollout.kserve.manifests import Version, inference_service
from shortlist.rollout.kserve.owner import (
    DIGEST_ANNOTATION,
    RELEASE_ANNOTATION,
    REPOSITORY_ANNOTATION,
    VERSION_LABEL,
    Object,
    ObjectOwner,
    annotations_of,
    was_changed,
)
from shortlist.rollout.kserve.pods import checked_image
from shortlist.rollout.kserve.published import model_key, publish, release_key, repository_key, verify_published
from shortlist.rollout.kserve.route_writer import ACCEPTED_SECONDS, RouteWriter
from shortlist.rollout.kserve.routing import http_route, sent_to, service_of
from shortlist.rollout.kserve.settings import server_settings
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import IntegrityError
from shortlist.storage.objects import ObjectStore

READY_SECONDS: Final = 900.0
"""Longest wait for a version's servers: nodes may have to be added, and images of gigabytes pulled."""
_LOOK_SECONDS: Final = 2.0
_PODS_OF: Final = "serving.kserve.io/inferenceservice"


class KubeFleet:
    """InferenceServices, one per version and never changed, behind one HTTPRoute: a `Fleet`.

    Args:
        api: Of the cluster's namespace.
        objects: Where versions are published, and pods fetch them.
        spec: Name of the spec.
        runtime: The spec's section.
        serving: What servers of new versions are told.
        ready_seconds: Longest wait for a version's servers.
        accepted_seconds: Longest wait for the gateway to take a route.
    """

    def __init__(
        self,
        api: KubernetesAPI,
        objects: ObjectStore,
        spec: str,
        runtime: Runtime,
        serving: Serving,
        ready_seconds: float = READY_SECONDS,
        accepted_seconds: float = ACCEPTED_SECONDS,
    ) -> None:
        self._api, self._objects, self._serving = api, objects, serving
        self._cluster, self._online_store, self._ready_seconds = runtime.cluster, runtime.online_store, ready_seconds
        cluster = runtime.cluster
        self.owner = ObjectOwner(cluster=cluster.name, namespace=cluster.namespace, spec=spec)
        self._routes = RouteWriter(api, self.owner, accepted_seconds)

    def serving(self) -> Route | None:
        """Return who gets what at present; None when nothing serves."""
        return self._routes.read()

    def deploy(self, deployment: Deployment) -> None:
        """See that a version is published and its InferenceService is there; one that is there is never changed.

        Raises:
            ClusterError: An image is not named by digest, a quota is used up, or the API refuses or is unavailable.
            IntegrityError: Files, or the version that is there, are not those that were judged.
        """
        if self._kept(deployment):
            return
        images = self._cluster.images
        for name in ("pipeline", "triton"):  # before anything is published
            checked_image(getattr(images, name), name, images.allow_tags)
        settings = server_settings(self.owner.spec, deployment, self._serving, self._online_store)
        repository = publish(self._objects, self.owner, deployment, self._serving)
        version = Version(
            owner=self.owner,
            version=deployment.version,
            digest=deployment.digest,
            repository=repository,
            release=deployment.release_digest,
            source=self._objects.root,
            settings=settings,
        )
        try:
            self._api.create(INFERENCE_SERVICE, inference_service(version, self._cluster))
        except ConflictError:  # an earlier try got through, or somebody else's object has the name
            if not self._kept(deployment):
                raise

    def wait_ready(self, version: int) -> None:
        """Wait until KServe says that a version is ready.

        Raises:
            ClusterError: It does not become ready; with the last that the cluster said.
        """
        deadline = time.monotonic() + self._ready_seconds
        while True:
            service = self._find(version)
            if service is not None and is_ready(service):
                return
            if service is None or is_terminal_failure(service) or time.monotonic() >= deadline:
                raise self._not_ready(version, service)
            time.sleep(min(_LOOK_SECONDS, self._ready_seconds / 20))

    def verify(self, version: int) -> None:
        """Raise `IntegrityError` when a version is not what was deployed: its object, or its published files."""
        service = self._find(version)
        if service is None:
            raise IntegrityError(f"version {version} is not deployed any more; make deploy-canary deploys it again")
        name = service["metadata"]["name"]
        if was_changed(service):
            raise IntegrityError(
                f"InferenceService {self.owner.namespace}/{name}: somebody changed it since it was made; delete it, and"
                " make deploy-canary makes it again"
            )
        digest, repository = (annotations_of(service)[key] for key in (DIGEST_ANNOTATION, REPOSITORY_ANNOTATION))
        if name != self.owner.version_name(version, digest):
            raise IntegrityError(f"InferenceService {self.owner.namespace}/{name}: its digest was changed to {digest}")
        verify_published(self._objects, model_key(self.owner, version, digest), digest)
        verify_published(self._objects, repository_key(self.owner, version, digest, repository), repository)
        if release := annotations_of(service).get(RELEASE_ANNOTATION, ""):
            verify_published(self._objects, release_key(self.owner, version, digest, release), release)

    def route(self, route: Route) -> None:
        """Send users where a route says; a version gets more of them only while it is ready.

        Unless everybody goes back to the version that was stable, which needs nobody's leave.
        """
        services: dict[int, str] = {}
        ready: dict[str, bool] = {}
        for version in {route.stable, route.canary or route.stable}:
            found = self._find(version)
            if found is None:
                raise ClusterError(f"version {version} is not deployed; nobody can be sent there. Deploy it first.")
            services[version] = found["metadata"]["name"]
            ready[service_of(services[version])] = is_ready(found)
        body = http_route(self.owner, self._cluster, route, services, self._serving.hold_seconds)

        def check(weights: Mapping[str, int], back: bool) -> None:
            for service, weight in sent_to(body).items():
                before = weights.get(service, 0)
                if weight > before and not ready[service] and not (back and before):
                    more = "nobody is sent there" if not before else f"its share stays at {before} %"
                    raise ClusterError(f"Service {self.owner.namespace}/{service}: not ready, so {more}")

        self._routes.write(body, check)

    def withdraw(self) -> None:
        """Send nobody anywhere: the HTTPRoute is removed."""
        self._routes.remove()

    def retire(self, version: int) -> None:
        """See that a version's servers are stopped; its published files stay, as its record does.

        Raises:
            ClusterError: Users are still sent to it.
        """
        weights = self._routes.weights()
        for service in self._all(version):
            name = service["metadata"]["name"]
            if service_of(name) in weights:
                raise ClusterError(
                    f"InferenceService {self.owner.namespace}/{name}: users are still sent to it; it stays"
                )
            self._api.delete(INFERENCE_SERVICE, service)

    def health(self, version: int) -> Health:
        """Return how a version's servers are."""
        service = self._find(version)
        name = None if service is None else service["metadata"]["name"]
        return health(service, [] if name is None else self._api.pods({_PODS_OF: name}))

    def service_of(self, version: int) -> str:
        """Return the Service of a version's servers.

        Raises:
            ClusterError: It is not deployed.
        """
        found = self._find(version)
        if found is None:
            raise ClusterError(f"version {version} is not deployed")
        return service_of(found["metadata"]["name"])

    def _kept(self, deployment: Deployment) -> bool:
        """Whether the version is there; waits for one that is just being removed to be gone."""
        deadline = time.monotonic() + self._ready_seconds
        while (found := self._find(deployment.version)) is not None:
            name = found["metadata"]["name"]
            if (got := annotations_of(found).get(DIGEST_ANNOTATION)) != deployment.digest:
                raise IntegrityError(
                    f"InferenceService {self.owner.namespace}/{name}: serves digest {got}, and version"
                    f" {deployment.version} has digest {deployment.digest}; delete it, and run again"
                )
            # Those that an earlier Shortlist made have no such annotation, and only score.
            kept = annotations_of(found).get(RELEASE_ANNOTATION, deployment.release_digest)
            if kept != deployment.release_digest:
                raise IntegrityError(
                    f"InferenceService {self.owner.namespace}/{name}: serves release '{kept}', and version"
                    f" {deployment.version} has release '{deployment.release_digest}'; delete it, and run again"
                )
            if not is_going(found):
                return True
            if time.monotonic() >= deadline:
                raise ClusterError(f"InferenceService {self.owner.namespace}/{name}: is being deleted, and does not go")
            time.sleep(min(_LOOK_SECONDS, self._ready_seconds / 20))
        return False

    def _find(self, version: int) -> Object | None:
        found = self._all(version)
        if len(found) > 1:
            names = ", ".join(one["metadata"]["name"] for one in found)
            raise IntegrityError(f"version {version} is deployed twice ({names}); delete the one that is wrong")
        return found[0] if found else None

    def _all(self, version: int) -> list[Object]:
        # The version once more: a selector is only as good as the server that reads it.
        found = self._api.find(INFERENCE_SERVICE, self.owner.labels(version))
        return [self.owner.check(one) for one in found if one["metadata"]["labels"][VERSION_LABEL] == str(version)]

    def _not_ready(self, version: int, service: Object | None) -> ClusterError:
        if service is None:
            return ClusterError(f"version {version} is not deployed; it was deleted while it was waited for")
        name = service["metadata"]["name"]
        said = describe(service, self._api.pods({_PODS_OF: name}), self._api.events(name))
        how_long = (
            "never becomes ready" if is_terminal_failure(service) else f"is not ready after {self._ready_seconds:g} s"
        )
        return ClusterError(f"InferenceService {self.owner.namespace}/{name} {how_long}; the cluster says:\n{said}")


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
