"""`shortlist doctor --cluster`: what is missing is said before anything is submitted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp_server import KubeflowServer
from kube_server import Fault, KubeServer, running

from shortlist.cli import main
from shortlist.kubeflow.cluster_check import ClusterCheck, ClusterRequirement
from shortlist.spec.load import load_spec
from shortlist.spec.spec import Spec
from shortlist.system.kubernetes_api import KubernetesAPI, connect

ROOT = Path(__file__).parents[3]
DIGEST = "@sha256:" + "0" * 64
NAMESPACE = "/api/v1/namespaces/shortlist"
GATEWAY = "/apis/gateway.networking.k8s.io/v1/namespaces/shortlist/gateways/shortlist"

BASE = ROOT / "deploy/k8s/base"
PLURALS = {
    "AlertmanagerConfig": "alertmanagerconfigs", "BackendTrafficPolicy": "backendtrafficpolicies",
    "ClientTrafficPolicy": "clienttrafficpolicies", "CronJob": "cronjobs", "Deployment": "deployments",
    "EnvoyProxy": "envoyproxies", "HTTPRoute": "httproutes", "HTTPRouteFilter": "httproutefilters",
    "NetworkPolicy": "networkpolicies",
    "PodDisruptionBudget": "poddisruptionbudgets", "PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules",
    "Role": "roles", "RoleBinding": "rolebindings", "Service": "services",
}  # fmt: skip
"""Names of the kinds in paths, as their definitions have them."""
GATEWAY_CLASS = "/apis/gateway.networking.k8s.io/v1/gatewayclasses/shortlist"
POLICIES = [
    f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic{ending}/shortlist-{objects}"
    for ending in ("ies", "ybindings")
    for objects in ("inference-services", "train-jobs", "ray-jobs")
]

Object = dict[str, Any]


def shipped_paths() -> list[str]:
    """Return the paths of the objects in the shipped manifests that have a plural here."""
    manifests = [manifest for file in BASE.glob("*.yaml") for manifest in yaml.safe_load_all(file.read_text())]
    paths = []
    for manifest in manifests:
        if (plural := PLURALS.get(manifest["kind"])) is not None:
            group = f"api{'s' * ('/' in manifest['apiVersion'])}/{manifest['apiVersion']}"
            paths.append(f"/{group}/namespaces/shortlist/{plural}/{manifest['metadata']['name']}")
    return paths


@pytest.fixture
def kube() -> Iterator[KubeServer]:
    """A cluster that has all that the shipped spec needs."""
    with running() as server:
        secrets = {
            "shortlist-stores": ("database", "redis", "tracking"),
            "shortlist-objects": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
            "shortlist-rollout-token": ("token",),
            "mlpipeline-minio-artifact": ("accesskey", "secretkey"),
            "shortlist-webhook": ("token", "accepted"),
        }
        server.objects_by_path = {
            "/version": {"gitVersion": "v1.35.0"},
            "/apis/serving.kserve.io/v1beta1": {"resources": [{"kind": "InferenceService"}]},
            "/apis/gateway.networking.k8s.io/v1": {"resources": [{"kind": "HTTPRoute"}]},
            "/apis/keda.sh/v1alpha1": {"resources": [{"kind": "ScaledObject"}]},
            "/apis/monitoring.coreos.com/v1": {"resources": [{"kind": "PodMonitor"}]},
            **{path: {} for path in (NAMESPACE, GATEWAY_CLASS, *POLICIES, *shipped_paths())},
            GATEWAY: {"status": {"conditions": [{"type": "Programmed", "status": "True"}]}},
            **{
                f"{NAMESPACE}/serviceaccounts/shortlist-{name}": {}
                for name in ("pipeline", "rollout", "server", "trigger")
            },
            **{f"{NAMESPACE}/secrets/{name}": {"data": dict.fromkeys(keys, "eA==")} for name, keys in secrets.items()},
        }
        yield server


@pytest.fixture
def spec_file(kube: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped spec with images, and a kubeconfig of a person who may roll out."""
    spec = yaml.safe_load((ROOT / "deploy/k8s/specs/demo.yaml").read_text())
    spec["runtime"]["cluster"]["images"] = {"pipeline": f"shortlist{DIGEST}", "triton": f"triton{DIGEST}"}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(spec))
    named = [
        ("clusters", "cluster", {"server": kube.url}),
        ("users", "user", {"token": "operator"}),
        ("contexts", "context", {"cluster": "here", "user": "here"}),
    ]
    config = {plural: [{"name": "here", setting: value}] for plural, setting, value in named}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "here", **config}))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    # The versions are read from namespaces of their own, with the right of whoever asks.
    kube.objects_by_path |= {
        f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}": manifest
        for (namespace, name), manifest in kube.deployments.items()
    }
    return file


