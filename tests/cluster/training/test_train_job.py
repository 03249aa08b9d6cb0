"""Training as pods: the manifest against the published schema, the way there and back, and what goes wrong."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crd_schemas import problems
from job_server import Object, running
from kubernetes import client
from train_job_server import TrainJobs, ended

from models.xgboost.section import XGBoostModel
from shortlist.contracts import ShortlistError
from shortlist.ranking.ranker import IncompatibleModelError
from shortlist.ranking.saved_models import load_ranker
from shortlist.spec.cluster import Cluster, Workers
from shortlist.spec.runtime import Runtime
from shortlist.storage.objects import open_object_store
from shortlist.storage.storage_config import StorageConfig
from shortlist.storage.tables import DayTable
from shortlist.system.kubernetes_api import KubernetesAPI
from shortlist.system.progress import EVENTS_VARIABLE
from shortlist.training.distributed.cluster_workers import TrainJobContext, job_name, train_on_cluster
from shortlist.training.distributed.job import DistributedJob
from shortlist.training.distributed.train_job import train_job
from shortlist.training.distributed_launch import distributed_launch_for

pytestmark = pytest.mark.timeout(240)  # processes that wait for each other must not hold up all other tests

IMAGE = "registry.example/shortlist@sha256:" + "a" * 64
CLUSTER = Cluster.model_validate(
    {
        "images": {"pipeline": IMAGE, "gpu": IMAGE.replace("shortlist", "gpu")},
        "secrets": [{"name": "store", "variables": {"AWS_SECRET_ACCESS_KEY": "secret"}}],
        "workers": {
            "dlrm": {
                "nodes": 4, "processes": 8,
                "pod": {
                    "cpu": "16", "memory": "128Gi", "gpus": 8, "node_selector": {"gpu": "h200"}, "timeout_minutes": 60,
                    "tolerations": [{"key": "nvidia.com/gpu"}],
                },
            },
            "xgboost": {"nodes": 2},
        },
    }
)  # fmt: skip
SECTION = XGBoostModel(features=("user_id", "item_id"), rounds=4)


def manifest(cluster: Cluster = CLUSTER) -> Object:
    return train_job("train-dlrm-1", cluster, cluster.workers["dlrm"], "s3://models/shortlist", "trainings/1")


def test_manifest_is_what_the_published_schema_wants() -> None:
    train_job = manifest()
    assert problems(train_job) == []
    trainer = train_job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"], trainer["image"]) == (4, 8, CLUSTER.images.gpu)
    assert trainer["resourcesPerNode"]["limits"] == {"cpu": "16", "memory": "128Gi", "nvidia.com/gpu": "8"}
    assert train_job["spec"]["activeDeadlineSeconds"] == 3_600
    (patch,) = train_job["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["nodeSelector"]) == ("shortlist-pipeline", {"gpu": "h200"})
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tmp", "/dev/shm"]  # noqa: S108 - in a pod
    assert trainer["env"][0] == {"name": "OMP_NUM_THREADS", "value": "2"}
    assert trainer["env"][1]["valueFrom"] == {"secretKeyRef": {"name": "store", "key": "secret"}}
    outside_aws = CLUSTER.model_copy(update={"variables": {"AWS_ENDPOINT_URL": "https://s3.example.com"}})
    assert manifest(outside_aws)["spec"]["trainer"]["env"][1] == {
        "name": "AWS_ENDPOINT_URL",
        "value": "https://s3.example.com",
    }


@pytest.mark.parametrize(
    "spoil",
    [
        lambda spec: spec.pop("runtimeRef"),
        lambda spec: spec["trainer"].update(numNodes="4"),
        lambda spec: spec["trainer"].update(nodes=4),
        lambda spec: spec.update(podTemplateOverrides=[]),  # gone since Trainer 2.2
        lambda spec: spec["runtimePatches"][0].pop("manager"),
        lambda spec: spec["trainer"]["env"][1].update(valueFrom={"secretKeyRef": {"name": "store"}}),
        lambda spec: spec.update(activeDeadlineSeconds=0),
    ],
)
def test_the_schema_refuses_spoilt_manifests(spoil: Callable[[Object], Any]) -> None:
    train_job = copy.deepcopy(manifest())
    spoil(train_job["spec"])
    assert problems(train_job)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": {}}, r"runtime\.cluster\.images\.gpu: workers need this image and nothing names it"),
        ({"images": {"gpu": "gpu:latest"}}, "'gpu:latest' has no digest"),
        ({"workers": {"dlrm": {"processes": 8, "pod": {"gpus": 4}}}}, "4 GPUs for 8 processes; wanted one process per"),
    ],
)
def test_an_impossible_job_is_refused_before_it_is_created(
    change: Object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHORTLIST_GPU_IMAGE", raising=False)
    with pytest.raises(ValueError, match=message):
        manifest(Cluster.model_validate({**CLUSTER.model_dump(), **change}))


def test_an_image_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORTLIST_GPU_IMAGE", IMAGE)
    changed = Cluster.model_validate({**CLUSTER.model_dump(), "images": {}})
    assert manifest(changed)["spec"]["trainer"]["image"] == IMAGE


def test_workers_are_used_where_they_are_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    runtime_json = CLUSTER.model_dump_json()
    assert distributed_launch_for("dlrm", "", "x") is None
    assert distributed_launch_for("logistic", runtime_json, "x") is None
    assert distributed_launch_for("dlrm", Cluster(workers={"dlrm": Workers()}).model_dump_json(), "x") is None
    launch = distributed_launch_for("dlrm", runtime_json, "x")
    assert launch is not None and launch.world == 32


@pytest.fixture
def trainer() -> Iterator[TrainJobs]:
    with running(TrainJobs()) as server:
        yield server


@pytest.fixture
def place(trainer: TrainJobs, s3: Any) -> TrainJobContext:
    api = KubernetesAPI(client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{trainer.port}")), "shortlist", 5)
    objects = open_object_store(StorageConfig(objects=s3.url))
    return TrainJobContext(api, objects, CLUSTER, CLUSTER.workers["xgboost"], sleep=_nap)


def _nap(seconds: float) -> None:
    time.sleep(seconds / 50)


def job(table: DayTable, **section: Any) -> DistributedJob:
    runtime = Runtime(engine="cpu", seed=3)
    return DistributedJob.plan("xgboost", SECTION.model_copy(update=section), table, runtime, None, 2)


@pytest.mark.long
def test_pods_train_the_model_once(place: TrainJobContext, trainer: TrainJobs, table: DayTable, tmp_path: Path) -> None:
    train_on_cluster(place, job(table), tmp_path / "model")
    assert load_ranker(tmp_path / "model").record.rounds == 4
    assert trainer.created == [job_name(job(table))]
    train_on_cluster(place, job(table), tmp_path / "again")  # a step that runs again finds what was made
    assert len(trainer.created) == 1
    assert load_ranker(tmp_path / "again").record == load_ranker(tmp_path / "model").record
    keys = place.objects.keys(f"trainings/{trainer.created[0]}/share-0/")
    first_share = set(job(table).shares[0])
    assert {key.partition("share-0/")[2] for key in keys} == first_share | {"published.json"}


def test_a_failed_training_is_created_anew_and_its_reason_reported(
    place: TrainJobContext, trainer: TrainJobs, table: DayTable, tmp_path: Path
) -> None:
    trainer.ends = [ended("Failed", "DeadlineExceeded", "TrainJob exceeded its deadline")] * 2
    trainer.events = [
        {
            "metadata": {"name": "e"},
            "involvedObject": {},
            "reason": "OOMKilled",
            "message": "node-0-1 ran out of memory",
        }
    ]
    for tries in (1, 2):
        with pytest.raises(ShortlistError, match=r"DeadlineExceeded: TrainJob exceeded .*\n  OOMKilled: node-0-1 ran"):
            train_on_cluster(place, job(table), tmp_path / "model")
        assert len(trainer.created) == tries
    assert not (tmp_path / "model").exists()


@pytest.mark.long
def test_events_that_may_not_be_read_hide_no_reason(
    place: TrainJobContext, trainer: TrainJobs, table: DayTable, tmp_path: Path
) -> None:
    trainer.ends = [ended("Failed", "DeadlineExceeded", "too slow")]
    trainer.may_read_events = False
    with pytest.raises(ShortlistError, match="DeadlineExceeded: too slow\nAll its workers were stopped"):
        train_on_cluster(place, job(table), tmp_path / "model")


def test_a_workers_own_words_come_back(
    place: TrainJobContext, trainer: TrainJobs, table: DayTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = job_name(job(table))
    created = trainer._create

    def create(body: Object) -> tuple[int, Object]:
        failure = {
            "message": "the champion reads other features",
            "error_class": "shortlist.ranking.ranker:IncompatibleModelError",
        }
        place.objects.write(f"trainings/{name}/failed.json", json.dumps(failure).encode())
        return created(body)

    monkeypatch.setattr(trainer, "_create", create)
    trainer.ends = [ended("Failed", "JobsFailed", "a pod failed")]
    with pytest.raises(IncompatibleModelError, match="the champion reads other features"):
        train_on_cluster(place, job(table), tmp_path / "model")


def test_a_deleted_training_is_noticed(
    place: TrainJobContext, trainer: TrainJobs, table: DayTable, tmp_path: Path
) -> None:
    trainer.forget = True
    with pytest.raises(ShortlistError, match="somebody deleted it before it ended"):
        train_on_cluster(place, job(table), tmp_path / "model")


def test_progress_is_told_once_per_change(
    place: TrainJobContext, trainer: TrainJobs, table: DayTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "events.jsonl"))
    pods = {"name": "node", "active": 2, "ready": 1, "failed": 0, "succeeded": 0, "suspended": 0}
    trainer.status = {"jobsStatus": [pods]}
    looks: list[float] = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            trainer.jobs[trainer.created[0]]["status"] = ended("Failed", "Stopped", "enough")

    with pytest.raises(ShortlistError, match="Stopped: enough"):
        train_on_cluster(place._replace(sleep=look), job(table), tmp_path / "model")
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["text"] for event in events] == ["2 active, 1 ready"]


def test_other_inputs_are_another_job(table: DayTable) -> None:
    assert job_name(job(table)) == job_name(job(table))
    assert job_name(job(table)) != job_name(job(table, rounds=5))
