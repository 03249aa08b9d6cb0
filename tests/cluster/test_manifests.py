"""Every manifest matches its schema and the rules: no root, no tags, no secrets, least rights."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kfp.client
import kfp.client.client as kfp_client
import kfp_server
import kube_rbac
import kubernetes_validate
import pytest
import yaml
from crd_schemas import has_schema, validator
from jsonschema import Draft202012Validator
from kfp.compiler import Compiler

from monitoring.alerts.alerts import ALARM
from pipelines.compile import build_graph
from shortlist.kubeflow import monitoring_cronjob as watch_job
from shortlist.kubeflow import trigger_service
from shortlist.kubeflow.retraining_starter import HOST_VARIABLE, read_specs
from shortlist.rollout.kserve.command_job import command_job
from shortlist.rollout.kserve.objects.manifests import Version, inference_service
from shortlist.rollout.kserve.objects.owner import ObjectOwner
from shortlist.rollout.kserve.objects.pods import SERVICE_ACCOUNT
from shortlist.serving.server.requests.headers import (
    ROLLOUT_HEADER,
    STEP_HEADER,
    TRACK_HEADER,
    USER_HEADER,
    VERSION_HEADER,
)
from shortlist.spec.cluster import Autoscaling, Cluster, Images
from shortlist.spec.load import load_spec
from shortlist.spec.serving import Limits, Overload
from shortlist.spec.spec import Spec
from shortlist.training.distributed.train_job import API_VERSION, RUNTIME

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "k8s"
KUBERNETES = "1.34"
CORE = {"v1", "apps/v1", "batch/v1", "policy/v1", "networking.k8s.io/v1", "rbac.authorization.k8s.io/v1"}
"""API versions with schemas of Kubernetes itself."""
OVERLAYS = ("dev", "production")
DIGEST = "@sha256:" + "c0ffee" * 10 + "c0de"
CRD_SCHEMAS = yaml.safe_load((Path(__file__).parent / "crds.yaml").read_text())

Object = dict[str, Any]


def rendered(folder: Path) -> list[Object]:
    """Return what `kubectl apply -k` would send."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed, which renders the overlays (kubectl kustomize)")
    completed = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert not completed.stderr, f"deprecated or unknown to kustomize: {completed.stderr}"
    return list(yaml.load_all(completed.stdout, yaml.CSafeLoader))


@pytest.fixture(scope="module")
def overlays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Object]]:
    """The overlays as users apply them: in production the images are set first, as its first lines say."""
    deploy = tmp_path_factory.mktemp("deploy") / "k8s"
    shutil.copytree(DEPLOY, deploy)
    file = deploy / "overlays" / "production" / "kustomization.yaml"
    breaches = yaml.safe_load(file.read_text())
    for image in breaches["images"]:
        image["digest"] = DIGEST.removeprefix("@")
    file.write_text(yaml.safe_dump(breaches))
    gateway_class = yaml.safe_load((DEPLOY / "gateway-class.yaml").read_text())
    return {name: [gateway_class, *rendered(deploy / "overlays" / name)] for name in OVERLAYS}


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest, overlays: dict[str, list[Object]]) -> list[Object]:
    return overlays[request.param]


def key_of(manifest: Object) -> str:
    return f"{manifest['apiVersion']}/{manifest['kind']}"


def name_of(manifest: Object) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def check(manifest: Object) -> None:
    """Raise for an object that is not what its kind's schema says, or whose kind has none."""
    if manifest["apiVersion"] in CORE:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        return
    if has_schema(manifest["apiVersion"], manifest["kind"]):
        validator(manifest["apiVersion"], manifest["kind"]).validate(manifest)
        return
    Draft202012Validator(CRD_SCHEMAS[key_of(manifest)]).validate(manifest["spec"])


def pods(objects: list[Object]) -> Iterator[tuple[str, Object, Object]]:
    """Give name, pod's spec and pod's labels of everything that runs."""
    for manifest in objects:
        match manifest["kind"]:
            case "Deployment":
                template = manifest["spec"]["template"]
            case "CronJob":
                template = manifest["spec"]["jobTemplate"]["spec"]["template"]
            case _:
                continue
        yield name_of(manifest), template["spec"], template["metadata"].get("labels", {})


def containers(objects: list[Object]) -> Iterator[tuple[str, Object, Object]]:
    """Give name, container and its pod's spec."""
    for name, pod, _ in pods(objects):
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            yield f"{name} {container['name']}", container, pod


# What the rules find; each gives a sentence per breach.