def findings(file: Path, host: str = "") -> list[ClusterRequirement]:
    spec: Spec = load_spec(file)
    return list(ClusterCheck(spec, KubernetesAPI(connect(), "shortlist", 2, 0.02, 0), host).run())


def missing(file: Path) -> list[str]:
    return [str(finding) for finding in findings(file) if finding.state == "missing"]


def test_a_complete_cluster_passes_every_check(spec_file: Path, server: KubeflowServer) -> None:
    states = {finding.subject: finding.state for finding in findings(spec_file, server.url)}
    assert set(states.values()) == {"ok"}, states
    assert len(states) == 26 + len(PLURALS) + 3


def test_policies_that_refuse_images_by_tag_are_not_missed_where_these_are_allowed(
    kube: KubeServer, spec_file: Path
) -> None:
    without(*POLICIES)(kube)
    assert len(missing(spec_file)) == len(POLICIES)
    spec = yaml.safe_load(spec_file.read_text())
    spec["runtime"]["cluster"]["images"]["allow_tags"] = True
    spec_file.write_text(yaml.safe_dump(spec))
    assert missing(spec_file) == []


def test_every_shipped_kind_is_checked() -> None:
    manifests = [manifest for file in BASE.glob("*.yaml") for manifest in yaml.safe_load_all(file.read_text())]
    checked_apart = {"Kustomization", "Namespace", "ServiceAccount", "Secret", "Gateway"}
    assert {manifest["kind"] for manifest in manifests} == checked_apart | set(PLURALS)


def test_the_page_of_a_first_run_names_every_kind_and_every_secret(kube: KubeServer, spec_file: Path) -> None:
    page = (ROOT / "docs/first-run-on-a-cluster.md").read_text()
    manifests = [manifest for file in BASE.glob("*.yaml") for manifest in yaml.safe_load_all(file.read_text())]
    kinds = {manifest["kind"] for manifest in manifests} - {"Kustomization"}
    assert {kind for kind in kinds if kind.removesuffix("y") not in page} == set()
    subjects = [finding.subject for finding in findings(spec_file)]
    secrets = {subject.split()[1] for subject in subjects if subject.startswith("Secret ")}
    declared = {secret.name for secret in load_spec(spec_file).runtime.cluster.secrets}  # the spec's own choice
    assert secrets > declared
    assert {name for name in secrets - declared if f"`{name}`" not in page} == set()


def without(*paths: str) -> Callable[[KubeServer], object]:
    """Return a fault: some objects are not there."""
    return lambda kube: kube.objects_by_path.update(dict.fromkeys(paths))


def without_key(kube: KubeServer) -> None:
    kube.objects_by_path[f"{NAMESPACE}/secrets/shortlist-stores"] = {"data": {"database": "eA==", "tracking": "eA=="}}


def not_programmed(kube: KubeServer) -> None:
    kube.objects_by_path[GATEWAY] = {"status": {"conditions": [{"type": "Programmed", "status": "False"}]}}


def old_gateway(kube: KubeServer) -> None:
    (path,) = (path for path in kube.objects_by_path if path.endswith("/envoy-gateway"))
    kube.objects_by_path[path] = {"metadata": {"labels": {"app.kubernetes.io/version": "v1.8.0"}}, **SMALL}


