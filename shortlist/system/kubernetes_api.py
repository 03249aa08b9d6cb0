"""Client of the Kubernetes API: retries transient errors, and turns all others into clear messages."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential_jitter
from urllib3.exceptions import HTTPError
from yaml import YAMLError

from shortlist.contracts import ShortlistError

PATIENCE_SECONDS: Final = 120.0
"""How long each call is retried while the API is unavailable, overloaded or restarting."""
TOKEN_VARIABLE: Final = "SHORTLIST_KUBERNETES_TOKEN"  # noqa: S105 - the variable's name
"""Environment variable with the path of a token that replaces the pod's own."""
SETTLING_SECONDS: Final = 20.0
"""How long 401 and 403 are retried: a starting API server returns them until its caches of roles are filled."""
_TIMEOUT: Final = (5, 30)
"""Seconds to connect, and to wait for an answer."""
_LOG_TIMEOUT: Final = (5, 60)
"""The same for a log that is followed: a connection without a line for longer is made anew."""
_TRANSIENT: Final = frozenset({408, 429, 500, 502, 503, 504})
_UNAUTHORIZED: Final = frozenset({401, 403})
_POLICY_REFUSAL: Final = re.compile(
    r"denied the request|denied request|exceeded quota|violates PodSecurity|is forbidden: failed quota"
)
"""Messages of a permanent 403: from an admission webhook, an admission policy or a quota, not from missing roles."""

T = TypeVar("T")
Object = dict[str, Any]
"""A Kubernetes object as JSON."""


class ClusterError(ShortlistError):
    """The cluster refuses a call, does not answer, or does not reach the desired state."""


class ConflictError(ClusterError):
    """An object exists already, or was changed since it was read."""


class ForeignError(ClusterError):
    """An object belongs to another owner, or was changed by somebody else; it is never modified."""


@dataclass(frozen=True)
class ResourceKind:
    """A kind of object, of which the client needs no methods of its own."""

    group: str
    version: str
    plural: str
    name: str

    @property
    def api_version(self) -> str:
        """The `apiVersion` of manifests."""
        return f"{self.group}/{self.version}"


INFERENCE_SERVICE: Final = ResourceKind("serving.kserve.io", "v1beta1", "inferenceservices", "InferenceService")
HTTP_ROUTE: Final = ResourceKind("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute")
JOB: Final = ResourceKind("batch", "v1", "jobs", "Job")
ENDPOINT_SLICE: Final = ResourceKind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")


def is_inside_cluster() -> bool:
    """Whether this process runs in a pod, where the cluster's names are known."""
    return "KUBERNETES_SERVICE_HOST" in os.environ


