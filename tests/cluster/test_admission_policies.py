"""The admission policies accept the objects of rollouts and trainings, and refuse those with other rights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import celpy
import pytest
import yaml
from kserve_world import CLUSTER

from shortlist.features.engines.ray.ray_job import RayWorkers, ray_job
from shortlist.rollout.kserve.objects.manifests import Version, inference_service
from shortlist.rollout.kserve.objects.owner import ObjectOwner
from shortlist.spec.cluster import Secret, Task, Workers
from shortlist.spec.feature_job import JobEnvironment
from shortlist.training.distributed.train_job import train_job

Object = dict[str, Any]
FILE = Path(__file__).parents[2] / "deploy" / "k8s" / "admission-policy.yaml"
TOKEN = {"name": "T", "valueFrom": {"secretKeyRef": {"name": "shortlist-rollout-token", "key": "token"}}}
OTHER_IMAGE = "registry.example/other:latest"


def broken_messages(live: Object) -> list[str]:
    """Return the messages of the expressions that an object breaks; one that cannot be evaluated is broken, too."""
    messages = []
    for policy in yaml.safe_load_all(FILE.read_text()):
        if policy["kind"] != "ValidatingAdmissionPolicy":
            continue
        (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
        if (f"{rule['apiGroups'][0]}/{rule['apiVersions'][0]}", rule["resources"][0]) != (
            live["apiVersion"], f"{live['kind'].lower()}s",
        ):  # fmt: skip
            continue
        assert (policy["spec"]["failurePolicy"], rule["operations"]) == ("Fail", ["CREATE", "UPDATE"])
        environment = celpy.Environment()
        for validation in policy["spec"]["validations"]:
            program = environment.program(environment.compile(validation["expression"]))
            try:
                is_valid = bool(program.evaluate({"object": celpy.json_to_cel(live)}))
            except celpy.CELEvalError:
                is_valid = False
            messages += [] if is_valid else [validation["message"]]
    return messages


def training() -> Object:
    """Return the TrainJob of a training with everything that a spec can declare for it."""
    images = CLUSTER.images.model_copy(update={"gpu": CLUSTER.images.pipeline})
    secrets = (Secret(name="stores", variables={"SHORTLIST_DATABASE": "database"}),)
    workers = Workers(nodes=2, processes=1, pod=Task(cpu="4", memory="8Gi", gpus=1, node_selector={"pool": "gpu"}))
    cluster = CLUSTER.model_copy(update={"images": images, "secrets": secrets})
    return train_job("train-dlrm-1", cluster, workers, "s3://bucket/prefix", "trainings/1")


def service() -> Object:
    """Return the InferenceService of a version."""
    owner = ObjectOwner(cluster="eu-1", namespace="shortlist", spec="demo")
    version = Version(
        owner=owner, version=1, digest="0" * 16, repository="1" * 16, source="s3://bucket/prefix", settings={}
    )
    return inference_service(version, CLUSTER)


def pod(job: Object) -> Object:
    (patch,) = job["spec"]["runtimePatches"]
    (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod_spec: Object = replicated["template"]["spec"]["template"]["spec"]
    return pod_spec


def test_what_is_written_is_admitted() -> None:
    assert broken_messages(training()) == []
    assert broken_messages(service()) == []


ACCOUNT = "workers run as shortlist-pipeline"
VOLUMES = "workers have scratch space (emptyDir) and no other volumes"
VARIABLES = "variables of workers are in spec.trainer.env"
RUNTIME = "a training is of the runtime torch-distributed, and has no initializer"


def add(*volumes: Object) -> Callable[[Object], None]:
    return lambda job: pod(job)["volumes"].extend(volumes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda job: pod(job).update(serviceAccountName="shortlist-rollout"), ACCOUNT),
        (lambda job: pod(job).update(serviceAccountName="default"), ACCOUNT),
        (lambda job: job["spec"]["runtimePatches"].append(
            {"manager": "other", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [
                {"name": "node", "template": {"spec": {"template": {"spec": {
                    "serviceAccountName": "shortlist-rollout"}}}}}]}}}}), ACCOUNT),
        (add({"name": "token", "secret": {"secretName": "shortlist-rollout-token"}}), VOLUMES),
        (add({"name": "token", "projected": {"sources": [{"secret": {"name": "shortlist-rollout-token"}}]}}), VOLUMES),
        (add({"name": "node", "hostPath": {"path": "/var/lib/kubelet"}}), VOLUMES),
        (lambda job: job["spec"]["trainer"]["env"].append(TOKEN), "only the step roll_out reads"
         " shortlist-rollout-token"),
        (lambda job: pod(job)["containers"][0].update(env=[TOKEN]), VARIABLES),
        (lambda job: pod(job).update(initContainers=[{"name": "init", "env": [TOKEN]}]), VARIABLES),
        (lambda job: job["spec"].update(initializer={"dataset": {"env": [TOKEN]}}), RUNTIME),
        (lambda job: job["spec"].update(runtimeRef={"name": "other"}), RUNTIME),
        (lambda job: job["spec"]["runtimeRef"].update(kind="TrainingRuntime"), RUNTIME),
    ],
)  # fmt: skip
def test_a_step_cannot_get_a_pod_with_the_rights_of_rollouts(change: Callable[[Object], None], message: str) -> None:
    job = copy.deepcopy(training())
    change(job)
    assert broken_messages(job) == [message]


def test_a_patch_that_the_expressions_do_not_understand_is_refused() -> None:
    job = training()
    job["spec"]["runtimePatches"].append({"manager": "other", "trainingRuntimeSpec": {"template": {}}})
    assert broken_messages(job) == [ACCOUNT, VOLUMES, VARIABLES]


def features() -> Object:
    """Return the RayJob of a step with everything that a spec can declare for it."""
    secrets = (Secret(name="stores", variables={"SHORTLIST_DATABASE": "database"}),)
    cluster = CLUSTER.model_copy(update={"secrets": secrets, "variables": {"AWS_REGION": "eu-1"}})
    task = Task(node_selector={"pool": "memory"}, tolerations=({"key": "big"},))
    environment = JobEnvironment(folder="/mnt", image=CLUSTER.images.pipeline, cluster=cluster, task=task)
    return ray_job(
        "features-1", "python3 -m program", RayWorkers(2, 8, 10**9, 10**9, "shortlist-features", 60), environment
    )


def ray_pod(job: Object, name: str) -> Object:
    cluster = job["spec"]["rayClusterSpec"]
    templates = {
        "head": cluster["headGroupSpec"], "worker": cluster["workerGroupSpecs"][0],
        "submitter": {"template": job["spec"]["submitterPodTemplate"]},
    }  # fmt: skip
    pod_spec: Object = templates[name]["template"]["spec"]
    return pod_spec


RAY_ADDITIONS = "KubeRay adds no containers, secrets and accounts of its own"
RAY_VOLUMES = "pods of Ray have scratch space (emptyDir), the claim shortlist-features, and no other volumes"
RAY_HEAD = "only what the network policies admit reaches the head of Ray"
RAY_PROGRAMS = "Ray runs programs only for who has the token of its cluster"
RAY_TOKEN = "only the step roll_out reads shortlist-rollout-token"  # noqa: S105 - a sentence


@pytest.mark.parametrize("name", ["head", "worker", "submitter"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda pod: pod.update(serviceAccountName="shortlist-rollout"), "pods of Ray run as shortlist-pipeline"),
        (lambda pod: pod.pop("serviceAccountName"), "pods of Ray run as shortlist-pipeline"),
        (lambda pod: pod["volumes"].append({"name": "token", "secret": {"secretName": "shortlist-rollout-token"}}),
         RAY_VOLUMES),
        (lambda pod: pod["volumes"].append({"name": "db", "persistentVolumeClaim": {"claimName": "postgres"}}),
         RAY_VOLUMES),
        (lambda pod: pod["containers"][0]["env"].append(TOKEN), RAY_TOKEN),
        (lambda pod: pod["containers"][0].update(envFrom=[{"secretRef": {"name": "shortlist-rollout-token"}}]),
         RAY_TOKEN),
        (lambda pod: pod.update(initContainers=[{"name": "init", "env": [TOKEN]}]), RAY_TOKEN),
    ],
)  # fmt: skip
def test_a_step_cannot_get_a_pod_of_ray_with_the_rights_of_rollouts(
    name: str, change: Callable[[Object], None], message: str
) -> None:
    job = copy.deepcopy(features())
    assert broken_messages(job) == []
    change(ray_pod(job, name))
    assert broken_messages(job) == [message]


@pytest.mark.parametrize(
    "addition",
    [
        "enableInTreeAutoscaling",
        "autoscalerOptions",
        "gcsFaultToleranceOptions",
        "historyServerOptions",
        "tlsOptions",
        "authOptions.secretName",
    ],
)
def test_kuberay_adds_nothing_to_the_pods_of_a_step(addition: str) -> None:
    job = features()
    name, _, field = addition.partition(".")
    options = job["spec"]["rayClusterSpec"].setdefault(name, {})
    options[field or "redisPassword"] = TOKEN
    assert broken_messages(job) == [RAY_ADDITIONS]


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        (lambda cluster: cluster["headGroupSpec"].update(serviceType="LoadBalancer"), [RAY_HEAD]),
        (lambda cluster: cluster["headGroupSpec"].update(enableIngress=True), [RAY_HEAD]),
        (lambda cluster: cluster["headGroupSpec"].update(ingressOptions={"host": "ray.example.com"}), [RAY_HEAD]),
        (lambda cluster: cluster["headGroupSpec"].update(headService={"spec": {"type": "NodePort"}}), [RAY_HEAD]),
        (lambda cluster: cluster.update(headServiceAnnotations={"external": "true"}), [RAY_HEAD]),
        (lambda cluster: cluster.update(networkPolicy={"mode": "DenyAllIngress"}), [RAY_HEAD]),
        (lambda cluster: cluster["authOptions"].update(mode="disabled"), [RAY_PROGRAMS]),
        (lambda cluster: cluster["authOptions"].pop("mode"), [RAY_PROGRAMS]),
        (lambda cluster: cluster["authOptions"].update(enableK8sTokenAuth=True), [RAY_PROGRAMS]),
        (lambda cluster: cluster.pop("authOptions"), [RAY_PROGRAMS]),
    ],
)
def test_nobody_else_reaches_the_head_of_ray(change: Callable[[Object], None], messages: list[str]) -> None:
    job = features()
    change(job["spec"]["rayClusterSpec"])
    assert broken_messages(job) == messages


def spoil_image(part: str, kind: str) -> Callable[[Object], None]:
    return lambda service: service["spec"][part][kind][0].update(image=OTHER_IMAGE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda service: service["spec"]["predictor"].update(serviceAccountName="shortlist-rollout"),
         "servers run as shortlist-server, which has no rights"),
        (lambda service: service["spec"]["transformer"].pop("serviceAccountName"),
         "servers run as shortlist-server, which has no rights"),
        (spoil_image("predictor", "containers"), "images are named by digest"),
        (spoil_image("transformer", "containers"), "images are named by digest"),
        (spoil_image("predictor", "initContainers"), "images of init containers are named by digest"),
        (spoil_image("transformer", "initContainers"), "images of init containers are named by digest"),
    ],
)  # fmt: skip
def test_a_server_gets_no_other_account_and_no_image_by_tag(change: Callable[[Object], None], message: str) -> None:
    live = copy.deepcopy(service())
    change(live)
    assert broken_messages(live) == [message]