SMALL = {"spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "manager", "image": "x"}]}}}}


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (without("/version"), "Kubernetes API: it names no version"),
        (
            lambda kube: kube.objects_by_path.update({"/version": {"gitVersion": "v1.29.4"}}),
            "Kubernetes API: it is version v1.29.4; wanted 1.30 or later",
        ),
        (without("/apis/keda.sh/v1alpha1"), "kind ScaledObject of keda.sh/v1alpha1: this cluster does not know it; in"),
        (
            without("/apis/monitoring.coreos.com/v1"),
            "kind PodMonitor of monitoring.coreos.com/v1: this cluster does n",
        ),
        (
            without(f"{NAMESPACE}/secrets/shortlist-webhook"),
            "Secret shortlist-webhook with accepted, token: kubectl -n shortlist create secret generic shortlist-web",
        ),
        (
            without("/apis/networking.k8s.io/v1/namespaces/shortlist/networkpolicies/shortlist-command"),
            "NetworkPolicy shortlist-command: kubectl apply -k deploy/k8s/overlays/...",
        ),
        (
            without("/apis/apps/v1/namespaces/shortlist/deployments/shortlist-trigger"),
            "Deployment shortlist-trigger: kubectl apply -k deploy/k8s/overlays/...",
        ),
        (without(GATEWAY_CLASS), "GatewayClass shortlist: kubectl apply -f deploy/k8s/gateway-class.yaml"),
        (
            without(POLICIES[1]),
            "ValidatingAdmissionPolicy shortlist-train-jobs: kubectl apply -f deploy/k8s/admission-",
        ),
        (
            without("/apis/serving.kserve.io/v1beta1"),
            "kind InferenceService of serving.kserve.io/v1beta1: this cluster does not know it; install KServe 0.20",
        ),
        (without("/apis/gateway.networking.k8s.io/v1"), "kind HTTPRoute of gateway.networking.k8s.io/v1: this clu"),
        (
            old_gateway,
            "versions of KServe and Envoy Gateway: Envoy Gateway: envoy-gateway-system/envoy-gateway is vers",
        ),
        (without(NAMESPACE), "Namespace shortlist: kubectl apply -k deploy/k8s/overlays/..."),
        (without(f"{NAMESPACE}/serviceaccounts/shortlist-rollout"), "ServiceAccount shortlist-rollout: kubectl apply"),
        (
            without(f"{NAMESPACE}/secrets/shortlist-stores"),
            "Secret shortlist-stores with database, redis, tracking: kubectl -n shortlist create secret generic"
            " shortlist-stores --from-file=database --from-file=redis --from-file=tracking",
        ),
        (without_key, "Secret shortlist-stores with database, redis, tracking: it has no redis; kubectl -n shortlist"),
        (without(f"{NAMESPACE}/secrets/shortlist-rollout-token"), "Secret shortlist-rollout-token with token: kubectl"),
        (
            without(f"{NAMESPACE}/secrets/mlpipeline-minio-artifact"),
            "Secret mlpipeline-minio-artifact with accesskey, secretkey: copy it from Kubeflow's namespace, or create"
            " the ConfigMap kfp-launcher",
        ),
        (without(GATEWAY), "Gateway shortlist: kubectl apply -k deploy/k8s/overlays/..."),
        (not_programmed, "Gateway shortlist: Programmed is False; kubectl -n shortlist describe gateway shortlist"),
        (
            lambda kube: kube.denied.add(("shortlist-rollout", "list", "endpointslices")),
            "rights of shortlist-rollout: may not list endpointslices.discovery.k8s.io; the Role shortlist-rollout",
        ),
        (
            lambda kube: kube.denied.add(("shortlist-pipeline", "get", "secrets")),
            "rights of shortlist-pipeline: may not get secrets mlpipeline-minio-artifact; the Role shortlist-pipeline",
        ),
        (
            lambda kube: kube.denied.add(("operator", "get", "pods/log")),
            "your rights to roll out: may not get pods/log; kubectl -n shortlist create rolebinding operators --role",
        ),
    ],
)
def test_missing_parts_are_named_with_their_remedy(
    kube: KubeServer, spec_file: Path, spoil: Callable[[KubeServer], object], line: str
) -> None:
    spoil(kube)
    lines = missing(spec_file)
    assert [problem.startswith(f"{'missing':<12} {line}") for problem in lines] == [True], lines