def connect() -> client.ApiClient:
    """Return a client of the cluster that this pod runs in, or of kubectl's current context.

    Raises:
        ClusterError: There is no cluster, or the token file of `TOKEN_VARIABLE` cannot be read.
    """
    configuration, inside = client.Configuration(), is_inside_cluster()
    try:
        if inside:
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(client_configuration=configuration)
    except (ConfigException, OSError) as error:
        raise ClusterError(
            f"no Kubernetes cluster is configured here ({error}); run this in a pod, or set KUBECONFIG"
        ) from None
    # The loader does not validate the file: an invalid one raises any of these.
    except (YAMLError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        message = " ".join(str(error).split())[:200]
        raise ClusterError(
            f"KUBECONFIG: {os.environ.get('KUBECONFIG', '~/.kube/config')} is no kubeconfig ({type(error).__name__}:"
            f" {message}); kubectl config view says what is wrong with it"
        ) from None
    file = os.environ.get(TOKEN_VARIABLE)
    if inside and file:
        configuration.refresh_api_key_hook = _token_from(Path(file))
        configuration.refresh_api_key_hook(configuration)
    return client.ApiClient(configuration)


def _token_from(file: Path) -> Callable[[client.Configuration], None]:
    """Return a hook that reads the token before each call, as it may be replaced."""

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
    """Reads and writes objects of one namespace.

    Args:
        api: A connected client.
        namespace: Namespace of every call.
        patience_seconds: How long each call is retried.
        first_pause_seconds: Pause before the first retry; doubled each time.
        settling_seconds: How long 401 and 403 are retried.
    """

    def __init__(
        self,
        api: client.ApiClient,
        namespace: str,
        patience_seconds: float = PATIENCE_SECONDS,
        first_pause_seconds: float = 0.2,
        settling_seconds: float = SETTLING_SECONDS,
    ) -> None:
        api.configuration.retries = False  # retried here only
        self.namespace = namespace
        self.patience_seconds, self._pause_seconds = patience_seconds, first_pause_seconds
        self._settling_seconds = settling_seconds
        self._api = client.ApiClient(api.configuration)
        self._objects = client.CustomObjectsApi(self._api)
        self._core = client.CoreV1Api(self._api)
        self._apps = client.AppsV1Api(self._api)

    def get(self, kind: ResourceKind, name: str) -> Object | None:
        """Return an object; None when it does not exist."""
        live_object: Object | None = self._call(
            f"reading {kind.name} {name}",
            lambda: self._objects.get_namespaced_custom_object(*self._path_of(kind), name, _request_timeout=_TIMEOUT),
            if_missing=None,
        )
        return live_object

    def knows(self, api_version: str, kind: str) -> bool:
        """Whether the cluster has a kind of object, such as `RayJob` of `ray.io/v1`."""
        resources = (self.read(f"/apis/{api_version}") or {}).get("resources", [])
        return kind in {resource["kind"] for resource in resources}

    def read(self, path: str) -> Object | None:
        """Return the object at a path of the API, such as `/api/v1/namespaces/ml`; None where there is none."""
        live_object: Object | None = self._call(f"reading {path}", lambda: self._request("GET", path), if_missing=None)
        return live_object

    def is_allowed(self, verb: str, group: str, resource: str, name: str = "", user: str = "") -> bool:
        """Whether a user may make a call in the namespace, as its authorizer says.

        Args:
            verb: Such as `create`.
            group: API group; empty for the core.
            resource: Plural, perhaps with a subresource, such as `pods/log`.
            name: Name of the object; empty: all objects.
            user: Name of the user, such as `system:serviceaccount:ml:shortlist-rollout`; empty: whoever asks.
        """
        resource, _, subresource = resource.partition("/")
        attributes = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        attributes |= {"name": name} if name else {}
        attributes |= {"subresource": subresource} if subresource else {}
        kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"
        spec = {"resourceAttributes": attributes} | ({"user": user} if user else {})
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        path = f"/apis/authorization.k8s.io/v1/{kind.lower()}s"
        review = self._call("asking for rights", lambda: self._request("POST", path, body))
        return bool(review["status"]["allowed"])

    def _request(self, method: str, path: str, body: Object | None = None) -> Object:
        answer, *_ = self._api.call_api(
            path,
            method,
            header_params={"Accept": "application/json", "Content-Type": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
            response_type="object",
            _request_timeout=_TIMEOUT,
        )
        plain: Object = answer
        return plain

    def find(self, kind: ResourceKind, labels: Mapping[str, str]) -> list[Object]:
        """Return the objects with these labels, sorted by name."""
        object_list = self._call(
            f"listing {kind.plural}",
            lambda: self._objects.list_namespaced_custom_object(
                *self._path_of(kind), label_selector=_selector(labels), _request_timeout=_TIMEOUT
            ),
        )
        return sorted(object_list["items"], key=lambda live_object: str(live_object["metadata"]["name"]))

    def create(self, kind: ResourceKind, body: Object) -> Object:
        """Create an object.

        Raises:
            ConflictError: The name exists, perhaps because an earlier attempt succeeded.
        """
        live_object: Object = self._call(
            f"creating {kind.name} {body['metadata']['name']}",
            lambda: self._objects.create_namespaced_custom_object(
                *self._path_of(kind), body, _request_timeout=_TIMEOUT
            ),
        )
        return live_object

    def replace(self, kind: ResourceKind, body: Object) -> Object:
        """Replace an object that has not changed since `body` was read.

        Raises:
            ConflictError: It has changed, or an earlier attempt succeeded.
        """
        name = body["metadata"]["name"]
        live_object: Object = self._call(
            f"changing {kind.name} {name}",
            lambda: self._objects.replace_namespaced_custom_object(
                *self._path_of(kind), name, body, _request_timeout=_TIMEOUT
            ),
        )
        return live_object

    def delete(self, kind: ResourceKind, live_object: Object) -> None:
        """Delete an object, but not a new one of the same name that replaced it since it was read."""
        name, uid = live_object["metadata"]["name"], live_object["metadata"]["uid"]
        # The pods of a Job stay when nothing is said about them.
        options = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=uid), propagation_policy="Background")
        self._call(
            f"deleting {kind.name} {name}",
            lambda: self._objects.delete_namespaced_custom_object(
                *self._path_of(kind), name, body=options, _request_timeout=_TIMEOUT
            ),
            if_missing=None,
        )

    def pods(self, labels: Mapping[str, str]) -> list[Object]:
        """Return the pods with these labels."""
        pod_list = self._call(
            "listing pods",
            lambda: self._core.list_namespaced_pod(
                self.namespace, label_selector=_selector(labels), _request_timeout=_TIMEOUT
            ),
        )
        return self._to_dicts(pod_list)

    def log_lines(self, pod: str, container: str, start: int = 0) -> Iterator[str]:
        """Yield the lines of a container's log while they are written, until it ends or the connection is lost.

        Args:
            pod: Name of the pod.
            container: Name of its container, which was started.
            start: Number of lines that are left out at the beginning, because they were read before.
        """
        response = self._call(
            f"reading the log of pod {pod}",
            lambda: self._core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=container,
                follow=True,
                _preload_content=False,
                _request_timeout=_LOG_TIMEOUT,
            ),
            if_missing=(),
        )
        with suppress(HTTPError, OSError):
            for number, line in enumerate(response):
                if number >= start and line.endswith(b"\n"):
                    yield line.decode("utf-8", "replace").rstrip()

    def deployment(self, namespace: str, name: str) -> Object | None:
        """Return a Deployment of any namespace; None when it does not exist."""
        deployment = self._call(
            f"reading Deployment {namespace}/{name}",
            lambda: self._apps.read_namespaced_deployment(name, namespace, _request_timeout=_TIMEOUT),
            if_missing=None,
        )
        plain: Object | None = None if deployment is None else self._api.sanitize_for_serialization(deployment)
        return plain

    def events(self, name: str) -> list[Object]:
        """Return the events of the object of a name, oldest first."""
        event_list = self._call(
            "listing events",
            lambda: self._core.list_namespaced_event(
                self.namespace, field_selector=f"involvedObject.name={name}", _request_timeout=_TIMEOUT
            ),
        )
        return sorted(self._to_dicts(event_list), key=lambda event: str(event.get("lastTimestamp") or ""))

    def _path_of(self, kind: ResourceKind) -> tuple[str, str, str, str]:
        return kind.group, kind.version, self.namespace, kind.plural

    def _to_dicts(self, api_list: Any) -> list[Object]:
        items: list[Object] = self._api.sanitize_for_serialization(api_list)["items"]
        return items

    def _call(self, action: str, call: Callable[[], T], **if_missing: Any) -> Any:
        """Return the result of a call, which is retried after transient errors.

        Args:
            action: Description of the call, for messages.
            call: The call; idempotent.
            if_missing: `if_missing=`, the value to return when the object does not exist.
        """
        retrying = Retrying(
            retry=retry_if_exception(_RetryPredicate(self._settling_seconds)),
            stop=stop_after_delay(self.patience_seconds),
            wait=wait_exponential_jitter(initial=self._pause_seconds, max=5, jitter=self._pause_seconds),
            reraise=True,
        )
        try:
            return retrying(call)
        except ApiException as error:
            if error.status == 404 and if_missing:
                return if_missing["if_missing"]
            raise self._refusal_error(action, error) from None
        except (HTTPError, OSError) as error:
            raise self._unavailable_error(action, f"{type(error).__name__}: {error}") from None

    def _refusal_error(self, action: str, error: ApiException) -> ClusterError:
        message = _error_message(error)
        if _is_transient(error):
            return self._unavailable_error(action, f"{error.status}: {message}")
        action_text = f"{action} in namespace {self.namespace}"
        match error.status:
            case 409:
                return ConflictError(f"{action_text}: {message}")
            case 401 | 403:
                hint = (
                    ""
                    if _POLICY_REFUSAL.search(message)
                    else " deploy/k8s/base/accounts.yaml says which rights an account needs."
                )
                return ClusterError(f"{action_text}: refused ({error.status}): {message}. Nothing was changed.{hint}")
            case 404:
                return ClusterError(f"{action_text}: not there ({message}); are KServe and the Gateway API installed?")
            case _:
                return ClusterError(f"{action_text}: refused ({error.status}): {message}")

    def _unavailable_error(self, action: str, cause: str) -> ClusterError:
        return ClusterError(
            f"{action}: the Kubernetes API at {self._api.configuration.host} did not answer for"
            f" {self.patience_seconds:g} s ({cause}). Users' routes stay as they were; run the same command again."
        )


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


class _RetryPredicate:
    """Decides, for the attempts of one call, which errors are retried.

    Args:
        settling_seconds: How long 401 and 403 may come from an API server that has just started.
    """

    def __init__(self, settling_seconds: float) -> None:
        self._settling_seconds = settling_seconds
        self._first_refused: float | None = None

    def __call__(self, error: BaseException) -> bool:
        if isinstance(error, ApiException) and error.status in _UNAUTHORIZED:
            if _POLICY_REFUSAL.search(_error_message(error)):
                return False
            now = time.monotonic()
            self._first_refused = now if self._first_refused is None else self._first_refused
            return now - self._first_refused < self._settling_seconds
        self._first_refused = None  # the API server is away again: it will start again
        return _is_transient(error)


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, ApiException):
        return error.status in _TRANSIENT or error.status == 0
    return isinstance(error, HTTPError | OSError)


def _error_message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)
