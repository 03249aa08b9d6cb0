"""InferenceServices of KServe and the HTTPRoute of the gateway, as a `Fleet`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from shortlist.rollout.checks.health import Health
from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.kserve.objects.manifests import Version, inference_service
from shortlist.rollout.kserve.objects.owner import (
    DIGEST_ANNOTATION,
    RELEASE_ANNOTATION,
    REPOSITORY_ANNOTATION,
    VERSION_LABEL,
    ObjectOwner,
    annotations_of,
    was_modified,
)
from shortlist.rollout.kserve.objects.pod_status import (
    CRASHING,
    UNSTARTABLE_REASONS,
    container_statuses,
    unstartable_lines,
    waiting_lines,
    waiting_reason,
)
from shortlist.rollout.kserve.objects.pods import checked_image
from shortlist.rollout.kserve.objects.published import model_key, publish, release_key, repository_key, verify_published
from shortlist.rollout.kserve.objects.route_writer import ACCEPTED_SECONDS, RouteWriter
from shortlist.rollout.kserve.objects.routing import http_route, service_of, weights_by_service
from shortlist.rollout.kserve.servers.settings import server_settings
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import IntegrityError
from shortlist.storage.objects import ObjectStore
from shortlist.system.kubernetes_api import (
    ENDPOINT_SLICE,
    INFERENCE_SERVICE,
    ClusterError,
    ConflictError,
    KubernetesAPI,
    Object,
)

READY_SECONDS: Final = 900.0
"""Longest wait for the servers of a version: nodes may be added, and images of gigabytes pulled."""
_LOOK_SECONDS: Final = 2.0
_PODS_OF: Final = "serving.kserve.io/inferenceservice"
_SLICES_OF: Final = "kubernetes.io/service-name"


class KubeFleet:
    """InferenceServices, one per version and never changed, behind one HTTPRoute: a `Fleet`.

    Args:
        api: Client of the cluster's namespace.
        objects: Object store to which versions are published, and from which pods fetch them.
        spec: Name of the spec.
        runtime: The spec's section.
        serving: Settings of the servers of new versions.
        ready_seconds: Longest wait for the servers of a version.
        accepted_seconds: Longest wait for the gateway to accept a route.
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
        """Return the present route; None when nothing serves."""
        return self._routes.read()

    def deploy(self, deployment: Deployment) -> None:
        """Publish a version and create its InferenceService; an existing one is never changed.

        Raises:
            ClusterError: An image is not named by digest, a quota is exceeded, or the API refuses or is unavailable.
            IntegrityError: The files, or the deployed version, are not those that passed the gates.
        """
        if self._is_deployed(deployment):
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
        except ConflictError:  # an earlier attempt succeeded, or another object has the name
            if not self._is_deployed(deployment):
                raise

    def wait_ready(self, version: int) -> None:
        """Wait until KServe reports that a version is ready, and each of its Services has a ready endpoint.

        Raises:
            ClusterError: It does not become ready, or a container cannot start; the message has the latest conditions
                and events.
        """
        deadline = time.monotonic() + self._ready_seconds
        while True:
            service = self._find(version)
            if service is not None and not self._failures(service):
                return
            if service is None or self._never_becomes_ready(service) or time.monotonic() >= deadline:
                raise self._not_ready(version, service)
            time.sleep(min(_LOOK_SECONDS, self._ready_seconds / 20))

    def verify(self, version: int) -> None:
        """Raise `IntegrityError` when the InferenceService or the published files of a version were changed."""
        service, redeploys = self._find(version), f"make deploy-canary SPEC={self.owner.spec} deploys it again"
        if service is None:
            raise IntegrityError(f"version {version} is not deployed any more; {redeploys}")
        name = service["metadata"]["name"]
        if was_modified(service):
            raise IntegrityError(
                f"InferenceService {self.owner.namespace}/{name}: somebody changed it since it was made; delete it, and"
                f" {redeploys}"
            )
        digest, repository = (annotations_of(service)[key] for key in (DIGEST_ANNOTATION, REPOSITORY_ANNOTATION))
        if name != self.owner.version_name(version, digest):
            raise IntegrityError(f"InferenceService {self.owner.namespace}/{name}: its digest was changed to {digest}")
        verify_published(self._objects, model_key(self.owner, version, digest), digest)
        verify_published(self._objects, repository_key(self.owner, version, digest, repository), repository)
        if release := annotations_of(service).get(RELEASE_ANNOTATION, ""):
            verify_published(self._objects, release_key(self.owner, version, digest, release), release)

    def route(self, route: Route) -> None:
        """Apply a route; the share of a version grows only while it is ready.

        Returning all users to the stable version is always allowed.
        """
        services: dict[int, str] = {}
        objects_by_service: dict[str, Object] = {}
        for version in {route.stable, route.canary or route.stable}:
            version_service = self._find(version)
            if version_service is None:
                raise ClusterError(f"version {version} is not deployed; nobody can be sent there. Deploy it first.")
            services[version] = version_service["metadata"]["name"]
            objects_by_service[service_of(services[version])] = version_service
        body = http_route(self.owner, self._cluster, route, services, self._serving.hold_seconds)

        def check(weights: Mapping[str, int], is_return: bool) -> None:
            for service, weight in weights_by_service(body).items():
                current_weight = weights.get(service, 0)
                if weight <= current_weight or (is_return and current_weight):
                    continue
                if self._failures(objects_by_service[service]):
                    effect_text = (
                        "nobody is sent there" if not current_weight else f"its share stays at {current_weight} %"
                    )
                    raise ClusterError(f"Service {self.owner.namespace}/{service}: not ready, so {effect_text}")

        self._routes.write(body, check)

    def withdraw(self) -> None:
        """Remove the HTTPRoute: no version serves."""
        self._routes.remove()

    def retire(self, version: int) -> None:
        """Stop the servers of a version; its published files and its record stay.

        Raises:
            ClusterError: Users are still sent to it.
        """
        weights = self._routes.weights()
        for service in self._find_all(version):
            name = service["metadata"]["name"]
            if service_of(name) in weights:
                raise ClusterError(
                    f"InferenceService {self.owner.namespace}/{name}: users are still sent to it; it stays"
                )
            self._api.delete(INFERENCE_SERVICE, service)

    def health(self, version: int) -> Health:
        """Return the health of a version's servers."""
        service = self._find(version)
        if service is None:
            return health([], version, ready=False)
        return health(self._pods(service), version, ready=not self._failures(service))

    def readiness_failures(self, version: int) -> list[str]:
        """Return why a version is not ready now; empty when it is."""
        service = self._find(version)
        return [f"version {version} is not deployed"] if service is None else self._failures(service)

    def service_of(self, version: int) -> str:
        """Return the Service of a version's servers.

        Raises:
            ClusterError: It is not deployed.
        """
        service = self._find(version)
        if service is None:
            raise ClusterError(f"version {version} is not deployed")
        return service_of(service["metadata"]["name"])

    def _never_becomes_ready(self, service: Object) -> bool:
        return is_terminal_failure(service) or bool(unstartable_lines(self._pods(service)))

    def _pods(self, service: Object) -> list[Object]:
        return self._api.pods({_PODS_OF: service["metadata"]["name"]})

    def _failures(self, service: Object) -> list[str]:
        """Return why an InferenceService is not ready: its conditions, and Services without a ready endpoint."""
        name = service["metadata"]["name"]
        if conditions := condition_failures(service):
            return [f"InferenceService {self.owner.namespace}/{name}: {condition}" for condition in conditions]
        backends = [f"{name}-{component}" for component in _components(service)]
        return [
            f"Service {self.owner.namespace}/{backend}: no ready endpoint"
            for backend in backends
            if not any(map(has_ready_endpoint, self._api.find(ENDPOINT_SLICE, {_SLICES_OF: backend})))
        ]

    def _is_deployed(self, deployment: Deployment) -> bool:
        """Whether the version is deployed; waits until one that is being deleted is gone."""
        deadline = time.monotonic() + self._ready_seconds
        while (service := self._find(deployment.version)) is not None:
            name = service["metadata"]["name"]
            if (deployed_digest := annotations_of(service).get(DIGEST_ANNOTATION)) != deployment.digest:
                raise IntegrityError(
                    f"InferenceService {self.owner.namespace}/{name}: serves digest {deployed_digest}, and version"
                    f" {deployment.version} has digest {deployment.digest}; delete it, and run again"
                )
            # InferenceServices of earlier Shortlist versions lack the annotation; they have no release.
            release_digest = annotations_of(service).get(RELEASE_ANNOTATION, deployment.release_digest)
            if release_digest != deployment.release_digest:
                raise IntegrityError(
                    f"InferenceService {self.owner.namespace}/{name}: serves release '{release_digest}', and version"
                    f" {deployment.version} has release '{deployment.release_digest}'; delete it, and run again"
                )
            if not is_being_deleted(service):
                return True
            if time.monotonic() >= deadline:
                raise ClusterError(f"InferenceService {self.owner.namespace}/{name}: is being deleted, and does not go")
            time.sleep(min(_LOOK_SECONDS, self._ready_seconds / 20))
        return False

    def _find(self, version: int) -> Object | None:
        matches = self._find_all(version)
        if len(matches) > 1:
            names = ", ".join(match["metadata"]["name"] for match in matches)
            raise IntegrityError(f"version {version} is deployed twice ({names}); delete the one that is wrong")
        return matches[0] if matches else None

    def _find_all(self, version: int) -> list[Object]:
        # Check the version again, without relying on the server's selector.
        services = self._api.find(INFERENCE_SERVICE, self.owner.labels(version))
        return [
            self.owner.check(match) for match in services if match["metadata"]["labels"][VERSION_LABEL] == str(version)
        ]

    def _not_ready(self, version: int, service: Object | None) -> ClusterError:
        if service is None:
            return ClusterError(f"version {version} is not deployed; it was deleted while it was waited for")
        name = service["metadata"]["name"]
        pods = self._pods(service)
        cluster_text = describe(service, pods, self._api.events(name), self._failures(service))
        how_long = (
            "never becomes ready"
            if self._never_becomes_ready(service)
            else f"is not ready after {self._ready_seconds:g} s"
        )
        return ClusterError(
            f"InferenceService {self.owner.namespace}/{name} {how_long}; the cluster says:\n{cluster_text}"
        )


