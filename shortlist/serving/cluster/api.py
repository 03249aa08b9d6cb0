"""The Kubernetes API with patience: what passes is tried again, everything else becomes a clear error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential_jitter
from urllib3.exceptions import HTTPError

from shortlist.serving.cluster.errors import ClusterError, ConflictError
from shortlist.serving.cluster.owner import Object

PATIENCE_SECONDS: Final = 120.0
"""How long an API that is away, overloaded or restarting is waited for, by each call."""
_TIMEOUT: Final = (5, 30)
"""Seconds to connect, and to wait for an answer."""
_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})

T = TypeVar("T")


@dataclass(frozen=True)
class Kind:
    """A kind of custom resource."""

    group: str
    version: str
    plural: str
    name: str

    @property
    def api_version(self) -> str:
        """Group and version as manifests have them."""
        return f"{self.group}/{self.version}"


INFERENCE_SERVICE: Final = Kind("serving.kserve.io", "v1beta1", "inferenceservices", "InferenceService")
HTTP_ROUTE: Final = Kind("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute")


def connect() -> client.ApiClient:
    """Return a client of the cluster that this pod runs in, or that kubectl's present context names.

    Raises:
        ClusterError: There is neither.
    """
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config()
        else:
            config.load_kube_config()
    except (ConfigException, OSError) as error:
        raise ClusterError(
            f"no Kubernetes cluster is configured here ({error}); run this in a pod, or set KUBECONFIG"
        ) from None
    return client.ApiClient()


class KubernetesAPI:
    """Objects of one namespace.

    Args:
        api: A connected client.
        namespace: Of every call.
        patience_seconds: How long each call is tried for.
        pause_seconds: Between the first two tries; doubled each time.
    """

    def __init__(
        self,
        api: client.ApiClient,
        namespace: str,
        patience_seconds: float = PATIENCE_SECONDS,
        pause_seconds: float = 0.2,
    ) -> None:
        api.configuration.retries = False  # one patience, not two inside each other
        self.namespace = namespace
        self.patience_seconds, self._pause_seconds = patience_seconds, pause_seconds
        self._api = client.ApiClient(api.configuration)
        self._objects = client.CustomObjectsApi(self._api)
        self._core = client.CoreV1Api(self._api)

    def get(self, kind: Kind, name: str) -> Object | None:
        """Return an object; None when there is none."""
        found: Object | None = self._call(
            f"reading {kind.name} {name}",
            lambda: self._objects.get_namespaced_custom_object(*self._of(kind), name, _request_timeout=_TIMEOUT),
            missing=None,
        )
        return found

    def find(self, kind: Kind, labels: Mapping[str, str]) -> list[Object]:
        """Return the objects with some labels, by name."""
        found = self._call(
            f"listing {kind.plural}",
            lambda: self._objects.list_namespaced_custom_object(
                *self._of(kind), label_selector=_selector(labels), _request_timeout=_TIMEOUT
            ),
        )
        return sorted(found["items"], key=lambda one: str(one["metadata"]["name"]))

    def create(self, kind: Kind, body: Object) -> Object:
        """Make an object.

        Raises:
            ConflictError: There is one of that name, perhaps because an earlier try got through.
        """
        found: Object = self._call(
            f"creating {kind.name} {body['metadata']['name']}",
            lambda: self._objects.create_namespaced_custom_object(*self._of(kind), body, _request_timeout=_TIMEOUT),
        )
        return found

    def replace(self, kind: Kind, body: Object) -> Object:
        """Change an object that has not changed since `body` was read.

        Raises:
            ConflictError: It has, or an earlier try got through.
        """
        name = body["metadata"]["name"]
        found: Object = self._call(
            f"changing {kind.name} {name}",
            lambda: self._objects.replace_namespaced_custom_object(
                *self._of(kind), name, body, _request_timeout=_TIMEOUT
            ),
        )
        return found

    def delete(self, kind: Kind, found: Object) -> None:
        """See that an object is being removed, unless another one has taken its name since it was read."""
        name, uid = found["metadata"]["name"], found["metadata"]["uid"]
        options = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=uid))
        self._call(
            f"deleting {kind.name} {name}",
            lambda: self._objects.delete_namespaced_custom_object(
                *self._of(kind), name, body=options, _request_timeout=_TIMEOUT
            ),
            missing=None,
        )

    def pods(self, labels: Mapping[str, str]) -> list[Object]:
        """Return the pods with some labels."""
        found = self._call(
            "listing pods",
            lambda: self._core.list_namespaced_pod(
                self.namespace, label_selector=_selector(labels), _request_timeout=_TIMEOUT
            ),
        )
        return self._plain(found)

    def events(self, name: str) -> list[Object]:
        """Return what the cluster noted about the object of a name, oldest first."""
        found = self._call(
            "listing events",
            lambda: self._core.list_namespaced_event(
                self.namespace, field_selector=f"involvedObject.name={name}", _request_timeout=_TIMEOUT
            ),
        )
        return sorted(self._plain(found), key=lambda one: str(one.get("lastTimestamp") or ""))

    def _of(self, kind: Kind) -> tuple[str, str, str, str]:
        return kind.group, kind.version, self.namespace, kind.plural

    def _plain(self, found: Any) -> list[Object]:
        items: list[Object] = self._api.sanitize_for_serialization(found)["items"]
        return items

    def _call(self, doing: str, call: Callable[[], T], **missing: Any) -> Any:
        """Return what a call returns, after as many tries as it takes.

        Args:
            doing: For messages.
            call: Harmless when made twice.
            missing: `missing=` what to return when the object is not there.
        """
        tries = Retrying(
            retry=retry_if_exception(_is_passing),
            stop=stop_after_delay(self.patience_seconds),
            wait=wait_exponential_jitter(initial=self._pause_seconds, max=5, jitter=self._pause_seconds),
            reraise=True,
        )
        try:
            return tries(call)
        except ApiException as error:
            if error.status == 404 and missing:
                return missing["missing"]
            raise self._refused(doing, error) from None
        except (HTTPError, OSError) as error:
            raise self._away(doing, f"{type(error).__name__}: {error}") from None

    def _refused(self, doing: str, error: ApiException) -> ClusterError:
        said = _said(error)
        if _is_passing(error):
            return self._away(doing, f"{error.status}: {said}")
        where = f"{doing} in namespace {self.namespace}"
        match error.status:
            case 409:
                return ConflictError(f"{where}: {said}")
            case 401 | 403:
                return ClusterError(f"{where}: refused ({error.status}): {said}. Nothing was changed.")
            case 404:
                return ClusterError(f"{where}: not there ({said}); are KServe and the Gateway API installed?")
            case _:
                return ClusterError(f"{where}: refused ({error.status}): {said}")

    def _away(self, doing: str, why: str) -> ClusterError:
        return ClusterError(
            f"{doing}: the Kubernetes API at {self._api.configuration.host} did not answer for"
            f" {self.patience_seconds:g} s ({why}). Users' routes stay as they were; run the same command again."
        )


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _is_passing(error: BaseException) -> bool:
    if isinstance(error, ApiException):
        return error.status in _PASSING or error.status == 0
    return isinstance(error, HTTPError | OSError)


def _said(error: ApiException) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)