def roots(objects: list[Object]) -> list[str]:
    breaches = []
    for name, container, pod in containers(objects):
        security = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
        required_fields = {
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        breaches += [f"{name}: {field}" for field, value in required_fields.items() if security.get(field) != value]
        breaches += [f"{name}: runAsUser"] * (not security.get("runAsUser"))
        breaches += [f"{name}: privileged"] * bool(security.get("privileged"))
    for name, pod, _ in pods(objects):
        breaches += [f"{name}: {field}" for field in ("hostNetwork", "hostPID", "hostIPC") if pod.get(field)]
        breaches += [f"{name}: hostPath" for volume in pod.get("volumes", []) if "hostPath" in volume]
    return breaches


def loose_images(objects: list[Object]) -> list[str]:
    """Return the images that can mean another one tomorrow, or that nobody has set."""
    breaches = []
    for name, container, _ in containers(objects):
        digest = re.fullmatch(r"[^@]+@sha256:([0-9a-f]{64})", container["image"])
        if digest is None or set(digest[1]) == {"0"}:
            breaches.append(f"{name}: {container['image']}")
    return breaches


def unlimited(objects: list[Object]) -> list[str]:
    breaches = []
    for name, container, _ in containers(objects):
        for kind in ("requests", "limits"):
            amounts = container.get("resources", {}).get(kind, {})
            breaches += [f"{name}: {kind}.{resource}" for resource in ("cpu", "memory") if resource not in amounts]
    return breaches


def secrets(objects: list[Object]) -> list[str]:
    """Return what holds a secret instead of naming one."""
    # One that the cluster fills in holds nothing.
    filled = "kubernetes.io/service-account-token"
    secret_manifests = [manifest for manifest in objects if manifest["kind"] == "Secret"]
    breaches = [
        name_of(object_)
        for object_ in secret_manifests
        if object_.get("type") != filled or {"data", "stringData"} & set(object_)
    ]
    for name, container, _ in containers(objects):
        secret_manifests = {
            variable["name"]: variable["value"] for variable in container.get("env", []) if "value" in variable
        }
        breaches += [f"{name}: {variable}" for variable, value in secret_manifests.items() if _tells(variable, value)]
    for manifest in objects:
        if manifest["kind"] == "ConfigMap":
            breaches += [f"{name_of(manifest)}: {key}" for key, value in manifest["data"].items() if _tells(key, value)]
    return breaches


def _tells(name: str, value: str) -> bool:
    by_name = re.search(r"(?i)(password|token|secret|access_key|credential)(?!.*_PATH$)", name)
    in_value = re.search(r"AKIA[0-9A-Z]{16}|BEGIN [A-Z ]*PRIVATE KEY|://[^/\s]*:[^/\s]*@|(?i:password) *[:=]", value)
    return bool(by_name or in_value)


def rights(objects: list[Object]) -> list[str]:
    """Return the rights that nobody here needs."""
    breaches = []
    for manifest in objects:
        if manifest["kind"] in {"ClusterRole", "ClusterRoleBinding"}:
            breaches.append(name_of(manifest))
        for rule in manifest.get("rules", []) if manifest["kind"] == "Role" else []:
            rule_terms = [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
            breaches += [f"{name_of(manifest)}: *"] * ("*" in rule_terms)
            named_secret = rule["verbs"] == ["get"] and rule.get("resourceNames")
            breaches += [f"{name_of(manifest)}: secrets"] * ("secrets" in rule["resources"] and not named_secret)
            breaches += [
                f"{name_of(manifest)}: {verb}" for verb in rule["verbs"] if verb in {"escalate", "bind", "impersonate"}
            ]
            breaches += [
                f"{name_of(manifest)}: {object_}"
                for object_ in rule["resources"]
                if object_.endswith(("/exec", "/attach"))
            ]
    for name, pod, _ in pods(objects):
        breaches += [f"{name}: token"] * (pod.get("automountServiceAccountToken") is not False)
    return breaches


def test_every_manifest_matches_its_schema(objects: list[Object]) -> None:
    for manifest in objects:
        check(manifest)


def test_each_object_is_there_once_and_in_the_namespace(objects: list[Object]) -> None:
    names = [(key_of(manifest), manifest["metadata"]["name"]) for manifest in objects]
    assert len(names) == len(set(names))
    for manifest in objects:
        required_fields = None if manifest["kind"] in {"Namespace", "GatewayClass"} else "shortlist"
        assert manifest["metadata"].get("namespace") == required_fields, name_of(manifest)


def _set(path: str, value: Any) -> Callable[[Object], None]:
    def change(manifest: Object) -> None:
        *parents, last = path.split(".")
        for part in parents:
            manifest = manifest[int(part)] if isinstance(manifest, list) else manifest[part]
        if isinstance(manifest, list):
            manifest[int(last)] = value
        else:
            manifest[last] = value

    return change


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("Deployment", _set("spec.template.spec.containers.0.resource", {})),
        ("Deployment", _set("spec.replicas", "one")),
        ("CronJob", _set("spec.concurencyPolicy", "Forbid")),
        ("Service", _set("spec.ports.0.target", 80)),
        ("NetworkPolicy", _set("spec.podSelectors", {})),
        ("PodDisruptionBudget", _set("spec.minAvailabel", 1)),
        ("Role", _set("rules.0.verb", ["get"])),
        ("RoleBinding", _set("roleref", {})),
        ("ServiceAccount", _set("automountServiceAccountTokens", False)),
        ("Namespace", _set("metadata.label", {})),
        ("Secret", _set("types", "Opaque")),
        ("ConfigMap", _set("data.key", 1)),
        ("Gateway", _set("spec.listeners.0.protocoll", "HTTP")),
        ("HTTPRoute", _set("spec.rules.0.matches.0.path.kind", "Exact")),
        ("GatewayClass", _set("spec.controller", "eg")),
        ("BackendTrafficPolicy", _set("spec.loadBalancer.consistentHash.headers", [])),
        ("BackendTrafficPolicy", _set("spec.retry.retryOn.triggers.0", "reset-before-request")),
        ("ClientTrafficPolicy", _set("spec.headers.earlyRequestHeader", {})),
        ("EnvoyProxy", _set("spec.telemetry.accessLogs", {})),
        ("HTTPRouteFilter", _set("spec.directResponse.status", 503)),
        ("PodMonitor", _set("spec.podMetricsEndpoints.0.relabeling", [])),
        ("AlertmanagerConfig", _set("spec.receivers.0.webhookConfigs.0.httpConfig.bearerToken", "secret")),
        ("PrometheusRule", _set("spec.groups.0.rules.0.expression", "up == 0")),
    ],
)
def test_a_misspelt_field_is_refused(
    kind: str, change: Callable[[Object], None], overlays: dict[str, list[Object]]
) -> None:
    sound = next(manifest for manifest in overlays["production"] if manifest["kind"] == kind)
    broken = json.loads(json.dumps(sound))
    change(broken)
    check(sound)
    with pytest.raises(
        Exception, match=r"(?i)unexpected|not of type|not one of|not valid|unknown|additional"
    ) as problem:
        check(broken)
    assert "ValidationError" in type(problem.value).__name__