_TERMINAL_REASONS: Final = frozenset({"InvalidSpec", "BlockedByFailedLoad"})
"""KServe's reasons for a model that will never become ready."""
_FATAL_REASONS: Final = UNSTARTABLE_REASONS | {CRASHING}
_MOST_EVENTS: Final = 5
_COMPONENTS: Final = ("predictor", "transformer")
"""Parts of an InferenceService; KServe puts a Service `<name>-<component>` before each."""


def is_being_deleted(service: Object) -> bool:
    """Whether the InferenceService is being deleted: a finalizer may delay it, without a change of the status."""
    return "deletionTimestamp" in service["metadata"]


def condition_failures(service: Object) -> list[str]:
    """Return why KServe does not report the present generation of the InferenceService as ready; empty when it does.

    `Ready` is not enough: of a cluster-local InferenceService it counts the predictor and the ingress only, and not the
    transformer, to which users are sent.
    """
    if is_being_deleted(service):
        return ["it is being deleted"]
    status = service.get("status") or {}
    generation = service["metadata"].get("generation", 0)
    if status.get("observedGeneration", generation) < generation:
        return [f"KServe has not seen generation {generation} yet"]
    statuses = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
    required = ("Ready", *(f"{component.capitalize()}Ready" for component in _components(service)))
    return [f"{name} is {statuses.get(name, 'not reported')}" for name in required if statuses.get(name) != "True"]


