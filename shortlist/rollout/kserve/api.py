"""The Kubernetes API with patience: what passes is tried again, everything else becomes a clear error."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential_jitter
from urllib3.exceptions import HTTPError
from yaml import YAMLError

from shortlist.rollout.kserve.errors import ClusterError, ConflictError
from shortlist.rollout.kserve.owner import Object

PATIENCE_SECONDS: Final = 120.0
"""How long an API that is unavailable, overloaded or restarting is waited for, by each call."""
TOKEN_VARIABLE: Final = "SHORTLIST_KUBERNETES_TOKEN"  # noqa: S105 - the variable's name
"""Environment variable with the file of a token to use in place of the pod's own."""
SETTLING_SECONDS: Final = 20.0
"""How long 401 and 403 are asked again: an API server that starts gives them until its caches of roles are filled."""
_TIMEOUT: Final = (5, 30)
"""Seconds to connect, and to wait for an answer."""
_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})
_FORBIDDEN: Final = frozenset({401, 403})
_DECIDED: Final = re.compile(
    r"denied the request|denied request|exceeded quota|violates PodSecurity|is forbidden: failed quota"
)
"""In a 403 that stays one: an admission webhook, an admission policy or a quota has said it, not a role."""

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
        ClusterError: There is neither, or the token that `TOKEN_VARIABLE` names is not there.
    """
    configuration, inside = client.Configuration(), "KUBERNETES_SERVICE_HOST" in os.environ
    try:
        if inside:
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(client_configuration=configuration)
    except (ConfigException, OSError) as error:
        raise ClusterError(
            f"no Kubernetes cluster is configured here ({error}); run this in a pod, or set KUBECONFIG"
        ) from None
    # The loader takes a file for what it should be: whatever is wrong in it comes out as one of these.
    except (YAMLError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        said = " ".join(str(error).split())[:200]
        raise ClusterError(
            f"KUBECONFIG: {os.environ.get('KUBECONFIG', '~/.kube/config')} is no kubeconfig ({type(error).__name__}:"
            f" {said}); kubectl config view says what is wrong with it"
        ) from None
    file = os.environ.get(TOKEN_VARIABLE)
    if inside and file:
        configuration.refresh_api_key_hook = _token_from(Path(file))
        configuration.refresh_api_key_hook(configuration)
    return client.ApiClient(configuration)


def _token_from(file: Path) -> Callable[[client.Configuration], None]:
    """Return what reads a token before each call, for it may be replaced."""

    def read(configuration: client.Configuration) -> None:
        try:
            token = file.read_text().strip()
        except OSError as error:
            raise ClusterError(
                f"{TOKEN_VARIABLE}: {file} cannot be read ({error.strerror}); it is the token of the account that may"
                " change what is served, from the Secret that runtime.cluster.rollout_token names; see"
                " deploy/k8s/base/accounts.yaml"
            ) from None
        configuration.api_key["authorization"] = f"Bearer {token}"

    return read


class KubernetesAPI:
    """Objects of one namespace.

    Args:
        api: A connected client.
        namespace: Of every call.
        patience_seconds: How long each call is tried for.
        pause_seconds: Between the first two tries; doubled each time.
        settling_seconds: How long an answer that this account may not is asked for again.
    """

    def __init__(
        self,
        api: client.ApiClient,
        namespace: str,
        patience_seconds: float = PATIENCE_SECONDS,
        pause_seconds: float = 0.2,
        settling_seconds: float = SETTLING_SECONDS,
    ) -> None:
        api.configuration.retries = False  # one patience, not two inside each other
        self.namespace = namespace
        self.patience_seconds, self._pause_seconds = patience_seconds, pause_seconds
        self._settling_seconds = settling_seconds
        self._api = client.ApiClient(api.configuration)
        self._objects = client.CustomObjectsApi(self._api)
        self._core = client.CoreV1Api(self._api)
        self._apps = client.AppsV1Api(self._api)

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

    def deployment(self, namespace: str, name: str) -> Object | None:
        """Return a Deployment of any namespace; None when there is none."""
        found = self._call(
            f"reading Deployment {namespace}/{name}",
            lambda: self._apps.read_namespaced_deployment(name, namespace, _request_timeout=_TIMEOUT),
            missing=None,
        )
        plain: Object | None = None if found is None else self._api.sanitize_for_serialization(found)
        return plain

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
            retry=retry_if_exception(_Passing(self._settling_seconds)),
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
                hint = (
                    ""
                    if _DECIDED.search(said)
                    else " deploy/k8s/base/accounts.yaml says which rights an account needs."
                )
                return ClusterError(f"{where}: refused ({error.status}): {said}. Nothing was changed.{hint}")
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


class _Passing:
    """Tells, for the tries of one call, what may be answered otherwise when it is asked again.

    Args:
        settling_seconds: How long a refusal may be that of an API server that has just started.
    """

    def __init__(self, settling_seconds: float) -> None:
        self._settling_seconds = settling_seconds
        self._first_refused: float | None = None

    def __call__(self, error: BaseException) -> bool:
        if isinstance(error, ApiException) and error.status in _FORBIDDEN:
            if _DECIDED.search(_said(error)):
                return False
            now = time.monotonic()
            self._first_refused = now if self._first_refused is None else self._first_refused
            return now - self._first_refused < self._settling_seconds
        self._first_refused = None  # away again, so starting again
        return _is_passing(error)


def _is_passing(error: BaseException) -> bool:
    if isinstance(error, ApiException):
        return error.status in _PASSING or error.status == 0
    return isinstance(error, HTTPError | OSError)


def _said(error: ApiException) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)