def test_every_kind_has_its_misspelling(overlays: dict[str, list[Object]]) -> None:
    (marks,) = test_a_misspelt_field_is_refused.pytestmark  # type: ignore[attr-defined]
    kinds = {kind for kind, _ in marks.args[1]}
    assert {manifest["kind"] for objects in overlays.values() for manifest in objects} == kinds


def test_nothing_runs_as_root(objects: list[Object]) -> None:
    assert roots(objects) == []


def test_production_runs_images_by_digest(overlays: dict[str, list[Object]]) -> None:
    assert loose_images(overlays["production"]) == []


def test_production_as_shipped_has_only_placeholder_images() -> None:
    manifest = loose_images(rendered(DEPLOY / "overlays" / "production"))
    assert len(manifest) == 2  # trigger and watch; Triton's image is named by the spec of a release
    assert all(re.search(r"@sha256:0{64}$", image) for image in manifest)


def test_every_container_has_requests_and_limits(objects: list[Object]) -> None:
    assert unlimited(objects) == []


def test_no_manifest_holds_a_secret(objects: list[Object]) -> None:
    assert secrets(objects) == []


def test_no_role_grants_unneeded_rights(objects: list[Object]) -> None:
    assert rights(objects) == []


def test_each_rule_reports_a_planted_breach(overlays: dict[str, list[Object]]) -> None:
    objects: list[Object] = json.loads(json.dumps(overlays["production"]))
    deployment = next(manifest for manifest in objects if manifest["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    pod["securityContext"]["runAsUser"] = 0
    pod["automountServiceAccountToken"] = True
    pod["hostNetwork"] = True
    pod["volumes"].append({"name": "disk", "hostPath": {"path": "/"}})
    container["securityContext"]["readOnlyRootFilesystem"] = False
    container["image"] = "shortlist:latest"
    container["resources"].pop("limits")
    container["env"].append({"name": "SHORTLIST_DATABASE", "value": "postgresql://me:pass@host/db"})
    objects.append({"kind": "Secret", "metadata": {"name": "s"}})
    objects.append({"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "password: x"}})
    objects.append(
        {
            "kind": "Role",
            "metadata": {"name": "r"},
            "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}],
        }
    )
    objects.append({"kind": "ClusterRole", "metadata": {"name": "all"}})
    name = "Deployment shortlist-trigger"
    assert roots(objects) == [
        f"{name} trigger: readOnlyRootFilesystem",
        f"{name} trigger: runAsUser",
        f"{name}: hostNetwork",
        f"{name}: hostPath",
    ]
    assert loose_images(objects) == [f"{name} trigger: shortlist:latest"]
    assert unlimited(objects) == [f"{name} trigger: limits.cpu", f"{name} trigger: limits.memory"]
    assert secrets(objects) == ["Secret s", f"{name} trigger: SHORTLIST_DATABASE", "ConfigMap c: a"]
    assert rights(objects) == ["Role r: *", "Role r: secrets", "ClusterRole all", f"{name}: token"]


def bound(objects: list[Object], account: str) -> set[tuple[str, str]]:
    """Return resource and verb of everything that an account may do."""
    roles = {manifest["metadata"]["name"]: manifest["rules"] for manifest in objects if manifest["kind"] == "Role"}
    return {
        (resource, verb)
        for binding in objects
        if binding["kind"] == "RoleBinding" and account in {subject["name"] for subject in binding["subjects"]}
        for rule in roles[binding["roleRef"]["name"]]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_each_account_has_exactly_the_rights_of_its_work(objects: list[Object]) -> None:
    rollout = {("inferenceservices", verb) for verb in ("list", "create", "delete")}
    rollout |= {("httproutes", verb) for verb in ("get", "create", "update", "delete")}
    rollout |= {("pods", "list"), ("events", "list"), ("endpointslices", "list")}
    assert bound(objects, "shortlist-rollout") == rollout
    steps = {(jobs, verb) for jobs in ("trainjobs", "rayjobs") for verb in ("create", "get", "delete")}
    steps |= {("workflowtaskresults", verb) for verb in ("create", "patch")}
    steps |= {(resource, verb) for resource in ("pods", "configmaps") for verb in ("get", "list", "watch")}
    steps |= {("events", "list"), ("secrets", "get")}
    assert bound(objects, "shortlist-pipeline") == steps  # ingest cannot change what is served
    assert bound(objects, "shortlist-server") == set()
    assert bound(objects, "shortlist-operator") == set()  # of no account: people are bound to it where they are known
    starts_runs = {(resource, verb) for resource in ("experiments", "pipelines") for verb in ("list", "create")}
    starts_runs |= {("runs", verb) for verb in ("list", "create", "delete")}
    assert bound(objects, "shortlist-trigger") == starts_runs  # in Kubeflow Pipelines, and nothing in Kubernetes


LAUNCHER_CALLS = (
    ("get", "", "configmaps", "kfp-launcher"),  # backend/src/v2/config/env.go
    ("get", "", "secrets", "mlpipeline-minio-artifact"),  # the same, and backend/src/v2/objectstore/object_store.go
    ("get", "", "pods", "step-pod"),  # backend/src/v2/component/launcher_v2.go
    ("create", "argoproj.io", "workflowtaskresults", None),  # Argo's executor
    ("patch", "argoproj.io", "workflowtaskresults", "step-pod"),
)
"""Verb, API group, resource and name of what Kubeflow's driver, launcher and executor ask with the account of a run,
where the object store is the one that Kubeflow Pipelines installs."""


@pytest.mark.parametrize(("verb", "group", "resource", "name"), LAUNCHER_CALLS)
def test_the_account_of_a_run_allows_the_calls_of_kubeflows_containers(
    objects: list[Object], verb: str, group: str, resource: str, name: str | None
) -> None:
    rules = list(kube_rbac.rules_of("shortlist-pipeline", kube_rbac.NAMESPACE, objects))
    assert any(kube_rbac.allows(rule, verb, group, resource, name) for rule in rules)


def test_commands_of_a_rollout_get_their_account_and_reach_the_servers_that_they_test(objects: list[Object]) -> None:
    images = Images(pipeline=f"shortlist{DIGEST}")
    job = command_job(Cluster(images=images), "demo", "name: demo", ["deploy-canary"])
    check(job)
    labels = job["spec"]["template"]["metadata"]["labels"]
    accounts = {manifest["metadata"]["name"] for manifest in objects if manifest["kind"] == "ServiceAccount"}
    assert job["spec"]["template"]["spec"]["serviceAccountName"] in accounts
    policies = {
        manifest["metadata"]["name"]: manifest["spec"] for manifest in objects if manifest["kind"] == "NetworkPolicy"
    }
    selecting = [name for name, policy in policies.items() if selects(policy["podSelector"], labels)]
    assert selecting == ["shortlist-command"]
    peers = [peer for rule in policies["shortlist-command"]["egress"] for peer in rule["to"]]
    assert {"podSelector": {"matchLabels": {"component": "transformer"}}} in peers
    (who, _) = policies["shortlist-transformer"]["ingress"]
    assert any(selects(peer["podSelector"], labels) for peer in who["from"] if "namespaceSelector" not in peer)


def test_the_account_of_a_run_reads_no_other_secret(objects: list[Object]) -> None:
    for rule in kube_rbac.rules_of("shortlist-pipeline", kube_rbac.NAMESPACE, objects):
        for verb, name in (("get", "shortlist-stores"), ("get", None), ("list", None), ("watch", None)):
            assert not kube_rbac.allows(rule, verb, "", "secrets", name)


@pytest.fixture(scope="module")
def kfp_group(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The API group of Kubeflow Pipelines, as its own compiler writes it into a manifest."""

    file = tmp_path_factory.mktemp("compiled") / "monitoring.yaml"
    Compiler().compile(
        build_graph("monitoring", load_spec(ROOT / "pipelines/specs/demo.yaml")),
        str(file),
        kubernetes_manifest_format=True,
    )
    return str(yaml.safe_load(file.read_text())["apiVersion"]).partition("/")[0]


def test_tokens_labels_and_roles_name_the_api_group_of_kubeflow_pipelines(
    objects: list[Object], kfp_group: str
) -> None:
    """The API server accepts tokens for its group alone; the compiler of its backend labels every pod of a run."""
    tokens = [
        source["serviceAccountToken"]["audience"]
        for _, pod, _ in pods(objects)
        for volume in pod["volumes"]
        for source in volume.get("projected", {}).get("sources", [])
    ]
    assert tokens == [kfp_group] * 2  # trigger and watch
    label = f"{kfp_group}/v2_component"  # backend/src/v2/compiler/argocompiler/argo.go
    policies = {
        manifest["metadata"]["name"]: manifest["spec"] for manifest in objects if manifest["kind"] == "NetworkPolicy"
    }
    run_pods = {"matchExpressions": [{"key": label, "operator": "Exists"}]}
    assert policies["shortlist-pipeline"]["podSelector"] == run_pods
    assert {"podSelector": run_pods} in policies["shortlist-transformer"]["ingress"][0]["from"]
    (role,) = (
        manifest
        for manifest in objects
        if (manifest["kind"], manifest["metadata"]["name"]) == ("Role", "shortlist-trigger")
    )
    assert {group for rule in role["rules"] for group in rule["apiGroups"]} == {kfp_group, kfp_server.API_GROUP}


def test_the_programs_read_the_variables_of_the_client_of_kubeflow_pipelines(objects: list[Object]) -> None:
    assert kfp_client.KF_PIPELINES_ENDPOINT_ENV == HOST_VARIABLE
    (settings,) = (
        manifest["data"]
        for manifest in objects
        if manifest["kind"] == "ConfigMap" and manifest["metadata"]["name"].startswith("shortlist-settings")
    )
    assert HOST_VARIABLE in settings
    for name, container, pod in containers(objects):
        (token,) = (
            image["value"] for image in container["env"] if image["name"] == kfp.client.KF_PIPELINES_SA_TOKEN_ENV
        )
        folder, _, file = token.rpartition("/")
        (volume,) = (mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == folder)
        sources = [image["projected"]["sources"] for image in pod["volumes"] if image["name"] == volume]
        assert [source["serviceAccountToken"]["path"] for source in sources[0]] == [file], name


KUBEFLOW_PODS = (
    {"application-crd-id": "kubeflow-pipelines", "app": "ml-pipeline"},
    {"application-crd-id": "kubeflow-pipelines", "app": "workflow-controller"},
    {"app": "ml-pipeline-ui-artifact"},  # of a profile
)
"""Labels of Kubeflow's own pods, where it is installed in the namespace of the runs or makes a profile of it."""


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a selector of pods selects one with these labels."""
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "Exists"
        if expression["key"] not in labels:
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


@pytest.mark.parametrize("labels", KUBEFLOW_PODS, ids=lambda labels: labels["app"])
def test_no_policy_cuts_off_the_pods_of_kubeflow_itself(objects: list[Object], labels: dict[str, str]) -> None:
    policies = [manifest["spec"] for manifest in objects if manifest["kind"] == "NetworkPolicy"]
    assert not [policy for policy in policies if selects(policy["podSelector"], labels)]
    deny_all = yaml.safe_load((DEPLOY / "deny-all.yaml").read_text())
    check(deny_all)
    assert selects(deny_all["spec"]["podSelector"], labels), "its first lines say where not to apply it"


@pytest.mark.parametrize("name", ["shortlist-pipeline", "shortlist-trigger", "shortlist-watch"])
def test_pods_may_reach_kubeflow_pipelines_in_both_namespaces(objects: list[Object], name: str) -> None:
    policies = {
        manifest["metadata"]["name"]: manifest["spec"] for manifest in objects if manifest["kind"] == "NetworkPolicy"
    }
    peers = [peer for rule in policies[name]["egress"] for peer in rule["to"] if "ports" not in rule]
    selectors = [peer["podSelector"] for peer in peers if "podSelector" in peer]
    assert [selects(selector, KUBEFLOW_PODS[0]) for selector in selectors] == [True]
    assert any("kubeflow" in json.dumps(peer["namespaceSelector"]) for peer in peers if "namespaceSelector" in peer)


def test_each_policy_denies_by_default_and_allows_dns(objects: list[Object]) -> None:
    for policy in (manifest["spec"] for manifest in objects if manifest["kind"] == "NetworkPolicy"):
        assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
        (names,) = (rule for rule in policy["egress"] if rule.get("ports", [{}])[0].get("port") == 53)
        assert {port["protocol"] for port in names["ports"]} == {"UDP", "TCP"}


def test_every_workload_has_its_own_account_and_network_policy(objects: list[Object]) -> None:
    accounts = {manifest["metadata"]["name"] for manifest in objects if manifest["kind"] == "ServiceAccount"}
    policies = [manifest["spec"] for manifest in objects if manifest["kind"] == "NetworkPolicy"]
    for name, pod, labels in pods(objects):
        assert pod["serviceAccountName"] in accounts - {"default"}
        selecting_policies = [
            object_ for object_ in policies if object_["podSelector"].get("matchLabels", {}).items() <= labels.items()
        ]
        assert any(object_["podSelector"].get("matchLabels") for object_ in selecting_policies), name
    for policy in policies:
        for rule in policy.get("ingress", []):
            assert rule.get("from"), "an ingress rule without peers lets everybody in"
        for rule in policy.get("egress", []):
            assert rule.get("to"), "an egress rule without peers lets everything out"


def test_every_referenced_object_exists(objects: list[Object]) -> None:
    existing = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in objects}
    for name, pod, _ in pods(objects):
        for volume in pod.get("volumes", []):
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in existing, name
        for container in pod["containers"]:
            for source in container.get("envFrom", []):
                if "configMapRef" in source:
                    assert ("ConfigMap", source["configMapRef"]["name"]) in existing, name
    for manifest in objects:
        if manifest["kind"] == "RoleBinding":
            assert ("Role", manifest["roleRef"]["name"]) in existing
            assert all(("ServiceAccount", subject["name"]) in existing for subject in manifest["subjects"])
        for target in manifest.get("spec", {}).get("targetRefs", []) if "spec" in manifest else []:
            assert (target["kind"], target["name"]) in existing
        if manifest["kind"] == "HTTPRoute":
            assert all(("Gateway", object_["name"]) in existing for object_ in manifest["spec"]["parentRefs"])
            for rule in manifest["spec"]["rules"]:
                for image in rule["filters"]:
                    assert (image["extensionRef"]["kind"], image["extensionRef"]["name"]) in existing


def allowed_ports(objects: list[Object], labels: dict[str, str]) -> set[int]:
    """Return the ports at which Prometheus may ask the pods with some labels."""
    manifest: set[int] = set()
    for policy in (object_["spec"] for object_ in objects if object_["kind"] == "NetworkPolicy"):
        if labels.items() >= policy["podSelector"].get("matchLabels", {}).items():
            for rule in policy.get("ingress", []):
                names = [peer.get("namespaceSelector", {}).get("matchLabels", {}) for peer in rule["from"]]
                if {"kubernetes.io/metadata.name": "monitoring"} in names:
                    manifest |= {port["port"] for port in rule["ports"]}
    return manifest


def test_prometheus_may_ask_every_port_that_a_monitor_names(objects: list[Object]) -> None:
    """Kubernetes says nothing when a policy closes what a PodMonitor scrapes."""
    service = released(objects)["spec"]
    deployments = [object_["spec"]["template"] for object_ in objects if object_["kind"] == "Deployment"]
    served = [
        ({"component": name, "shortlist/spec": "demo"}, service[name]["containers"])
        for name in ("predictor", "transformer")
    ]
    runs = [*served, *((object_["metadata"]["labels"], object_["spec"]["containers"]) for object_ in deployments)]
    scraped = 0
    for monitor in (
        object_["spec"]
        for object_ in objects
        if object_["kind"] == "PodMonitor" and "namespaceSelector" not in object_["spec"]
    ):
        for labels, manifest in runs:
            if labels.items() >= monitor["selector"]["matchLabels"].items():
                ports = {
                    port["name"]: port["containerPort"] for object_ in manifest for port in object_.get("ports", [])
                }
                required_fields = {ports[endpoint["port"]] for endpoint in monitor["podMetricsEndpoints"]}
                assert required_fields <= allowed_ports(objects, labels), labels
                scraped += len(required_fields)
    assert scraped == 4  # server, log committer, Triton, webhook receiver


def released(objects: list[Object]) -> Object:
    """Return the InferenceService that a rollout would write for the spec that is shipped."""
    owner = ObjectOwner(cluster="demo", namespace="shortlist", spec="demo")
    version = Version(
        owner=owner, version=1, digest="0" * 16, repository="1" * 16, source="s3://bucket/prefix", settings={}
    )
    images = Images(pipeline=f"shortlist{DIGEST}", triton=f"triton{DIGEST}")
    return inference_service(version, Cluster(images=images))


def test_the_policy_for_inference_services_matches_those_of_a_rollout(objects: list[Object]) -> None:
    """Its expressions are evaluated in test_admission_policies.py; here: what they name is what is written."""
    policy = admission_policies()["shortlist-inference-services"]
    breaches = " ".join(object_["expression"] for object_ in policy["spec"]["validations"])
    assert f"== '{SERVICE_ACCOUNT}'" in breaches
    service = released(objects)
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert [f"{rule['apiGroups'][0]}/{rule['apiVersions'][0]}"] == [service["apiVersion"]]
    for part in service["spec"].values():
        assert part["serviceAccountName"] == SERVICE_ACCOUNT
        for kind in ("containers", "initContainers"):
            assert all(re.search("@sha256:[0-9a-f]{64}$", object_["image"]) for object_ in part[kind])
            assert all(f"object.spec.{name}.{kind}.all(" in breaches for name in service["spec"])


def test_the_policy_for_train_jobs_names_the_accounts_of_the_manifests(objects: list[Object]) -> None:
    policy = admission_policies()["shortlist-train-jobs"]
    breaches = " ".join(object_["expression"] for object_ in policy["spec"]["validations"])
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert [f"{rule['apiGroups'][0]}/{rule['apiVersions'][0]}"] == [API_VERSION]
    cluster, names = Cluster(), {(manifest["kind"], manifest["metadata"]["name"]) for manifest in objects}
    assert {("ServiceAccount", cluster.service_account), ("Secret", cluster.rollout_token)} <= names
    for named in (cluster.service_account, cluster.rollout_token, RUNTIME):
        assert f"= '{named}'" in breaches


def admission_policies() -> dict[str, Object]:
    """Return the policies by name; each is valid, and has a binding that denies."""
    manifest = list(yaml.safe_load_all((DEPLOY / "admission-policy.yaml").read_text()))
    for object_ in manifest:
        kubernetes_validate.validate(object_, KUBERNETES, strict=True)
    policies = {
        object_["metadata"]["name"]: object_ for object_ in manifest if object_["kind"] == "ValidatingAdmissionPolicy"
    }
    bindings = [object_["spec"] for object_ in manifest if object_["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert [object_["policyName"] for object_ in bindings] == list(policies)
    assert all(object_["validationActions"] == ["Deny"] for object_ in bindings)
    return policies


def test_what_is_applied_once_per_cluster_is_valid() -> None:
    for manifest in yaml.safe_load_all((DEPLOY / "version-readers.yaml").read_text()):
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_the_gateway_knows_the_headers_that_the_servers_know(objects: list[Object]) -> None:
    by_kind = {manifest["kind"]: manifest["spec"] for manifest in objects if "spec" in manifest}
    assert by_kind["BackendTrafficPolicy"]["loadBalancer"]["consistentHash"]["header"] == {"name": USER_HEADER}
    own_headers = {TRACK_HEADER, ROLLOUT_HEADER, STEP_HEADER, VERSION_HEADER}
    assert set(by_kind["ClientTrafficPolicy"]["headers"]["earlyRequestHeaders"]["remove"]) == own_headers
    limits, client = Limits(), by_kind["ClientTrafficPolicy"]
    assert by_kind["BackendTrafficPolicy"]["requestBuffer"] == {"limit": f"{limits.max_request_bytes // 2**20}Mi"}
    assert client["timeout"]["http"] == {
        "requestReceivedTimeout": f"{limits.body_seconds:g}s", "idleTimeout": f"{limits.idle_seconds:g}s",
    }  # fmt: skip
    assert client["http2"]["maxConcurrentStreams"] == limits.max_streams
    telemetry = by_kind["EnvoyProxy"]["telemetry"]
    assert telemetry["metrics"] == {"prometheus": {}}, "another name of the clusters mixes the tracks' numbers"
    logged = telemetry["accessLog"]["settings"][0]["format"]["json"]
    assert {f"%REQ({header.upper()})%" for header in own_headers} <= set(logged.values())


def test_the_gateway_limits_requests_to_the_capacity_of_the_servers(objects: list[Object]) -> None:
    by_kind = {manifest["kind"]: manifest["spec"] for manifest in objects if "spec" in manifest}
    envoys = by_kind["EnvoyProxy"]["provider"]["kubernetes"]["envoyDeployment"]["replicas"]
    bounds = by_kind["BackendTrafficPolicy"]["circuitBreaker"]
    assert set(bounds) == {"maxConnections", "maxPendingRequests", "maxParallelRequests", "maxParallelRetries"}
    (bound,) = set(bounds.values())
    assert Overload().max_requests * Autoscaling().min_replicas <= bound
    assert envoys * bound <= Overload().max_requests * Autoscaling().max_replicas


def test_the_alert_rules_have_one_source(objects: list[Object]) -> None:
    (rule,) = (manifest["spec"] for manifest in objects if manifest["kind"] == "PrometheusRule")
    source = (ROOT / "deploy" / "monitoring" / "alert_rules.yaml").read_text()
    written = yaml.safe_load((DEPLOY / "base" / "prometheus-rule.yaml").read_text())
    assert written["spec"] == yaml.safe_load(source), "prometheus-rule.yaml is old; make manifests writes it"
    assert _without_breaks(rule) == _without_breaks(written["spec"])  # kustomize folds long texts its own way


def _without_breaks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_breaks(image) for key, image in value.items()}
    if isinstance(value, list):
        return [_without_breaks(image) for image in value]
    return " ".join(value.split()) if isinstance(value, str) else value


def test_alertmanager_sends_the_alarm_where_the_receiver_listens(objects: list[Object]) -> None:
    named = {manifest["kind"]: manifest for manifest in objects}
    (sent,) = named["AlertmanagerConfig"]["spec"]["receivers"][0]["webhookConfigs"]
    service = named["Service"]["metadata"]
    assert sent["url"] == f"http://{service['name']}.{service['namespace']}/alerts"
    assert named["AlertmanagerConfig"]["spec"]["route"]["matchers"] == [{"name": "alertname", "value": ALARM}]
    # The Prometheus Operator adds the namespace of the AlertmanagerConfig to its matchers (its strategy OnNamespace),
    # and Prometheus the namespace of a scraped pod to its series: an aggregation would lose the label.
    rules = [rule for group in named["PrometheusRule"]["spec"]["groups"] for rule in group["rules"]]
    (expression,) = (rule["expr"] for rule in rules if rule.get("alert") == ALARM)
    assert re.fullmatch(r"\w+ == 1", expression)
    (deployment,) = (manifest for manifest in objects if manifest["kind"] == "Deployment")
    secrets_of_pod = [
        object_["secret"] for object_ in deployment["spec"]["template"]["spec"]["volumes"] if "secret" in object_
    ]
    credentials = sent["httpConfig"]["authorization"]["credentials"]
    assert [object_["secretName"] for object_ in secrets_of_pod] == [credentials["name"]]


def test_the_programs_take_the_arguments_that_the_manifests_give(objects: list[Object]) -> None:
    parsers = {
        "shortlist.kubeflow.trigger_service": trigger_service.parser(),
        "shortlist.kubeflow.monitoring_cronjob": watch_job.parser(),
    }
    for name, container, _ in containers(objects):
        if container["image"].partition("@")[0].partition(":")[0].endswith("pipeline"):
            *_, module = container["command"]
            options = vars(parsers.pop(module).parse_args(container["args"]))
            mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert str(options["specs"]) in mounted, name
    assert not parsers


def test_the_runbook_names_every_secret_that_something_reads(objects: list[Object], tmp_path: Path) -> None:
    read = {("shortlist-webhook", "token")}  # Alertmanager does
    for _, container, pod in containers(objects):
        variables = [
            variable["valueFrom"]["secretKeyRef"] for variable in container.get("env", []) if "valueFrom" in variable
        ]
        read |= {(object_["name"], object_["key"]) for object_ in variables}
        volumes = [volume["secret"] for volume in pod.get("volumes", []) if "secret" in volume]
        read |= {(object_["secretName"], item["key"]) for object_ in volumes for item in object_["items"]}
    for spec in specs_of(objects, tmp_path):
        for secret in spec.runtime.cluster.secrets:
            read |= {(secret.name, key) for key in secret.variables.values()}
    runbook = (ROOT / "docs" / "runbook.md").read_text()
    created = {
        (name, key)
        for name, key_options in re.findall(r"create secret generic (\S+)((?: --from-file=\w+)+)", runbook)
        for key in re.findall(r"--from-file=(\w+)", key_options)
    }
    assert read == created


def specs_of(objects: list[Object], folder: Path) -> list[Spec]:
    specs = next(image for image in objects if image["kind"] == "ConfigMap" and "specs" in image["metadata"]["name"])
    for name, text in specs["data"].items():
        (folder / name).write_text(text)
    return list(read_specs(folder).values())


def test_the_specs_of_the_cluster_are_valid_and_for_a_cluster(objects: list[Object], tmp_path: Path) -> None:
    accounts = {manifest["metadata"]["name"] for manifest in objects if manifest["kind"] == "ServiceAccount"}
    for spec in specs_of(objects, tmp_path):
        runtime, cluster = spec.runtime, spec.runtime.cluster
        assert (runtime.profile, cluster.namespace, cluster.gateway) == ("cluster", "shortlist", "shortlist")
        assert cluster.service_account in accounts
        assert SERVICE_ACCOUNT in accounts