def test_a_configuration_of_the_launcher_takes_the_place_of_its_default_secret(
    kube: KubeServer, spec_file: Path
) -> None:
    kube.objects_by_path[f"{NAMESPACE}/secrets/mlpipeline-minio-artifact"] = None
    kube.objects_by_path[f"{NAMESPACE}/configmaps/kfp-launcher"] = {"data": {}}
    assert missing(spec_file) == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"images": {}}, "runtime.cluster.images.pipeline: runtime.cluster.images.pipeline: no image is declared"),
        ({"secrets": []}, "runtime.cluster.secrets: addresses of the stores: runtime.cluster.secrets: no secret sets"),
    ],
)
def test_settings_of_the_spec_are_checked(spec_file: Path, change: Object, line: str) -> None:
    spec = yaml.safe_load(spec_file.read_text())
    spec["runtime"]["cluster"] |= change
    spec_file.write_text(yaml.safe_dump(spec))
    assert missing(spec_file)[0].startswith(f"{'missing':<12} {line}")


def test_features_on_ray_need_kuberay_and_a_shared_volume(kube: KubeServer, spec_file: Path) -> None:
    spec = yaml.safe_load(spec_file.read_text())
    spec["runtime"]["features"] = {"engine": "ray", "volume_claim": "files"}
    spec_file.write_text(yaml.safe_dump(spec))
    path = f"{NAMESPACE}/persistentvolumeclaims/files"
    kube.objects_by_path |= {path: None, "/apis/ray.io/v1": None}
    kind, claim = missing(spec_file)
    assert kind.endswith("kind RayJob of ray.io/v1: this cluster does not know it; install KubeRay 1.6 or later")
    assert claim.endswith("PersistentVolumeClaim files: create it, ReadWriteMany, for the files that steps and a RayJob"
                          " share (docs/cluster.md)")  # fmt: skip
    kube.objects_by_path["/apis/ray.io/v1"] = {"resources": [{"kind": "RayJob"}]}
    kube.objects_by_path[path] = {"spec": {"accessModes": ["ReadWriteOnce"]}}
    (alone,) = missing(spec_file)
    assert alone.endswith("PersistentVolumeClaim files: it is ReadWriteOnce; wanted ReadWriteMany")
    kube.objects_by_path[path] = {"spec": {"accessModes": ["ReadWriteMany"]}}
    assert missing(spec_file) == []


def test_what_may_not_be_read_is_not_called_missing(kube: KubeServer, spec_file: Path) -> None:
    kube.faults = [Fault("403", "GET", "/secrets/", times=99)]
    states = {finding.subject: finding for finding in findings(spec_file)}
    secret = states["Secret shortlist-stores with database, redis, tracking"]
    assert (secret.state, "you may not read it" in secret.detail) == ("not checked", True)


def test_the_command_prints_a_line_each_and_fails_when_something_is_missing(
    kube: KubeServer, spec_file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for code, options, last in (
        (0, ("--cluster",), "43 ok, 0 missing, 1 not checked"),
        (1, ("--cluster",), "42 ok, 1 missing, 1 not checked"),
        (2, (), ""),
    ):
        monkeypatch.setattr(sys, "argv", ["shortlist", "doctor", str(spec_file), *options])
        with pytest.raises(SystemExit) as ended:
            main()
        lines = capfd.readouterr().out.splitlines()
        assert (ended.value.code, (lines or [""])[-1]) == (code, last)
        kube.objects_by_path[GATEWAY] = None
    assert [method for method, path in kube.requests if method != "GET" and "accessreviews" not in path] == []
