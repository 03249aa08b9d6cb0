"""What a cluster lacks for a spec, before anything is submitted: objects, secrets, permissions and settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple

import yaml

from shortlist.contracts import ShortlistError
from shortlist.kubeflow.client import KubeflowClient
from shortlist.kubeflow.cluster_compile import check_variables_set
from shortlist.kubeflow.training_runs import storage_config
from shortlist.rollout.kserve.command_job import SERVICE_ACCOUNT as ROLLOUT_ACCOUNT
from shortlist.rollout.kserve.objects.pods import SERVICE_ACCOUNT as SERVER_ACCOUNT
from shortlist.rollout.kserve.objects.pods import checked_image
from shortlist.rollout.kserve.versions import check_versions
from shortlist.spec.spec import Spec
from shortlist.system.kubernetes_api import HTTP_ROUTE, INFERENCE_SERVICE, ClusterError, KubernetesAPI, Object
from shortlist.system.project import project_root

OPERATOR_ROLE: Final = "shortlist-operator"
"""Role of people who roll out."""
TRIGGER_ACCOUNT: Final = "shortlist-trigger"
_MANIFESTS: Final = Path("deploy/k8s")
_ROLES: Final = _MANIFESTS / "base/accounts.yaml"
_CHECKED_APART: Final = {"Kustomization", "Namespace", "ServiceAccount", "Secret", "Gateway"}
_OLDEST_KUBERNETES: Final = (1, 30)
"""The first with admission policies."""
_WEBHOOK_SECRET: Final = "shortlist-webhook"  # noqa: S105 - a name
_PIPELINE_ROLE: Final = "shortlist-pipeline"
_ARTEFACT_SECRET: Final = "mlpipeline-minio-artifact"  # noqa: S105 - a name
_LAUNCHER_SETTINGS: Final = "kfp-launcher"
_APPLY: Final = "kubectl apply -k deploy/k8s/overlays/..."
_TRAIN_JOBS: Final = "trainer.kubeflow.org/v1alpha1"

State = Literal["ok", "missing", "not checked"]


class ClusterRequirement(NamedTuple):
    """One thing that a spec needs of a cluster."""

    state: State
    subject: str
    detail: str = ""
    """What is wrong and what to do; empty when it is there."""

    def __str__(self) -> str:
        return f"{self.state:<12} {self.subject}{self.detail and f': {self.detail}'}"


class Permission(NamedTuple):
    """A call that an account may have to make."""

    verb: str
    group: str
    resource: str
    name: str
    """Name of the only object; empty: any."""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {kind}{self.name and f' {self.name}'}"


class ClusterCheck:
    """Checks a cluster for a spec; it only reads.

    Args:
        spec: The spec, with the profile of a cluster.
        api: Client of the namespace of the runs.
        host: Address of Kubeflow Pipelines; empty: it is not asked.
    """

    def __init__(self, spec: Spec, api: KubernetesAPI, host: str = "") -> None:
        self._spec, self._cluster, self._api, self._host = spec, spec.runtime.cluster, api, host

    def run(self) -> Iterator[ClusterRequirement]:
        """Yield what the spec needs, in the order in which it is set up."""
        yield from self._settings()
        yield self._check("Kubernetes API", self._check_api)
        yield from self._kinds()
        yield self._check("versions of KServe and Envoy Gateway", lambda: check_versions(self._api, self._cluster))
        namespace = self._object(f"Namespace {self._api.namespace}", "/api/v1/namespaces/{namespace}", _APPLY)
        yield namespace
        if namespace.state == "missing":
            return  # all else is in it
        yield from self._accounts()
        yield from self._secrets()
        yield from self._volume()
        yield self._gateway()
        yield from self._objects()
        yield from self._permissions()
        yield self._kubeflow()

    def _settings(self) -> Iterator[ClusterRequirement]:
        runtime = self._spec.runtime
        yield self._check("runtime: stores that pods share", lambda: storage_config(runtime))
        yield self._check("runtime.cluster.secrets: addresses of the stores", lambda: check_variables_set(self._spec))
        images = self._cluster.images
        kinds = ("pipeline", "triton", "gpu") if self._needs_gpu() else ("pipeline", "triton")
        for kind in kinds:
            check_image = partial(checked_image, getattr(images, kind), kind, images.allow_tags)
            yield self._check(f"runtime.cluster.images.{kind}", check_image)

    def _needs_gpu(self) -> bool:
        pods = [*self._cluster.tasks.values(), *(workers.pod for workers in self._cluster.workers.values())]
        return any(pod.gpus for pod in pods)

    def _check_api(self) -> None:
        text = str((self._api.read("/version") or {}).get("gitVersion", ""))
        match = re.match(r"v(\d+)\.(\d+)", text)
        if match is None:
            raise ClusterError("it names no version; is this the address of a Kubernetes API?")
        if (int(match[1]), int(match[2])) < _OLDEST_KUBERNETES:
            raise ClusterError(f"it is version {text}; wanted 1.30 or later, which has admission policies")

    def _kinds(self) -> Iterator[ClusterRequirement]:
        kinds = [
            (INFERENCE_SERVICE.api_version, INFERENCE_SERVICE.name, "install KServe 0.20 or later"),
            (HTTP_ROUTE.api_version, HTTP_ROUTE.name, "install Envoy Gateway 1.9 or later"),
            ("keda.sh/v1alpha1", "ScaledObject", "install KEDA"),
            ("monitoring.coreos.com/v1", "PodMonitor", "install the Prometheus Operator"),
        ]
        if self._cluster.workers:
            kinds.append((_TRAIN_JOBS, "TrainJob", "install Kubeflow Trainer"))
        if (job := self._spec.runtime.features.job) is not None:
            kinds.append((job.api_version, job.kind, f"install {job.operator}"))
        for version, kind, repair in kinds:
            yield self._check(f"kind {kind} of {version}", partial(self._check_kind, version, kind, repair))

    def _check_kind(self, version: str, kind: str, repair: str) -> None:
        if not self._api.knows(version, kind):
            raise ClusterError(f"this cluster does not know it; {repair}")

    def _accounts(self) -> Iterator[ClusterRequirement]:
        for account in (self._cluster.service_account, ROLLOUT_ACCOUNT, SERVER_ACCOUNT, TRIGGER_ACCOUNT):
            path = f"/api/v1/namespaces/{{namespace}}/serviceaccounts/{account}"
            yield self._object(f"ServiceAccount {account}", path, _APPLY)

    def _secrets(self) -> Iterator[ClusterRequirement]:
        for secret in self._cluster.secrets:
            keys = tuple(sorted(set(secret.variables.values())))
            files = " ".join(f"--from-file={key}" for key in keys)
            yield self._secret(
                secret.name, keys, f"kubectl -n {self._api.namespace} create secret generic {secret.name} {files}"
            )
        yield self._secret(self._cluster.rollout_token, ("token",), f"{_APPLY} makes it, and the cluster fills it in")
        create = f"kubectl -n {self._api.namespace} create secret generic {_WEBHOOK_SECRET}"
        yield self._secret(_WEBHOOK_SECRET, ("accepted", "token"), f"{create} --from-file=accepted --from-file=token")
        launcher = self._object(
            f"ConfigMap {_LAUNCHER_SETTINGS}", f"/api/v1/namespaces/{{namespace}}/configmaps/{_LAUNCHER_SETTINGS}", ""
        )
        if launcher.state != "ok":  # then the store that Kubeflow Pipelines installs is used
            repair = (
                f"copy it from Kubeflow's namespace, or create the ConfigMap {_LAUNCHER_SETTINGS} (docs/cluster.md)"
            )
            yield self._secret(_ARTEFACT_SECRET, ("accesskey", "secretkey"), repair)
        else:
            yield launcher

    def _secret(self, name: str, keys: tuple[str, ...], repair: str) -> ClusterRequirement:
        subject = f"Secret {name} with {', '.join(keys)}"
        try:
            secret = self._api.read(f"/api/v1/namespaces/{self._api.namespace}/secrets/{name}")
        except ClusterError as error:
            return ClusterRequirement("not checked", subject, f"you may not read it ({error})")
        if secret is None:
            return ClusterRequirement("missing", subject, repair)
        missing = [key for key in keys if key not in (secret.get("data") or {})]
        return (
            ClusterRequirement("missing", subject, f"it has no {', '.join(missing)}; {repair}")
            if missing
            else ClusterRequirement("ok", subject)
        )

    def _volume(self) -> Iterator[ClusterRequirement]:
        if (job := self._spec.runtime.features.job) is not None:

            def is_shared(claim: Object) -> str:
                modes = claim["spec"]["accessModes"]
                return "" if "ReadWriteMany" in modes else f"it is {', '.join(modes)}; wanted ReadWriteMany"

            path = f"/api/v1/namespaces/{{namespace}}/persistentvolumeclaims/{job.claim}"
            repair = f"create it, ReadWriteMany, for the files that steps and a {job.kind} share (docs/cluster.md)"
            yield self._object(f"PersistentVolumeClaim {job.claim}", path, repair, is_shared)

    def _gateway(self) -> ClusterRequirement:
        name = self._cluster.gateway
        path = f"/apis/{HTTP_ROUTE.api_version}/namespaces/{{namespace}}/gateways/{name}"

        def is_programmed(gateway: Object) -> str:
            conditions = (gateway.get("status") or {}).get("conditions") or []
            statuses = {condition["type"]: condition["status"] for condition in conditions}
            status = statuses.get("Programmed", "not reported")
            return (
                ""
                if status == "True"
                else f"Programmed is {status}; kubectl -n {self._api.namespace} describe gateway {name}"
            )

        return self._object(f"Gateway {name}", path, _APPLY, is_programmed)

    def _objects(self) -> Iterator[ClusterRequirement]:
        """Yield the other objects of the shipped manifests: a line per kind, or one for each that is missing."""
        folder = project_root() / _MANIFESTS
        yield from self._shipped(sorted((folder / "base").glob("*.yaml")), "/namespaces/{namespace}", _APPLY)
        # The policy refuses images by tag.
        for name in ("gateway-class.yaml", *(() if self._cluster.images.allow_tags else ("admission-policy.yaml",))):
            yield from self._shipped([folder / name], "", f"kubectl apply -f {_MANIFESTS / name}")

    def _shipped(self, files: list[Path], scope: str, repair: str) -> Iterator[ClusterRequirement]:
        names_by_kind: dict[tuple[str, str], list[str]] = {}
        for file in files:
            for manifest in yaml.safe_load_all(file.read_text(encoding="utf-8")):
                if manifest["kind"] not in _CHECKED_APART:
                    kind = (manifest["apiVersion"], manifest["kind"])
                    names_by_kind.setdefault(kind, []).append(manifest["metadata"]["name"])
        for (version, kind_name), names in names_by_kind.items():
            path = f"/{'apis' if '/' in version else 'api'}/{version}{scope}/{_plural(kind_name)}"
            objects = [self._object(f"{kind_name} {name}", f"{path}/{name}", repair) for name in names]
            present = ClusterRequirement("ok", f"{kind_name} {', '.join(names)}")
            yield from [requirement for requirement in objects if requirement.state != "ok"] or [present]

    def _permissions(self) -> Iterator[ClusterRequirement]:
        objects = list(yaml.safe_load_all((project_root() / _ROLES).read_text(encoding="utf-8")))
        rules = {manifest["metadata"]["name"]: manifest["rules"] for manifest in objects if manifest["kind"] == "Role"}
        account_by_role = {
            manifest["roleRef"]["name"]: manifest["subjects"][0]["name"]
            for manifest in objects
            if manifest["kind"] == "RoleBinding"
        } | {_PIPELINE_ROLE: self._cluster.service_account}
        for role, account in account_by_role.items():
            user = f"system:serviceaccount:{self._api.namespace}:{account}"
            yield self._allowed(f"rights of {account}", rules[role], user, f"the Role {role}: {_APPLY}")
        bind = f"kubectl -n {self._api.namespace} create rolebinding operators --role {OPERATOR_ROLE} --user YOU"
        yield self._allowed("your rights to roll out", rules[OPERATOR_ROLE], "", bind)

    def _allowed(self, subject: str, rules: list[Object], user: str, repair: str) -> ClusterRequirement:
        try:
            refused = [
                permission
                for permission in _permissions(rules)
                if not self._api.is_allowed(
                    permission.verb, permission.group, permission.resource, permission.name, user
                )
            ]
        except ClusterError as error:
            return ClusterRequirement("not checked", subject, f"you may not ask ({error})")
        lacking = ", ".join(map(str, refused))
        return (
            ClusterRequirement("missing", subject, f"may not {lacking}; {repair}")
            if refused
            else ClusterRequirement("ok", subject)
        )

    def _kubeflow(self) -> ClusterRequirement:
        subject = "Kubeflow Pipelines"
        if not self._host:
            return ClusterRequirement(
                "not checked", subject, "name its address: --host http://127.0.0.1:8888 after a port-forward"
            )
        return self._check(f"{subject} at {self._host}", lambda: KubeflowClient(self._host, self._api.namespace))

    def _object(
        self, subject: str, path: str, repair: str, problem_of: Callable[[Object], str] = lambda _: ""
    ) -> ClusterRequirement:
        try:
            live_object = self._api.read(path.format(namespace=self._api.namespace))
        except ClusterError as error:
            return ClusterRequirement("not checked", subject, str(error))
        if live_object is None:
            return ClusterRequirement("missing", subject, repair)
        problem = problem_of(live_object)
        return ClusterRequirement("missing", subject, problem) if problem else ClusterRequirement("ok", subject)

    def _check(self, subject: str, check: Callable[[], object]) -> ClusterRequirement:
        try:
            check()
        except ShortlistError as error:
            return ClusterRequirement("missing", subject, str(error))
        return ClusterRequirement("ok", subject)


def _permissions(rules: list[Mapping[str, list[str]]] | list[Object]) -> Iterator[Permission]:
    """Yield the calls that the rules of a Role allow."""
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames") or [""]:
                    yield from (Permission(verb, group, resource, name) for verb in rule["verbs"])


def _plural(kind: str) -> str:
    """Return the name of a kind in paths.

    >>> [_plural(kind) for kind in ("Service", "NetworkPolicy", "Gateway", "GatewayClass")]
    ['services', 'networkpolicies', 'gateways', 'gatewayclasses']
    """
    stem = re.sub(r"([^aeiou])y$", r"\1ie", kind.lower())
    return f"{stem}{'es' if stem.endswith('s') else 's'}"