def has_ready_endpoint(endpoint_slice: Object) -> bool:
    """Whether a server of an EndpointSlice takes requests; an unknown state counts as ready, as in Kubernetes."""
    # `endpoints` is null, not empty, without replicas.
    return any(
        (endpoint.get("conditions") or {}).get("ready") is not False for endpoint in endpoint_slice["endpoints"] or []
    )


def _components(service: Object) -> list[str]:
    return [component for component in _COMPONENTS if component in service["spec"]]


def is_terminal_failure(service: Object) -> bool:
    """Whether waiting longer cannot help."""
    if is_being_deleted(service):
        return True
    model = (service.get("status") or {}).get("modelStatus") or {}
    return model.get("transitionStatus") in _TERMINAL_REASONS


def health(pods: Sequence[Object], version: int, *, ready: bool) -> Health:
    """Return the health of a version's servers.

    Args:
        pods: Its pods.
        version: Number of the version.
        ready: Whether the version is ready.
    """
    statuses = [status for pod in pods for status in container_statuses(pod)]
    return Health(
        version=version,
        ready=ready,
        restarts=sum(int(status.get("restartCount", 0)) for status in statuses),
        fatal=tuple(sorted({str(status["name"]) for status in statuses if waiting_reason(status) in _FATAL_REASONS})),
    )


def describe(service: Object, pods: Sequence[Object], events: Sequence[Object], failures: Sequence[str]) -> str:
    """Return why the version is not ready, the latest conditions, failures and events, one indented line each."""
    lines = [*failures, *_lines(service, pods, events)]
    return "\n".join(f"  {line[:300]}" for line in lines) or "  (the cluster says nothing)"


def _lines(service: Object, pods: Sequence[Object], events: Sequence[Object]) -> Iterator[str]:
    if is_being_deleted(service):
        yield f"somebody is deleting the InferenceService since {service['metadata']['deletionTimestamp']}"
    status = service.get("status") or {}
    for condition in status.get("conditions", []):
        if condition["status"] != "True":
            cause = f"{condition.get('reason', '')} {condition.get('message', '')}"
            yield f"{condition['type']} is {condition['status']}: {cause}".rstrip()
    if failure := (status.get("modelStatus") or {}).get("lastFailureInfo"):
        yield f"model: {failure.get('reason', '')} {failure.get('message', '')}".rstrip()
    yield from waiting_lines(pods)
    for event in list(events)[-_MOST_EVENTS:]:
        if event.get("type") != "Normal":
            yield f"event {event.get('reason', '')}: {event.get('message', '')}"
