"""The rows of `acceptance.py` on a real cluster: `make test-cluster KUBECONFIG=path HOST=http://... SPEC=mine.yaml`.

The spec says where the cluster's stores, images and Secrets are. What the rows make has names of its own: two specs and
an experiment of Kubeflow.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from acceptance import Acceptance, clean_up, run_rows
from acceptance_pipelines import KubeflowPipelines
from acceptance_receiver import ReceiverPod
from kubernetes import client, config
from real_cluster import Object, RealCluster

from shortlist.kubeflow.client import KubeflowClient
from shortlist.rollout.kserve.command_job import JobRun, command_job
from shortlist.rollout.kserve.objects.owner import ObjectOwner
from shortlist.spec.cluster import Cluster
from shortlist.spec.load import load_spec
from shortlist.spec.spec import Spec
from shortlist.system.kubernetes_api import KubernetesAPI

KUBECONFIG_VARIABLE = "SHORTLIST_TEST_KUBECONFIG"
HOST_VARIABLE = "SHORTLIST_TEST_HOST"
SPEC_VARIABLE = "SHORTLIST_TEST_SPEC"
SMALL_LOG = {"kind": "generated", "rows": 60_000, "users": 2_000, "items": 500, "days": 14, "seed": 7}
DEADLINE_SECONDS = 600
"""Of a step of a canary, which gets no traffic here."""
REMOVAL = Path(__file__).with_name("removal_program.py").read_text()
RUN_POD_LABEL = "pipelines.kubeflow.org/v2_component"
"""Label of the pods of a run, by which the shipped policy lets them reach the stores."""
ROOT = Path(__file__).parents[3]


def small_spec(file: Path, name: str) -> dict[str, Any]:
    """Return a small spec that runs where the spec of a file does, under a name of its own.

    In the name of the same cluster, in whose name its bucket and its database are marked.
    """
    spec: dict[str, Any] = yaml.safe_load((ROOT / "deploy/k8s/specs/demo.yaml").read_text())
    runtime = yaml.safe_load(file.read_text())["runtime"]
    runtime["cluster"] |= {"kfp_experiment": name, "keep_former_seconds": 30}
    spec["data"]["source"] = SMALL_LOG
    canary = {"steps": [50, 100], "deadline_seconds": DEADLINE_SECONDS}
    return {**spec, "name": name, "schedule": {}, "runtime": runtime, "serving": {"canary": canary}}


def removing_job(cluster: Cluster, specs: Sequence[dict[str, Any]]) -> Object:
    """Return the Job that removes what specs have left in the stores, which pods of runs may reach."""
    texts = [yaml.safe_dump(spec) for spec in specs]
    job = command_job(cluster, specs[0]["name"], texts[0], ["removal"])
    template = job["spec"]["template"]
    template["metadata"]["labels"] = {**template["metadata"]["labels"], RUN_POD_LABEL: "true"}
    template["spec"]["serviceAccountName"] = cluster.service_account
    template["spec"]["containers"][0]["command"] = ["python", "-c", REMOVAL, *texts]
    return job


def test_what_specs_have_left_is_removed_by_a_pod_that_reaches_the_stores(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(small_spec(ROOT / "deploy/k8s/specs/demo.yaml", "test-1")))
    spec = load_spec(tmp_path / "spec.yaml", [f"runtime.cluster.images.pipeline=registry/p@sha256:{'0' * 64}"])
    job = removing_job(spec.runtime.cluster, [{"name": "test-1"}, {"name": "test-1-alerted"}])
    kubernetes_validate.validate(job, "1.34", strict=True)
    pods = job["spec"]["template"]
    policies = yaml.safe_load_all((ROOT / "deploy/k8s/base/network-policies.yaml").read_text())
    (policy,) = (each for each in policies if each["metadata"]["name"] == "shortlist-pipeline")
    assert policy["spec"]["podSelector"] == {"matchExpressions": [{"key": RUN_POD_LABEL, "operator": "Exists"}]}
    assert RUN_POD_LABEL in pods["metadata"]["labels"]
    assert pods["spec"]["containers"][0]["command"][-2:] == ["name: test-1\n", "name: test-1-alerted\n"]


def test_the_small_spec_runs_beside_the_named_spec_under_separate_names(tmp_path: Path) -> None:
    named = load_spec(ROOT / "deploy/k8s/specs/demo.yaml").runtime
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(small_spec(ROOT / "deploy/k8s/specs/demo.yaml", "test-1")))
    spec = load_spec(tmp_path / "spec.yaml")
    cluster = spec.runtime.cluster
    assert (spec.name, cluster.kfp_experiment) == ("test-1", "test-1")
    same = ("name", "namespace", "secrets", "variables", "images")
    assert [getattr(cluster, field) for field in same] == [getattr(named.cluster, field) for field in same]
    assert spec.runtime.objects == named.objects


def test_it_trains_serves_promotes_and_takes_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = {name: os.environ.get(name, "") for name in (KUBECONFIG_VARIABLE, HOST_VARIABLE, SPEC_VARIABLE)}
    if not all(settings.values()):
        pytest.skip("the whole cluster is tried with make test-cluster KUBECONFIG=path HOST=http://... SPEC=mine.yaml")
    file, name = tmp_path / "spec.yaml", f"test-{uuid.uuid4().hex[:6]}"
    small = small_spec(Path(settings[SPEC_VARIABLE]), name)
    file.write_text(yaml.safe_dump(small))

    def spec_with(change: str) -> Spec:
        return load_spec(file, [change] if change else [])

    cluster = spec_with("").runtime.cluster
    configuration = client.Configuration()
    config.load_kube_config(config_file=settings[KUBECONFIG_VARIABLE], client_configuration=configuration)
    api = client.ApiClient(configuration)
    real = RealCluster(api, cluster.namespace)
    if real.kind_of_cluster != "full":
        pytest.skip(
            f"only {', '.join(real.controllers) or 'a bare API server'} runs here; KServe and a gateway are needed"
        )

    def command(command_name: str) -> int:
        program = [Path(sys.executable).with_name("shortlist"), command_name, file, "--target", "cluster"]
        environment = {**os.environ, "KUBECONFIG": settings[KUBECONFIG_VARIABLE], "SHORTLIST_ROOT": str(ROOT)}
        return subprocess.run(program, env=environment, check=False).returncode

    pipelines = KubeflowPipelines(KubeflowClient(settings[HOST_VARIABLE], cluster.namespace), spec_with, tmp_path)
    alerted = small | {"name": f"{name}-alerted"}
    receiver = ReceiverPod(configuration, cluster.namespace, yaml.safe_dump(alerted))
    acceptance = Acceptance(
        api=KubernetesAPI(api, cluster.namespace),
        owner=ObjectOwner(cluster=cluster.name, namespace=cluster.namespace, spec=name),
        request=real.request,
        command=command,
        pipelines=pipelines,
        post_alert=receiver.post_alert,
        canary_deadline_seconds=DEADLINE_SECONDS,
    )

    def report(line: str) -> None:
        with capfd.disabled():
            sys.stdout.write(f"{line}\n")

    try:
        outcomes = run_rows(acceptance, report)
    finally:
        left = clean_up(acceptance)
        pipelines.clean_up()
        if JobRun(acceptance.api, removing_job(cluster, [small, alerted])).run():
            left.append(f"features, models, records and files of {name} and {alerted['name']}")
        report(f"left behind: {'; '.join(left) or 'nothing'}")
    assert [str(outcome) for outcome in outcomes if outcome.outcome == "FAILED"] == []
    assert left == []
